"""The current state of every rank, and its pace relative to the others. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from disttui.runner.diagnose.cause import find
from disttui.runner.diagnose.doubts import SLOW
from disttui.runner.diagnose.hang import awaited, standings
from disttui.runner.render.status import stopped_by_user
from disttui.runner.runs.condition import has_loaded, host_word
from disttui.runner.runs.state import HostState, RunState
from disttui.runner.text import clean
from disttui.tui.log.sources import Blame
from disttui.tui.run.feed import Snapshot

RECENT = 5
"""Number of steps whose median is a rank's pace, because a single late step is noise."""
LEAST = 3
"""Minimum number of steps before a rank can count as slow."""
_PACED = ("running", "slow", "finished", "stopping")
PACES = ("forward_time", "step_time")
"""Metrics of the pace: under DDP every rank waits for the slowest, so only the forward pass shows which one it is."""


@dataclass(frozen=True)
class RankNow:
    """The state of a rank at one moment."""

    rank: int
    node: int
    word: str
    """running, slow, failed, loading, waiting, blocking (others wait for it), interrupted (by another's failure), or
    the state of its host."""
    pace: float | None = None
    """Seconds per step or per forward pass."""
    ratio: float = 1.0
    """`pace` divided by the median of all ranks."""
    culprit: bool = False
    """Whether it caused the failure, or others wait for it."""
    victim: bool = False
    """Whether it failed, or waits, because of a culprit."""


def pace_name(snapshot: Snapshot) -> str:
    """The metric that measures paces: forward time if the job reports it, or else step time."""
    return next((name for name in PACES if name in snapshot.history.each), PACES[-1])


def blamed(snapshot: Snapshot) -> Blame:
    """The ranks that made the run fail or stall, and the affected ranks; empty if nothing has failed or stalled."""
    state = snapshot.state
    if stopped_by_user(state) or (state.result is not None and state.result.get("state") == "finished"):
        return Blame()
    cause = find(state) if any(host.exit or _errors(host, state.attempt) for host in state.hosts) else None
    if cause is not None:
        culprits = frozenset(() if cause.failure.rank is None else (cause.failure.rank,))
        by_themselves = {one.rank for one in cause.consequences if not one.follows}
        victims = frozenset(range(state.world_size)) - culprits - by_themselves
        failures = [cause.failure, *cause.consequences]
        said = {one.rank: clean(one.message.strip().split("\n")[0])[:200] for one in failures if one.rank is not None}
        return Blame(state.attempt, culprits, victims, cause.failure.node, said)
    if state.hosts[0].story.stall is None or state.result is not None:
        return Blame()
    culprits = awaited(standings(state))
    victims = frozenset(range(state.world_size)) - culprits if culprits else frozenset()
    return Blame(state.attempt, culprits, victims, stalled=True)


def _errors(host: HostState, attempt: int) -> bool:
    newest = host.story.attempts.get(attempt)
    return newest is not None and bool(newest.errors)


def ranks_now(snapshot: Snapshot) -> list[RankNow]:
    """The current state of all ranks, ordered by rank."""
    roles = blamed(snapshot)
    stalled = snapshot.state.hosts[0].story.stall is not None
    tracks = snapshot.history.each.get(pace_name(snapshot), {})
    # A copy, because the feed's thread may add another rank's first record.
    recent = {rank: track.recent(RECENT, snapshot.now) for rank, track in tracks.copy().items()}
    paces = {rank: times[len(times) // 2] for rank, times in recent.items() if times and times[len(times) // 2] > 0}
    # The lower median: where half of the ranks are slow, the others are what they are compared with.
    middle = sorted(paces.values())[(len(paces) - 1) // 2] if paces else None
    reported = snapshot.state.hosts[0].story.slow
    found, first = [], 0
    for host in snapshot.state.hosts:
        words = _words(snapshot.state, host, first)
        for rank in range(first, first + host.nproc):
            word, pace = words[rank - first], paces.get(rank)
            ratio = pace / middle if pace and middle else 1.0
            late = ratio >= SLOW and len(recent.get(rank, ())) >= LEAST
            if word == "running" and (late or rank in reported):
                word = "slow"
            culprit, victim = rank in roles.culprits, rank in roles.victims
            if stalled and word in ("running", "slow") and (culprit or victim):
                word = "blocking" if culprit else "waiting"
            elif victim and word == "failed":
                word = "interrupted"
            found.append(RankNow(rank, host.node, word, pace if word in _PACED else None, ratio, culprit, victim))
        first += host.nproc
    return found


def _words(state: RunState, host: HostState, first: int) -> list[str]:
    word = host_word(host, state)
    attempt = host.story.attempts.get(state.attempt)
    failed = {
        event.get("rank")
        for event in (attempt.errors if attempt and not stopped_by_user(state) else ())
        if event["e"] == "error" or event.get("code") not in (-15, 0)
    }
    if host.exit is not None or word in ("not seen", "lost", "stopping", "restarting") or attempt is None:
        return ["failed" if rank in failed else word for rank in range(first, first + host.nproc)]
    made_steps = {rank for number, rank in host.series if number == state.attempt}
    words = []
    for rank in range(first, first + host.nproc):
        if rank in failed:
            words.append("failed")
        elif rank in made_steps or rank in attempt.groups or has_loaded(host, attempt, rank):
            words.append("running")
        else:
            words.append("loading" if rank in attempt.ranks else "waiting")
    return words


def short_names(names: Sequence[str]) -> list[str]:
    """The names without their common domain, such as `gpu00`, `gpu01`; unchanged if they have none."""
    parts = [name.partition(".") for name in names]
    domain = parts[0][2] if parts else ""
    same = {tail for _, _, tail in parts} == {domain} and len({head for head, _, _ in parts}) == len(parts)
    address = domain.rpartition(".")[2].isdigit()
    return [head for head, _, _ in parts] if same and domain and not address and len(parts) > 1 else list(names)
