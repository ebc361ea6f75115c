"""The metrics of one attempt as curves, the common input of all trackers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from disttui.runner.protocol.metrics import Metrics
from disttui.runner.untrusted.records import whole

_NO_METRICS = ("t", "step", "steps")
"""The time, the step and the number of all steps."""
_LONGEST_NAME = 200
_LATEST = 1e11
"""The bound of usable times: what a script writes may be anything."""
_OTHER = re.compile(r"[^A-Za-z0-9_.: -]")
"""MLflow, the strictest of all, refuses these in a name."""


class MetricPoint(NamedTuple):
    """Values at one step."""

    step: int
    t: float
    """Unix time."""
    values: dict[str, float]
    """Not-a-number and the infinities among them."""


class Tracked(NamedTuple):
    """Which attempt of which run is sent."""

    run: str
    attempt: int
    processes: int
    hyperparameters: Mapping[str, str | float] = MappingProxyType({})

    @property
    def config(self) -> dict[str, str | float]:
        """What trackers get of the run besides its metrics."""
        return {**self.hyperparameters, "disttui_run": self.run, "attempt": self.attempt, "processes": self.processes}

    @property
    def name(self) -> str:
        """Its name at a tracker: the run's id, from the second attempt on with the attempt's number."""
        return self.run if self.attempt == 1 else f"{self.run}.{self.attempt}"


class Tracker(Protocol):
    """Sends the points of one attempt to a place: a project, or a folder. Returns where they can be seen.

    The packages of trackers raise errors of any kind.
    """

    def __call__(self, place: str, tracked: Tracked, points: Sequence[MetricPoint]) -> str: ...


def points(records: Iterable[tuple[int, Metrics]], since: float, *, by_rank: bool = False) -> list[MetricPoint]:
    """The points of an attempt by step, each value the mean of the ranks that reported it.

    A record without a step counts for the step before it; of a rank's values of one step and name the last counts.

    Args:
        records: (rank, record), of each rank in the order in which it wrote them.
        since: The time of steps before the first record that has one.
        by_rank: Where several ranks report, each one's own values too, as `rank-1/loss`.
    """
    newest: dict[int, int] = {}
    times: dict[int, float] = {}
    found: defaultdict[int, defaultdict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for rank, record in records:
        step = whole(record.get("step"))
        newest[rank] = step = newest.get(rank, 0) if step is None else step
        when = _number(record.get("t"))
        if when is not None and 0 <= when < _LATEST:
            times[step] = max(when, times.get(step, when))
        for name, value in record.items():
            number = None if name in _NO_METRICS else _number(value)
            if number is not None and (kept := usable(name)):
                found[step][kept][rank] = number
    several = by_rank and len(newest) > 1
    made = []
    last = since
    for step in sorted(found):
        last = times.get(step, last)
        values = {name: sum(ranks.values()) / len(ranks) for name, ranks in found[step].items()}
        if several:
            values |= {f"rank-{rank}/{name}": one for name, ranks in found[step].items() for rank, one in ranks.items()}
        made.append(MetricPoint(step, last, values))
    return made


def _number(value: object) -> float | None:
    """A number, also one that is not finite and so written as text; None for anything else."""
    if isinstance(value, bool) or not (isinstance(value, int | float) or value in ("nan", "inf", "-inf")):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def usable(name: str) -> str:
    """A name that every tracker takes, also those that make paths of it; empty where nothing is left."""
    parts = (_OTHER.sub("_", part) for part in name[:_LONGEST_NAME].split("/"))
    return "/".join(part for part in parts if part.strip(". "))
