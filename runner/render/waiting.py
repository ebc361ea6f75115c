"""Why a run has not begun, or never will, in one sentence."""

from __future__ import annotations

from runner.protocol.events import IN_LINE
from runner.render.slurm import queue_words
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
