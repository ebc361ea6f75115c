"""The answers of a host, checked and bounded before they are used (docs/formats.md, "Frames")."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from runner.formatting import number
from runner.protocol.cause import Cause
from runner.protocol.events import Held
from runner.protocol.files import LeaderPlace, RankStacks
from runner.protocol.limits import CODE_DIFF, CODE_UNTRACKED
from runner.protocol.requests import CodeState
from runner.untrusted.bounded import text, whole
from runner.untrusted.decode import decode

_NAMES = 100
_ADDRESSES = 64
_PIDS = 10_000
_LONG, _SHORT = 4096, 100
"""Characters."""


class Started(TypedDict):
    """Of `start`; `gang` is the leader's."""

    gang: LeaderPlace | None


class Submitted(TypedDict):
    """Of `submit`."""

    job: str


class Stopped(TypedDict):
    """Of `stop`."""

    stopped: bool


class StacksAnswer(TypedDict):
    """Of `stacks`, by rank."""

    ranks: dict[str, RankStacks]


class Exit(TypedDict):
    """The part of exit.json that commands show."""

    t: float | None
    state: str
    cause: Cause
    left: list[int]
    held: Held


class Status(TypedDict):
    """Of `status`."""

    alive: bool
    exit: Exit | None
    waits: str


class Completed(TypedDict):
    """Of `complete`."""

    names: list[str]
    more: bool


def read_answer(op: str, answer: Any) -> Any:
    """An answer as the type of its op. Raises ValueError for a malformed one."""
    if not isinstance(answer, dict):
        raise ValueError("no object")
    return _READERS[op](answer) if op in _READERS else answer


def _started(answer: Mapping[str, Any]) -> Started:
    gang = answer.get("gang")
    if not isinstance(gang, dict):
        return {"gang": None}
    port, addresses = whole(gang.get("port"), 1 << 16), gang.get("addresses")
    if not port or not isinstance(addresses, list):
        raise ValueError("gang")
    return {"gang": {"port": port, "addresses": _texts(addresses[:_ADDRESSES], _SHORT)}}


def _submitted(answer: Mapping[str, Any]) -> Submitted:
    return {"job": text(answer.get("job"), _SHORT)}


def _stopped(answer: Mapping[str, Any]) -> Stopped:
    return {"stopped": answer.get("stopped") is True}


def _status(answer: Mapping[str, Any]) -> Status:
    if not isinstance(answer.get("alive"), bool):
        raise ValueError("alive")
    end = answer.get("exit")
    waits = text(answer.get("waits"), _LONG)
    return {"alive": answer["alive"], "exit": read_exit(end) if isinstance(end, dict) else None, "waits": waits}


def read_exit(end: Mapping[str, object]) -> Exit:
    """The content of an exit.json, bounded: a host may have written anything."""
    left = end.get("left")
    return {
        "t": number(end.get("t")),
        "state": text(end.get("state"), _SHORT),
        "cause": decode(Cause, _object(end.get("cause"))),
        "left": [pid for one in left[:_PIDS] if (pid := whole(one)) is not None] if isinstance(left, list) else [],
        "held": decode(Held, _object(end.get("held"))),
    }


def no_exit() -> Exit:
    """The answer of a host that does not know how its part of the run ended."""
    return read_exit({})


def _stacks(answer: Mapping[str, Any]) -> StacksAnswer:
    return decode(StacksAnswer, {"ranks": _object(answer.get("ranks"))})


def _completed(answer: Mapping[str, Any]) -> Completed:
    names = answer.get("names")
    # Not cleaned: the user goes on typing this path; the code that shows it cleans it.
    found = [name for name in names[:_NAMES] if isinstance(name, str)] if isinstance(names, list) else []
    return {"names": [name[:_LONG] for name in found], "more": answer.get("more") is True}


def _code_state(answer: Mapping[str, Any]) -> CodeState:
    head, diff, names = answer.get("head"), answer.get("diff"), answer.get("untracked")
    return {
        "folder": text(answer.get("folder"), _LONG),
        "head": head if isinstance(head, str) and re.fullmatch("[0-9a-f]{40,64}", head) else None,
        # As it is: a patch with other characters would not apply. The code that shows it cleans it.
        "diff": diff[:CODE_DIFF] if isinstance(diff, str) else "",
        "cut": answer.get("cut") is True,
        "untracked": _texts(names[:CODE_UNTRACKED], _LONG) if isinstance(names, list) else [],
    }


def _texts(items: list[Any], most: int) -> list[str]:
    return [text(item, most) for item in items if isinstance(item, str)]


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "start": _started, "submit": _submitted, "stop": _stopped, "status": _status, "stacks": _stacks,
    "complete": _completed, "code": _code_state,
}  # fmt: skip
