"""Renders a diagnosis as text and as data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from disttui.runner.api.diagnosing import Diagnosed, kept
from disttui.runner.api.waiting import ended
from disttui.runner.diagnose.cause import RootCause, causes
from disttui.runner.diagnose.doubts import spread_sentence, straggler_sentence
from disttui.runner.diagnose.hang import sentences, stacks
from disttui.runner.diagnose.hints import hint
from disttui.runner.formatting import duration, when
from disttui.runner.ids import short
from disttui.runner.render.story import earlier, ending, recorded_word, root_words
from disttui.runner.render.waiting import explain, is_failed, waits_for
from disttui.runner.runs.condition import is_lost
from disttui.runner.runs.state import RunState
from disttui.runner.text import clean


def diagnosis_text(found: Diagnosed) -> str:
    """Where every rank is, or why the run ended, as text."""
    run, state, ranks = found.run, found.state, found.ranks
    if state.result is not None or is_lost(state):
        end = ending(state, state.elapsed, run.folder, {}, len(state.attempts))
        return "\n".join([*end, *(sentences(ranks) if found.asked else ()), *told_before(run.folder)])
    silent = [one.silent for one in ranks if one.silent is not None]
    last = f", last progress {duration(min(silent))} ago" if silent else ""
    word = recorded_word(run, state)
    attempt = f": attempt {state.attempt}" if state.attempt else ""
    lines = [f"{short(run.run)} is {word}{attempt}{last}" if word != "unknown" else f"{short(run.run)}: state unknown"]
    lines += [waits] if (waits := waits_for(state)) else []
    if not ranks and not waits:
        lines.append("no rank answered: none has started yet, or its host is unreachable")
    lines += sentences(ranks)
    lines += slow_lines(state)
    lines += earlier(state, len(state.attempts))
    if ranks:
        lines += ["", *stacks(ranks)]
    return "\n".join(lines)


def diagnosis_data(found: Diagnosed) -> dict[str, object]:
    """The diagnosis as data for JSON, with the stacks of all ranks."""
    state = found.state
    look = ended(found.run, state, found.run.folder)
    return {
        "run": found.run.run,
        "state": recorded_word(found.run, state),
        "attempt": state.attempt,
        "causes": [cause_data(state, cause) for cause in causes(state)],
        "sentences": sentences(found.ranks),
        "slow": slow_lines(state),
        "kept": [one._asdict() for one in kept(found.run.folder)],
        "ranks": {str(one.rank): {**one.answer, "host": one.host} for one in found.ranks},
        "explain": explain(look) if (state.result or is_lost(state)) and is_failed(look) else None,
    }


def told_before(folder: Path) -> list[str]:
    """Lines of the diagnoses that were stored in a run's folder while it was running."""
    lines = []
    for one in kept(folder):
        lines += ["", f"while it was running, at {when(one.time)}:", *(f"  {line}" for line in one.text.split("\n"))]
    return lines


def slow_lines(state: RunState) -> list[str]:
    """One line for each slow rank, the spread of step times, and each active alarm."""
    leader = state.hosts[0].story
    lines = [straggler_sentence(event, state.host_of(rank)) for rank, event in sorted(leader.slow.items())]
    spread = spread_sentence(state)
    lines += [spread] if spread else []
    return lines + [f"{host.name}: {clean(text)}" for host in state.hosts for text in host.story.alarms]


def cause_data(state: RunState, cause: RootCause) -> dict[str, object]:
    """Why an attempt failed, as data for JSON."""
    known = hint(state, cause)
    return {
        "attempt": cause.attempt,
        **_failure(vars(cause.failure)),
        "words": root_words(state, cause),
        "hint": {"name": known.name, "text": known.text} if known else None,
        "consequences": [_failure(vars(one)) for one in cause.consequences],
    }


def _failure(fields: Mapping[str, object]) -> dict[str, object]:
    names = ("node", "host", "rank", "kind", "type", "message", "code", "at", "traceback", "oom")
    return {name: fields[name] for name in names}
