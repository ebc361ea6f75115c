"""What every rank does now, and how its pace compares with the others'. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.diagnose.cause import find
from runner.diagnose.hang import awaited, standings
from runner.diagnose.straggler import SLOW
from runner.render.status import has_loaded, host_word, stopped_by_user
from runner.runs.state import HostState, RunState
from runner.text import clean
from tui.run.feed import Snapshot

RECENT = 5
"""A rank's pace is the median of this many steps, because a single late step is noise."""
LEAST = 3
"""Steps without which no rank is called slow."""
_PACED = ("running", "slow", "finished", "stopping")
PACES = ("forward_time", "step_time")
"""Under DDP every rank waits for the slowest, so that only the forward pass shows who it is."""


@dataclass(frozen=True)
class RankNow:
    """One rank at one moment."""

    rank: int
    node: int
    word: str
    """running, slow, failed, not seen, loading, waiting, or how its host ended; awaited: others wait for it; pulled
    down: it failed because another rank did."""
    pace: float | None = None
    """Seconds per step or per forward pass."""
    ratio: float = 1.0
    """`pace` divided by the median of all ranks."""
    culprit: bool = False
    """Whether it made the run fail, or the others wait for it."""
    victim: bool = False
    """Whether it failed or waits because of a culprit."""


@dataclass(frozen=True)
class Roles:
    """The ranks that caused a failure or a stall, and the ranks that it affected."""

    culprits: frozenset[int] = frozenset()
    victims: frozenset[int] = frozenset()
    node: int | None = None
    """The node rank of the host where it began."""
    said: Mapping[int, str] = field(default_factory=dict)
    """Rank → the first line of what it raised."""
    stalled: bool = False
    """Whether it is a stall: the others have not failed but wait."""


def pace_name(snapshot: Snapshot) -> str:
    """The metric that paces are measured by: forward time if the job reports it, else step time."""
    return next((name for name in PACES if name in snapshot.history.each), PACES[-1])


def blamed(snapshot: Snapshot) -> Roles:
    """The ranks that made the run fail or stall, and the ranks affected by that; none where nothing has failed."""
    state = snapshot.state
    if stopped_by_user(state) or (state.result is not None and state.result.get("state") == "finished"):
        return Roles()
    cause = find(state) if any(host.exit or _errors(host, state.attempt) for host in state.hosts) else None
    if cause is not None:
        culprits = frozenset(() if cause.failure.rank is None else (cause.failure.rank,))
        by_themselves = {one.rank for one in cause.consequences if not one.follows}
        victims = frozenset(range(state.world_size)) - culprits - by_themselves
        failures = [cause.failure, *cause.consequences]
        said = {one.rank: clean(one.message.strip().split("\n")[0])[:200] for one in failures if one.rank is not None}
        return Roles(culprits, victims, cause.failure.node, said)
    if state.hosts[0].story.stall is None or state.result is not None:
        return Roles()
    culprits = awaited(standings(state))
    victims = frozenset(range(state.world_size)) - culprits if culprits else frozenset()
    return Roles(culprits, victims, stalled=True)


def _errors(host: HostState, attempt: int) -> bool:
    newest = host.story.attempts.get(attempt)
    return newest is not None and bool(newest.errors)


def ranks_now(snapshot: Snapshot) -> list[RankNow]:
    """The present state of all ranks, by rank."""
    roles = blamed(snapshot)
    stalled = snapshot.state.hosts[0].story.stall is not None
    tracks = snapshot.history.each.get(pace_name(snapshot), {})
    # A copy: the feed's thread may add another rank's first record meanwhile.
    recent = {rank: track.recent(RECENT, snapshot.now) for rank, track in tracks.copy().items()}
    paces = {rank: times[len(times) // 2] for rank, times in recent.items() if times and times[len(times) // 2] > 0}
    middle = sorted(paces.values())[len(paces) // 2] if paces else None
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
            if rank in roles.culprits and stalled and word in ("running", "slow"):
                word = "awaited"
            elif rank in roles.victims and stalled and word in ("running", "slow"):
                word = "waiting"
            elif rank in roles.victims and word == "failed":
                word = "pulled down"
            found.append(
                RankNow(
                    rank,
                    host.node,
                    word,
                    pace if word in _PACED else None,
                    ratio,
                    rank in roles.culprits,
                    rank in roles.victims,
                )
            )
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
    if host.exit is not None or word in ("not seen", "lost", "stopping") or attempt is None:
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
