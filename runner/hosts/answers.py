"""Validates and bounds the answers of a host (docs/formats.md, "Frames")."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Literal, TypedDict

from disttui.runner.formatting import number
from disttui.runner.protocol import tree
from disttui.runner.protocol.checks import DialAnswer, Inspected
from disttui.runner.protocol.files import Exit, LeaderPlace
from disttui.runner.protocol.limits import CODE_DIFF, CODE_UNTRACKED, MOST_ORPHANS
from disttui.runner.protocol.names import ENVIRONMENT
from disttui.runner.protocol.requests import (
    CodeState,
    Completed,
    EnvironmentAnswer,
    Notified,
    Offline,
    OrphansAnswer,
    SetUp,
    StacksAnswer,
    Started,
    Stopped,
    Submitted,
    TreeAnswer,
)
from disttui.runner.untrusted.decode import decode
from disttui.runner.untrusted.records import mapping, text, whole

_LONG, _SHORT = 4096, 100
"""Limits of texts, in characters."""


class StagedTree(TypedDict):
    """The answer to `stage`; `tree` is "" if nothing was fetched yet."""

    tree: str
    manifest: bytes
    file: bool


class Status(TypedDict):
    """The answer to `status`."""

    alive: bool
    exit: Exit | None
    waits: str


def read_answer(op: str, answer: Any) -> Any:
    """Decode an answer to the type of its op. Raises ValueError if it is malformed."""
    if not isinstance(answer, dict):
        raise ValueError("not an object")
    return _READERS[op](answer) if op in _READERS else answer


def _started(answer: Mapping[str, Any]) -> Started:
    found = decode(Started, _plain(answer))
    return {**found, "gang": read_place(found["gang"]) if found["gang"] else None}


def read_place(place: Mapping[str, Any]) -> LeaderPlace:
    """Decode the port and addresses at which a host listens. Raises ValueError if they are malformed."""
    port, addresses = whole(place.get("port"), 1 << 16), place.get("addresses")
    if not port or not isinstance(addresses, list):
        raise ValueError("gang")
    return {"port": port, "addresses": _texts(addresses[:64], _SHORT)}


def _status(answer: Mapping[str, Any]) -> Status:
    if not isinstance(answer.get("alive"), bool):
        raise ValueError("alive")
    end = answer.get("exit")
    waits = text(answer.get("waits"), _LONG)
    return {"alive": answer["alive"], "exit": decode(Exit, end) if isinstance(end, dict) else None, "waits": waits}


def _orphans(answer: Mapping[str, Any]) -> OrphansAnswer:
    found = answer.get("found")
    if not isinstance(found, list):
        raise ValueError("found")
    return decode(OrphansAnswer, {"found": [_plain(one) for one in found[:MOST_ORPHANS]]})


def _completed(answer: Mapping[str, Any]) -> Completed:
    names = answer.get("names")
    # Not cleaned, since the user continues to type this path; the code that prints it cleans it.
    found = [name for name in names[:100] if isinstance(name, str)] if isinstance(names, list) else []
    return {"names": [name[:_LONG] for name in found], "more": answer.get("more") is True}


def _code_state(answer: Mapping[str, Any]) -> CodeState:
    head, diff, names = answer.get("head"), answer.get("diff"), answer.get("untracked")
    return {
        "folder": text(answer.get("folder"), _LONG),
        "head": head if isinstance(head, str) and re.fullmatch("[0-9a-f]{40,64}", head) else None,
        # Not cleaned, since a changed patch would not apply; the code that prints it cleans it.
        "diff": diff[:CODE_DIFF] if isinstance(diff, str) else "",
        "cut": answer.get("cut") is True,
        "untracked": _texts(names[:CODE_UNTRACKED], _LONG) if isinstance(names, list) else [],
    }


def _synced(answer: Mapping[str, Any]) -> TreeAnswer:
    missing, begun = answer.get("missing"), mapping(answer.get("begun"))
    if not isinstance(missing, list) or not all(isinstance(one, list) and len(one) == 2 for one in missing):
        raise ValueError("missing")
    ranges, end = list[list[int]](), 0
    for one in missing:
        first, many = (whole(number, tree.MOST_FILES + 1) for number in one)
        if first is None or many is None or first < end:  # ranges must be sorted and disjoint
            raise ValueError("missing")
        ranges.append([first, many])
        end = first + many
    sizes = {str(name): whole(size, 1 << 50) for name, size in begun.items()}
    return {
        "store": text(answer.get("store"), _SHORT),
        "manifest": answer.get("manifest") is True,
        "missing": ranges,
        "begun": {name: size for name, size in sizes.items() if size is not None},
        "placed": answer.get("placed") is True,
    }


def _staged(answer: Mapping[str, object]) -> StagedTree:
    name, packed = answer.get("tree"), answer.get("manifest")
    if not name:
        return {"tree": "", "manifest": b"", "file": False}
    try:
        manifest = zlib.decompressobj().decompress(base64.b64decode(str(packed)), tree.MOST_BYTES)
        tree.decode(manifest)
    except zlib.error:
        raise ValueError("manifest") from None
    if tree.digest(manifest) != name:
        raise ValueError("tree")
    return {"tree": tree.digest(manifest), "manifest": manifest, "file": answer.get("file") is True}


def _environment(answer: Mapping[str, Any]) -> EnvironmentAnswer:
    python, packages = answer.get("python"), mapping(answer.get("packages"))
    if not isinstance(python, str) or (python and not ENVIRONMENT.search(python)) or text(python, _LONG) != python:
        raise ValueError("python")
    shown = {text(name, _SHORT): text(version, _SHORT) for name, version in islice(packages.items(), 2000)}
    made: EnvironmentAnswer = {"python": python, "packages": shown}
    if isinstance(answer.get("offline"), dict):
        made["offline"] = offline = decode(Offline, _plain(answer["offline"]))
        if not all(re.fullmatch(r"[0-9A-Za-z._+-]{0,60}", str(offline[key])) for key in _OF_WHEELS):
            raise ValueError("offline")
    return made


_OF_WHEELS: tuple[Literal["tag", "machine", "libc", "torch"], ...] = ("tag", "machine", "libc", "torch")


def _as(kind: type[Any]) -> Callable[[Mapping[str, Any]], Any]:
    return lambda answer: decode(kind, _plain(answer))


def _plain(value: Any) -> Any:
    """Make every text in JSON safe to print, and cut texts, lists and objects to generous limits."""
    if isinstance(value, str):
        return text(value, _SHORT * 5)
    if isinstance(value, list):
        return [_plain(one) for one in value[:4096]]
    if isinstance(value, dict):
        return {text(name, _SHORT): _plain(one) for name, one in islice(value.items(), 256)}
    return value if isinstance(value, bool | None) or number(value) is not None else None


def _texts(items: list[Any], most: int) -> list[str]:
    return [text(item, most) for item in items if isinstance(item, str)]


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "start": _started, "submit": _as(Submitted), "stop": _as(Stopped), "status": _status,
    "stacks": lambda answer: decode(StacksAnswer, {"ranks": mapping(answer.get("ranks"))}),
    "complete": _completed, "code": _code_state, "sync": _synced, "put": _synced, "gather": _synced, "stage": _staged,
    "environment": _environment, "setup": _as(SetUp), "inspect": _as(Inspected), "dial": _as(DialAnswer),
    "notify": _as(Notified), "orphans": _orphans,
}  # fmt: skip
