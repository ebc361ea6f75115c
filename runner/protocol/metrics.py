"""What ranks measure: the records of rank-K.metrics.jsonl (docs/formats.md, "metrics")."""

from __future__ import annotations

from typing import Mapping

Metrics = Mapping[str, object]
"""Name → a number or a short text; any script writes them, so that whoever uses a value looks at its kind."""
