"""Whether all ranks continue from the same point after a restart: checkpoints on local disks may differ."""

from __future__ import annotations

from typing import Callable, Dict, List, Literal

from ...protocol.events import Event
from ...protocol.gang import SignsOfLife
from ..journal import note

_Field = Literal["first_steps", "first_epochs"]
_NAMES: Dict[_Field, str] = {"first_steps": "step", "first_epochs": "epoch"}
_MOST_RANKS = 65_536
_MOST_SHOWN = 8


class Resume:
    """Takes the `signs` of all hosts; emits one `note` for an attempt whose ranks begin at different points.

    Only ranks that began the first attempt with the same step are compared: others may log at another interval.

    Args:
        say: Takes an event.
    """

    def __init__(self, say: Callable[[Event], None]) -> None:
        self._say = say
        self._attempt = 0
        self._noted = 0
        self._first: Dict[str, Dict[int, float]] = {}
        """Of the first attempt with reports."""
        self._now: Dict[str, Dict[int, float]] = {}
        """Of the newest attempt."""

    def hear(self, attempt: int, message: SignsOfLife) -> None:
        """Take the `signs` of a host."""
        if attempt < self._attempt:
            return
        if attempt > self._attempt:
            self._first = self._first or self._now
            self._attempt, self._now = attempt, {}
        for field in _NAMES:
            known = self._now.setdefault(field, {})
            for rank, value in message.get(field, {}).items():
                if len(known) < _MOST_RANKS:
                    known.setdefault(int(rank), value)
        if self._noted != attempt:
            self._compare()

    def _compare(self) -> None:
        for field, name in _NAMES.items():
            before = self._first.get(field, {})
            now = {rank: value for rank, value in self._now.get(field, {}).items() if rank in before}
            if len({before[rank] for rank in now}) == 1 and len(set(now.values())) > 1:
                self._noted = self._attempt
                points: Dict[float, List[int]] = {}
                for rank, value in sorted(now.items()):
                    points.setdefault(value, []).append(rank)
                starts = " and ".join(f"{name} {value:g} on {_ranks(ranks)}" for value, ranks in points.items())
                text = (
                    f"the ranks do not go on from the same point: attempt {self._attempt} begins with {starts}."
                    " Checkpoints that every host keeps for itself may differ: keep them where all hosts see the same"
                )
                self._say(note(text))
                return


def _ranks(ranks: List[int]) -> str:
    more = len(ranks) - _MOST_SHOWN
    shown = ", ".join(map(str, ranks[:_MOST_SHOWN])) + (f" and {more} more" if more > 0 else "")
    return ("ranks " if len(ranks) > 1 else "rank ") + shown
