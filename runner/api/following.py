"""Follows a run from its beginning or from its mirror; replays one from its records."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.hosts.link import Link
from disttui.runner.runs import remote
from disttui.runner.runs.contents import EventLine
from disttui.runner.runs.following import Following, RunControl
from disttui.runner.runs.registry import KnownRun, mirror_of, profile_of, refuse_sandbox
from disttui.runner.runs.remote import REACH, Beginning, fill_all, missing, removed, sync, without_folders
from disttui.runner.runs.replay import Replay
from disttui.runner.runs.replay import replay as fold_mirror
from disttui.runner.runs.store import HostStore, host_folder
from disttui.runner.text import clean

if TYPE_CHECKING:
    from disttui.runner.protocol.watch import Action, RuleName


TAIL = remote.TAIL
"""Bytes of the end of every log that a late viewer gets first."""
REPLAY = 256 * 1024
"""Bytes of the end of every mirrored log that `attach` reads first."""


@contextmanager
def follow(
    viewer: Viewer,
    run: KnownRun,
    links: Sequence[Link | None] | None = None,
    *,
    control: RunControl | None = None,
    tail: int | None = None,
    only_look: bool = False,
) -> Iterator[Following]:
    """Follow a run from its beginning while the block runs. Arguments as for `Following`.

    Raises:
        InputError: The mirror cannot be written.
    """
    with mirror_of(run) as mirror:
        opener = partial(viewer.link_to, run)
        with closing(
            Following(run, mirror, opener, links, control=control, tail=tail, only_look=only_look)
        ) as following:
            yield following


@contextmanager
def attach(
    viewer: Viewer, run: KnownRun, *, control: RunControl | None = None, only_look: bool = False
) -> Iterator[Following]:
    """Follow a running or ended run: mirrored records first, logs from their tails.

    Raises:
        DisttuiError: No host of the run can be reached, and no host's mirror is complete.
    """
    with mirror_of(run) as mirror:
        nodes = [] if run.gone or run.problem else remote.missing(run, mirror)
        with viewer.reach(run, nodes) as reached:
            if len(nodes) == len(run.hosts):
                reached.refuse_none()
            links = [reached.links.get(node) for node in range(len(run.hosts))]
            following = Following(
                run, mirror, partial(viewer.link_to, run), links,
                unreached=reached.errors, control=control, tail=TAIL, replay=REPLAY, only_look=only_look,
            )  # fmt: skip
            with closing(following):
                yield following


def fetch_beginnings(viewer: Viewer, run: KnownRun, wanted: Sequence[Beginning]) -> None:
    """Fetch the requested parts into the mirror of a run that is not followed here; blocks.

    Raises:
        InputError: Another viewer of this machine writes the mirror, or the run's hosts are gone.
        DisttuiError: The first error; all other parts have been fetched where possible.
    """
    refuse_sandbox(run)
    with mirror_of(run) as folder:
        if folder != run.folder:
            raise InputError(f"another disttui is writing {folder}", "Read the logs there.")
        fill_all(partial(viewer.link_to, run), run, wanted, lambda node: HostStore(host_folder(folder, node)))


LIMIT = 5.0
"""Seconds to connect to hosts before the mirror is used without them."""


def replay(viewer: Viewer, run: KnownRun, *, local: bool = False) -> Replay:
    """A run's state, events and metrics, updated from its reachable hosts.

    Args:
        local: Use the mirror alone.
    """
    with mirror_of(run) as folder:
        incomplete = not (local or run.gone or run.problem) and missing(run, folder)
        lacking = _complete(viewer, run, folder, LIMIT) if incomplete else {}
        # Another viewer of this machine has locked the mirror and updates it: use its files, without the hosts.
        found = fold_mirror(run, folder if incomplete else run.folder)
    warnings = [f"{clean(error.sentence)}; using only local records" for error in lacking.values()]
    state = without_folders(found.state, lacking)
    return replace(found, state=state, warnings=(*warnings, *found.warnings))


@dataclass(frozen=True)
class Fired:
    """A rule of `watch` that would have fired."""

    at: float
    """Unix time."""
    attempt: int
    rank: int | None
    """None: it concerns the host, or the whole run."""
    host: str
    rule: str
    do: str
    text: str


def try_rules(viewer: Viewer, run: KnownRun, overrides: Sequence[str] = (), *, local: bool = False) -> list[Fired]:
    """What `watch` rules would have found in a run, in chronological order.

    Rules are judged rank by rank, each the first time that it holds in an attempt, as if nothing had been done then.
    `log` is judged by the lines that are stored, at the times at which they were written.

    Args:
        overrides: `--set` of its profile, such as `watch.spike=stop`.

    Raises:
        InputError: The profile is wrong, or there is no metric to judge.
    """
    from disttui.runner.api.log_lines import LineFilter, LogLines, logs
    from disttui.runner.protocol.watch import Judge

    rules = profile_of(run, overrides).watch.rules()
    if not rules:
        raise InputError("every rule of `watch` is off", "Set one: --set watch.spike=notify.")
    found = replay(viewer, run, local=local)
    if not found.metrics and not found.events:
        raise InputError(f"{run.run} has no known metrics", "Rules need metrics: docs/metrics.md.")
    actions = {rule["rule"]: rule["do"] for rule in rules}
    judges: dict[int, Judge] = {}
    fired = _alarms(run, found, actions)

    def take(judge: Judge, attempt: int, host: str, at: object) -> None:
        for one in judge.take():
            rule, time = one["rule"], float(at) if isinstance(at, (int, float)) else 0.0
            new = Fired(time, attempt, one["rank"], host, rule, actions[rule], clean(one["text"]))
            before = fired.get((attempt, rule))
            if before is None or new.at < before.at:
                fired[attempt, rule] = new

    for record in found.metrics:
        judge = judges.setdefault(record.attempt, Judge(rules))
        judge.hear(record.rank, record.values)
        take(judge, record.attempt, record.host, record.values.get("t"))
    pattern = re.compile(Judge(rules).log_pattern or "")
    for item in logs(viewer, run, LineFilter(times=True), local=local) if "log" in actions else ():
        if isinstance(item, LogLines) and item.rank is not None:
            judge = judges.setdefault(item.attempt, Judge(rules))
            judge.hear_log(item.rank, False, item.time or 0.0)  # the time without output before these lines
            judge.hear_log(item.rank, any(map(pattern.search, item.lines)), item.time or 0.0)
            take(judge, item.attempt, item.host, item.time)
    return sorted(fired.values(), key=lambda one: one.at)


def _alarms(run: KnownRun, found: Replay, actions: dict[RuleName, Action]) -> dict[tuple[int, str], Fired]:
    """(attempt, rule) → first finding in the events of a run."""
    from disttui.runner.protocol.events import stall_text
    from disttui.runner.protocol.watch import ALARMS

    fired: dict[tuple[int, str], Fired] = {}
    attempt = 0
    for node, line in found.events:
        if not isinstance(line, EventLine):
            continue
        event = line.event
        if event["e"] == "attempt":
            attempt = event["attempt"]
        elif event["e"] in ("stall", "alarm") and not event.get("over"):
            name = "stall" if event["e"] == "stall" else ALARMS.get(event.get("kind", ""))
            if name in actions:
                text = stall_text(event) if event["e"] == "stall" else clean(event["text"])
                alarm = Fired(event["t"], attempt, None, run.hosts[node].name, name, actions[name], text)
                fired.setdefault((attempt, name), alarm)
    return fired


def complete(viewer: Viewer, run: KnownRun, tell: Callable[[float], object]) -> list[str]:
    """Fetch what the mirror of a run lacks, without a time limit; returns why parts could not be fetched.

    Args:
        tell: Takes the share that has arrived, from any thread.

    Raises:
        InputError: The mirror cannot be written.
    """
    deadline = time.monotonic() + REACH
    while not run.problem:
        with mirror_of(run) as folder:
            if folder == run.folder:
                return [clean(error.sentence) for error in _complete(viewer, run, folder, None, tell).values()]
        # Another viewer of this machine has locked the mirror and updates it.
        if not run.summary().get("ended") or not missing(run, run.folder):
            break
        if time.monotonic() >= deadline:
            return ["another viewer on this machine is fetching it"]
        tell(0.0)
        time.sleep(0.2)
    return []


def _complete(
    viewer: Viewer,
    run: KnownRun,
    folder: Path,
    limit: float | None,
    tell: Callable[[float], object] | None = None,
) -> dict[int, DisttuiError]:
    nodes = missing(run, folder)
    if not nodes:
        return {}
    if tell is not None:
        tell(0.0)
    with viewer.reach(run, nodes, limit) as reached:
        problems = {**reached.errors, **sync(run, folder, reached, tell)}
        silent = [node for node in missing(run, folder) if node not in problems]
        return dict(sorted({**problems, **removed(run, reached, silent)}.items()))
