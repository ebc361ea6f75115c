"""What a list shows of each profile, kept in memory for files that have not changed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from disttui.runner.errors import InputError
from disttui.runner.profile import Profile, ProfileErrors, parse_quickly, read
from disttui.runner.profile.composition import Trees
from disttui.runner.profile.library import Library, LibraryEntry
from disttui.runner.text import clean


class Header(NamedTuple):
    """What a list shows of a profile, as safe text."""

    description: str = ""
    hosts: tuple[str, ...] = ()
    processes: tuple[int | None, ...] = ()
    """Per host; None where the probe decides."""
    problem: str = ""
    """The first error in it, with its place."""


class _Kept(NamedTuple):
    files: list[tuple[str, int, int]]
    """Of every file that the header was made of: path, modification time in ns, size."""
    header: Header
    shelf: int | None = None
    """Of one with a problem: the state of all libraries. Another file may be to blame, or one that is not there yet."""


_KEPT: dict[Path, dict[str, _Kept]] = {}
"""Folder of a library → path of a profile → its header: the app lists all whenever a run changes."""


_LARGEST = 64 << 10
"""Bytes of a profile whose header is read: a list of them must not take minutes."""


def shelf_of(entries: Iterable[LibraryEntry]) -> int:
    """A value that changes with any of the files."""
    return hash(tuple((str(entry.path), *_stamp(str(entry.path))) for entry in entries))


def headers(library: Library, entries: Iterable[LibraryEntry], shelf: int) -> list[tuple[LibraryEntry, Header]]:
    """Every profile of a library with its header; files that have changed since the last call are read.

    Args:
        shelf: Of all libraries, from `shelf_of`.
    """
    before = _KEPT.get(library.folder, {})
    after: dict[str, _Kept] = {}
    found = []
    trees = Trees(quick=True)
    for entry in entries:
        if entry.problem:
            found.append((entry, Header(problem=entry.problem)))
            continue
        kept = before.get(str(entry.path))
        fresh = kept and kept.shelf in (None, shelf)
        if not kept or not fresh or any(_stamp(path) != (mtime, size) for path, mtime, size in kept.files):
            kept = _made(entry.path, trees, shelf)
        after[str(entry.path)] = kept
        found.append((entry, kept.header))
    _KEPT[library.folder] = after
    return found


def _made(path: Path, trees: Trees, shelf: int) -> _Kept:
    own = (str(path), *_stamp(str(path)))
    if own[2] > _LARGEST:
        return _Kept([own], Header(f"larger than {_LARGEST >> 10} KiB: not read for this list"))
    try:
        found = read(path)
        profile = parse_quickly(found, path, trees)
    except InputError as error:
        return _Kept([own], Header(problem=first_problem(error)), shelf)
    files = [(str(path), found.status), *((each.path, each.status) for each in profile.read_from)]
    return _Kept([(name, status.st_mtime_ns, status.st_size) for name, status in files], header_of(profile))


def header_of(profile: Profile) -> Header:
    """The header of a profile that has been read."""
    names = tuple(clean(host.name) for host in profile.hosts)
    return Header(clean(profile.description), names, tuple(host.num_processes for host in profile.hosts))


def first_problem(error: InputError) -> str:
    """The first error in a file, with its place, as safe text."""
    found = error.problems[0] if isinstance(error, ProfileErrors) else None
    if found is None:
        return clean(error.reason)
    place = f"line {found.line}:{found.column}: " if found.line else ""
    return clean(f"{place}{found.reason}")


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116 - of thousands: a Path takes twice as long
    except (OSError, ValueError):
        return (0, 0)
    return status.st_mtime_ns, status.st_size
