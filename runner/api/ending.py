"""Stops a run on all hosts; removes an ended one from all hosts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from runner.api.beginnings import refuse_sandbox
from runner.api.news import HostNotice, ignore, problem_of
from runner.api.viewer import Viewer
from runner.errors import DisttuiError, HostError, InputError
from runner.formatting import number
from runner.hosts.answers import Exit, no_exit, read_exit
from runner.hosts.link import Link
from runner.ids import short
from runner.paths import inside
from runner.runs.registry import KnownRun, folder_of, mirror_of, read_object
from runner.runs.remote import Reached, sync
from runner.runs.summary import summaries

PATIENCE = 30.0
"""Seconds that a run may take to stop, besides its own limits."""
_POLL = 0.2
_AGAIN = 10.0
_CONCLUSION = 10.0
"""Seconds that the leader may need for its verdict."""
_LONGEST = 86400.0
"""The most seconds of a run's grace for which `stop` waits."""


class StopAsked(NamedTuple):
    """These hosts have received the stop: it goes on without the caller."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class StopResult:
    """The result of a stop."""

    run: str
    ends: Mapping[str, Exit]
    """How the run ended on each host that has reported it."""
    before: bool = False
    """Whether it had ended, or was not running, before the stop."""
    unseen: tuple[str, ...] = ()
    """Hosts that were not reached: whether the run is stopped there is unknown."""

    @property
    def left(self) -> tuple[tuple[str, int], ...]:
        """(host, pid) of processes that could not be ended."""
        return tuple((host, pid) for host, end in self.ends.items() for pid in end["left"])

    @property
    def complete(self) -> bool:
        """Whether nothing of the run is left on any host, as far as is known."""
        return self.before or not (self.left or self.unseen or not self.ends)


def stop(
    viewer: Viewer, run: KnownRun, *, now: bool = False, tell: Callable[[HostNotice | StopAsked], object] = ignore
) -> StopResult:
    """Stop a run from any machine that reaches one of its hosts, and wait until it is stopped.

    A run whose supervisors were killed is settled.

    Args:
        now: Kill it at once, without the grace that lets ranks save their work.
        tell: Takes notes about the progress.

    Raises:
        DisttuiError: No host can be reached, or the run does not end in time.
    """
    refuse_sandbox(run)
    sent: dict[int, Future[Any]] = {}

    def send(node: int, link: Link) -> None:
        # Hosts that are slow or off are not waited for: those that have received the stop hand it on.
        sent[node] = link.submit("stop", node_rank=node, **run.request(), now=now, reason="user")

    with viewer.reach(run, at_once=send) as reached:
        reached.refuse_none()
        for node, error in reached.errors.items():
            tell(problem_of(run.hosts[node].name, error, "; the others hand the stop on to it"))
        tell(StopAsked(tuple(run.hosts[node].name for node in sorted(reached.links))))
        first = dict(sent)  # a host that is connected at the last moment may still be sent it
        others = [node for node in reached.links if node not in first]
        answers = reached.answers(first) | reached.ask("stop", others, **run.request(), now=now, reason="user")
        return _stop(viewer, run, reached, answers, tell)


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
    """Remove a run's folders on all hosts and here; of a sandbox that is gone, here.

    Raises:
        InputError: The run lives.
        DisttuiError: A host cannot be reached: nothing has been removed.
    """
    if not run.gone:
        with viewer.reach(run) as reached:
            _forget_on_hosts(run, reached)
    _remove(run.folder)


def _forget_on_hosts(run: KnownRun, reached: Reached) -> None:
    try:
        reached.refuse_some()
    except DisttuiError as error:
        cure = f"Try again later, or forget the mirror alone: disttui forget {short(run.run)} --here"
        raise HostError("", "nothing is removed", cure, cause=error.sentence) from None
    listed = reached.ask("list", **run.request())
    found = {
        node: [one for one in summaries(answer) if one["run"] == run.run and one.get("node_rank") == node]
        for node, answer in listed.items()
        if not isinstance(answer, DisttuiError)
    }
    living = [run.hosts[node].name for node, ones in found.items() if any(one.get("alive") for one in ones)]
    if living:
        raise InputError(
            f"{short(run.run)} lives on {', '.join(living)}", f"Stop it first: disttui stop {short(run.run)}"
        )
    _raise_first(listed)
    _raise_first(reached.ask("forget", [node for node, ones in found.items() if ones], **run.request()))


def _stop(
    viewer: Viewer,
    run: KnownRun,
    reached: Reached,
    answers: Mapping[int, Any],
    tell: Callable[[HostNotice | StopAsked], object],
) -> StopResult:
    problems = {node: answer for node, answer in answers.items() if isinstance(answer, DisttuiError)}
    if len(problems) == len(answers):
        raise next(iter(problems.values()))
    for node, problem in problems.items():
        tell(problem_of(run.hosts[node].name, problem))
    asked = [node for node in answers if node not in problems]
    if not any(answers[node]["stopped"] for node in asked):
        statuses = reached.ask("status", asked, **run.request())
        ends = {
            run.hosts[node].name: one["exit"]
            for node, one in sorted(statuses.items())
            if not isinstance(one, DisttuiError) and one["exit"]
        }
        return StopResult(run.run, ends, before=True)
    return _wait(viewer, run, reached, asked, tell)


def _wait(
    viewer: Viewer,
    run: KnownRun,
    reached: Reached,
    nodes: list[int],
    tell: Callable[[HostNotice | StopAsked], object],
) -> StopResult:
    patience = _patience(run)
    deadline = time.monotonic() + patience
    waiting = set(nodes)
    ends: dict[int, Exit] = {}
    broken: set[int] = set()
    reported: set[HostNotice] = set()
    while waiting:
        for node, status in reached.ask("status", sorted(waiting), **run.request()).items():
            host = run.hosts[node].name
            if isinstance(status, DisttuiError):
                waiting.discard(node)
                # The hosts of a sandbox go with the command that follows the run: it has stored how that ended.
                if end := _stored(run, node):
                    ends[node] = end
                else:
                    tell(problem_of(host, status))
                    broken.add(node)
            elif not status["alive"]:
                ends[node] = status["exit"] or no_exit()
                waiting.discard(node)
            elif status["waits"] and (notice := HostNotice(host, status["waits"])) not in reported:
                reported.add(notice)
                tell(notice)
        if waiting and time.monotonic() > deadline:
            names = ", ".join(run.hosts[node].name for node in sorted(waiting))
            raise HostError(
                names,
                f"{short(run.run)} has not stopped in {patience:.0f} s",
                f"Kill it: disttui stop {short(run.run)} --now",
            )
        time.sleep(_POLL if waiting else 0.0)
    unknown = sorted({*reached.errors, *broken}) if 0 not in ends else []
    if unknown:
        # The leader ends last, after all other hosts; it may be connected again, and have received the stop.
        ends |= _look_again(viewer, run, unknown)
        unknown = [node for node in unknown if node not in ends] if 0 not in ends else []
    unseen = tuple(run.hosts[node].name for node in unknown)
    return StopResult(run.run, {run.hosts[node].name: end for node, end in sorted(ends.items())}, unseen=unseen)


def _patience(run: KnownRun) -> float:
    given = run.profile.get("launch")
    launch: Mapping[str, object] = given if isinstance(given, Mapping) else {}
    # A host that cannot reach the leader waits until the leader has ended its ranks, or is connected again.
    limits = (2 * _seconds(launch.get("grace"), 10.0), _seconds(launch.get("host_timeout"), 60.0))
    return PATIENCE + _CONCLUSION + sum(limits) + _seconds(launch.get("rejoin_timeout"), 0.0)


def _look_again(viewer: Viewer, run: KnownRun, nodes: list[int]) -> dict[int, Exit]:
    """The ends of hosts that could not be reached before, if they can be now."""
    with viewer.reach(run, nodes, _AGAIN) as reached:
        answers = reached.ask("status", **run.request())
    return {
        node: answer["exit"] or no_exit()
        for node, answer in answers.items()
        if not isinstance(answer, DisttuiError) and not answer["alive"]
    }


def _stored(run: KnownRun, node: int) -> Exit | None:
    """How a run has ended on a host, as a viewer has stored it here."""
    end = read_object(inside(run.folder, str(node)) / "exit.json")
    return read_exit(end) if end else None


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}", f"Remove {folder} by hand.") from None


def _raise_first(answers: Mapping[int, Any]) -> None:
    for answer in answers.values():
        if isinstance(answer, DisttuiError):
            raise answer


def _seconds(value: Any, default: float) -> float:
    given = number(value)
    return default if given is None else min(max(given, 0.0), _LONGEST)
