"""What a list shows of each profile, kept from one list to the next for files that have not changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from runner import __version__, private
from runner.errors import InputError
from runner.paths import inside
from runner.profile import Profile, ProfileErrors, parse_quickly, read
from runner.profile.composition import Trees
from runner.profile.library import Library, LibraryEntry
from runner.profile.nodes import MappingNode, compose
from runner.text import clean
from runner.user.folders import user_folder

_FORMAT = f"2 {__version__}"


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


def headers(
    library: Library, entries: Iterable[LibraryEntry], environ: Mapping[str, str]
) -> list[tuple[LibraryEntry, Header]]:
    """Every profile of a library with its header; files that have changed since the last call are read."""
    file = inside(user_folder("cache", environ) / "library", f"{library.name}.json")
    before = _read(file)
    after: dict[str, _Kept] = {}
    found = []
    trees = Trees(quick=True)
    for entry in entries:
        if entry.problem:
            found.append((entry, Header(problem=entry.problem)))
            continue
        kept = before.get(str(entry.path))
        if kept is None or any(_stamp(path) != (mtime, size) for path, mtime, size in kept.files):
            kept = _made(entry.path, trees)
        after[str(entry.path)] = kept
        found.append((entry, kept.header))
    if after != before:
        _write(file, after)
    return found


def _made(path: Path, trees: Trees) -> _Kept:
    unread = (str(path), -1, -1)
    try:
        found = read(path)
    except InputError as error:
        return _Kept([unread], Header(problem=_first(error)))
    own = (str(path), *_stamp_of(found.status))
    try:
        profile = parse_quickly(found, path, trees)
    except InputError as error:
        # Where another file may be to blame, or one that is not there yet, it is read again each time.
        others = trees.personal or _needs_others(found.text)
        return _Kept([unread if others else own], Header(problem=_first(error)))
    return _Kept([own, *((each.path, *_stamp_of(each.status)) for each in profile.read_from)], header_of(profile))


def _needs_others(text: str) -> bool:
    """Whether a profile with an error in it is made of other files, too."""
    try:
        root = compose(text, "", [], quick=True)
    except ProfileErrors:
        return False  # no other file is read then
    if not isinstance(root, MappingNode):
        return False
    return "extends" in root.entries or isinstance(root.entries.get("hosts", (None, None))[1], MappingNode)


def header_of(profile: Profile) -> Header:
    """The header of a profile that has been read."""
    names = tuple(clean(host.name) for host in profile.hosts)
    return Header(clean(profile.description), names, tuple(host.num_processes for host in profile.hosts))


def _first(error: InputError) -> str:
    found = error.problems[0] if isinstance(error, ProfileErrors) else None
    if found is None:
        return clean(error.reason)
    place = f"line {found.line}:{found.column}: " if found.line else ""
    return clean(f"{place}{found.reason}")


def _stamp(path: str) -> tuple[int, int]:
    try:
        return _stamp_of(os.stat(path))  # noqa: PTH116 - of thousands: a Path takes twice as long
    except (OSError, ValueError):
        return (0, 0)


def _stamp_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def _read(file: Path) -> dict[str, _Kept]:
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        data = json.loads(file.read_bytes())
        if data["format"] == _FORMAT:
            return {path: _kept(*one) for path, one in data["profiles"].items()}
    return {}


def _kept(files: list[list[object]], header: list[object]) -> _Kept:
    description, hosts, processes, problem = header
    stamps = [(str(path), int(str(mtime)), int(str(size))) for path, mtime, size in files]
    return _Kept(stamps, Header(str(description), tuple(hosts), tuple(processes), str(problem)))  # type: ignore[arg-type]


def _write(file: Path, kept: Mapping[str, _Kept]) -> None:
    """Keep the headers; where they cannot be kept, the next list reads the files again."""
    part = file.with_name(f"{file.name}.{os.getpid()}")
    with suppress(OSError):
        private.make_folder(file.parent)
        private.write(part, json.dumps({"format": _FORMAT, "profiles": kept}))
        part.replace(file)
