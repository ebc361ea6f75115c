"""Stops runs on all their hosts; removes ended runs and sweeps."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from disttui.runner.api.listing import Place, place_of_host
from disttui.runner.api.questions import HostNotice, ignore, problem_of
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, HostError, InputError
from disttui.runner.formatting import number
from disttui.runner.hosts.link import Link
from disttui.runner.ids import short
from disttui.runner.paths import inside
from disttui.runner.protocol.files import Exit
from disttui.runner.protocol.summary import disk_use
from disttui.runner.runs.registry import KnownRun, folder_of, known_runs, mirror_of, run_names
from disttui.runner.runs.remote import Reached, RunRemovedError, reach_hosts, removed, sync
from disttui.runner.runs.state import outcome
from disttui.runner.runs.summary import Summary, summaries
from disttui.runner.text import clean

PATIENCE = 30.0
"""Seconds that a run may take to stop, beyond its own limits."""
_POLL = 0.2
_AGAIN = 10.0
_CONCLUSION = 10.0
"""Seconds that the leader may need for its verdict."""
_LONGEST = 86400.0
"""Most seconds of a run's grace for which `stop` waits."""


class StopAsked(NamedTuple):
    """These hosts have received the stop, which now continues without the caller."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class StopResult:
    """The result of a stop."""

    run: str
    ends: Mapping[str, Exit]
    """How the run ended on each host that has reported it."""
    end: Exit | None = None
    """How the run ended; None: a host may still run it."""
    before: bool = False
    """Whether it had ended, or was not running, before the stop."""
    unconfirmed: tuple[str, ...] = ()
    """Hosts that have not confirmed the end, neither to this machine nor to the run's leader."""

    @property
    def left(self) -> tuple[tuple[str, int], ...]:
        """(host, pid) of processes that could not be ended."""
        return tuple((host, pid) for host, end in self.ends.items() for pid in end.get("left", []))

    @property
    def complete(self) -> bool:
        """Whether nothing of the run is known to be left on any host."""
        return not self.unconfirmed and (self.before or bool(self.ends and not self.left))


def stop(
    viewer: Viewer, run: KnownRun, *, now: bool = False, tell: Callable[[HostNotice | StopAsked], object] = ignore
) -> StopResult:
    """Stop a run by any of its hosts, and wait for its end.

    A run whose supervisors were killed is settled.

    Args:
        now: Kill it at once, without the grace that lets ranks save their work.
        tell: Takes notes about the progress.

    Raises:
        DisttuiError: No host can be reached, or the run does not end in time.
    """
    [done] = stop_runs(viewer, [run], now=now, tell=lambda _, news: tell(news))
    if isinstance(done, DisttuiError):
        raise done
    return done


def stop_runs(
    viewer: Viewer,
    runs: Sequence[KnownRun],
    *,
    now: bool = False,
    tell: Callable[[KnownRun, HostNotice | StopAsked], object] = lambda run, news: None,
) -> list[StopResult | DisttuiError]:
    """Stop several runs concurrently, over one connection per host; returns each run's result or error."""
    stops = [_Stop(viewer, run, now, tell) for run in runs]
    with ExitStack() as links:
        for config in dict.fromkeys(run.ssh_config for run in runs):
            some = [one for one in stops if one.run.ssh_config == config and not one.run.gone]
            links.enter_context(_reach(viewer, some, config))
        for one in stops:
            one.begin()
        while waiting := [one for one in stops if one.waiting]:
            for one, asked in [(one, one.ask()) for one in waiting]:
                one.take(asked)
            time.sleep(_POLL if any(one.waiting for one in stops) else 0.0)
        return [one.error or one.result() for one in stops]


def _reach(viewer: Viewer, stops: Sequence[_Stop], config: str | None) -> Reached:
    """Connect to the hosts of all runs and send each of them the stop; hosts that have it forward it to slow ones."""
    parts = [(one, node) for one in stops for node in range(len(one.run.hosts))]

    def send(part: int, link: Link) -> None:
        one, node = parts[part]
        one.send(node, link)

    hosts = {part: one.run.hosts[node] for part, (one, node) in enumerate(parts)}
    reached = reach_hosts(hosts, viewer.connector(config), at_once=send)
    for part, (one, node) in enumerate(parts):
        if part in reached.links:
            one.reached.links[node] = reached.links[part]
        else:
            one.reached.errors[node] = reached.errors[part]
    return reached


def catch_up(viewer: Viewer, run: KnownRun) -> None:
    """Update the mirror of a run from its reachable hosts."""
    with mirror_of(run) as folder, viewer.reach(run) as reached:
        sync(run, folder, reached)


def forget_here(environ: Mapping[str, str], text: str) -> str:
    """Remove only the local files of a run, readable or not; returns its id. Raises DisttuiError.

    Args:
        text: The run's id, or its beginning.
    """
    folder = folder_of(text, environ)
    _remove(folder)
    return folder.name


def forget(viewer: Viewer, run: KnownRun) -> None:
    """Remove a run's folders on all hosts and here; of a closed sandbox, only here.

    Raises:
        InputError: The run lives, or another continues from its checkpoints.
        DisttuiError: A host cannot be reached: nothing has been removed.
    """
    if later := _needed(known_runs(viewer.environ)[0]).get(run.run):
        cure = f"disttui ps finds out whether that run has ended; else stop it: disttui stop {later}"
        raise InputError(f"{later} continues from the checkpoints of {short(run.run)}", cure)
    if not run.gone:
        with viewer.reach(run) as reached:
            _forget_on_hosts(run, reached)
    _remove(run.folder)


def _needed(runs: Iterable[KnownRun]) -> dict[str, str]:
    """Runs whose checkpoints others continue from that have not ended: run → such a run's short id."""
    from disttui.runner.api.rerunning import resumed_run

    later = ((one, resumed_run(one)) for one in runs if one.resume_from)
    return {earlier.run: short(one.run) for one, earlier in later if earlier and not one.settled}


def _forget_on_hosts(run: KnownRun, reached: Reached) -> None:
    try:
        reached.refuse_some()
    except DisttuiError as error:
        cure = f"Try again later, or remove only the local files: disttui runs forget {short(run.run)} --here"
        raise HostError("", "nothing was removed", cure, cause=error.sentence) from None
    listed = reached.ask("list", **run.request())
    found = {
        node: [one for one in summaries(answer) if one["run"] == run.run and one.get("node_rank") == node]
        for node, answer in listed.items()
        if not isinstance(answer, DisttuiError)
    }
    for node, answer in listed.items():
        problems = [one["problem"] for one in summaries(answer) if one["run"] == run.run and "problem" in one]
        if problems:
            raise HostError(run.hosts[node].name, clean(problems[0]), "Repair that, or see runs forget --here.")
    living = [run.hosts[node].name for node, ones in found.items() if any(one.get("alive") for one in ones)]
    if living:
        raise InputError(
            f"{short(run.run)} is still active on {', '.join(living)}", f"Stop it first: disttui stop {short(run.run)}"
        )
    if not any(found.values()) and _starts(run):
        cure = f"Try again later, or remove only the local files: disttui runs forget {short(run.run)} --here"
        raise InputError(f"{short(run.run)} is being started, or its start was killed", cure)
    _raise_first(listed)
    _raise_first(reached.ask("forget", [node for node, ones in found.items() if ones], **run.request()))


def _starts(run: KnownRun) -> bool:
    """Whether a run that no host has may still be sent its code and data, which may take hours."""
    return not (run.heard or run.problem or run.ends()) and time.time() - run.started < 86400.0


class _Stop:
    """The stop of one run."""

    def __init__(
        self, viewer: Viewer, run: KnownRun, now: bool, tell: Callable[[KnownRun, HostNotice | StopAsked], object]
    ) -> None:
        self.run = run
        self.reached = Reached()
        self.waiting: set[int] = set()
        """Node ranks that have not ended yet."""
        self.error: DisttuiError | None = None
        self._viewer = viewer
        self._now = now
        self._tell = tell
        self._sent: dict[int, Future[Any]] = {}
        self._before = False
        self._removed = False
        self._ends: dict[int, Exit] = {}
        self._broken: set[int] = set()
        self._refused: set[int] = set()
        self._reported: set[HostNotice] = set()
        self._deadline = self._again = 0.0

    def send(self, node: int, link: Link) -> None:
        """Send the stop to a host, without waiting for its answer."""
        self._sent[node] = link.submit("stop", node_rank=node, **self.run.request(), now=self._now, reason="user")

    def begin(self) -> None:
        """Process the hosts' answers to the stop; errors go to `error`."""
        try:
            known = self.run.ends()
            if self.run.gone or (not self.reached.links and len(known) == len(self.run.hosts)):
                self._before, self._removed, self._ends = True, self.run.gone, known
                return
            self.reached.refuse_none()
            self._take_answers()
        except DisttuiError as error:
            self.error = error

    def _take_answers(self) -> None:
        names = [host.name for host in self.run.hosts]
        for node, error in self.reached.errors.items():
            self._tell(self.run, problem_of(names[node], error, "; the others forward the stop to it"))
        for node, link in sorted(self.reached.links.items()):
            if link.note:
                self._tell(self.run, HostNotice(names[node], link.note))
        self._tell(self.run, StopAsked(tuple(names[node] for node in sorted(self.reached.links))))
        for node in self.reached.links.keys() - self._sent.keys():
            self.send(node, self.reached.links[node])
        answers = self.reached.answers(self._sent)
        problems = {node: answer for node, answer in answers.items() if isinstance(answer, DisttuiError)}
        if len(problems) == len(answers):
            gone = removed(self.run, self.reached, list(problems))
            if len(gone) < len(names) or not all(isinstance(one, RunRemovedError) for one in gone.values()):
                raise next(iter(problems.values()))
            for error in gone.values():
                self._tell(self.run, problem_of(error.host, error))
            self._before = self._removed = True
            self._refuse_orphans()
            return
        for node, problem in problems.items():
            self._tell(self.run, problem_of(names[node], problem, f"; {problem.cure}" if problem.cure else ""))
        # A supervisor that does not respond refuses the stop, and its run continues.
        statuses = self.reached.ask("status", list(problems), **self.run.request())
        self._refused = {
            node for node, status in statuses.items() if not isinstance(status, DisttuiError) and status["alive"]
        }
        self.waiting = answers.keys() - problems.keys()
        self._before = not self._refused and not any(answers[node]["stopped"] for node in self.waiting)
        self._deadline = time.monotonic() + _patience(self.run)
        self._again = time.monotonic() + _AGAIN

    def _refuse_orphans(self) -> None:
        """Raise HostError if a run without folders may have processes, which only `runs orphans` can end."""
        left: dict[str, str] = {}
        certain = False
        for node, answer in self.reached.ask("orphans", run=self.run.run, run_dirs=[self.run.run_dir]).items():
            name = self.run.hosts[node].name
            if isinstance(answer, DisttuiError):
                left[name] = answer.reason
            elif pids := [str(one["pid"]) for one in answer["found"]]:
                left[name] = f"pid {', '.join(pids)}"
                certain = True
        if left:
            where = "; ".join(f"{name}: {what}" for name, what in left.items())
            cure = f"End them: disttui runs orphans {' '.join(left)} --run {short(self.run.run)} --end"
            what = f"processes of {short(self.run.run)} {'are' if certain else 'may be'} left ({where})"
            raise HostError("", what, cure)

    def ask(self) -> dict[int, Future[Any]]:
        """Request the status of the run on hosts where it has not ended."""
        links = self.reached.links
        return {node: links[node].submit("status", node_rank=node, **self.run.request()) for node in self.waiting}

    def take(self, asked: Mapping[int, Future[Any]]) -> None:
        """Record the answers to `ask`."""
        for node, status in self.reached.answers(asked).items():
            host = self.run.hosts[node].name
            if isinstance(status, DisttuiError):
                self.waiting.discard(node)
                # A sandbox's hosts vanish with the command that follows the run, which has stored the end.
                if end := self.run.ends().get(node):
                    self._ends[node] = end
                else:
                    self._tell(self.run, problem_of(host, status))
                    self._broken.add(node)
            elif not status["alive"]:
                self._ends[node] = status["exit"] or Exit()
                self.waiting.discard(node)
            elif status["waits"] and (notice := HostNotice(host, status["waits"])) not in self._reported:
                self._reported.add(notice)
                self._tell(self.run, notice)
        if self._now and self.waiting and time.monotonic() > self._again:
            # A supervisor that still hangs is killed by the second request.
            self._again = time.monotonic() + _AGAIN
            for node in self.waiting:
                self.send(node, self.reached.links[node])
        if self.waiting and time.monotonic() > self._deadline:
            names = ", ".join(self.run.hosts[node].name for node in sorted(self.waiting))
            what = f"{short(self.run.run)} has not stopped in {_patience(self.run):.0f} s"
            then = (
                "See what it is waiting for: disttui runs show {0}" if self._now else "Kill it: disttui stop {0} --now"
            )
            self.error = HostError(names, what, then.format(short(self.run.run)))
            self.waiting = set()

    def result(self) -> StopResult:
        """The final result, which is also stored so that all commands report the same."""
        run = self.run
        silent = set() if 0 in self._ends else {*self.reached.errors, *self._broken}
        if unknown := sorted(self._refused | silent):
            # The leader ends after all other hosts; it may be reachable again and have received the stop.
            self._ends |= _look_again(self._viewer, run, unknown)
        known = {**run.ends(), **self._ends}
        led = known.get(0, {})
        nodes = range(len(run.hosts))
        unsure = led.get("unconfirmed", () if self._removed or led.get("state") == "finished" else nodes)
        open_ = [node for node in nodes if node in {*self._refused, *unsure} - known.keys()]
        ends = {node: end for node, end in self._ends.items() if "state" in end}
        run.note_ends(ends, open_)
        leader = [0] if 0 in self._ends and 0 in self.reached.links else []
        for answer in self.reached.ask("list", leader, **run.request()).values():
            for last in () if isinstance(answer, DisttuiError) else summaries(answer):
                if last["run"] == run.run and last.get("node_rank") == 0:
                    run.note_seen(last)  # its progress, for lists
        return StopResult(
            run.run,
            {run.hosts[node].name: end for node, end in sorted(self._ends.items()) if node in ends or not self._before},
            outcome({**run.ends(), **ends}, len(run.hosts), run.problem),
            self._before,
            tuple(run.hosts[node].name for node in open_),
        )


def _patience(run: KnownRun) -> float:
    given = run.profile.get("launch")
    launch: Mapping[str, object] = given if isinstance(given, Mapping) else {}
    # A host that cannot reach the leader waits until the leader has ended its ranks or is reachable again.
    limits = (2 * _seconds(launch.get("grace"), 10.0), _seconds(launch.get("host_timeout"), 60.0))
    return PATIENCE + _CONCLUSION + sum(limits) + _seconds(launch.get("rejoin_timeout"), 0.0)


def _look_again(viewer: Viewer, run: KnownRun, nodes: list[int]) -> dict[int, Exit]:
    """Node rank → how the run ended there, for hosts that have become reachable."""
    with viewer.reach(run, nodes, _AGAIN) as reached:
        answers = reached.ask("status", **run.request())
    return {
        node: answer["exit"] or Exit()
        for node, answer in answers.items()
        if not isinstance(answer, DisttuiError) and not answer["alive"]
    }


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        cure = "Make it writable, or delete it."
        raise InputError(f"cannot delete {folder}: {error.strerror}", cure) from None


def _raise_first(answers: Mapping[int, Any]) -> None:
    for answer in answers.values():
        if isinstance(answer, DisttuiError):
            raise answer


def _seconds(value: Any, default: float) -> float:
    given = number(value)
    return default if given is None else min(max(given, 0.0), _LONGEST)


LIMIT = 10.0
"""Seconds to connect to a host."""


@dataclass(frozen=True)
class Old:
    """An ended run, and its size."""

    run: KnownRun
    ended: float
    size: int
    """Size in bytes, here and on its hosts."""


class OldRuns(NamedTuple):
    """Runs that can be removed, oldest first, and why others could not be examined."""

    runs: tuple[Old, ...]
    problems: tuple[str, ...]


def old_runs(viewer: Viewer, *, older: float | None = None, over: int | None = None) -> OldRuns:
    """Ended runs older than `older` seconds, and the oldest until the rest needs at most `over` bytes.

    Removes nothing: `remove` does.
    """
    known, problems = known_runs(viewer.environ)
    ended, unreached, needed = [], dict[_At, DisttuiError](), _needed(known)
    for run in known:
        try:
            found = _look(viewer, run, unreached)
        except DisttuiError as error:
            problems.append(f"{short(run.run)}: not removed: {clean(error.sentence)}")
            continue
        if found:
            ended.append(found)
    ended.sort(key=lambda old: old.ended)
    now, total = time.time(), sum(old.size for old in ended)
    chosen = []
    for old in ended:
        if not ((older is not None and now - old.ended > older) or (over is not None and total > over)):
            continue
        if later := needed.get(old.run.run):
            problems.append(f"{short(old.run.run)}: not removed: {later} continues from its checkpoints")
            continue
        chosen.append(old)
        total -= old.size
    return OldRuns(tuple(chosen), tuple(problems))


def remove(viewer: Viewer, chosen: Iterable[Old]) -> Iterator[tuple[KnownRun, DisttuiError | None]]:
    """Forget runs one by one; yields each, with the error if it was not removed."""
    for old in chosen:
        try:
            forget(viewer, old.run)
        except DisttuiError as error:
            yield old.run, error
        else:
            yield old.run, None


def old_sweeps(viewer: Viewer, older: float, without: Iterable[Old] = ()) -> tuple[str, ...]:
    """Sweeps older than `older` seconds whose runs are all gone or in `without`."""
    from disttui.runner.api.sweeping import load_sweep, sweeps_folder  # slow to import

    left = {*run_names(viewer.environ)} - {old.run.run for old in without}
    found = []
    for path in sorted(sweeps_folder(viewer.environ).glob("*.json")):
        with suppress(OSError, InputError):  # damaged sweeps are kept
            if time.time() - path.stat().st_mtime > older:
                sweep = load_sweep(viewer.environ, path.stem)
                if not left & {one.run for one in sweep.runs}:
                    found.append(sweep.name)
    return tuple(found)


def remove_sweep(viewer: Viewer, name: str) -> None:
    """Remove the files of a sweep; its runs stay. Raises InputError if one cannot be removed."""
    from disttui.runner.api.sweeping import sweeps_folder

    for suffix in (".journal", ".lock", ".part", ".json"):
        path = inside(sweeps_folder(viewer.environ), name + suffix)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}", "Delete it.") from None


_At = tuple[str | None, Place]
"""Configuration of ssh, and address."""


def _look(viewer: Viewer, run: KnownRun, unreached: dict[_At, DisttuiError]) -> Old | None:
    """A run with its end and size; None while it is running. Raises DisttuiError if a host cannot be reached.

    Args:
        unreached: The errors of such hosts, so that each is tried only once.
    """
    here = disk_use(str(run.folder))
    known: Summary = run.summary()
    if run.gone:
        return Old(run, _ended(known, run), here)
    places = [(run.ssh_config, place_of_host(host)) for host in run.hosts]
    for place in places:
        if place in unreached:
            raise unreached[place]
    with viewer.reach(run, limit=LIMIT) as reached:
        unreached.update({places[node]: error for node, error in reached.errors.items()})
        reached.refuse_some()
        held, has_it = here, False
        for node, answer in reached.ask("list", **run.request()).items():
            if isinstance(answer, DisttuiError):
                raise answer
            for one in summaries(answer):
                if one["run"] == run.run and "problem" in one:
                    return None
                if one["run"] == run.run and one.get("node_rank") == node:
                    if one.get("alive"):
                        return None
                    known.update(one)
                    held, has_it = held + one.get("size", 0), True
    if not has_it and _starts(run):
        return None
    return Old(run, _ended(known, run), held)


def _ended(summary: Mapping[str, object], run: KnownRun) -> float:
    ended = summary.get("ended")
    return float(ended) if isinstance(ended, int | float) else run.started
