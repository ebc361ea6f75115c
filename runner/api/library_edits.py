"""Edits, saves, compares and restores profiles of libraries."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from disttui.runner.errors import InputError
from disttui.runner.library.git import Commit, Repository
from disttui.runner.library.store import KeyChange, Saved, check, key_changes, save, text_in, text_of
from disttui.runner.profile.composition import Trees, composed
from disttui.runner.profile.library import (
    Library,
    entry_in,
    every_profile,
    find,
    libraries,
    library_named,
    library_of,
    named,
    path_in,
    profiles_in,
    stem_of,
)
from disttui.runner.profile.nodes import MappingNode, Source, compose, read
from disttui.runner.profile.save import save as write
from disttui.runner.text import clean


class LibraryEdit(NamedTuple):
    """A profile of a library as it was when an edit of it began."""

    library: Library
    name: str
    path: Path
    text: str | None
    """Its text; None: a new profile."""


class Compared(NamedTuple):
    """Two texts of one profile."""

    titles: tuple[str, str]
    texts: tuple[str, str]
    changes: list[KeyChange] | None
    """Differences by key; None if a text cannot be read."""


def read_for_edit(name: str, environ: Mapping[str, str] = os.environ, *, new: bool = False) -> LibraryEdit:
    """A profile or inventory (`team/inventory/lab`) of a library as it is now.

    Args:
        new: It need not exist.

    Raises:
        InputError: No library has it, or it comes with disttui.
    """
    first, _, rest = name.partition("/")
    library = next((each for each in libraries(environ) if rest and each.name == first), None)
    entry = entry_in(library, rest) if library else named(name, environ)
    rest = rest if entry else stem_of(rest)
    if entry is None and not (library and new):
        if rest and library is None and not Path(name).exists():
            library_named(first, environ)
        library = library_of(find(name, environ), environ)
        if library is None:
            raise InputError(f"{clean(name)}: not in a library", "Save it into one: disttui library save")
        relative = Path(os.path.realpath(find(name, environ))).relative_to(os.path.realpath(library.folder))
        entry = entry_in(library, str(relative))
    library = library or library_named(entry.library if entry else "", environ)
    if library.origin == "built in":
        raise InputError(
            f"{clean(name)} is built in",
            f"Copy it first: disttui library save {clean(name)} own/{clean(rest or name)}",
        )
    path = entry.path if entry else path_in(library, f"{rest}.yaml")
    text = text_in(library, _inner(library, path)) if entry else None
    return LibraryEdit(library, entry.name if entry else rest, path, text)


def save_profile(
    reading: LibraryEdit, text: str | None, environ: Mapping[str, str] = os.environ, *, subject: str = ""
) -> Saved:
    """Save the edited text of a profile; in a repository as a commit. None removes it.

    Raises:
        InputError: It is not a valid profile, holds what looks like a secret, or cannot be written.
    """
    if text is not None:
        check(reading.library.folder, _file(reading), text)
    return save(reading.library, _file(reading), text, reading.text, environ, subject=subject)


def save_at(path: Path, text: str, before: str | None, environ: Mapping[str, str] = os.environ) -> Saved | None:
    """Save a profile at a path as `save_profile` does; None if it is only a file, in no shared library.

    Args:
        before: The text that the edit began with; None: no file may be there.

    Raises:
        InputError: It holds what looks like a secret, cannot be written, or has changed since.
    """
    library = library_of(path, environ)
    if library is None or library.origin != "team":
        now = None if before is None else text_of(path)
        if now is not None and now.splitlines() != (before or "").splitlines():
            raise InputError(
                "changed since it was opened", "Save under another name, or open it again.", place=str(path)
            )
        write(text, path, replace=before is not None)
        return None
    name = Path(os.path.realpath(path)).relative_to(os.path.realpath(library.folder)).as_posix()
    return save(library, name, text, before, environ)


def copy_profile(source: str, to: str, environ: Mapping[str, str] = os.environ, *, replace: bool = False) -> Saved:
    """Save a profile under a name of a library, such as `team/2node`.

    Raises:
        InputError: It is not a valid profile, or another one has this name and `replace` is false.
    """
    path = find(source, environ)
    text = read(path).text
    reading = read_for_edit(to, environ, new=True)
    if reading.text is not None and not replace and reading.text != text:
        raise InputError(f"{clean(to)} already exists", "Add --replace, or give another name.")
    return save_profile(reading, text, environ)


def rename_profile(name: str, to: str, environ: Mapping[str, str] = os.environ) -> Saved:
    """Save a profile under another name, then remove it under the old one. Raises InputError."""
    reading = read_for_edit(name, environ)
    if read_for_edit(to, environ, new=True).text is not None:
        raise InputError(f"{clean(to)} already exists", "Give another name.")
    saved = copy_profile(str(reading.path), to, environ)
    save_profile(reading, None, environ)
    return saved


def dependents(reading: LibraryEdit, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The profiles of all libraries that extend a profile or use an inventory."""
    trees, wanted = Trees(quick=True), os.path.realpath(reading.path)
    found = []
    for entry in every_profile(environ):
        sources: list[Source] = []
        with suppress(InputError):  # if a profile has an error, the files read before it still count
            given = read(entry.path)
            root = compose(given.text, str(entry.path), [], quick=True)
            if isinstance(root, MappingNode):
                composed(root, entry.path, given.status, [], sources, trees, personal=False)
        if any(os.path.realpath(each.path) == wanted for each in sources):
            found.append(clean(entry.full_name))
    return found


def history_of(name: str, environ: Mapping[str, str] = os.environ) -> list[Commit]:
    """The commits of a profile, newest first; of a whole library if `name` is a library's.

    Raises:
        InputError: Its library is not a git repository.
    """
    if any(each.name == name for each in libraries(environ)):
        return repository_of(library_named(name, environ), environ).history(None)
    reading = read_for_edit(name, environ, new=True)
    return repository_of(reading.library, environ).history(_file(reading))


def text_at(name: str, commit: str, environ: Mapping[str, str] = os.environ) -> str:
    """The text of a profile in a commit.

    Raises:
        InputError: There is no such commit, or the profile is not in it.
    """
    reading = read_for_edit(name, environ, new=True)
    repository = repository_of(reading.library, environ)
    known = repository.commit_of(commit) if re.fullmatch("[0-9a-f]{4,64}", commit) else None
    if known is None:
        raise InputError(
            f"{reading.library.name} has no commit {clean(commit)!r}", f"disttui library history {clean(name)}"
        )
    text = _text_in(repository, known, reading)
    if text is None:
        raise InputError(f"{clean(name)} is not in {commit}", f"disttui library history {clean(name)}")
    return text


def _text_in(repository: Repository, commit: str, reading: LibraryEdit) -> str | None:
    blob = repository.files(commit).get(_file(reading))
    content = repository.read([blob.id])[blob.id] if blob and blob.is_file else None
    return None if content is None else content.decode("utf-8", "replace")


def restore_profile(name: str, commit: str, environ: Mapping[str, str] = os.environ) -> Saved:
    """Save a profile as it was in a commit.

    Raises:
        InputError: There is no such commit, or the profile is not in it.
    """
    reading = read_for_edit(name, environ, new=True)
    text = text_at(name, commit, environ)
    subject = f"{clean(reading.name)}: as of {commit[:10]}"
    return save(reading.library, _file(reading), text, reading.text, environ, subject=subject)


def compare(name: str, commit: str | None = None, environ: Mapping[str, str] = os.environ) -> list[Compared]:
    """A profile compared with its text in a commit; without one, with its other kept versions.

    Raises:
        InputError: There is no such profile or commit.
    """
    reading = read_for_edit(name, environ)
    assert reading.text is not None
    library, full = reading.library, f"{reading.library.name}/{reading.name}"
    if commit is not None:
        return [_compared(f"{full} of {commit[:10]}", text_at(name, commit, environ), full, reading.text)]
    beside = [each for each in profiles_in(library) if each.name.startswith(f"{reading.name}@") and not each.problem]
    others = [(each.full_name, text_in(library, _inner(library, each.path)) or "") for each in beside]
    if library.url and (last := repository_of(library, environ).commit_of("HEAD")):
        saved = _text_in(repository_of(library, environ), last, reading)
        if saved not in (None, reading.text):
            others.insert(0, (f"{full} as saved", saved))
    return [_compared(full, reading.text, title, text) for title, text in others]


def _compared(title: str, text: str, other_title: str, other: str) -> Compared:
    return Compared((clean(title), clean(other_title)), (text, other), key_changes(text, other))


def repository_of(library: Library, environ: Mapping[str, str]) -> Repository:
    """The clone of a library. Raises InputError if it has none."""
    if not library.url:
        raise InputError(f"the library {library.name} is a folder, without history", "Use a git repository instead.")
    if not library.folder.is_dir():
        raise InputError(
            "the folder of this library is missing", f"disttui library sync {library.name}", place=library.name
        )
    return Repository(library.folder, environ)


def _file(reading: LibraryEdit) -> str:
    return _inner(reading.library, reading.path)


def _inner(library: Library, path: Path) -> str:
    return path.relative_to(library.folder).as_posix()
