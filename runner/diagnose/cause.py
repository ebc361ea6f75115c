"""Finds the root cause of an attempt's failure over all hosts, and its consequences. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from disttui.runner.diagnose.frames import blocks
from disttui.runner.protocol import cause as wire
from disttui.runner.protocol.cause import is_consequence
from disttui.runner.protocol.events import Death, Error, OomEvidence
from disttui.runner.runs.state import Attempt, HostState, RunState
from disttui.runner.runs.summary import OUTCOME

_CARRIED = re.compile(
    r"\s*(?:Caught [\w.]+ in [^\n]{1,100}\.\nOriginal Traceback \(most recent call last\):"
    r"|-- Process \d+ terminated with the following error:\nTraceback \(most recent call last\):"
    r"|ray::[^\n]{1,300})\n"
)
"""The lines before another process's traceback in an exception of torch's DataLoader, mp.spawn or Ray."""
_RAISED = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?", re.DOTALL)


@dataclass(frozen=True)
class Failure:
    """One rank, host or launch that failed."""

    node: int
    host: str
    rank: int | None
    kind: str
    """One of exception, signal, exit, host lost, join, launch, supervisor lost and folder."""
    type: str
    message: str
    code: int | None
    at: float
    """Unix time on the leader's clock."""
    traceback: str = ""
    oom: OomEvidence | None = None
    last: float | None = None
    """Unix time of the last heartbeat, for a lost host or supervisor."""
    grace: float | None = None
    """Seconds that it had to end before disttui killed it; None if disttui did not."""
    ended_by_us: bool = False
    """Whether it ended after its host was asked to stop the attempt."""

    @property
    def follows(self) -> bool:
        """Whether it looks like the consequence of another failure."""
        words: wire.Cause = {"kind": self.kind, "code": self.code, "type": self.type, "message": self.message}
        if self.ended_by_us or is_consequence(words):
            return True
        # A script may catch the error of a broken connection and raise its own.
        inner = blocks(self.traceback)[:-1]
        return any(is_consequence({"kind": "exception", "type": "", "message": line}) for line in inner)


@dataclass(frozen=True)
class RootCause:
    """Why an attempt failed."""

    attempt: int
    failure: Failure
    consequences: tuple[Failure, ...]
    """The other failures, earliest first."""
    gone: tuple[int, ...] = ()
    """Ranks that had ended with exit code 0 before, if the failed rank was still waiting for others."""


def find(state: RunState, attempt: int | None = None) -> RootCause | None:
    """The root cause of an attempt (by default the newest), or None if nothing failed in it.

    This is the earliest failure, by the leader's clock, that is not a consequence of another; if all look like
    consequences, the earliest one.
    """
    number = state.attempt if attempt is None else attempt
    found = failures(state, number)
    own = [one for one in found if not one.follows]
    root = min(own or found, key=lambda one: one.at, default=None)
    if root is None:
        return None
    rest = tuple(sorted((one for one in found if one is not root), key=lambda one: one.at))
    # A script's own server may refuse connections too: OSError, those of requests.
    of_torch = root.kind == "exception" and re.search(r"(?:^RuntimeError|(?:^|\.)Dist[A-Z]\w*Error)$", root.type)
    lost = root.follows and of_torch and "sigterm" not in f"{root.type} {root.message}".lower()
    return RootCause(number, root, rest, _ended_before(state, number, root.at) if lost else ())


def _ended_before(state: RunState, number: int, at: float) -> tuple[int, ...]:
    """Ranks that had ended with exit code 0 by time `at` of the leader's clock."""
    found: set[int] = set()
    for host in state.hosts:
        known = host.story.attempts.get(number)
        offset = state.hosts[0].story.offsets.get(host.node, 0.0)
        found |= {rank for rank, when in (known.finished if known else {}).items() if when - offset <= at}
    return tuple(sorted(found))


def causes(state: RunState) -> tuple[RootCause, ...]:
    """The root causes of all failed attempts, oldest first; attempts whose cause is unknown are omitted."""
    failed = state.result is not None and state.result.get("state") in ("failed", "lost")
    numbers = [*(number for number in state.attempts if number < state.attempt), *((state.attempt,) if failed else ())]
    return tuple(cause for number in numbers if (cause := find(state, number)))


def failures(state: RunState, number: int) -> list[Failure]:
    """All failures of an attempt, one per rank, with times of the leader's clock."""
    found: dict[int | None, Failure] = {}
    for host in state.hosts:
        attempt = host.story.attempts.get(number)
        if attempt:
            offset = state.hosts[0].story.offsets.get(host.node, 0.0)
            found.update({one.rank: one for one in _of_host(host, attempt, offset)})
    blamed = _blamed(state, number)
    if blamed:
        known = _as_failure(state, blamed)
        # A rank's own report is more exact than the leader's.
        if known.rank is None or known.kind not in ("exception", "signal", "exit") or known.rank not in found:
            found[known.rank] = known
    return list(found.values())


def _blamed(state: RunState, number: int) -> wire.Cause | None:
    """The cause of an attempt as the leader reports it."""
    led = state.hosts[0].story.attempts.get(number)
    if led and led.cause:
        return led.cause
    result = state.result
    if result is None or number < state.attempt:
        return None
    # The result of a run that ended before its first attempt has an attempt that no host reported.
    return result.get("cause") if result.get("attempt", number) >= number else None


def _of_host(host: HostState, attempt: Attempt, offset: float) -> Iterable[Failure]:
    stopping = float(attempt.stopping["t"]) if attempt.stopping else float("inf")
    errors: dict[int, Error] = {}
    deaths: dict[int, Death] = {}
    for event in reversed(attempt.errors):  # reversed, so that the first one of a rank remains
        if "rank" in event and event["e"] == "error":
            errors[event["rank"]] = event
        elif "rank" in event and event["e"] == "death":
            deaths[event["rank"]] = event
    for rank in dict.fromkeys(one["rank"] for one in attempt.errors if "rank" in one):
        error, death = errors.get(rank), deaths.get(rank)
        first = error or death
        at = float(first.get("at", 0.0)) if first else 0.0
        code = death.get("code") if death else None
        failed = partial(Failure, node=host.node, host=host.name, rank=rank, code=code, at=at - offset)
        if error:
            traceback = error.get("traceback") or ""
            kind, message = _raised(error.get("type") or "", error.get("message") or "", traceback)
            yield failed(kind="exception", type=kind, message=message, traceback=traceback)
        elif death:
            yield failed(
                kind="signal" if code is not None and code < 0 else "exit",
                type="",
                message=death.get("said", ""),
                oom=death.get("oom"),
                grace=death.get("grace"),
                ended_by_us=at >= stopping,
            )


def _raised(kind: str, message: str, traceback: str) -> tuple[str, str]:
    """Type and message of an exception, or of the other process's exception that it contains."""
    if not _CARRIED.match(message):
        return kind, message
    lines = (traceback or message).rstrip().split("\n")
    last = max((index for index, line in enumerate(lines) if line.lstrip().startswith('File "')), default=len(lines))
    start = next((index for index in range(last, len(lines)) if lines[index][:1] not in ("", " ")), len(lines))
    found = _RAISED.fullmatch("\n".join(lines[start:]))
    return (found[1], found[2] or "") if found else (kind, message)


def _as_failure(state: RunState, cause: wire.Cause) -> Failure:
    node, kind, message = cause.get("node", 0), cause.get("kind", ""), cause.get("message", "")
    if kind in ("exit", "signal"):
        message = OUTCOME.sub("", message)
    node = node if 0 <= node < len(state.hosts) else 0
    raised, message = _raised(cause.get("type", ""), message, "")
    return Failure(
        node=node,
        host=state.hosts[node].name,
        rank=cause.get("rank"),
        kind=kind,
        type=raised,
        message=message,
        code=cause.get("code"),
        at=float(cause.get("at", 0.0)),
        last=cause.get("last"),
    )
