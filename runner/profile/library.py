"""Where profiles live: the user's own, the team's, and the ones that come with disttui."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from runner.errors import InputError
from runner.profile.problems import near, printable
from runner.user_folders import user_folder

Origin = Literal["own", "team", "built in"]
_SUFFIXES = (".yaml", ".yml")


class LibraryEntry(NamedTuple):
    """A profile that `find` knows by name."""

    name: str
    path: Path
    origin: Origin


def find(name_or_path: str) -> Path:
    """Return the file of a path, or of a profile's name: an existing path first, then own, team and built in.

    Raises:
        InputError: Neither is there; names that are near are suggested.
    """
    path = Path(name_or_path)
    there = _what_is(path)
    if there == "file":
        return path
    entries = list_profiles()
    for entry in entries:
        if name_or_path in (entry.name, entry.path.name):
            return entry.path
    shown = printable(name_or_path) or "''"
    if name_or_path == "-":
        raise InputError("-: a profile is not read from standard input", "Save it in a file.")
    if there == "folder" and name_or_path:
        raise InputError(f"{shown}: this is a folder", "Name a profile in it.")
    if path.name != name_or_path:
        beside = [str(path.parent / each.name) for each in _files(path.parent)]
        raise InputError(f"{shown}: there is no such file", _cure(name_or_path, beside))
    names = [entry.name for entry in entries]
    here = [each.name for each in _files(Path())]
    raise InputError(f"{shown}: no profile has this name and no file this path", _cure(path.name, [*names, *here]))


def list_profiles() -> list[LibraryEntry]:
    """Every profile that can be named, by name; where two have one name, the one that `find` takes."""
    found: dict[str, LibraryEntry] = {}
    for origin, folder in folders():
        for path in _files(folder):
            found.setdefault(path.stem, LibraryEntry(path.stem, path, origin))
    return sorted(found.values())


def folders() -> Iterator[tuple[Origin, Path]]:
    """Where profiles are looked for, in this order."""
    yield "own", user_folder("config", os.environ) / "profiles"
    for folder in filter(None, os.environ.get("DISTTUI_PROFILES", "").split(":")):
        yield "team", Path(os.path.expanduser(folder))  # noqa: PTH111 - Path raises for an unknown ~user
    shipped = Path(__file__).parent.parent / "_profiles"
    yield "built in", shipped if shipped.is_dir() else Path(__file__).parent.parent.parent / "profiles"


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if each.suffix in _SUFFIXES)
    except (OSError, ValueError):
        return []


def _what_is(path: Path) -> Literal["file", "folder", ""]:
    try:
        return "folder" if path.is_dir() else "file" if path.exists() else ""
    except (OSError, ValueError):
        return ""


def _cure(word: str, known: list[str]) -> str:
    if meant := near(word, known):
        return f"Did you mean {printable(meant)}?"
    return f"There are: {printable(', '.join(known[:10]))}." if known else ""
