"""Monitors a running attempt for the leader: whether the whole gang has stalled, and whether one rank stays slow."""

from __future__ import annotations

import time
from typing import Callable

from ...protocol.events import Event, Stall, Straggler
from ...protocol.gang import SignsOfLife
from ...protocol.watch import median
from ..journal import stamp

AT_LEAST = 30.0
"""Seconds of silence that never count as a stall, whatever the pace."""
USUAL = 5.0
"""A stall is this many times the usual pause between signs of life …"""
LONGEST = 2.0
"""… and this many times the longest recent pause: checkpoints and validation interrupt every run."""
SLOW = 1.5
"""A straggler's step takes this many times the others' median …"""
RECOVERED = 1.2
LONG = 30.0
"""… for this many seconds."""
_LATE = 1.0
"""Seconds by which messages may be late: the time of a sign of life is known by their arrival."""
_USUAL_OF = 3
"""Pauses needed to call one usual: a script that prints nothing has only the one until torch's first line."""


class Health:
    """Takes the `signs` of all hosts; emits `stall` and `straggler` events.

    Args:
        say: Called with an event.
        ask: Called with a number when every host is to write its stacks-<number>.json.
        patience: Seconds of silence of all ranks that make a stall; None derives them from the ranks' pace.
    """

    def __init__(self, say: Callable[[Event], None], ask: Callable[[int], None], patience: float | None = None) -> None:
        self._patience = patience
        self._say = say
        self._ask = ask
        self._asked = 0
        self._begin(0, 0.0)

    def ask(self) -> None:
        """Have every host write the stacks of its ranks."""
        self._asked += 1
        self._ask(self._asked)

    def _begin(self, attempt: int, now: float) -> None:
        self._attempt = attempt
        self._last: dict[int, float] = {}
        self._stepped: dict[int, float] = {}
        self._first_step: float | None = None
        self._by_steps = False
        """Whether steps decide: after two steps, output without a step does not count as progress."""
        self._gang_last = now
        self._gaps: list[float] = []
        self._stalled = False
        self._times: dict[int, tuple[float, float]] = {}
        self._shows: dict[int, list[str]] = {}
        self._slow: dict[int, float] = {}
        self._reported: set[int] = set()

    def hear(self, node: int, message: SignsOfLife, now: float) -> None:
        """Process a host's `signs`. `now` is monotonic seconds."""
        silent = message["silent"]
        for rank, seconds in silent.items():
            self._last[int(rank)] = now - float(seconds)
        for rank, seconds in message.get("stepped", {}).items():
            self._stepped[int(rank)] = now - float(seconds)
        for rank in silent:
            self._shows[int(rank)] = [str(text) for text in message["shows"]]
        for rank, seconds in message["times"].items():
            self._times[int(rank)] = (now, float(seconds))

    def look(self, attempt: int, now: float) -> None:
        """Check for a stall and for stragglers. `attempt` is the running one, or 0."""
        if attempt != self._attempt:
            self._begin(attempt, now)
        if not attempt or not self._last:
            return
        self._let_steps_decide()
        newest = max((self._stepped if self._by_steps else self._last).values())
        # A host's report is up to two seconds old; its clock is not used here.
        if newest > self._gang_last + _LATE:
            if self._stalled:
                self._say_stall(now, over=True)
            self._gaps = [*self._gaps, newest - self._gang_last][-50:]
            self._gang_last = newest
            self._stalled = False
        elif not self._stalled and now - self._gang_last > self.limit:
            self._stalled = True
            self.ask()
            self._say_stall(now)
        self._look_for_stragglers(now)

    def _let_steps_decide(self) -> None:
        if self._by_steps or not self._stepped:
            return
        newest = max(self._stepped.values())
        self._first_step = newest if self._first_step is None else self._first_step
        if newest > self._first_step + _LATE:
            self._by_steps, self._gaps, self._gang_last = True, [], self._first_step

    @property
    def limit(self) -> float:
        """Seconds of silence of all ranks that make a stall."""
        if self._patience is not None:
            return self._patience
        usual = median(self._gaps) if self._gaps else 0.0
        return max(AT_LEAST, USUAL * usual, LONGEST * max(self._gaps, default=0.0))

    def _say_stall(self, now: float, over: bool = False) -> None:
        signs = self._stepped if self._by_steps else self._last
        silent = {str(rank): round(now - last, 1) for rank, last in sorted(signs.items())}
        stall = Stall(
            t=stamp(),
            e="stall",
            attempt=self._attempt,
            since=round(time.time() - (now - self._gang_last), 3),
            pace=round(median(self._gaps), 2) if len(self._gaps) >= _USUAL_OF else None,
            silent=silent,
            stacks=f"stacks-{self._asked}.json",
        )
        if self._by_steps:
            stall["steps"] = True
        if over:
            stall["over"] = True
        self._say(stall)

    def _look_for_stragglers(self, now: float) -> None:
        times = {rank: seconds for rank, (when, seconds) in self._times.items() if now - when <= 15.0}
        for rank, seconds in times.items():
            others = [other for number, other in times.items() if number != rank]
            if not others:
                continue
            usual = median(others)
            if seconds > SLOW * usual:
                since = self._slow.setdefault(rank, now)
                if now - since >= LONG and rank not in self._reported:
                    self._reported.add(rank)
                    self._say_straggler(rank, seconds, usual)
            elif rank not in self._reported or seconds < RECOVERED * usual:
                self._slow.pop(rank, None)
                if rank in self._reported:
                    self._reported.discard(rank)
                    self._say_straggler(rank, seconds, usual, over=True)

    def _say_straggler(self, rank: int, seconds: float, usual: float, over: bool = False) -> None:
        slow = Straggler(
            t=stamp(),
            e="straggler",
            attempt=self._attempt,
            rank=rank,
            median=round(seconds, 6),
            others=round(usual, 6),
            shows=self._shows.get(rank, []),
        )
        if over:
            slow["over"] = True
        self._say(slow)
