"""Synchronizes a library that is a git repository with its remote: fetch, merge, push."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from disttui.runner import private
from disttui.runner.errors import InputError
from disttui.runner.formatting import amount
from disttui.runner.library.git import LARGEST, Blob, RemoteError, Repository, clone
from disttui.runner.library.store import beside, check, lock, message, settle
from disttui.runner.paths import PathError, inside
from disttui.runner.profile.leaks import refuse
from disttui.runner.profile.library import SUFFIXES, Library, clones_folder
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.text import clean

_TRIES = 10
_MOST_FILES, _MOST_BYTES = 20_000, 512 << 20
"""Limits for checked-out files: a small repository can contain one large file under many names."""
_AT_ONCE = 32 << 20
"""Bytes of files that are held in memory at a time."""
_BASE = "refs/disttui/base"
"""The remote's commit onto which the user's own commits were last rebased."""


class KeptBoth(NamedTuple):
    """A file with a conflict, of which both versions are kept."""

    file: str
    other: str
    """The file with the user's own version."""


class Synced(NamedTuple):
    """The result of a sync. Files are named by their path in the library."""

    cloned: bool = False
    by_hand: tuple[str, ...] = ()
    """Files edited without `library save`, which were saved first."""
    left: tuple[tuple[str, str], ...] = ()
    """Files with edits that were not saved, and why."""
    received: tuple[str, ...] = ()
    """Files that changed here."""
    sent: int = 0
    """Number of pushed commits."""
    kept: tuple[KeptBoth, ...] = ()
    hooks_left_out: bool = False
    """Whether the remote has hooks that the push did not run because others can write to it."""


def sync(library: Library, environ: Mapping[str, str]) -> Synced:
    """Commit edits made by hand, fetch and merge the remote's commits, and push.

    Raises:
        RemoteError: The remote is unreachable; local commits are kept.
        InputError: The library is not a repository, or its clone cannot be used.
    """
    if not library.url:
        raise InputError("this library is a folder: saved profiles are shared immediately", place=library.name)
    done = Synced()
    with lock(library.name, environ):
        if not library.folder.exists():
            _make(library, environ)
            done = done._replace(cloned=True)
        repository = Repository(library.folder, environ)
        branch = repository.branch()
        if repository.remote() != library.url:
            what = f"its clone, {clean(str(library.folder))}, is from {repository.url()}"
            raise InputError(what, "Use that address, or delete the clone with what is not sent.", place=library.name)
        by_hand, left = _save_edits(repository, branch)
        done = done._replace(by_hand=tuple(by_hand), left=tuple(left))
    kept: dict[str, str] = {}
    received: dict[str, None] = {}
    for attempt in range(_TRIES):
        with lock(library.name, environ, to_fetch=True):  # a failed fetch removes the files of all unfinished ones
            repository.fetch()
        with lock(library.name, environ):
            upstream = repository.commit_of(f"refs/remotes/origin/{branch}")
            head = repository.commit_of("HEAD")
            tip = _put_upon(repository, head, upstream, kept)
            if tip and tip != head:
                received.update(dict.fromkeys(_write_out(repository, head, tip)))
                repository.move(f"refs/heads/{branch}", tip, head)
                repository.refresh()
            if upstream:
                repository.move(_BASE, upstream)
        done = done._replace(received=tuple(received), kept=tuple(KeptBoth(*each) for each in kept.items()))
        if tip in (None, upstream):
            return done
        assert tip
        if repository.push(tip, branch):
            repository.move(_BASE, tip)
            sent = len(repository.own_commits(tip, *([upstream] if upstream else [])))
            return done._replace(sent=sent, hooks_left_out=repository.hooks_left_out())
        time.sleep(random.uniform(0, 0.05 * (attempt + 1)))
    what = f"{repository.url()}: others pushed first {_TRIES} times in a row"
    raise RemoteError(what, "Your edits stay here; sync again.")


def _make(library: Library, environ: Mapping[str, str]) -> None:
    """Clone a library into its folder atomically."""
    folder = clones_folder(environ)
    private.make_folder(folder)
    passing = Path(tempfile.mkdtemp(prefix=f".{library.name}.", dir=folder))
    try:
        made = clone(library.url, passing / "clone", environ)
        if head := made.commit_of("HEAD"):
            _write_out(made, None, head)
            made.refresh()
            made.move(_BASE, head)
        made.folder.replace(library.folder)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", place=clean(str(library.folder))) from None
    finally:
        shutil.rmtree(passing, ignore_errors=True)


def _put_upon(repository: Repository, head: str | None, upstream: str | None, kept: dict[str, str]) -> str | None:
    """Rebase the user's commits onto `upstream`, merging by key; return the new tip, or None without any commit."""
    if upstream is None or head is None:
        return head or upstream
    if head == upstream or repository.common(upstream, head) == upstream:
        return head
    base = repository.commit_of(_BASE)
    if base is None or repository.common(base, head) != base:
        base = repository.common(head, upstream)
    tip, files = upstream, repository.files(upstream)
    for commit in repository.own_commits(head, upstream, *([base] if base else [])):
        changes: dict[str, Blob | None] = {}
        for path, (before, after) in repository.changes(repository.commit_of(f"{commit}^1"), commit).items():
            changes |= _joined(repository, path, (before, after), files, kept)
        changes = {path: blob for path, blob in changes.items() if files.get(path) != blob}
        if changes:
            tip = repository.commit(tip, changes, repository.message(commit), like=commit)
            files |= {path: blob for path, blob in changes.items() if blob}
            for path in [path for path, blob in changes.items() if blob is None]:
                files.pop(path, None)
    return tip


def _joined(
    repository: Repository,
    path: str,
    edit: tuple[Blob | None, Blob | None],
    files: Mapping[str, Blob],
    kept: dict[str, str],
) -> dict[str, Blob | None]:
    """Return the changes that merge one edited file, as path → blob; a conflict adds a file with the user's version."""
    before, after = edit
    target = kept.get(path, path)
    there = files.get(target)
    if there in (before, after) or (there is None and after is not None):
        return {target: after}
    if after is None:
        return {}  # removed here, but changed upstream: keep it
    assert there
    texts = [_text(repository, blob) for blob in (before, after, there)]
    plain = None not in texts[1:] and (before is None or texts[0] is not None)
    settled = settle(repository.folder, target, *texts) if plain else None
    if settled is not None and settled.other is None:
        assert settled.text is not None
        return {target: repository.store(settled.text.encode())[0]}
    other = beside(path, repository.user(), lambda name: name in files and files[name] != after)
    kept[path] = other
    return {other: after}


def _text(repository: Repository, blob: Blob | None) -> str | None:
    content = repository.read([blob.id])[blob.id] if blob and blob.is_file else None
    with suppress(UnicodeDecodeError):
        return content.decode() if content is not None else None
    return None


def _save_edits(repository: Repository, branch: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Commit files that were edited by hand; return them, and those that were not saved with the reason."""
    head = repository.commit_of("HEAD")
    files = repository.files(head)
    saved: dict[str, bytes] = {}
    left: list[tuple[str, str]] = []
    words = ""
    edited = {path: (files.get(path), None) for path in repository.edited() if _is_ours(path)}
    for path, (content, _) in _contents(repository, edited):
        target = _place(repository.folder, path)
        disk = _on_disk(target) if target else None
        if disk is None or disk == content:
            continue  # a file deleted by hand is restored below: only `library remove` removes a profile
        try:
            text = disk.decode()
            if path.endswith(SUFFIXES):
                check(repository.folder, path, text)
            refuse(text, path)
        except ProfileErrors as error:
            left.append((path, error.sentence.partition("\n")[0]))
            continue
        except UnicodeDecodeError:
            left.append((path, "not UTF-8 text"))
            continue
        before = content.decode("utf-8", "replace") if content is not None else None
        words = message(path.rpartition(".")[0], before, text)
        saved[path] = disk
    if saved:
        words = words if len(saved) == 1 else f"{len(saved)} manually edited files\n"
        blobs = dict(zip(saved, repository.store(*saved.values()), strict=True))
        repository.move(f"refs/heads/{branch}", repository.commit(head, blobs, words), head)
    places = {
        path: target for path, blob in files.items() if blob.is_file and (target := _place(repository.folder, path))
    }
    gone = {path: (None, files[path]) for path, target in places.items() if _on_disk(target) is None}
    for path, (_, restored) in _contents(repository, gone):
        if restored is not None:
            _put(places[path], restored)
    repository.refresh()
    return list(saved), left


def _write_out(repository: Repository, old: str | None, new: str) -> list[str]:
    """Write the files that differ between two commits, and return them. Uncommitted edits are merged or kept."""
    changes = repository.changes(old, new)
    places = {path: target for path in changes if (target := _place(repository.folder, path))}
    # Remove before writing: a file may have become a folder, or a folder a file.
    ordered = sorted(places, key=lambda path: changes[path][1] is not None)
    written = []
    for path, (old_content, new_content) in _contents(repository, {path: changes[path] for path in ordered}):
        if changes[path][1] and new_content is None:
            continue
        target = places[path]
        disk = _on_disk(target)
        written.append(path)
        if disk == new_content:
            continue
        untouched = disk in (old_content, None)
        content = new_content if untouched else _over(repository, path, (old_content, disk, new_content))
        _put(target, content)
        if content is None:
            _tidy(target.parent, repository.folder)
    return written


def _tidy(folder: Path, root: Path) -> None:
    """Remove a folder if it is empty, and then its empty parents below `root`."""
    with suppress(OSError):
        while folder != root:
            folder.rmdir()
            folder = folder.parent


def _over(repository: Repository, path: str, contents: tuple[bytes | None, bytes | None, bytes | None]) -> bytes | None:
    """Merge a new version with a file edited after the last save, and return it; on a conflict keep both versions."""
    base, mine, theirs = (None if each is None else each.decode("utf-8", "surrogateescape") for each in contents)
    settled = settle(repository.folder, path, base, mine, theirs)
    if settled.other is not None:
        other = beside(path, repository.user(), lambda name: (repository.folder / name).exists())
        target = _place(repository.folder, other)
        assert target
        _put(target, settled.other.encode("utf-8", "surrogateescape"))
    return None if settled.text is None else settled.text.encode("utf-8", "surrogateescape")


def _contents(
    repository: Repository, changes: Mapping[str, tuple[Blob | None, Blob | None]]
) -> Iterator[tuple[str, tuple[bytes | None, bytes | None]]]:
    """Yield path and contents before and after, reading few files at a time. Raises InputError for too many files."""
    files = {path: [blob.id for blob in pair if blob and blob.is_file] for path, pair in changes.items()}
    sizes = {blob: size for blob, size in repository.sizes(chain(*files.values())).items() if size <= LARGEST}
    after = [sizes[blob.id] for _, blob in changes.values() if blob and blob.id in sizes]
    if len(after) > _MOST_FILES or sum(after) > _MOST_BYTES:
        raise InputError(
            f"the library has {amount(len(after), 'file')} with {sum(after) >> 20:,} MiB, "
            f"more than {_MOST_FILES:,} or {_MOST_BYTES >> 20} MiB",
            "Remove other files from the repository: libraries contain profiles.",
            place=repository.url(),
        )
    for paths in _portions({path: sum(sizes.get(blob, 0) for blob in blobs) for path, blobs in files.items()}):
        found = repository.read(chain(*(files[path] for path in paths)))
        for path in paths:
            one, other = (found[blob.id] if blob and blob.is_file else None for blob in changes[path])
            yield path, (one, other)


def _portions(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield groups of names, in order; a group ends when its total size exceeds `_AT_ONCE`."""
    found: list[str] = []
    room = _AT_ONCE
    for name, size in sizes.items():
        found.append(name)
        room -= size
        if room < 0:
            yield found
            found, room = [], _AT_ONCE
    if found:
        yield found


def _is_ours(path: str) -> bool:
    """Whether edits of this file by hand are committed."""
    return path.endswith((*SUFFIXES, ".md", ".txt")) and not any(
        part.startswith((".", "-")) for part in path.split("/")
    )


def _place(folder: Path, path: str) -> Path | None:
    """Return where a repository's file is written, or None if it is hidden or could lead out of the folder.

    Names with a leading dot belong to git and other programs; some file systems accept other spellings of `.git`.
    """
    parts = path.split("/")
    if any(part.startswith(".") or part.lower().startswith("git~") or not part.isprintable() for part in parts):
        return None
    try:
        return inside(folder, path)
    except PathError:
        return None


def _on_disk(target: Path) -> bytes | None:
    with suppress(OSError):
        if target.is_symlink() or target.stat().st_size > LARGEST:
            return None
        return target.read_bytes()
    return None


def _put(target: Path, content: bytes | None) -> None:
    try:
        if content is None:
            target.unlink(missing_ok=True)
            return
        private.make_folder(target.parent)
        descriptor, part = tempfile.mkstemp(prefix=".part.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)  # without fsync: git also has the content
            Path(part).replace(target)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", "Free space there.", place=clean(str(target))
        ) from None
