"""The state of a run and of each host in one word; the only place that derives them."""

from __future__ import annotations

from disttui.runner.protocol.summary import LOADING
from disttui.runner.runs.state import Attempt, HostState, RunState
from disttui.runner.text import clean


def run_word(state: RunState) -> str:
    """The state of a whole run in one word."""
    if state.result is not None or is_lost(state):
        return clean(str(state.result.get("state", "ended"))) if state.result is not None else "lost"
    if state.hosts[0].story.stall is not None:
        return "stalled"
    links = {host.link for host in state.hosts if host.exit is None}
    if links == {"not seen"}:
        return "not seen"
    if state.waits:
        return "queued"
    if state.attempt == 0:
        return "connecting" if links == {"connecting"} else "joining"
    if _regroups(state):
        return "restarting"
    attempts = [host.story.attempts.get(state.attempt) for host in state.hosts]
    if any(attempt and attempt.stopping for attempt in attempts):
        return "stopping"
    works = any(True for _ in state.ranks()) or _stage(state.hosts[0], state.attempt) == "running"
    return "running" if works else "starting"


def is_lost(state: RunState) -> bool:
    """Whether no host will report how the run ended."""
    return state.result is None and (bool(state.lost) or all(host.link in ("ended", "gone") for host in state.hosts))


def host_word(host: HostState, state: RunState) -> str:
    """A host's current state, in one or two words."""
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
        return "restarting" if _regroups(state) else "stopping"
    return _stage(host, state.attempt)


def _stage(host: HostState, number: int) -> str:
    """How far a host's ranks are in an attempt."""
    if any(attempt == number for attempt, _ in host.series):
        return "running"
    newest = host.story.attempts.get(number, Attempt(number))
    if len(newest.ranks) < host.nproc and len(newest.groups) < host.nproc:
        return "starting ranks"
    up = all(rank in newest.groups or has_loaded(host, newest, rank) for rank in newest.ranks)
    return "running" if up else "loading"


def _regroups(state: RunState) -> bool:
    """Whether the newest attempt has failed and another one follows once all hosts are back."""
    newest = state.hosts[0].story.attempts.get(state.attempt)
    return newest is not None and newest.cause is not None


def has_loaded(host: HostState, attempt: Attempt, rank: int) -> bool:
    """Whether a rank has been up long enough to count as running without a report of its script."""
    begun = attempt.ranks.get(rank)
    return begun is not None and host.telemetry is not None and host.telemetry["t"] - begun["t"] > LOADING
