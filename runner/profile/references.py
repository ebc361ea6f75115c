"""References to secrets in a profile: `${env:NAME}`, `${file:~/.token}` and `${cmd:pass show x}`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Literal, NamedTuple

Kind = Literal["env", "file", "cmd"]

_REFERENCE = re.compile(r"\$\{(env|file|cmd):([^{}\r\n]*)\}")
_OPENED = re.compile(r"\$\{(env|file|cmd):")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(r"(?:~?/)[^\0]+")
MEANT = re.compile(r"\$\{(?:env:|file:[~/]|cmd:[\w~./])")
"""Beginning of an intended reference; does not match a shell's own `${file:-x}` and `${cmd:?}`."""
_EXPECTED = {"env": "${env:NAME}", "file": "${file:~/PATH}", "cmd": "${cmd:PROGRAM WORDS}"}


class Reference(NamedTuple):
    """The source of a secret: a variable, a file or the output of a command, all on this machine."""

    kind: Kind
    name: str
    """The variable's name, the file's path, or the command line."""

    def __str__(self) -> str:
        return f"${{{self.kind}:{self.name}}}"

    @property
    def words(self) -> tuple[str, ...]:
        """The command's words, which are run without a shell. Raises ValueError for an unclosed quote."""
        return tuple(shlex.split(self.name))


class UnresolvedError(Exception):
    """A reference without a usable value. The message includes the cure, never the value."""


Lookup = Callable[[Reference], str]
"""Reference → its value; raises UnresolvedError."""


def references(text: str) -> list[Reference]:
    """The references in a text, in order."""
    return [_of(match) for match in _REFERENCE.finditer(text)]


def replaced(text: str, lookup: Lookup) -> str:
    """Replace every reference in a text with the result of `lookup`. Raises what `lookup` raises."""
    return _REFERENCE.sub(lambda match: lookup(_of(match)), text)


def split(text: str) -> list[str | Reference]:
    """Split a text into references and the non-empty texts between them."""
    pieces: list[str | Reference] = []
    end = 0
    for match in _REFERENCE.finditer(text):
        pieces += [text[end : match.start()], _of(match)]
        end = match.end()
    return [piece for piece in [*pieces, text[end:]] if piece]


def broken(text: str) -> str:
    """What is expected instead of the first malformed reference in a text; empty if all are well-formed."""
    opened = _OPENED.search(_REFERENCE.sub("", text))
    kind = opened[1] if opened else next((one.kind for one in references(text) if not _is_good(one)), "")
    return f"expected {_EXPECTED[kind]}" if kind else ""


def _of(match: re.Match[str]) -> Reference:
    kind = match[1]
    return Reference("env" if kind == "env" else "file" if kind == "file" else "cmd", match[2])


def _is_good(reference: Reference) -> bool:
    if reference.kind == "env":
        return bool(_NAME.fullmatch(reference.name))
    if reference.kind == "file":
        return bool(_PATH.fullmatch(reference.name))
    try:
        return bool(reference.words) and bool(reference.words[0])
    except ValueError:
        return False
