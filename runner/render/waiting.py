"""Why a run has not begun, in one sentence."""

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
