"""The signs of life of one host's ranks: when each last logged or stepped, and how long its steps take."""

from __future__ import annotations

from typing import Iterable, Sequence

from ...protocol.gang import SignsOfLife
from ...protocol.metrics import Metrics

_RECENT = 30.0
"""Seconds of steps that a rank's usual step time is taken from."""
_REPEATED = 3
"""Steps that it takes at least: one that is late says nothing of the next."""
_OWN_TIME = ("forward_time", "step_time")
"""Metrics that distinguish a slow rank from a waiting one, best first: under DDP all ranks have the same step time."""

_POINTS = ("step", "epoch")
"""Metrics that show where in the training a rank is."""

_MOST_POINTS = 64
"""Ranks of a host that are reported: the size of a message is limited."""


class Signs:
    """Collects what the leader needs to detect a stalled gang and a slow rank. Times are monotonic seconds."""

    def __init__(self, ranks: Iterable[int], now: float) -> None:
        self._last = dict.fromkeys(ranks, now)
        self._times: dict[int, list[tuple[float, float]]] = {rank: [] for rank in self._last}
        self._first: dict[str, dict[str, float]] = {name: {} for name in _POINTS}

    def alive(self, rank: int, now: float) -> None:
        """A rank has logged or stepped."""
        self._last[rank] = now

    def steps(self, rank: int, records: Iterable[Metrics], now: float) -> None:
        """A rank has made steps: its new metrics."""
        self.alive(rank, now)
        found = [next((time for name in _OWN_TIME if (time := _time(r.get(name))) is not None), None) for r in records]
        times = [*self._times[rank], *((now, time) for time in found if time is not None)]
        recent = sum(now - when <= _RECENT for when, _ in times)
        self._times[rank] = times[-min(max(recent, _REPEATED), 500) :]

    def begins(self, rank: int, record: Metrics) -> None:
        """A rank has written its first metrics: where in the training it is."""
        for name in _POINTS:
            value = record.get(name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e12:
                continue
            if len(self._first[name]) < _MOST_POINTS:
                self._first[name][str(rank)] = value

    def message(self, now: float, shows: Sequence[str]) -> SignsOfLife:
        """Return the message `signs` for the leader.

        Args:
            shows: Conditions of the host that may slow its ranks down, as sentences.
        """
        silent = {str(rank): round(now - last, 2) for rank, last in self._last.items()}
        enough = {rank: found for rank, found in self._times.items() if len(found) >= _REPEATED}
        times = {str(rank): median([time for _, time in found]) for rank, found in enough.items()}
        found = SignsOfLife(silent=silent, times=times, shows=list(shows)[:8])
        if self._first["step"]:
            found["first_steps"] = self._first["step"]
        if self._first["epoch"]:
            found["first_epochs"] = self._first["epoch"]
        return found


def median(values: Sequence[float]) -> float:
    """The middle one of at least one value, the mean of both where there are two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _time(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 < value < 1e9 else None
