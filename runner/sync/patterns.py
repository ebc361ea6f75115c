"""Patterns for names of files, as in .gitignore but without `!`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from pathlib import Path

from disttui.runner.errors import InputError
from disttui.runner.private import read

IGNORE_FILE = ".disttuiignore"
_LARGEST = 1 << 20
_ANY = re.compile(r"\\.|\[\^?\]?[^\]]*\]|\.", re.DOTALL)
"""An escaped character, a set, or any character, in what `fnmatch.translate` returns."""


class Patterns:
    """Matches paths below a folder.

    `*.pt` matches a file or a folder of that name anywhere, `data/` a folder, `/out` and `a/*.csv` a path from the top.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._of: dict[re.Pattern[str], str] = {_compiled(one): one for one in patterns}

    def matching(self, path: str, *, folder: bool = False) -> str | None:
        """The pattern that matches a relative path, None if none does; parents of the path are not considered."""
        shown = f"/{path}/" if folder else f"/{path}"
        return next((text for regex, text in self._of.items() if regex.fullmatch(shown)), None)

    def matching_any_part(self, path: str) -> str | None:
        """The same for a file, or for any folder that it is in."""
        if not self._of:
            return None
        at = path.find("/")
        while at > 0:
            if found := self.matching(path[:at], folder=True):
                return found
            at = path.find("/", at + 1)
        return self.matching(path)


def ignored(folder: Path) -> list[str]:
    """The patterns of a folder's .disttuiignore; none if it has none. Raises InputError."""
    path = folder / IGNORE_FILE
    try:
        lines = read(path, _LARGEST)[0].decode("utf-8", "surrogateescape").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", place=str(path)) from None
    found = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith("!"):
            cure = "List what to leave out alone; job.sync.include brings files back."
            raise InputError("a pattern with ! is not supported", cure, place=f"{path}:{number}")
        if text and not text.startswith("#"):
            found.append(text)
    return found


def _compiled(pattern: str) -> re.Pattern[str]:
    body = pattern.removesuffix("/")
    parts = body.removeprefix("/").split("/")
    text = "" if "/" in body else "(?:.*/)?"
    for part in parts[:-1]:
        text += "(?:.*/)?" if part == "**" else f"{_name(part)}/"
    text += ".+" if parts[-1] == "**" else _name(parts[-1])
    return re.compile(f"(?s:/{text}{'/' if pattern.endswith('/') else '/?'})")


def _name(part: str) -> str:
    """The expression for one name of a path: nothing in it matches a slash."""
    text = fnmatch.translate(part).removeprefix("(?s:").removesuffix(r")\Z").removesuffix(r")\z")
    return _ANY.sub(lambda found: {".": "[^/]", "[": f"(?!/){found[0]}"}.get(found[0][0], found[0]), text)
