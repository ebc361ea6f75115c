"""Readable numbers: durations, moments, counts, bytes."""

from __future__ import annotations

import math
import time
from typing import Any

from runner.protocol.metrics import NOT_FINITE

_AGES = 1e11
"""Seconds: some 3,000 years."""


def number(value: Any) -> float | None:
    """`value` as a float if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # a whole number beyond every float
        return None
    return found if math.isfinite(found) else None


def figure(value: Any) -> str | None:
    """A metric with four digits; the word that stands for one that is not finite, such as nan; else None."""
    known = number(value)
    return f"{known:.4g}" if known is not None else value if value in NOT_FINITE else None


def duration(seconds: float) -> str:
    """`0:37`, `12:31`, `1:02:07`, `3 d 04:11`; `?` for an impossible duration."""
    known = number(seconds)
    if known is None or known >= _AGES:
        return "?"
    whole = max(0, int(known))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days} d {hours:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def when(moment: float) -> str:
    """`14:03:11` today, `2026-03-01 14:03` before, `?` for an impossible time."""
    there = _local(moment)
    if there is None:
        return "?"
    today = time.localtime()[:3] == there[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", there)


def clock(moment: float) -> str:
    """`14:03:11`, without the day; `?` for an impossible time."""
    there = _local(moment)
    return time.strftime("%H:%M:%S", there) if there else "?"


def _local(moment: float) -> time.struct_time | None:
    known = number(moment)
    try:
        return None if known is None else time.localtime(known)
    except (OverflowError, ValueError, OSError):
        return None


def count(value: float) -> str:
    """`940`, `41.2k`, `1.3M`; `?` for what is no finite number."""
    if number(value) is None:
        return "?"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.1f}{unit}"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"


def amount(number_of: int, noun: str) -> str:
    """`1 rank`, `12 ranks`, `2 processes`."""
    many = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number_of:,} {noun if number_of == 1 else many}"


def gibibytes(value: float) -> str:
    """`11.2 GiB`; below one, `640 MiB`; `?` for what is no finite number."""
    if number(value) is None:
        return "?"
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def plural(count: int, word: str) -> str:
    """`1 GPU`, `2 GPUs`, `2 processes`."""
    ending = "" if count == 1 else "es" if word.endswith("s") else "s"
    return f"{count} {word}{ending}"
