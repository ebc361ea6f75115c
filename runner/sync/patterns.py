"""Patterns with .gitignore semantics, for `.disttuiignore`, `job.sync.exclude` and `job.sync.include`."""

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
    """Whether it has no slash, and so matches the last component of a path."""
    only_folders: bool


class Patterns:
    """Matches paths below a folder: the last matching pattern decides, and a leading `!` negates it.

    `*.pt` matches files and folders by name anywhere, `data/` only folders, `/out` and `a/*.csv` paths from the top.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [_compiled(one) for one in dict.fromkeys(reversed([*patterns]))]
        self._of_files = [one for one in self._patterns if not one.only_folders]
        self._folders: dict[str, str | None] = {}

    def deciding(self, path: str, *, folder: bool = False) -> str:
        """Return the pattern that decides about a relative path, with its `!`, or ""; parents are not considered."""
        shown = _bytewise(path)
        name = shown.rpartition("/")[2]
        for one in self._patterns if folder else self._of_files:
            if one.regex.fullmatch(name if one.by_name else shown):
                return one.text
        return ""

    def matching(self, path: str, *, folder: bool = False) -> str | None:
        """Return the pattern that matches a relative path, or None; parents of the path are not considered."""
        found = self.deciding(path, folder=folder)
        return None if found.startswith("!") else found or None

    def matching_any_part(self, path: str) -> str | None:
        """Return the pattern that matches a file or one of its parents, or None; a matching parent decides first."""
        folder = path.rpartition("/")[0]
        return (self._matching_folder(folder) or self.matching(path)) if self._may_decide(folder) else None

    def _may_decide(self, folder: str) -> bool:
        """Whether any pattern applies in a folder; skips the search, since most folders have none."""
        return bool(self._patterns)

    def _matching_folder(self, path: str) -> str | None:
        if not path:
            return None
        if path not in self._folders:
            found = self._matching_folder(path.rpartition("/")[0])
            self._folders[path] = found or self.matching(path, folder=True)
        return self._folders[path]


class Ignored(Patterns):
    """The patterns of .disttuiignore files in a folder and its subfolders, and further patterns.

    `more` overrides all files, and of those the nearest decides. Methods raise InputError for an unreadable file.
    """

    def __init__(self, top: Path, more: Iterable[str] = ()) -> None:
        super().__init__(more)
        self._top = top
        self._files: dict[str, tuple[tuple[str, Patterns], ...]] = {}

    def deciding(self, path: str, *, folder: bool = False) -> str:
        """Return the deciding pattern, followed by the file's path if it is in a subfolder."""
        found = super().deciding(path, folder=folder)
        for above, patterns in () if found else self._files_of(path.rpartition("/")[0]):
            if found := patterns.deciding(path[len(above) :], folder=folder):
                return f"{found} in {above}{IGNORE_FILE}" if above else found
        return found

    def _may_decide(self, folder: str) -> bool:
        return bool(self._patterns or self._files_of(folder))

    def _files_of(self, folder: str) -> tuple[tuple[str, Patterns], ...]:
        """Return (path with slash, patterns) of the files that apply in a folder, nearest first."""
        if folder not in self._files:
            above = self._files_of(folder.rpartition("/")[0]) if folder else ()
            own = ignored(self._top / folder)
            self._files[folder] = ((f"{folder}/" if folder else "", Patterns(own)), *above) if own else above
        return self._files[folder]


def ignored(folder: Path) -> list[str]:
    """Return the patterns of a folder's .disttuiignore, or [] without that file. Raises InputError."""
    path = folder / IGNORE_FILE
    try:
        content = read(path, _LARGEST + 1)[0]
    except OSError as error:
        if not os.path.lexists(path):  # also true if the folder cannot be entered, but then nothing in it is sent
            return []
        raise InputError(f"cannot be read: {error.strerror}", place=str(path)) from None
    if len(content) > _LARGEST:
        raise InputError("larger than 1 MiB, too large for a file of patterns", "Shorten it.", place=str(path))
    text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    lines = (_without_blanks(line.removesuffix("\r")) for line in text.split("\n") if not line.startswith("#"))
    return [line for line in lines if line]


def _without_blanks(line: str) -> str:
    """Strip trailing blanks from a line, except one after a backslash."""
    bare = line.rstrip(" ")
    backslashes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if backslashes % 2 and bare != line else bare


def _bytewise(text: str) -> str:
    """Return one character per byte, since git compares bytes: `?` matches a single byte."""
    return text if text.isascii() else os.fsencode(text).decode("latin-1")


def _compiled(pattern: str) -> _Pattern:
    body = re.sub(r"^\./", "/", pattern.removeprefix("!"))  # for git, ./data would never match
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
        # Text before another star may match at its first occurrence: backtracking could take exponential time.
        another = next((one for one, _ in parts[at + 1 :] if one in "*/"), "") == "*"
        opened = f"star{at}" if another else ""
        found += f"(?=(?P<{opened}>[^/]*?" if another else "[^/]*"
    return found


def _parts(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield kind and regular expression of each part of a pattern: `*`, `/` if it matches slashes, blank for others."""
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
    """Parse a set such as `[a-z]` whose content begins at `at`; return the position after it and its expression."""
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    first, before, ranges = at, "", []
    while True:
        one = pattern[at : at + 1]
        at += 1
        if not one:
            return len(pattern), _NEVER  # unclosed set
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
