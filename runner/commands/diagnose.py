"""`disttui diagnose`: why a run has failed, or what keeps it right now."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.diagnose.cause import Cause, causes
from runner.diagnose.hang import Standing, sentences, stacks, standing, standings
from runner.diagnose.hints import hint
from runner.diagnose.straggler import spread_sentence, straggler_sentence
from runner.errors import DisttuiError
from runner.formatting import duration, when
from runner.ids import short
from runner.protocol.files import RankStacks
from runner.render.story import earlier, ending, root_words
from runner.runs.diagnoses import Diagnosis, keep, kept
from runner.runs.history import KnownRun, mirror_of
from runner.runs.remote import Reached, missing, reach, sync
from runner.runs.replay import replay
from runner.runs.state import RunState
from runner.text import clean
from runner.transport import Connector

_BETWEEN = 2.0
"""Seconds between two looks at the ranks: most steps take less."""


def diagnose(run: KnownRun, connector: Connector, *, as_json: bool = False) -> tuple[str, list[str]]:
    """Ask every rank of a run that lives where it is, or name the cause of one that has failed; and warnings."""
    warnings: list[str] = []
    ranks: list[Standing] = []
    with mirror_of(run) as folder:
        nodes = [] if run.sandbox or run.problem else missing(run, folder)
        with reach(run, connector, nodes) as reached:
            if nodes:
                reached.refuse_none()
            warnings += [error.sentence for error in reached.errors.values()]
            # Asked before anything else: a rank that hangs now may go on in a moment.
            ranks = _ask(run, reached, warnings)
            warnings += sync(run, folder, reached)
            # Another viewer of this machine holds the mirror then, and keeps it fresh.
            state = replay(run, folder if nodes else run.folder).state
    asked = bool(ranks) and state.result is None
    if not asked:
        ranks = standings(state)
    text = _as_text(run, state, ranks)
    if asked:
        try:
            keep(run.folder, Diagnosis(max(1, state.attempt), time.time(), text))
        except OSError as error:
            warnings.append(f"this diagnosis is not kept: {error.strerror}: {run.folder}")
    return (json.dumps(_as_data(run, state, ranks), indent=2) if as_json else text), warnings


def _ask(run: KnownRun, reached: Reached, warnings: list[str]) -> list[Standing]:
    first = _look(run, reached, warnings)
    later: dict[tuple[int, int], RankStacks] = {}
    if not all(one.get("moved") for one in first.values()):
        time.sleep(_BETWEEN)
        later = _look(run, reached, [])
    return [
        standing(rank, run.hosts[node].name, first[rank, node], later.get((rank, node))) for rank, node in sorted(first)
    ]


def _look(run: KnownRun, reached: Reached, warnings: list[str]) -> dict[tuple[int, int], RankStacks]:
    """Ask every rank once; the answers by rank and node."""
    found: dict[tuple[int, int], RankStacks] = {}
    for node, answer in reached.ask("stacks", **run.request()).items():
        if isinstance(answer, DisttuiError):
            warnings.append(answer.sentence)
            continue
        ranks: Mapping[str, RankStacks] = answer["ranks"]
        begin = sum(host.nproc for host in run.hosts[:node])
        # A host speaks for its own ranks alone.
        for rank in range(begin, begin + run.hosts[node].nproc):
            if str(rank) in ranks:
                found[rank, node] = ranks[str(rank)]
    return found


def _as_text(run: KnownRun, state: RunState, ranks: list[Standing]) -> str:
    if state.result is not None:
        return "\n".join(
            [*ending(state, _elapsed(run, state), run.folder, {}, len(state.attempts)), *told_before(run.folder)]
        )
    silent = [one.silent for one in ranks if one.silent is not None]
    last = f", last sign of life {duration(min(silent))} ago" if silent else ""
    lines = [f"{short(run.run)} lives: attempt {max(1, state.attempt)}{last}"]
    if not ranks:
        lines.append("no rank could be asked: none has started yet, or its host is not reached")
    lines += sentences(ranks)
    lines += slow_lines(state)
    lines += earlier(state, len(state.attempts))
    if ranks:
        lines += ["", *stacks(ranks)]
    return "\n".join(lines)


def told_before(folder: Path) -> list[str]:
    """What was said while the ranks could be asked."""
    lines = []
    for one in kept(folder):
        lines += ["", f"at {when(one.time)}, while it went on:", *(f"  {line}" for line in one.text.split("\n"))]
    return lines


def slow_lines(state: RunState) -> list[str]:
    """Who is slow, and the alarms that last."""
    leader = state.hosts[0].story
    lines = [straggler_sentence(event, state.host_of(rank)) for rank, event in sorted(leader.slow.items())]
    spread = spread_sentence(state)
    lines += [spread] if spread else []
    return lines + [f"{host.name}: {clean(text)}" for host in state.hosts for text in host.story.alarms]


def cause_data(state: RunState, cause: Cause) -> dict[str, Any]:
    """Why an attempt has failed, as data."""
    known = hint(state, cause)
    return {
        "attempt": cause.attempt,
        **_failure(vars(cause.failure)),
        "words": root_words(state, cause),
        "hint": {"name": known.name, "text": known.text} if known else None,
        "consequences": [_failure(vars(one)) for one in cause.consequences],
    }


def _failure(fields: Mapping[str, Any]) -> dict[str, Any]:
    names = ("node", "host", "rank", "kind", "type", "message", "code", "at", "traceback", "oom")
    return {name: fields[name] for name in names}


def _as_data(run: KnownRun, state: RunState, ranks: list[Standing]) -> dict[str, Any]:
    return {
        "run": run.run,
        "state": state.result.get("state", "running") if state.result else "running",
        "attempt": state.attempt,
        "causes": [cause_data(state, cause) for cause in causes(state)],
        "sentences": sentences(ranks),
        "slow": slow_lines(state),
        "kept": [one._asdict() for one in kept(run.folder)],
        "ranks": {str(one.rank): {**one.answer, "host": one.host} for one in ranks},
    }


def _elapsed(run: KnownRun, state: RunState) -> float:
    ended = state.result.get("t") if state.result else None
    return (time.time() if ended is None else ended) - run.started
