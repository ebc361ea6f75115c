"""Parses a typed time, and finds the line that came then."""

from __future__ import annotations

import re
from bisect import bisect_left
from datetime import datetime

from runner.errors import InputError
from tui.log.sources import AttemptLog

_CLOCK = re.compile(r"([0-2]?\d):([0-5]\d)(?::([0-5]\d))?")
_SINCE = re.compile(r"\+(?:(\d+):)?(\d+):([0-5]\d)|\+(\d+)s?")


def moment(text: str, begin: float) -> float:
    """The time (unix time, s) of `12:03`, `12:03:05`, `+90` or `+1:30` (since the log began).

    Args:
        begin: The time of the log's first line. A clock time before it means the next day.

    Raises:
        InputError: The text is not a time.
    """
    text = text.strip()
    if since := _SINCE.fullmatch(text):
        hours, minutes, seconds, plain = (int(group or 0) for group in since.groups())
        return begin + plain + hours * 3600 + minutes * 60 + seconds
    clock = _CLOCK.fullmatch(text)
    if not clock or int(clock[1]) > 23:
        raise InputError("not a time", "Type 12:03, 12:03:05, or +1:30 for 90 s after the beginning.")
    hour, minute, second = (int(group or 0) for group in clock.groups())
    day = datetime.fromtimestamp(begin)
    found = day.replace(hour=hour, minute=minute, second=second, microsecond=0).timestamp()
    return found if found + 60 > begin else found + 86400


def place_at(log: AttemptLog, time: float, total: int) -> int:
    """The place of the first of `total` lines that came at or after a time."""
    return bisect_left(range(total), time, key=lambda place: log.time_of(log.order.items[place]))


def clock(time: float) -> str:
    """A time of day in this machine's zone."""
    return datetime.fromtimestamp(time).strftime("%H:%M:%S")
