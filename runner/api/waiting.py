"""Waits until runs have ended or met a condition."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from disttui.runner.api.following import attach
from disttui.runner.api.viewer import Viewer
from disttui.runner.diagnose.cause import find
from disttui.runner.diagnose.frames import frames, own
from disttui.runner.errors import DisttuiError, HostError, InputError
from disttui.runner.formatting import number
from disttui.runner.paths import PathError
from disttui.runner.runs.condition import run_word
from disttui.runner.runs.follow import LinkNews
from disttui.runner.runs.following import CaughtUp, Following, RunControl
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.state import RunState
from disttui.runner.runs.store import HostStore, host_folder
from disttui.runner.text import LineMaker, clean

CODES = {"running": 10, "step": 11, "loss": 12, "stall": 13, "alarm": 14}
"""Condition → the exit code of `disttui wait`. `end` has that of the run: 0 finished, 1 failed or lost, 130 stopped."""
TIMED_OUT = 124
_LEAVE = 0.5
"""Seconds for threads to close their mirrors."""
_TAIL = 8192
"""Bytes at the end of a log to search for its last lines."""
_LINES = 3
_BOUND = re.compile(r"(?:(step)\s*>=|(loss)\s*<)\s*([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)")


class Condition(NamedTuple):
    """Something to wait for."""

    kind: str
    """end, running, step, loss, stall or alarm."""
    bound: float = 0.0
    text: str = ""
    """Text as given."""

    def holds(self, state: RunState) -> bool:
        """Whether a run meets it now."""
        if self.kind == "step":
            step = number(state.metrics.get("step"))
            return step is not None and step >= self.bound
        if self.kind == "loss":
            loss = number(state.metrics.get("loss"))
            return loss is not None and loss < self.bound
        if self.kind == "end":
            return state.result is not None
        if self.kind == "alarm":
            return state.result is None and any(host.story.alarms for host in state.hosts)
        return run_word(state) == {"running": "running", "stall": "stalled"}[self.kind]


class Evidence(NamedTuple):
    """Where to look for the cause."""

    rank: int | None
    host: str
    place: str
    """`train.py:41` of the innermost frame of the user's code; empty: unknown."""
    lines: tuple[str, ...]
    """The last lines of the rank, or of its launcher; safe to print."""


@dataclass(frozen=True)
class Waited:
    """A run after waiting for it."""

    run: KnownRun
    state: RunState
    met: str
    """The condition that was met, as given, or `end`; empty: none."""
    code: int
    evidence: Evidence | None = None


def conditions(text: str) -> tuple[Condition, ...]:
    """The conditions in `end|alarm|stall|running|step>=100|loss<2.5`. Raises InputError."""
    found = []
    for word in (part.strip() for part in text.split("|")):
        bound = _BOUND.fullmatch(word)
        if bound:
            found.append(Condition(bound[1] or bound[2], float(bound[3]), word))
        elif word in ("end", "running", "stall", "alarm"):
            found.append(Condition(word, text=word))
        else:
            cure = "Give end, running, stall, alarm, step>=N or loss<X, or several with | between them, in quotes."
            raise InputError(f"--until {clean(word)[:100]!r}: not a condition", cure)
    return tuple(found)


def wait(
    viewer: Viewer, runs: Sequence[KnownRun], until: str = "end", *, first: bool = False, timeout: float | None = None
) -> list[Waited | DisttuiError]:
    """Wait until each run has met a condition or ended. Survives lost connections.

    A run that ends is not waited for any longer, whatever the condition.

    Args:
        until: Conditions as of `conditions`; one of them is enough.
        first: Return as soon as this is true of one run.
        timeout: Seconds; None: wait forever.

    Returns:
        For each run how it is then, or why it cannot be followed.

    Raises:
        InputError: A condition is invalid.
    """
    wanted = conditions(until)
    controls = [RunControl() for _ in runs]
    done: queue.Queue[tuple[int, Waited | Exception]] = queue.Queue()

    def one(at: int) -> None:
        try:
            _wait(viewer, runs[at], wanted, controls[at], lambda found: done.put((at, found)))
        except Exception as error:
            done.put((at, error))

    threads = [threading.Thread(target=one, args=(at,), name=f"wait {at}", daemon=True) for at in range(len(runs))]
    for thread in threads:
        thread.start()
    found: dict[int, Waited | DisttuiError] = {}

    def take(at: int, answer: Waited | Exception) -> None:
        if not isinstance(answer, Waited | DisttuiError):
            raise answer
        found.setdefault(at, answer)

    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        while len(found) < len(runs) and not (
            first and any(isinstance(answer, Waited) and answer.met for answer in found.values())
        ):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            try:
                take(*done.get(timeout=1.0 if left is None else min(1.0, left)))
            except queue.Empty:
                continue
    finally:
        for control in controls:
            control.leave = True
        leave_by = time.monotonic() + _LEAVE
        for thread in threads:
            thread.join(max(0.0, leave_by - time.monotonic()))
    while not done.empty():
        take(*done.get())
    return [found.get(at) or Waited(run, run.begin(), "", TIMED_OUT) for at, run in enumerate(runs)]


def overall(found: Sequence[Waited | DisttuiError], *, first: bool = False) -> int:
    """The exit code of `disttui wait`.

    Args:
        first: As of `wait`: the code is that of the run that was first to meet a condition.
    """
    if first and (met := [one.code for one in found if isinstance(one, Waited) and one.met]):
        return met[0]
    codes = [one.code if isinstance(one, Waited) else one.exit_code for one in found]
    # The most urgent code wins.
    return min(codes, key=lambda code: _URGENCY.index(code) if code in _URGENCY else len(_URGENCY), default=0)


_URGENCY = (1, 3, 2, 130, TIMED_OUT, CODES["stall"], CODES["alarm"])


def _wait(
    viewer: Viewer,
    run: KnownRun,
    wanted: Sequence[Condition],
    control: RunControl,
    answer: Callable[[Waited], object],
) -> None:
    if run.problem:
        answer(ended(run, run.begin(), None))
        return
    with attach(viewer, run, control=control) as following:
        # Closing the links takes long while one of them is being opened.
        answer(_watch(run, following, wanted, control))


def _watch(run: KnownRun, following: Following, wanted: Sequence[Condition], control: RunControl) -> Waited:
    caught_up = False
    for update in following:
        if control.leave:
            break
        if isinstance(update, LinkNews) and update.kind == "failed":
            raise HostError("", update.note)  # of this machine, such as a full disk: the run continues
        caught_up = caught_up or isinstance(update, CaughtUp)
        if not caught_up:
            continue  # the state may be outdated
        state = following.state
        # After the end, keep reading: the cause and last metrics of hosts that reconnect may follow.
        if state.result is None and (met := _met(wanted, state)):
            return Waited(run, state, met.text, CODES[met.kind], _evidence(state, following.mirror))
    state = following.state
    if control.leave and state.result is None:
        return Waited(run, state, "", TIMED_OUT, _evidence(state, following.mirror))
    if met := _met([one for one in wanted if one.kind in ("step", "loss")], state):
        return Waited(run, state, met.text, CODES[met.kind], _evidence(state, following.mirror))
    return ended(run, state, following.mirror)


def _met(wanted: Sequence[Condition], state: RunState) -> Condition | None:
    return next((one for one in wanted if one.holds(state)), None)


def ended(run: KnownRun, state: RunState, mirror: Path | None) -> Waited:
    """A run that has ended, or whose end cannot be learned."""
    word = (state.result or {}).get("state", "lost")
    code = 3 if state.problem else {"finished": 0, "stopped": 130}.get(word, 1)
    return Waited(run, state, "end", code, _evidence(state, mirror) if mirror else None)


def _evidence(state: RunState, mirror: Path) -> Evidence | None:
    """The failed frame, and the last lines of the culprit's log, or of the most silent rank's in a stall."""
    cause = find(state) if state.result and state.result.get("state") in ("failed", "lost") else None
    stall = state.hosts[0].story.stall
    place = ""
    if cause:
        node, rank = cause.failure.node, cause.failure.rank
        frame = own(frames(cause.failure.traceback))
        place = frame.place if frame else ""
    else:
        silent = stall.get("silent", {}) if stall else {}
        ranks = [rank for rank in silent if rank.isdecimal()]
        rank = int(max(ranks, key=lambda one: silent[one])) if ranks else next((r for _, r, _ in state.ranks()), 0)
        node = next((host.node for host in state.hosts if host.name == state.host_of(rank)), 0)
    attempt = cause.attempt if cause else state.attempt
    name = f"attempt-{attempt}/" + ("launcher.log" if rank is None else f"rank-{rank}.log")
    return Evidence(rank, state.hosts[node].name, clean(place), _last_lines(mirror, node, name))


def _last_lines(mirror: Path, node: int, name: str) -> tuple[str, ...]:
    maker, found = LineMaker(colours=False), list[str]()
    try:
        store = HostStore(host_folder(mirror, node))
        for _, data in store.read(name, store.files().get(name, (0, 0))[1] - _TAIL):
            found += maker.feed(data)
    except (OSError, PathError):
        return ()
    found += maker.flush()
    return tuple([line for line in found if line.strip()][-_LINES:])
