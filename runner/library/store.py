"""Saving into a library: at once or not at all, and never over an edit that another user has made in the meantime."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

from disttui.runner import private
from disttui.runner.errors import InputError
from disttui.runner.library.git import LARGEST, Repository
from disttui.runner.library.join import join, join_lines, message
from disttui.runner.paths import inside
from disttui.runner.profile import ProfileErrors, parse, parse_inventory
from disttui.runner.profile.leaks import refuse
from disttui.runner.profile.library import INVENTORIES, SUFFIXES, Library, clones_folder, path_in, stem_of
from disttui.runner.profile.save import locked, wait_for_lock, write, writing
from disttui.runner.text import clean


def text_in(library: Library, name: str) -> str | None:
    """The text of a file of a library; None if it does not exist. Raises InputError where it cannot be read."""
    return text_of(path_in(library, name))


def text_of(path: Path) -> str | None:
    """The text of a file, None if it does not exist. Raises InputError if it cannot be read."""
    try:
        content, _ = private.read(path, LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        special = isinstance(error, private.NoRegularFileError)
        what = str(error.strerror) if special else f"cannot be read: {error.strerror}"
        raise InputError(what, place=clean(str(path))) from None
    if len(content) > LARGEST:
        raise InputError(f"larger than {LARGEST >> 20} MiB, which no profile is", place=clean(str(path)))
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text", "Save it as UTF-8.", place=clean(str(path))) from None


def put(library: Library, name: str, text: str | None) -> None:
    """Write a file of a library at once or not at all; None removes it. Raises InputError."""
    path = path_in(library, name)
    with writing(path):
        if text is None:
            path.unlink(missing_ok=True)
        else:
            write(path, text)


_BUSY = "another disttui changes this library"


class Saved(NamedTuple):
    """A profile as it was saved."""

    name: str
    """In its library."""
    path: Path
    joined: bool = False
    """Whether another user's edit was merged into it."""
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


def settle(folder: Path, name: str, base: str | None, mine: str | None, theirs: str | None) -> Settled:
    """Join two edits of a file in the folder of a library; None: there is no file."""
    if theirs in (mine, base, None):
        return Settled(mine)
    if mine == base or mine is None:
        return Settled(theirs)
    if name.endswith(SUFFIXES):
        joined = join(base, mine, theirs, partial(works, folder, name)) if base is not None else None
    else:
        joined = join_lines(base or "", mine, theirs)
    return Settled(theirs, mine) if joined is None else Settled(joined)


def check(folder: Path, name: str, text: str, *, personal: bool = True) -> None:
    """Check the text of a profile or an inventory. Raises ProfileErrors.

    Args:
        folder: Of its library: what it extends is found there.
        personal: Whether the user's own settings count.
    """
    if name.startswith(f"{INVENTORIES}/"):
        parse_inventory(text, folder / name)
    else:
        parse(text, folder / name, personal=personal)


def works(folder: Path, name: str, text: str) -> bool:
    """Whether a text is a good profile or inventory."""
    try:
        check(folder, name, text, personal=False)
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
        settled = settle(library.folder, file, base, text, current)
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
            stored = iter(repository.store(*(new.encode() for new in changes.values() if new is not None)))
            blobs = {name: None if new is None else next(stored) for name, new in changes.items()}
            before = repository.files(head)
            if any(before.get(name) != blob for name, blob in blobs.items()):
                words = (
                    f"{subject}\n" if subject else message(stem_of(file), current, settled.text if not other else text)
                )
                commit = repository.commit(head, blobs, words)
        for each, new in changes.items():
            if each != file or new != current:  # a file that stays as it is may be edited at this moment
                put(library, each, new)
        if repository and commit:
            repository.move(f"refs/heads/{branch}", commit, head)
            repository.refresh()
    joined = not other and settled.text not in (text, current)
    return Saved(stem_of(file), path, joined, stem_of(other), commit)


@contextmanager
def lock(name: str, environ: Mapping[str, str], *, to_fetch: bool = False) -> Iterator[None]:
    """Let one process at a time change the library of this name.

    Args:
        to_fetch: Let one at a time fetch, which may take long and changes none of its files.

    Raises:
        InputError: Another one has done so for a minute.
    """
    with locked(inside(clones_folder(environ), f"{name}{'~fetch' * to_fetch}.lock"), _BUSY, name):
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
        wait_for_lock(descriptor, _BUSY, library.name)
        yield
    finally:
        os.close(descriptor)
