"""The records of rank-K.metrics.jsonl (docs/formats.md, "metrics")."""

from __future__ import annotations

from typing import Mapping

Metrics = Mapping[str, object]
"""Name → a number or a short text. Any script writes them: check the type of a value before using it."""
