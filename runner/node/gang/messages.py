"""The messages between the hosts of a gang: every kind with its fields, their types and bounds.

Messages are checked although a sender has the run's key: a host of the run may be compromised.
"""

from __future__ import annotations

import re
import socket
import time
from typing import Any, Callable, Dict, Mapping, cast

from ...protocol.cause import FailureReport
from ...protocol.gang import MpiPlace
from ...protocol.leases import LATEST, MOST_ROUNDS
from ..observe.ranks import MESSAGE_LIMIT
from ..rank import mpi_world

_Check = Callable[[Any], bool]
Kinds = Mapping[str, Mapping[str, _Check]]
"""Kind → field → check of its value; a field whose name ends in `?` may be absent."""

Unread = Mapping[str, object]
"""A message as parsed JSON, before `read` has checked it."""

_EXACT = 2**53
_LARGEST = 1e15


class MalformedMessageError(Exception):
    """A message is invalid. The error text quotes nothing of it."""


def read(message: Unread, kinds: Kinds) -> Dict[str, Any]:
    """Return the known fields of a message, checked, with its `k`. Raises MalformedMessageError."""
    kind = message.get("k")
    fields = kinds.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise MalformedMessageError("a message of unknown kind")
    found: Dict[str, Any] = {"k": kind}
    for field, is_right in fields.items():
        name = field.rstrip("?")
        if name not in message and name != field:
            continue
        if name not in message or not is_right(message[name]):
            raise MalformedMessageError(f"a message `{kind}` whose `{name}` is missing or wrong")
        found[name] = message[name]
    return found


def whole(low: int, high: int) -> _Check:
    """Return a check for integers within these bounds, both inclusive."""
    return lambda value: type(value) is int and low <= value <= high


def text(limit: int) -> _Check:
    """Return a check for strings of at most `limit` characters."""
    return lambda value: isinstance(value, str) and len(value) <= limit


is_port = whole(1, 65535)
"""Whether a value is a TCP port number."""


def is_number(value: Any) -> bool:
    """Whether a value is a finite number that cannot overflow arithmetic with times."""
    return type(value) in (int, float) and -_LARGEST <= value <= _LARGEST


def is_address(value: Any) -> bool:
    """Whether a value is a literal IP address."""
    if not isinstance(value, str) or not re.fullmatch(r"[0-9A-Fa-f:.]{2,45}", value, re.ASCII):
        return False
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in value else socket.AF_INET, value)
    except OSError:
        return False
    return True


def is_mpi_place(value: Any) -> bool:
    """Whether a value is an `MpiPlace`. Its fields become settings of this host's own orted."""
    return (
        isinstance(value, dict)
        and value.keys() == MpiPlace.__annotations__.keys()
        and all(isinstance(one, str) for one in value.values())
        and mpi_world.wrong_field(cast("MpiPlace", value)) is None
    )


def is_cause(value: Any) -> bool:
    """Whether a value is the cause of a failed attempt, as in exit.json (docs/formats.md)."""
    return (
        isinstance(value, dict)
        and len(value) <= 16
        and all(name in value and is_right(value[name]) for name, is_right in _CAUSE.items())
        and all(_is_scalar(one) for one in value.values())
        and is_number(value.get("last", 0))
    )


def clean_cause(failure: FailureReport) -> FailureReport:
    """Make a failure pass `is_cause`: parts of it come from the ranks and may contain anything."""
    found: Dict[str, Any] = {}
    for name, value in failure.items():
        is_right = _CAUSE.get(name, _is_scalar)
        clipped = value[: 200 if name == "type" else MESSAGE_LIMIT] if isinstance(value, str) else value
        found[name] = clipped if is_right(clipped) else None
    found["at"] = time.time() if found.get("at") is None else found["at"]
    return cast("FailureReport", found)


def clean_step(step: int | None) -> int | None:
    """The step, or None if it is not within the bounds of the protocol."""
    return step if _is_step(step) else None


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_nothing(value: Any) -> bool:
    return value is None


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, bool) or is_number(value) or text(MESSAGE_LIMIT)(value)


def _either(*checks: _Check) -> _Check:
    return lambda value: any(is_right(value) for is_right in checks)


def _list(is_right: _Check, limit: int) -> _Check:
    return lambda value: isinstance(value, list) and len(value) <= limit and all(map(is_right, value))


def _by_rank(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= 4096
        and all(re.fullmatch(r"[0-9]{1,6}", rank, re.ASCII) and is_number(value[rank]) for rank in value)
    )


_is_step = _either(_is_nothing, whole(-_EXACT, _EXACT))
_is_time = is_number
_is_order: _Check = lambda value: is_number(value) and 0 <= value < LATEST  # noqa: E731
_reason = text(200)
_attempt = whole(0, 1_000_000)
_pid = whole(0, 2**31)
_CAUSE: Dict[str, _Check] = {
    "node": whole(0, 65535),
    "rank": _either(_is_nothing, whole(0, _EXACT)),
    "kind": text(40),
    "type": text(200),
    "message": text(MESSAGE_LIMIT),
    "code": _either(_is_nothing, whole(-_EXACT, _EXACT)),
    "at": _is_time,
}
_END = {"attempt": _attempt, "left": _list(_pid, 1000), "begun": _is_flag, "saved": _is_flag, "step": _is_step}
_BEAT = {"t": _is_time, "ack": whole(0, _EXACT), "echo?": _is_time}

HELLO: Kinds = {
    "hello": {
        "run": text(200), "node": whole(0, 65535), "spec": text(64), "instance": text(64), "probe": _is_flag,
    },
}  # fmt: skip
ANSWER: Kinds = {"welcome": {}, "refused": {"why": text(500)}}
OF_FOLLOWER: Kinds = {
    "beat": {**_BEAT, "attempt": _attempt, "idle": _is_flag},
    "reached": {"addresses": _list(is_address, 256), "pending": _is_flag},
    "room": {"room": _is_flag, "why": text(MESSAGE_LIMIT)},
    "took": {"done": _is_flag},
    "failed": {"attempt": _attempt, "cause": _either(_is_nothing, is_cause), "port_in_use": _is_flag},
    "done": _END,
    "ended": _END,
    "signs": {
        "attempt": _attempt, "silent": _by_rank, "times": _by_rank, "shows": _list(text(500), 8),
        "stepped?": _by_rank, "first_steps?": _by_rank, "first_epochs?": _by_rank,
    },
    "found": {
        "attempt": _attempt, "rule": text(40), "rank": whole(0, _EXACT), "step": _is_step, "text": text(300),
    },
    "stop": {"reason": _reason, "now": _is_flag},
}  # fmt: skip
OF_LEADER: Kinds = {
    "beat": _BEAT,
    "over": {},
    "take": {"take": _is_flag},
    "place": {"round": whole(0, MOST_ROUNDS - 1), "order": _is_order},
    "warm": {"attempt": _attempt, "before?": whole(-_EXACT, _EXACT)},
    "go": {"attempt": _attempt, "master": is_address, "port": is_port, "mpi?": is_mpi_place},
    "end": {"attempt": _attempt, "reason": _reason, "now": _is_flag},
    "stop": {"reason": _reason, "now": _is_flag},
    "stacks": {"attempt": _attempt, "number": whole(0, _EXACT)},
    "snapshot": {"attempt": _attempt},
    "verdict": {
        "state": lambda value: value in ("finished", "failed", "stopped", "lost"),
        "code": whole(0, 255),
        "attempt": _attempt,
        "cause": _either(_is_nothing, is_cause),
    },
}
