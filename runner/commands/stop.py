"""`disttui stop` and `disttui forget`: end a run everywhere, remove an ended one everywhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runner.errors import DisttuiError, HostError, InputError
from runner.formatting import number, when
from runner.hosts.answers import Exit, no_exit
from runner.ids import short
from runner.render.story import held_words
from runner.runs.find import folder_of
from runner.runs.history import KnownRun
from runner.runs.remote import Reached, reach
from runner.runs.summary import summaries
from runner.text import clean
from runner.transport import Connector

Say = Callable[[str], None]
PATIENCE = 30.0
"""Seconds that a run may take to stop, besides its own limits."""
_POLL = 0.2
_AGAIN = 10.0
_CONCLUSION = 10.0
"""Seconds that the leader may need for its verdict."""
_LONGEST = 86400.0
"""Seconds that a grace of the run's may keep this command waiting."""


def stop(run: KnownRun, connector: Connector, say: Say, *, now: bool = False) -> int:
    """Stop a run from any machine that reaches one of its hosts, and wait until it is stopped.

    A run whose supervisors were killed is brought to its end. Returns the exit code of the command.

    Raises:
        DisttuiError: No host can be reached, or the run does not end in time.
    """
    refuse_sandbox(run)
    with reach(run, connector) as reached:
        reached.refuse_none()
        for error in reached.errors.values():
            say(f"{error.sentence}; the others hand the stop on to it")
        try:
            return _stop(run, reached, connector, say, now)
        except KeyboardInterrupt:
            names = ", ".join(run.hosts[node].name for node in sorted(reached.links))
            say(f"the stop has gone out to {names}, and goes on without this command")
            raise


def forget_here(text: str, environ: Mapping[str, str], say: Say) -> int:
    """Remove only what is held here of a run, readable or not. Raises DisttuiError."""
    return _forget_mirror(folder_of(text, environ), say)


def forget(run: KnownRun, connector: Connector, say: Say) -> int:
    """Remove a run's folders on all hosts and here.

    Raises:
        InputError: The run lives.
        DisttuiError: A host cannot be reached: nothing has been removed.
    """
    if run.sandbox:
        return _forget_mirror(run.folder, say)
    with reach(run, connector) as reached:
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
    _remove(run.folder)
    say(f"{short(run.run)}: removed on {', '.join(host.name for host in run.hosts)} and here")
    return 0


def _stop(run: KnownRun, reached: Reached, connector: Connector, say: Say, now: bool) -> int:
    answers = reached.ask("stop", **run.request(), now=now, reason="user")
    problems = {node: answer for node, answer in answers.items() if isinstance(answer, DisttuiError)}
    if len(problems) == len(answers):
        raise next(iter(problems.values()))
    for problem in problems.values():
        say(problem.sentence)
    asked = [node for node in answers if node not in problems]
    if not any(answers[node]["stopped"] for node in asked):
        say(_ended_before(run, reached.ask("status", asked, **run.request())))
        return 0
    return _wait(run, reached, connector, asked, say)


def _forget_mirror(folder: Path, say: Say) -> int:
    _remove(folder)
    say(f"{folder.name}: its mirror is removed")
    return 0


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}", f"Remove {folder} by hand.") from None


def refuse_sandbox(run: KnownRun) -> None:
    """Raise InputError for a run whose hosts are no more."""
    if run.sandbox:
        raise InputError(
            f"{short(run.run)} was played in a sandbox, which lives only as long as its command",
            ("Ctrl-C in that command stops it. " if run.summary()["state"] in ("running", "joining", "unknown") else "")
            + "Its records stay here: disttui show, logs, metrics.",
        )


def _wait(run: KnownRun, reached: Reached, connector: Connector, nodes: list[int], say: Say) -> int:
    given = run.profile.get("launch")
    launch: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    # A host that cannot reach the leader waits for it until that must have ended its ranks, or has come back.
    limits = (2 * _seconds(launch.get("grace"), 10.0), _seconds(launch.get("host_timeout"), 60.0))
    patience = PATIENCE + _CONCLUSION + sum(limits) + _seconds(launch.get("rejoin_timeout"), 0.0)
    deadline = time.monotonic() + patience
    waiting = set(nodes)
    ends: dict[int, Exit] = {}
    told: set[str] = set()
    while waiting:
        for node, status in reached.ask("status", sorted(waiting), **run.request()).items():
            if isinstance(status, DisttuiError):
                say(status.sentence)
                waiting.discard(node)
            elif not status["alive"]:
                ends[node] = status["exit"] or no_exit()
                waiting.discard(node)
            elif status["waits"]:
                words = f"{run.hosts[node].name}: {status['waits']}"
                if words not in told:
                    told.add(words)
                    say(words)
        if waiting and time.monotonic() > deadline:
            names = ", ".join(run.hosts[node].name for node in sorted(waiting))
            raise HostError(
                names,
                f"{short(run.run)} has not stopped in {patience:.0f} s",
                f"Kill it: disttui stop {short(run.run)} --now",
            )
        time.sleep(_POLL if waiting else 0.0)
    unknown = sorted(reached.errors) if 0 not in ends else []
    if unknown:
        # The leader ends last, when it knows of all hosts; it may be back by now, and have heard of the stop.
        ends |= _look_again(run, connector, unknown)
        unknown = [node for node in unknown if node not in ends] if 0 not in ends else []
    left = [f"{run.hosts[node].name}: pid {pid}" for node, end in sorted(ends.items()) for pid in end["left"]]
    if left:
        say(f"could not be ended: {', '.join(left)}")
    for node, end in sorted(ends.items()):
        for words in held_words(end["held"]):
            say(f"{run.hosts[node].name}: {words}")
    states = {end["state"] for end in ends.values() if end["state"]}
    ended = [run.hosts[node].name for node in sorted(ends)]
    say(f"{short(run.run)} {'/'.join(sorted(states)) or 'stopped'} on {', '.join(ended)}")
    if unknown:
        names = ", ".join(run.hosts[node].name for node in unknown)
        say(f"not reached, so that nobody has seen it stopped there: {names}")
    return 1 if left or unknown or not ends else 0


def _look_again(run: KnownRun, connector: Connector, nodes: list[int]) -> dict[int, Exit]:
    """The ends of hosts that could not be reached before, as far as they can be now."""
    with reach(run, connector, nodes, _AGAIN) as reached:
        answers = reached.ask("status", **run.request())
    return {
        node: answer["exit"] or no_exit()
        for node, answer in answers.items()
        if not isinstance(answer, DisttuiError) and not answer["alive"]
    }


def _ended_before(run: KnownRun, statuses: dict[int, Any]) -> str:
    ends = [one["exit"] for _, one in sorted(statuses.items()) if not isinstance(one, DisttuiError) and one["exit"]]
    if not ends:
        return f"{short(run.run)} is not running: nothing to stop"
    end: Exit = ends[0]
    at = "" if end["t"] is None else f" at {when(end['t'])}"
    lost = f" ({clean(str(end['cause'].get('message')))})" if end["cause"].get("kind") == "supervisor lost" else ""
    return f"{short(run.run)} has {end['state'] or 'ended'} already{at}{lost}: nothing is left to stop"


def _raise_first(answers: dict[int, Any]) -> None:
    for answer in answers.values():
        if isinstance(answer, DisttuiError):
            raise answer


def _seconds(value: Any, default: float) -> float:
    told = number(value)
    return default if told is None else min(max(told, 0.0), _LONGEST)
