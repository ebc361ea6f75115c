"""The patterns of .gitignore, with git's meaning: of `.disttuiignore`, `job.sync.exclude` and `job.sync.include`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from disttui.runner.errors import InputError
from disttui.runner.private import read

IGNORE_FILE = ".disttuiignore"
_LARGEST = 1 << 20
_NEVER = "(?!)"
_CLASSES = {
    "alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f", "digit": "0-9",
    "graph": r"\x21-\x7e", "lower": "a-z", "print": r"\x20-\x7e", "punct": r"!-/:-@\[-`{-~", "space": r"\s",
    "upper": "A-Z", "xdigit": "0-9a-fA-F",
}  # fmt: skip
_CLASS = re.compile(r"\[:([^\]]*):\]")


class _Pattern(NamedTuple):
    text: str
    regex: re.Pattern[str]
    by_name: bool
    """It has no slash, and so matches the last name of a path."""
    only_folders: bool


class Patterns:
    """Matches paths below a folder: the last pattern that matches decides, and `!` before it means that none does.

    `*.pt` matches a file or a folder of that name anywhere, `data/` a folder, `/out` and `a/*.csv` a path from the top.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [_compiled(one) for one in dict.fromkeys(reversed([*patterns]))]
        self._folders: dict[str, str | None] = {}

    def deciding(self, path: str, *, folder: bool = False) -> str:
        """The pattern that decides about a relative path, with its `!`; empty if none does. Parents do not count."""
        shown = _bytewise(path)
        name = shown.rpartition("/")[2]
        for one in self._patterns:
            if (folder or not one.only_folders) and one.regex.fullmatch(name if one.by_name else shown):
                return one.text
        return ""

    def matching(self, path: str, *, folder: bool = False) -> str | None:
        """The pattern that matches a relative path, None if none does; parents of the path are not considered."""
        found = self.deciding(path, folder=folder)
        return None if found.startswith("!") else found or None

    def matching_any_part(self, path: str) -> str | None:
        """The same for a file, or for any folder that it is in: what is in a folder that matches is not looked at."""
        folder = path.rpartition("/")[0]
        return (self._matching_folder(folder) or self.matching(path)) if self._may_decide(folder) else None

    def _may_decide(self, folder: str) -> bool:
        """Whether any pattern may match in a folder; none does for most files."""
        return bool(self._patterns)

    def _matching_folder(self, path: str) -> str | None:
        if not path:
            return None
        if path not in self._folders:
            found = self._matching_folder(path.rpartition("/")[0])
            self._folders[path] = found or self.matching(path, folder=True)
        return self._folders[path]


class Ignored(Patterns):
    """What the .disttuiignore of a folder says, those of folders in it about what is there, and more patterns.

    The nearest file decides, but `more` is the last word. Its methods raise InputError for a file that cannot be read.
    """

    def __init__(self, top: Path, more: Iterable[str] = ()) -> None:
        super().__init__(more)
        self._top = top
        self._files: dict[str, tuple[tuple[str, Patterns], ...]] = {}

    def deciding(self, path: str, *, folder: bool = False) -> str:
        """As above; a pattern of a folder in it comes with the file that has it."""
        found = super().deciding(path, folder=folder)
        for above, patterns in () if found else self._files_of(path.rpartition("/")[0]):
            if found := patterns.deciding(path[len(above) :], folder=folder):
                return f"{found} in {above}{IGNORE_FILE}" if above else found
        return found

    def _may_decide(self, folder: str) -> bool:
        return bool(self._patterns or self._files_of(folder))

    def _files_of(self, folder: str) -> tuple[tuple[str, Patterns], ...]:
        """What decides in a folder, the nearest first: where it is, and its patterns."""
        if folder not in self._files:
            above = self._files_of(folder.rpartition("/")[0]) if folder else ()
            own = ignored(self._top / folder)
            self._files[folder] = ((f"{folder}/" if folder else "", Patterns(own)), *above) if own else above
        return self._files[folder]


def ignored(folder: Path) -> list[str]:
    """The patterns of a folder's .disttuiignore; none if it has none. Raises InputError."""
    path = folder / IGNORE_FILE
    try:
        text = read(path, _LARGEST)[0].removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    except OSError as error:
        if not os.path.lexists(path):  # nor is anything sent of a folder that cannot be entered
            return []
        raise InputError(f"cannot be read: {error.strerror}", place=str(path)) from None
    lines = (_without_blanks(line.removesuffix("\r")) for line in text.split("\n") if not line.startswith("#"))
    return [line for line in lines if line]


def _without_blanks(line: str) -> str:
    """A line without the blanks at its end, but for one after a backslash."""
    bare = line.rstrip(" ")
    backslashes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if backslashes % 2 and bare != line else bare


def _bytewise(text: str) -> str:
    """A character for each byte, as git compares: `?` is one of them."""
    return text if text.isascii() else os.fsencode(text).decode("latin-1")


def _compiled(pattern: str) -> _Pattern:
    body = re.sub(r"^\./", "/", pattern.removeprefix("!"))  # git takes ./data for no path at all
    only_folders, body = body.endswith("/"), body.removesuffix("/")
    by_name = "/" not in body
    expression = _expression(_bytewise(body.removeprefix("/"))) if body else _NEVER
    return _Pattern(pattern, re.compile(expression, re.DOTALL), by_name, only_folders)


def _expression(pattern: str) -> str:
    parts = list(_parts(pattern))
    found = opened = ""
    for at, (kind, text) in enumerate(parts):
        if kind != "*":
            found += text
            continue
        found += f"))(?P={opened})" if opened else ""
        # What is before another star matches best where it matches first: to try each other place may take forever.
        another = next((one for one, _ in parts[at + 1 :] if one in "*/"), "") == "*"
        opened = f"star{at}" if another else ""
        found += f"(?=(?P<{opened}>[^/]*?" if another else "[^/]*"
    return found


def _parts(pattern: str) -> Iterator[tuple[str, str]]:
    """The kind of each part of a pattern and its expression: `*`, `/` for what matches slashes, blank for others."""
    at = 0
    while at < len(pattern):
        one, begun = pattern[at], at
        at += 1
        if one == "*":
            while pattern[at : at + 1] == "*":
                at += 1
            rest = pattern[at:]
            whole = at - begun > 1 and pattern[:begun][-1:] in ("", "/") and (not rest or rest.startswith(("/", "\\/")))
            if whole and rest.startswith("/"):
                at += 1
                yield "/", "(?:.*/)?"
            else:
                yield ("/", ".*") if whole else ("*", "")
        elif one == "?":
            yield " ", "[^/]"
        elif one == "[":
            at, text = _set(pattern, at)
            yield " ", text
        else:
            if one == "\\":
                one, at = pattern[at : at + 1], at + 1
            yield "/" if one == "/" else " ", re.escape(one) if one else _NEVER


def _set(pattern: str, at: int) -> tuple[int, str]:
    """The place after a set whose content begins at a place, and its expression."""
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    first, before, ranges = at, "", []
    while True:
        one = pattern[at : at + 1]
        at += 1
        if not one:
            return len(pattern), _NEVER  # it does not end
        if one == "]" and at - 1 > first:
            break
        if one == "-" and before and pattern[at : at + 1] not in ("", "]"):
            at += pattern[at] == "\\"
            last = pattern[at : at + 1]
            at += 1
            if before <= last:
                ranges.append(f"{re.escape(before)}-{re.escape(last)}")
            before = ""
        elif named := _CLASS.match(pattern, at - 1):
            if named[1] not in _CLASSES:
                return len(pattern), _NEVER
            ranges.append(_CLASSES[named[1]])
            at, before = named.end(), ""
        else:
            if one == "\\":
                one, at = pattern[at : at + 1], at + 1
            ranges.append(re.escape(one))
            before = one
    within = "".join(ranges)
    if negated:
        return at, f"[^/{within}]"
    return at, f"(?!/)[{within}]" if within else _NEVER
