"""The records of rank-K.metrics.jsonl (docs/formats.md, "metrics")."""

from __future__ import annotations

from typing import Dict, Mapping

Metrics = Mapping[str, object]
"""Name → a number or a short text. Any script writes them: check the type of a value before using it."""

NOT_FINITE = ("nan", "inf", "-inf")
"""The words for numbers that are not finite."""


def updated(known: Metrics, record: Metrics) -> Dict[str, object]:
    """The newest value of every metric after one more record.

    A total of steps that the step has passed was not that of the run, but of an epoch: it is left out.
    """
    found = {**known, **record}
    if "steps" in record or "steps" not in found:
        return found
    step, steps = found.get("step"), found["steps"]
    if isinstance(step, (int, float)) and isinstance(steps, (int, float)) and step > steps:
        del found["steps"]
    return found
