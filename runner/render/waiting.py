"""How far a run is that makes no steps yet; why it has not begun, or never will."""

from __future__ import annotations

from runner.formatting import number
from runner.protocol.events import IN_LINE
from runner.render.slurm import queue_words
from runner.render.status import run_word
from runner.runs.state import RunState
from runner.text import clean


def waits_for(state: RunState) -> str:
    """`job 12 is queued: Resources (waits for free nodes)` or `in line: n2: alice's llama-7f3a holds GPU 0`.

    Empty: it waits in no queue, as far as is known.
    """
    if not state.waits:
        return ""
    if state.queued is not None:
        return queue_words(state.queued)
    texts = (note["text"] for note in reversed(state.hosts[0].story.notes))
    return clean(next((text for text in texts if text.startswith(IN_LINE)), ""))


def dropped_words(run: str, why: str) -> str:
    """Why a queued run is no longer in line: `out of line: the host was started anew; queue it again: …`.

    Args:
        run: Its id, as short as it is shown.
        why: As in the run's summary.
    """
    return f"out of line: {clean(why)}; queue it again: disttui rerun {run} --when-free"


def stage(state: RunState) -> str:
    """How far a run is whose last step is not known, in a few words."""
    step = number(state.metrics.get("step"))
    if state.result is not None:
        return "no step is known" if step is None else f"step {step:,.0f}"
    if waits_for(state):
        return "waiting for its turn"
    missing = state.hosts[0].story.missing
    if missing:
        names = ", ".join(clean(state.hosts[node].name) for node in missing[:4] if node < len(state.hosts))
        return f"waiting for {names}"
    if step is not None:
        return f"step {step:,.0f}"
    if not state.attempt:
        return "connecting to the hosts" if run_word(state) == "connecting" else "waiting for the hosts to join"
    return "no step yet" if run_word(state) == "running" else "starting the ranks"
