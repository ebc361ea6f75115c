"""The one-line status of a run and its parts."""

from __future__ import annotations

from collections.abc import Sequence

from disttui.runner.diagnose.doubts import doubts, silence
from disttui.runner.formatting import count, duration, figure, number
from disttui.runner.protocol.events import Stall, Ungrouped, stall_text
from disttui.runner.protocol.metrics import Metrics
from disttui.runner.runs.condition import host_word, run_word
from disttui.runner.runs.state import RunState
from disttui.runner.text import clean

_FORMS = ((16, 3, False), (8, 3, False), (16, 3, True), (8, 3, True), (0, 3, True), (0, 1, True), (0, 0, True))
"""Variants of the status line, widest first: (cells of the bar, most metrics, whether hosts are counted)"""

GLYPHS = {
    "running": "●",
    "finished": "✓",
    "failed": "✗",
    "lost": "✗",
    "stopped": "■",
    "not seen": "◇",
    "unknown": "◇",
    "stalled": "▲",
    "stopping": "▲",
}
"""State → glyph; of any other state: ◌."""


def stopped_by_user(state: RunState) -> bool:
    """Whether the user stopped the run, so that the way its ranks end is not a failure."""
    if state.result is not None:
        return state.result.get("state") == "stopped"
    attempts = (host.story.attempts.get(state.attempt) for host in state.hosts)
    reasons = [attempt.stopping.get("reason") for attempt in attempts if attempt and attempt.stopping]
    return reasons[:1] == ["user"]  # the leader's reason, if known


def host_words(state: RunState, *, counted: bool = False) -> str:
    """Every host with its state; above four hosts, or if `counted`, the number of hosts in each state."""
    words = [(host.name, host_word(host, state)) for host in state.hosts]
    if len(words) <= 4 and not counted:
        return "  ".join(f"{name} {GLYPHS.get(word, '◌')} {word}" for name, word in words)
    kinds: dict[str, list[str]] = {}
    for name, word in words:
        kinds.setdefault(word, []).append(name)
    return "  ".join(f"{GLYPHS.get(word, '◌')} {len(names)} {word}{_few(word, names)}" for word, names in kinds.items())


def ungrouped(state: RunState) -> list[str]:
    """Names of hosts with no rank seen in a process group in the newest attempt."""
    return [host.name for host in state.hosts if (one := host.story.attempts.get(state.attempt)) and one.ungrouped]


def ungrouped_words(event: Ungrouped) -> str:
    """The text for an `ungrouped` event."""
    if event.get("over"):
        return "its ranks have joined a process group"
    if event.get("unknown"):
        return "not checked: whether its ranks trained together with those of other hosts"
    return "none of its ranks was seen in a process group: each may be training alone"


def stall_words(event: Stall) -> str:
    """The text for a `stall` event; only observations, since a silent rank may still be working."""
    if event.get("over"):
        return "the ranks continue"
    return stall_text(event)


def progress(state: RunState) -> tuple[float, float] | None:
    """(step, steps) of the run, or None while they are unknown."""
    metrics = state.metrics
    step, steps = number(metrics.get("step")), number(metrics.get("steps"))
    return (step, steps) if step is not None and step >= 0 and steps and steps > 0 else None


def eta(state: RunState) -> float | None:
    """Seconds until the last step at the recent pace of this attempt; None if there is no progress.

    The beginning does not count, since scripts that resume from a checkpoint skip the steps before it there.
    """
    if run_word(state) not in ("running", "not seen") or silence(state):
        return None
    for _, _, series in state.ranks():
        now, step, steps = (number(series.latest.get(name)) for name in ("t", "step", "steps"))
        if now is None or step is None or steps is None or not series.marks:
            continue
        since = series.marks[-2] if len(series.marks) > 1 else series.marks[0]
        if step > since.step and now > since.t:
            return (steps - step) * (now - since.t) / (step - since.step)
    return None


def metric_words(metrics: Metrics, whose: str = "") -> list[str]:
    """Loss, validation loss, throughput and accuracy as texts, as far as known.

    Args:
        whose: Text to append to the loss, as from `loss_of`.
    """
    words = []
    for name, after in (("loss", whose), ("val_loss", "")):
        value = figure(metrics.get(name))
        if value is not None:
            words.append(f"{name.replace('_', ' ')} {value}{after}")
    return words + throughput(metrics) + accuracy(metrics)


def loss_of(state: RunState) -> str:
    """The rank that the loss of `state.metrics` comes from, as ` (rank 0)`; empty unless several ranks have one."""
    ranks = [rank for _, rank, series in state.ranks() if series.latest.get("loss") is not None]
    return f" (rank {ranks[0]})" if len(ranks) > 1 else ""


def accuracy(metrics: Metrics) -> list[str]:
    """The newest accuracy, preferably of training, else of validation; empty if none is known."""
    names = (
        ("accuracy", "accuracy"), ("val_accuracy", "val accuracy"), ("eval_accuracy", "val accuracy"),
        ("val_acc1", "val Acc@1"), ("acc1", "Acc@1"),
    )  # fmt: skip
    known = ((words, number(metrics.get(name))) for name, words in names)
    return next(([f"{words} {value:.4g}"] for words, value in known if value is not None), [])


def throughput(metrics: Metrics) -> list[str]:
    """The throughput in the first known unit; empty if none is known."""
    for name, unit in (("tokens_per_s", "tok/s"), ("samples_per_s", "samples/s"), ("steps_per_s", "steps/s")):
        value = number(metrics.get(name))
        if value is not None:
            return [f"{count(value)} {unit}"]
    return []


def lag_words(behind: float, pending: int) -> str:
    """How far a viewer's logs lag behind in seconds and bytes; empty below two seconds."""
    return f"log {behind:.0f} s behind, {count(pending)}B pending" if behind >= 2.0 and pending else ""


def status_line(state: RunState, elapsed: float, width: int, lag: str = "") -> str:
    """The live line of bar, step, loss, throughput, ETA, hosts and lag, shorter than `width` cells.

    On a narrow terminal, the bar shrinks, hosts are counted, and then the loss's rank and metrics are omitted.
    """
    room = max(0, width - 1)
    whose, left = loss_of(state), eta(state)
    clock = duration(elapsed) if left is None else f"eta {duration(left)}"
    attempt = [f"attempt {state.attempt}"] if state.attempt > 1 else []
    marks = [*(f"▲ {clause}" for clause in doubts(state)), *([lag] if lag else [])]
    line = ""
    for bar, most, counted in _FORMS:
        metrics = metric_words(state.metrics, whose if bar else "")[:most]
        parts = [*progress_words(state, bar), *metrics, clock, *attempt, *marks]
        line = clean("  ".join([*parts, host_words(state, counted=counted)]))
        if len(line) <= room:
            return line
    return line[: room - 1] + "…" if room else ""


def progress_words(state: RunState, bar: int = 0) -> list[str]:
    """`step 1,240/5,000` after a bar of `bar` cells; only `step 1,240` if the number of steps is unknown."""
    done = progress(state)
    if done is None:
        step = number(state.metrics.get("step"))
        return [] if step is None else [f"step {step:,.0f}"]
    step, steps = done
    share = min(1.0, step / steps)
    shown = [f"{_bar(share, bar)} {share * 100:3.0f} %"] if bar else []
    return [*shown, f"step {step:,.0f}/{steps:,.0f}"]


def _bar(share: float, cells: int) -> str:
    full = int(share * cells)
    return "━" * full + ("╸" if full < cells else "") + "─" * max(0, cells - full - 1)


def _few(word: str, names: Sequence[str]) -> str:
    if word in ("running", "finished") or len(names) > 3:
        return ""
    return f" ({', '.join(names)})"
