"""The line of progress: step, bar, share, time left, attempt."""

from __future__ import annotations

from itertools import chain
from typing import ClassVar

from textual.strip import Strip

from runner.formatting import duration
from runner.render.status import eta, metric_words, progress
from runner.render.waiting import stage
from runner.runs.state import RunState
from runner.text import clean
from tui.run.feed import Snapshot
from tui.widgets.drawn import Drawn, Piece, cells, line


class ProgressLine(Drawn):
    """`step 1,240 / 5,000 ━━━━━╸───── 25 %  eta 0:37:40  attempt 1 of 3`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"progress--done", "progress--rest", "progress--quiet"}
    DEFAULT_CSS = """
    ProgressLine {
        height: 1; padding: 0 1; text-style: none;
        & > .progress--done { color: $accent; }
        & > .progress--rest { color: $rule; }
        & > .progress--quiet { color: $muted; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._snapshot: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        self._snapshot = snapshot
        self.redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        """Draw the texts, and a bar in the remaining room."""
        if self._snapshot is None:
            return []
        snapshot, quiet = self._snapshot, self.component("progress--quiet")
        state = snapshot.state
        state_done, left_time = progress(state), time_left(state)
        ends: list[list[Piece]] = []
        if left_time is not None:
            ends.append([("  eta ", quiet), f"{duration(left_time):>5}"])
        if state.attempt and (snapshot.setup.attempts > 1 or state.attempt > 1):
            most = max(snapshot.setup.attempts, state.attempt)
            ends.append([("  attempt ", quiet), f"{state.attempt}", (f" of {most}", quiet)])
        if state_done is None:
            return [line([(stage(state), quiet), *chain(*ends)])]
        step, steps = state_done
        share = max(0.0, min(1.0, step / steps))
        total = f"{steps:,.0f}"
        left: list[Piece] = [("step ", quiet), f"{step:>{len(total)},.0f}", (f" / {total}  ", quiet)]
        ends.insert(0, [f" {share * 100:3.0f} %"])
        room = width - cells(left) - sum(map(cells, ends))
        while room < 8 and len(ends) > 1:
            room += cells(ends.pop())
        return [line([*left, *self._bar(share, max(0, room)), *chain(*ends)])]

    def _bar(self, share: float, width: int) -> list[Piece]:
        full = int(share * width)
        head = "╸" if full < width else ""
        rest = "─" * (width - full - len(head))
        return [("━" * full + head, self.component("progress--done")), (rest, self.component("progress--rest"))]


def time_left(state: RunState) -> float | None:
    """Estimated seconds left; None if the run is not running."""
    attempts = [host.story.attempts.get(state.attempt) for host in state.hosts]
    ending = state.result is not None or any(attempt and attempt.stopping for attempt in attempts)
    return None if ending or state.hosts[0].story.stall is not None else eta(state)


def facts(snapshot: Snapshot, charted: Snapshot) -> list[str]:
    """The facts beside a run's name, the most important first.

    Args:
        charted: The snapshot that the charts show; the numbers are taken from it, as means of the ranks.
    """
    state = snapshot.state
    hosts, ranks = len(state.hosts), state.world_size
    found = [f"{hosts} host{'' if hosts == 1 else 's'}", f"{ranks} rank{'' if ranks == 1 else 's'}"]
    found += [f"job {clean(state.queued['job'])}"] if state.queued is not None else []
    found += [word for word in (snapshot.setup.backend, snapshot.setup.strategy) if word]
    tracks, metrics = charted.history.all, dict(charted.state.metrics)
    for name in metrics:
        mean = tracks[name].at(charted.now) if name in tracks else None
        if mean is not None:
            metrics[name] = mean
    words = metric_words(metrics)
    if len(charted.history.each.get("loss", ())) > 1:
        words = [f"mean {one}" if one.startswith("loss ") else one for one in words]
    return found + words
