"""The traceback that a rank's log ends with: of ranks that report none themselves, not instrumented or commands."""

from __future__ import annotations

import os
import re

_TAIL = 64 * 1024
_LONGEST_MESSAGE = 8
"""Lines; more than those are no message but what was printed later."""
_FIRST = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?$", re.DOTALL)
# torch puts this in front of every line of an uncaught exception once a process group is up.
_PREFIX = re.compile(r"^\[rank\d+\]: ?")


def read(path: str) -> dict[str, str] | None:
    """Return `type`, `message` and `traceback` where the log at `path` ends with an uncaught exception."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return at_end(file.read().decode("utf-8", "replace"))
    except OSError:
        return None


def at_end(text: str) -> dict[str, str] | None:
    """The same of a text. What libraries print behind it while the interpreter ends has a [mark] in front."""
    lines = [line.rstrip() for line in text.split("\n")]
    plain = [_PREFIX.sub("", line) for line in lines]
    starts = [index for index, line in enumerate(plain) if line == _FIRST]
    if not starts:
        return None
    start = starts.pop()
    frames = next((index for index in range(start + 1, len(plain)) if plain[index][:1] not in ("", " ")), None)
    if frames is None:
        return None
    marked = bool(_PREFIX.match(lines[start]))
    end = frames + 1
    while end < len(lines) and (_PREFIX.match(lines[end]) if marked else not lines[end].startswith("[")):
        end += 1
    while not plain[end - 1]:
        end -= 1
    found = _EXCEPTION.match("\n".join(plain[frames:end]))
    if not found or end - frames > _LONGEST_MESSAGE or any(line and line[0] != "[" for line in lines[end:]):
        return None
    while starts and _leads_on(plain[:start]):
        start = starts.pop()
    return {"type": found[1], "message": found[2] or "", "traceback": "\n".join(plain[start:end])}


def _leads_on(before: list[str]) -> bool:
    """Whether an exception that comes after these lines belongs to the one before it."""
    return next((line for line in reversed(before) if line), "").startswith(_CHAINED)
