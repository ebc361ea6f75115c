"""Saving into a library: at once or not at all, and never over an edit that somebody else has made meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from runner import private
from runner.errors import InputError
from runner.library.files import put, text_in
from runner.library.git import Repository
from runner.library.join import join, join_lines
from runner.library.keys import message
from runner.paths import inside
from runner.profile import ProfileErrors, parse
from runner.profile.leaks import refuse
from runner.profile.library import SUFFIXES, Library, clones_folder, path_in
from runner.text import clean

_PATIENCE = 60.0
"""Seconds for which another process may hold the lock."""


class Saved(NamedTuple):
    """A profile as it was saved."""

    name: str
    """In its library."""
    path: Path
    joined: bool = False
    """Whether an edit that somebody has made meanwhile is in it, too."""
    other: str = ""
    """The name under which the user's own version was saved, since both have changed the same."""
    commit: str = ""
    """Of a library that is a repository."""


class Settled(NamedTuple):
    """What becomes of two edits of one file."""

    text: str | None
    """What stands under the file's name; None: no file."""
    other: str | None = None
    """The user's own version where both are kept."""


def settle(path: Path, base: str | None, mine: str | None, theirs: str | None) -> Settled:
    """Join two edits of a file; None: there is no file."""
    if theirs in (mine, base, None):
        return Settled(mine)
    if mine == base or mine is None:
        return Settled(theirs)
    if path.name.endswith(SUFFIXES):
        joined = join(base, mine, theirs, partial(works, path)) if base is not None else None
    else:
        joined = join_lines(base or "", mine, theirs)
    return Settled(theirs, mine) if joined is None else Settled(joined)


def works(path: Path, text: str) -> bool:
    """Whether a text is a good profile as the file of this path, beside the files that it extends."""
    try:
        parse(text, path, personal=False)
    except ProfileErrors:
        return False
    return True


def beside(name: str, user: str, taken: Callable[[str], bool]) -> str:
    """The name of a file for a user's own version: `2node@alice.yaml`."""
    stem, dot, suffix = name.rpartition(".")
    stem, suffix = (stem, dot + suffix) if dot else (name, "")
    found, number = f"{stem}@{user}{suffix}", 1
    while taken(found):
        number += 1
        found = f"{stem}@{user}-{number}{suffix}"
    return found


def save(
    library: Library, name: str, text: str | None, base: str | None, environ: Mapping[str, str], *, subject: str = ""
) -> Saved:
    """Save a profile; in a repository as a commit.

    Args:
        name: In its library.
        text: None removes it.
        base: The text that the edit began with; None where there was no profile of this name.
        subject: The message's first line, in place of one made from the keys that differ.

    Raises:
        InputError: It cannot be saved; what was there is as it was.
    """
    file = name if name.endswith(SUFFIXES) else f"{name}.yaml"
    path = path_in(library, file)
    if not library.folder.is_dir() and (library.origin == "team" or library.url):
        cure = f"disttui library sync {library.name}" if library.url else "Ask its owner, or remove it from the list."
        raise InputError("the folder of this library is not there", cure, place=library.name)
    if text is not None:
        refuse(text, str(path))
    with lock(library.name, environ), nullcontext() if library.url else _folder_lock(library):
        repository = Repository(library.folder, environ) if library.url else None
        branch = repository.branch() if repository else ""
        current = text_in(library, file)
        if base is None and current is not None and current != text:
            raise InputError(
                "there is a profile of this name already",
                "Give another name, or replace it.",
                place=f"{library.name}/{name}",
            )
        settled = settle(path, base, text, current)
        if settled.text is not None and settled.text not in (text, current):
            refuse(settled.text, str(path))
        changes = {file: settled.text}
        other = ""
        if settled.other is not None:
            user = repository.user() if repository else clean(environ.get("USER", "")) or "me"
            other = beside(file, user, lambda name: path_in(library, name).exists())
            changes[other] = settled.other
        commit = ""
        if repository:
            head = repository.commit_of("HEAD")
            blobs = {name: repository.store(new.encode()) if new is not None else None for name, new in changes.items()}
            before = repository.files(head)
            if any(before.get(name) != blob for name, blob in blobs.items()):
                words = (
                    f"{subject}\n" if subject else message(_stem(file), current, settled.text if not other else text)
                )
                commit = repository.commit(head, blobs, words)
        for each, new in changes.items():
            if each != file or new != current:  # a file that stays as it is may be edited at this moment
                put(library, each, new)
        if repository and commit:
            repository.move(f"refs/heads/{branch}", commit, head)
            repository.refresh()
    joined = not other and settled.text not in (text, current)
    return Saved(_stem(file), path, joined, _stem(other), commit)


@contextmanager
def lock(name: str, environ: Mapping[str, str], *, to_fetch: bool = False) -> Iterator[None]:
    """Let one process at a time change the library of this name.

    Args:
        to_fetch: Let one at a time fetch, which may take long and changes none of its files.

    Raises:
        InputError: Another one has done so for a minute.
    """
    folder = clones_folder(environ)
    try:
        private.make_folder(folder)
        path = inside(folder, f"{name}{'~fetch' * to_fetch}.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", place=clean(str(folder))) from None
    with os.fdopen(descriptor):
        _wait_for(descriptor, name)
        yield


@contextmanager
def _folder_lock(library: Library) -> Iterator[None]:
    """The same for a folder that several users write in; where its file system has no locks, without one."""
    try:
        descriptor = os.open(library.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # it is made by the first save
        yield
        return
    try:
        with suppress(OSError):
            _wait_for(descriptor, library.name)
        yield
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, name: str) -> None:
    if not private.lock(descriptor, _PATIENCE):
        raise InputError("another disttui changes this library", "Try again.", place=name)


def _stem(file: str) -> str:
    return next((file.removesuffix(suffix) for suffix in SUFFIXES if file.endswith(suffix)), file)
