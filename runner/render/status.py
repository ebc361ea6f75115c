"""The one-line status of a run, and one word per host."""

from __future__ import annotations

from collections.abc import Sequence

from runner.formatting import count, duration, figure, number
from runner.protocol.events import Stall, Ungrouped
from runner.protocol.metrics import Metrics
from runner.runs.state import Attempt, HostState, RunState
from runner.text import clean

_FORMS = ((16, 3, False), (8, 3, False), (16, 3, True), (8, 3, True), (0, 3, True), (0, 1, True), (0, 0, True))
"""Variants of the status line, widest first: cells of the bar, most metrics, whether hosts are counted."""
LOADING = 5.0
"""Seconds after which a rank counts as running without a step or a process group."""

GLYPHS = {
    "running": "●",
    "finished": "✓",
    "failed": "✗",
    "lost": "✗",
    "stopped": "■",
    "not seen": "◇",
}


def run_word(state: RunState) -> str:
    """The state of a whole run in a word."""
    if state.result is not None:
        return clean(str(state.result.get("state", "ended")))
    if state.hosts[0].story.stall is not None:
        return "stalled"
    links = {host.link for host in state.hosts if host.exit is None}
    if links == {"not seen"}:
        return "not seen"
    if state.waits:
        return "queued"
    if state.attempt == 0:
        return "connecting" if links == {"connecting"} else "joining"
    attempts = [host.story.attempts.get(state.attempt) for host in state.hosts]
    if any(attempt and attempt.stopping for attempt in attempts):
        return "stopping"
    works = any(True for _ in state.ranks()) or all(host_word(host, state) == "running" for host in state.hosts)
    return "running" if works else "starting"


def stopped_by_user(state: RunState) -> bool:
    """Whether the user has had the run stopped: what its ranks end with is no failure then."""
    if state.result is not None:
        return state.result.get("state") == "stopped"
    attempts = (host.story.attempts.get(state.attempt) for host in state.hosts)
    reasons = [attempt.stopping.get("reason") for attempt in attempts if attempt and attempt.stopping]
    return reasons[:1] == ["user"]  # the leader's, where it is known


def host_word(host: HostState, state: RunState) -> str:
    """A host's present state, in one or two words."""
    if host.exit is not None:
        return host.exit.get("state", "ended")
    if host.link in ("not seen", "connecting", "starting", "gone"):
        return "lost" if host.link == "gone" else host.link
    leader = state.hosts[0].story
    if host.node in leader.unseen:
        return leader.unseen[host.node]
    newest = host.story.attempts.get(state.attempt)
    if newest is None:
        return "queued" if state.waits else "joining" if host.node not in leader.joined else "joined"
    if newest.stopping is not None:
        return "stopping"
    if any(attempt == state.attempt for attempt, _ in host.series):
        return "running"
    if len(newest.ranks) < host.nproc and len(newest.groups) < host.nproc:
        return "starting ranks"
    up = all(rank in newest.groups or has_loaded(host, newest, rank) for rank in newest.ranks)
    return "running" if up else "loading"


def has_loaded(host: HostState, attempt: Attempt, rank: int) -> bool:
    """Whether a rank has been up for so long that it counts as running, without a report of its script."""
    begun = attempt.ranks.get(rank)
    return begun is not None and host.telemetry is not None and host.telemetry["t"] - begun["t"] > LOADING


def host_words(state: RunState, *, counted: bool = False) -> str:
    """Every host with its state; hosts in the same state are counted when there are many, or if `counted`."""
    words = [(host.name, host_word(host, state)) for host in state.hosts]
    if len(words) <= 4 and not counted:
        return "  ".join(f"{name} {GLYPHS.get(word, '◌')} {word}" for name, word in words)
    kinds: dict[str, list[str]] = {}
    for name, word in words:
        kinds.setdefault(word, []).append(name)
    return "  ".join(f"{GLYPHS.get(word, '◌')} {len(names)} {word}{_few(word, names)}" for word, names in kinds.items())


def ungrouped(state: RunState) -> list[str]:
    """The hosts whose ranks work in the newest attempt, none of them seen in a process group."""
    return [host.name for host in state.hosts if (one := host.story.attempts.get(state.attempt)) and one.ungrouped]


def ungrouped_words(event: Ungrouped) -> str:
    """The text for an `ungrouped` event."""
    if event.get("over"):
        return "its ranks have joined a process group"
    return "none of its ranks was seen in a process group: each may be training by itself"


def stall_words(event: Stall) -> str:
    """The text for a `stall` event: what is known, since a rank that is silent may well work."""
    if event.get("over"):
        return "the ranks go on"
    silent = min(event.get("silent", {}).values(), default=0.0)
    return f"no rank has logged or stepped for {silent:.0f} s"


def progress(state: RunState) -> tuple[float, float] | None:
    """(step, steps) of the run, None while they are unknown."""
    metrics = state.metrics
    step, steps = number(metrics.get("step")), number(metrics.get("steps"))
    return (step, steps) if step is not None and step >= 0 and steps and steps > 0 else None


def eta(state: RunState) -> float | None:
    """Seconds until the last step at the pace of the later part of this attempt, None while that is unknown.

    Its beginning does not count: there, scripts that go on from a checkpoint pass over the steps before it.
    """
    for _, _, series in state.ranks():
        now, step, steps = (number(series.latest.get(name)) for name in ("t", "step", "steps"))
        if now is None or step is None or steps is None or not series.marks:
            continue
        since = series.marks[-2] if len(series.marks) > 1 else series.marks[0]
        if step > since.step and now > since.t:
            return (steps - step) * (now - since.t) / (step - since.step)
    return None


def metric_words(metrics: Metrics, whose: str = "") -> list[str]:
    """Loss, throughput and other metrics that fit into a line.

    Args:
        whose: Follows the loss.
    """
    words = []
    for name, after in (("loss", whose), ("val_loss", "")):
        value = figure(metrics.get(name))
        if value is not None:
            words.append(f"{name.replace('_', ' ')} {value}{after}")
    return words + throughput(metrics) + accuracy(metrics)


def loss_of(state: RunState) -> str:
    """Of which rank the loss of `state.metrics` is, in brackets, where several have one; else empty."""
    ranks = [rank for _, rank, series in state.ranks() if series.latest.get("loss") is not None]
    return f" (rank {ranks[0]})" if len(ranks) > 1 else ""


def accuracy(metrics: Metrics) -> list[str]:
    """The newest accuracy, in training before that of a validation; empty if none is known."""
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


def status_line(state: RunState, elapsed: float, width: int) -> str:
    """The live line: bar, step, loss, throughput, ETA, hosts; never wider than `width` cells.

    On a narrow terminal the bar gets shorter, hosts are counted, and then the loss's rank and metrics are left out.
    """
    room = max(0, width - 1)
    done, whose = progress(state), loss_of(state)
    left = eta(state) if run_word(state) in ("running", "not seen") else None
    clock = duration(elapsed) if left is None else f"eta {duration(left)}"
    attempt = [f"attempt {state.attempt}"] if state.attempt > 1 else []
    line = ""
    for bar, most, counted in _FORMS:
        metrics = metric_words(state.metrics, whose if bar else "")[:most]
        parts = [*_progress_words(state, done, bar), *metrics, clock, *attempt]
        line = clean("  ".join([*parts, host_words(state, counted=counted)]))
        if len(line) <= room:
            return line
    return line[: room - 1] + "…" if room else ""


def _progress_words(state: RunState, done: tuple[float, float] | None, bar: int) -> list[str]:
    if done is None:
        return [f"step {state.metrics['step']}"] if state.metrics.get("step") is not None else []
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
