"""Describes what a run waits for, and its state and root cause for `disttui wait`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypedDict

from disttui.runner.api.waiting import Waited
from disttui.runner.diagnose.cause import find
from disttui.runner.diagnose.doubts import doubts
from disttui.runner.diagnose.hang import sentences, standings
from disttui.runner.diagnose.hints import hint
from disttui.runner.errors import DisttuiError
from disttui.runner.formatting import duration, figure, number
from disttui.runner.ids import short
from disttui.runner.protocol.events import QUEUED_FOR, queued_for, silence, stall_text
from disttui.runner.protocol.slurm import LIVING, WAITING, Queued
from disttui.runner.render.status import GLYPHS
from disttui.runner.render.story import attempt_words, closing, lost_words
from disttui.runner.runs.condition import run_word
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.state import RunState
from disttui.runner.text import clean

_MEANINGS = {
    "Resources": "waiting for free nodes",
    "Priority": "other jobs come first",
    "Dependency": "waiting for another job",
    "BeginTime": "its begin time is later",
    "PartitionTimeLimit": "asks for more time than the partition allows",
    "PartitionNodeLimit": "asks for more nodes than the partition allows",
    "PartitionConfig": "no nodes of the partition match",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "ReqNodeNotAvail": "a required node is unavailable",
    "JobHeldUser": "held by its user",
    "JobHeldAdmin": "held by an administrator",
    "AssocGrpGRES": "the account's GPU limit is reached",
    "QOSMaxJobsPerUserLimit": "the QOS limit of running jobs is reached",
}
"""Slurm's reason → its meaning; other reasons are shown without one."""


def queue_words(queued: Queued) -> str:
    """`job 12 is queued: Resources (waiting for free nodes)`; empty once the job has ended."""
    job, state = clean(queued["job"]), queued["state"]
    if state in WAITING:
        return f"job {job} is queued" + _because(queued["reason"], queued["start"])
    if state in LIVING and state != "COMPLETING":
        where = f" on {clean(', '.join(queued['nodes']))}" if queued["nodes"] else ""
        return f"job {job} {'runs' if state == 'RUNNING' else 'is ' + clean(state.lower())}{where}"
    return ""


def waiting_words(reason: str, start: str) -> str:
    """The reason of a queued job, for a note: `Resources (waiting for free nodes), expected to start at …`."""
    return _because(reason, start).removeprefix(": ")


def _because(reason: str, start: str) -> str:
    meaning = _MEANINGS.get(reason.strip("()").partition(",")[0])
    words = clean(reason) + (f" ({meaning})" if meaning else "")
    expected = f"expected to start at {clean(start.replace('T', ' '))}" if start else ""
    said = ", ".join(word for word in (words, expected) if word)
    return f": {said}" if said else ""


def waits_for(state: RunState) -> str:
    """`job 12 is queued: Resources (waiting for free nodes)` or `queued: n2: alice's llama-7f3a holds GPU 0`.

    Empty if the run is not known to wait in a queue.
    """
    if not state.waits:
        return ""
    if state.queued is not None:
        return queue_words(state.queued)
    waits = (queued_for(note["text"]) for note in reversed(state.hosts[0].story.notes))
    return next((clean(f"{QUEUED_FOR}{words}") for words in waits if words is not None), "")


def dropped_words(run: str, why: str) -> str:
    """Why a queued run left the queue: `dropped from the queue: the host was rebooted; queue it again: …`.

    Args:
        run: The run's short id.
        why: The reason in the run's summary.
    """
    return f"dropped from the queue: {why}; queue it again: disttui rerun {run} --when-free"


def stage(state: RunState) -> str:
    """The progress of a run whose number of steps is unknown, in a few words."""
    step = number(state.metrics.get("step"))
    if state.result is not None:
        return "step unknown" if step is None else f"step {step:,.0f}"
    if waits_for(state):
        return "waiting for its turn"
    missing = state.hosts[0].story.missing
    if missing:
        names = ", ".join(clean(state.hosts[node].name) for node in missing[:4] if node < len(state.hosts))
        return f"waiting for {names}"
    if step is not None:
        return f"step {step:,.0f}"
    if not state.attempt:
        if run_word(state) == "connecting":
            return "connecting to the hosts"
        return "waiting for the hosts to join" if state.hosts[0].story.last else "reading past events"
    return "no step yet" if run_word(state) == "running" else "starting the ranks"


MOST = 2048
"""Bytes that the whole text, or its JSON, must stay below."""
_WIDTHS = (300, 160, 80, 40, 0)
"""Characters of a line to try, until the whole text fits."""

Found = Sequence[tuple[KnownRun, "Waited | DisttuiError"]]


class ExplainedPlace(TypedDict):
    """Where to look for the cause: a line of code, and lines of a log."""

    place: str | None
    rank: int | None
    host: str
    lines: list[str]


class Explain(TypedDict):
    """Why a run is in its state and what to do about it; the same object in all JSON output of failures."""

    cause: str | None
    cure: str | None
    evidence: ExplainedPlace | None
    next: str
    """The command to run next."""


def explain(one: Waited, width: int = _WIDTHS[0]) -> Explain:
    """The cause with its evidence and next command, each text cut to `width` characters."""
    seen = one.evidence
    return {
        "cause": _cut(_cause(one), width) or None,
        "cure": _cut(_hint(one), width) or None,
        "evidence": seen and {
            "place": seen.place or None, "rank": seen.rank, "host": seen.host,
            "lines": [_cut(line, width) for line in seen.lines],
        },
        "next": _next(one),
    }  # fmt: skip


def waited_text(found: Found) -> str:
    """State, step, loss, cause, evidence and next command of each run, cut to fit into `MOST` bytes."""
    heads = [_head(run, one) for run, one in found]
    details = [[] if isinstance(one, DisttuiError) else _details(one) for _, one in found]
    for width in _WIDTHS:
        text = "\n".join(
            line
            for head, lines in zip(heads, details, strict=True)
            for line in (_cut(head, width or 40), *(_cut(line, width) for line in lines if width))
        )
        if len(text.encode()) < MOST:
            return text
    return text.encode()[: MOST - 8].decode(errors="ignore") + "…"


def waited_data(found: Found, code: int) -> dict[str, object]:
    """The runs as data for JSON, with texts cut to fit into `MOST` bytes; `explain` is null if nothing else fits."""
    for width in _WIDTHS:
        data = {"code": code, "runs": [_data(run, one, width) for run, one in found]}
        if len(json.dumps(data, indent=2)) < MOST:
            break
    return data


def _head(run: KnownRun, one: Waited | DisttuiError) -> str:
    if isinstance(one, DisttuiError):
        return clean(f"✗ {short(run.run)}: {one.sentence}")
    if one.met == "end":
        return clean(closing(one.state, one.state.elapsed)[0])
    word = run_word(one.state)
    met = f"met {one.met}" if one.met else "still waiting"
    return clean(", ".join([f"{GLYPHS.get(word, '◌')} {short(run.run)} {word}", *_figures(one.state), met]))


def _figures(state: RunState) -> list[str]:
    """`step 41 of 300` and `loss 1.5`, as far as known."""
    step, steps, loss = (state.metrics.get(name) for name in ("step", "steps", "loss"))
    at, most, value = number(step), number(steps), figure(loss)
    words = [] if at is None else [f"step {at:.0f}" + (f" of {most:.0f}" if most else "")]
    return words if value is None else [*words, f"loss {value}"]


def _cause(one: Waited) -> str:
    state = one.state
    if state.problem:
        return clean(state.problem)
    if state.result is None and one.met == "end":
        return lost_words(state)
    if state.result is not None and state.result.get("state") in ("failed", "lost"):
        return clean(attempt_words(state, state.attempt))
    if state.result is None and (stall := state.hosts[0].story.stall) is not None:
        seen = state.hosts[0].telemetry  # has the same clock as the event
        lasted = duration(silence(stall) + max(0.0, seen["t"] - stall["t"] if seen else 0.0))
        return clean("; ".join([stall_text(stall, lasted), *sentences(standings(state))]))
    if state.result is not None:
        return clean("; ".join(doubts(state)))
    alarms = [f"{host.name}: {text}" for host in state.hosts for text in host.story.alarms]
    return clean("; ".join([*alarms, *doubts(state)]) or waits_for(state))


def _hint(one: Waited) -> str:
    cause = find(one.state) if one.state.result is not None and is_failed(one) else None
    known = hint(one.state, cause) if cause else None
    return clean(known.text) if known else ""


def is_failed(one: Waited) -> bool:
    """Whether a run ended, but neither finished nor was stopped by a user."""
    return one.met == "end" and one.code not in (0, 130)


def _next(one: Waited) -> str:
    run = short(one.run.run)
    if one.state.result is None:
        word = run_word(one.state)
        return f"disttui diagnose {run}" if word == "stalled" or one.met == "end" else f"disttui attach {run}"
    return f"disttui {'diagnose' if is_failed(one) else 'runs show'} {run}"


def _details(one: Waited) -> list[str]:
    lines = []
    seen, state = one.evidence, one.state
    if one.met == "end":
        figures = _figures(state)
        lines += [*map(clean, closing(state, state.elapsed)[1:]), *([f"  {', '.join(figures)}"] if figures else [])]
    if (one.met != "end" or is_failed(one)) and (cause := _cause(one)):
        lines.append(f"  cause: {cause}")
    if seen and seen.place:
        lines.append(f"  at: {seen.place}")
    if seen and seen.lines:
        who = "launcher" if seen.rank is None else f"rank {seen.rank}"
        lines += [f"  log of {who} on {seen.host}:", *(f"    {line}" for line in seen.lines)]
    return [*lines, f"  next: {_next(one)}"]


def _data(run: KnownRun, one: Waited | DisttuiError, width: int) -> dict[str, object]:
    if isinstance(one, DisttuiError):
        what = _cut(clean(one.sentence), width or 40)
        return {"run": run.run, "met": None, "error": {"code": one.code, "what": what, "cure": _cut(one.cure, width)}}
    metrics = one.state.metrics
    return {
        "run": run.run,
        "met": one.met or None,
        "code": one.code,
        "state": "lost" if one.met == "end" and one.state.result is None else run_word(one.state),
        **{name: metrics.get(name) for name in ("step", "steps", "loss")},
        "error": None,
        "explain": explain(one, width) if width else None,
    }


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…" if width else ""
