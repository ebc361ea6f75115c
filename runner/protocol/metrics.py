"""The records of rank-K.metrics.jsonl (docs/formats.md, "metrics")."""

from __future__ import annotations

from typing import Dict, Mapping

from .limits import MOST_METRICS

Metrics = Mapping[str, object]
"""Name → a number or a short text. Any script may write them: check the type of a value before using it."""

NOT_FINITE = ("nan", "inf", "-inf")
"""Texts for numbers that are not finite."""

_AT_LEAST = 10.0
"""Seconds without a record that are never suspicious; a rank's pace must have been observed for as long."""


def is_silent(seconds: float, pause: float, watched: float) -> bool:
    """Whether a running rank has been without a record for suspiciously long.

    Args:
        seconds: Time since its last record.
        pause: The longest pause between two of its records.
        watched: Time from its first record to its last.
    """
    # A silence is suspicious if it is this many times the longest pause between two earlier records
    return watched >= _AT_LEAST and seconds > max(_AT_LEAST, 3.0 * pause)


def updated(known: Metrics, record: Metrics) -> Dict[str, object]:
    """The newest value of every metric after one more record.

    A total that the step has exceeded was an epoch's, not the run's: it is left out. If a script invents names, the
    first MOST_METRICS are kept.
    """
    if len(known) + len(record) > MOST_METRICS and len(known.keys() | record.keys()) > MOST_METRICS:
        record = {name: value for name, value in record.items() if name in known}
    found = {**known, **record}
    step, steps = found.get("step"), found.get("steps")
    if isinstance(step, (int, float)) and isinstance(steps, (int, float)) and step > steps:
        del found["steps"]
    return found
