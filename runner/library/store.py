"""Saves to a library atomically, without overwriting concurrent edits of other users.

Two edits of a profile are merged by key; if a merge would lose something, both versions are kept.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from disttui.runner import private
from disttui.runner.errors import InputError
from disttui.runner.library.git import LARGEST, Repository
from disttui.runner.paths import inside
from disttui.runner.profile.composition import Trees
from disttui.runner.profile.effects import alike
from disttui.runner.profile.leaks import leaks, refuse
from disttui.runner.profile.library import INVENTORIES, SUFFIXES, Library, clones_folder, path_in, stem_of
from disttui.runner.profile.load import parse, parse_inventory, plain
from disttui.runner.profile.nodes import MappingNode, compose
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.profile.save import as_data, edit, inline, locked, wait_for_lock, write, writing
from disttui.runner.text import clean

_SUBJECT = 72
_MOST = 40
"""Keys listed in the body of a commit message."""
_WIDE = 100
_DASH = "-"


class KeyChange(NamedTuple):
    """A key that differs between two texts of a profile, safe to print; `-` means a missing value."""

    key: str
    before: str
    after: str


def key_changes(before: str, after: str) -> list[KeyChange] | None:
    """Return the keys that differ, or None if one of the texts cannot be parsed."""
    old, new = _data(before), _data(after)
    if old is None or new is None:
        return None
    one, other = dict(_leaves(old, "")), dict(_leaves(new, ""))
    return [
        KeyChange(clean(key), one.get(key, _DASH), other.get(key, _DASH))
        for key in dict.fromkeys((*one, *other))
        if one.get(key) != other.get(key)
    ]


def message(name: str, before: str | None, after: str | None) -> str:
    """Return the commit message for an edit: what changed, key by key; None means no file."""
    name = clean(name)
    if before is None or after is None:
        return f"{name}: {'new' if before is None else 'removed'}\n"
    changes = key_changes(before, after)
    if changes is None:
        return f"{name}: changed\n"
    if not changes:
        return f"{name}: comments\n"
    keys = ", ".join(dict.fromkeys(change.key for change in changes))
    subject = f"{name}: {keys}"
    if len(subject) > _SUBJECT:
        subject = f"{name}: {len(changes)} keys"
    lines = [f"{change.key}: {_cut(change.before)} → {_cut(change.after)}" for change in changes[:_MOST]]
    return "\n".join([subject, "", *lines, *(["…"] if len(changes) > _MOST else []), ""])


def _data(text: str) -> Mapping[str, object] | None:
    """Parse a text and mask what looks like a secret in it from now on; None if it cannot be parsed."""
    if not text:
        return {}
    try:
        root = compose(text, "profile", [])
    except ProfileErrors:
        return None
    if not isinstance(root, MappingNode):
        return None
    for _ in leaks(root):
        pass
    data: Mapping[str, object] = plain(root)
    return data


def _cut(text: str) -> str:
    return text if len(text) <= _WIDE else f"{text[:_WIDE]}…"


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif path == "hosts" and isinstance(value, list):
        for host in value:
            yield f"hosts.{_host_name(host)}", clean(inline(host))
    else:
        yield path, clean(inline(value))


_MOST_LINES = 2_000
_MOST_PAIRS = 50_000
"""Largest number of pairs of equal lines: the time to compare grows with the cube of the number of equal lines."""
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)


class _Missing:
    """A missing key."""


_MISSING = _Missing()


class _ConflictError(Exception):
    """Both sides changed the same value."""


def join(base: str, mine: str, theirs: str, works: Callable[[str], bool]) -> str | None:
    """Merge two edits of a profile, including comments; return None on a conflict.

    Args:
        base: The text that both edits began with.
        works: Whether a text is a valid profile. An invalid merge of two valid texts counts as a conflict.
    """
    if theirs in (mine, base):
        return mine
    if mine == base:
        return theirs
    lined = join_lines(base, mine, theirs)
    old, one, other = (as_data(text) for text in (base, mine, theirs))
    if old is None or one is None or other is None:
        return None
    try:
        data = _joined(old, one, other, "")
    except _ConflictError:
        return None
    for text in filter(None, (lined, edit(theirs, data), edit(mine, data))):
        if _same(as_data(text), data) and not _comments_lost(base, mine, theirs, text):
            return text if works(text) or not (works(mine) and works(theirs)) else None
    return None


def join_lines(base: str, mine: str, theirs: str) -> str | None:
    """Merge two edits by line; return None if they change the same or adjacent lines, or the texts are too long."""
    old, one, other = [text.splitlines(keepends=True) for text in (base, mine, theirs)]
    if max(map(len, (old, one, other))) > _MOST_LINES:
        return None
    both = [_edits(old, one), _edits(old, other)]
    if None in both:
        return None
    edits = sorted({edit for each in both for edit in each or ()})
    for (_, end, _), (start, _, _) in pairwise(edits):
        if start <= end:
            return None
    for start, end, text in reversed(edits):
        old[start:end] = text
    return "".join(old)


def _edits(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, tuple[str, ...]]] | None:
    """Return the changes of an edit as (first line, end, new lines), or None if the comparison would take too long."""
    head = alike(old, new)
    tail = alike(old[head:][::-1], new[head:][::-1])
    old, new = old[head : len(old) - tail], new[head : len(new) - tail]
    counts = Counter(new)
    if sum(counts[line] for line in old) > _MOST_PAIRS:
        return None
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [
        (head + i1, head + i2, tuple(new[j1:j2])) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"
    ]


def _joined(base: Any, mine: Any, theirs: Any, key: str) -> Any:
    """Return the merged value, or `_MISSING` if it was removed. Raises _ConflictError."""
    if _same(mine, theirs) or _same(theirs, base):
        return mine
    if _same(mine, base):
        return theirs
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping) and isinstance(base, Mapping | _Missing):
        before = base if isinstance(base, Mapping) else {}
        found = {
            name: _joined(before.get(name, _MISSING), mine.get(name, _MISSING), theirs.get(name, _MISSING), name)
            for name in dict.fromkeys((*theirs, *mine))
        }
        return {name: value for name, value in found.items() if not isinstance(value, _Missing)}
    if key == "hosts":
        return _joined_hosts(base, mine, theirs)
    raise _ConflictError


def _joined_hosts(*lists: Any) -> list[Any]:
    """Merge lists of hosts (base, mine, theirs) by name. Raises _ConflictError if both sides reordered them."""
    named = [_by_name(each) for each in lists]
    base, mine, theirs = named
    common = [name for name in base if name in mine and name in theirs]
    orders = [[name for name in each if name in common] for each in named]
    if orders[0] not in orders[1:]:
        raise _ConflictError
    first, second = (theirs, mine) if orders[1] == orders[0] else (mine, theirs)
    found = []
    for name in dict.fromkeys((*first, *second)):
        host = _joined(base.get(name, _MISSING), mine.get(name, _MISSING), theirs.get(name, _MISSING), name)
        if not isinstance(host, _Missing):
            found.append(host)
    return found


def _by_name(hosts: object) -> dict[str, object]:
    if not isinstance(hosts, list) or len(named := {_host_name(host): host for host in hosts}) < len(hosts):
        raise _ConflictError
    return named


def _host_name(host: object) -> str:
    return str(host.get("name") or host.get("host") if isinstance(host, Mapping) else host)


def _same(one: Any, other: Any) -> bool:
    """Whether two values have the same JSON; unlike with ==, 1 and true differ."""
    if isinstance(one, _Missing) or isinstance(other, _Missing):
        return one is other
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _comments_lost(base: str, mine: str, theirs: str, joined: str) -> bool:
    """Whether a comment that one side added, or that both kept, is missing in `joined`."""
    old, one, other, new = (
        Counter(line.strip() for line in _COMMENT.findall(text)) for text in (base, mine, theirs, joined)
    )
    return bool((((one - old) | (other - old)) + (old & one & other)) - new)


def text_in(library: Library, name: str) -> str | None:
    """Return the text of a file of a library, or None if it does not exist. Raises InputError if it is unreadable."""
    return text_of(path_in(library, name))


def text_of(path: Path) -> str | None:
    """Return the text of a file, or None if it does not exist. Raises InputError if it cannot be read."""
    try:
        content, _ = private.read(path, LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        special = isinstance(error, private.NoRegularFileError)
        what = str(error.strerror) if special else f"cannot be read: {error.strerror}"
        raise InputError(what, place=clean(str(path))) from None
    if len(content) > LARGEST:
        raise InputError(f"larger than {LARGEST >> 20} MiB, too large for a profile", place=clean(str(path)))
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text", "Save the file as UTF-8.", place=clean(str(path))) from None


def put(library: Library, name: str, text: str | None) -> None:
    """Write a file of a library atomically; None removes it. Raises InputError."""
    path = path_in(library, name)
    with writing(path):
        if text is None:
            path.unlink(missing_ok=True)
        else:
            write(path, text)


_BUSY = "another disttui is changing this library"


class Saved(NamedTuple):
    """The result of saving a profile."""

    library: Library
    name: str
    """The profile's name in its library."""
    path: Path
    joined: bool = False
    """Whether another user's edit was merged into it."""
    other: str = ""
    """The name under which the user's version was saved after a conflict, or ""."""
    commit: str = ""
    """The commit id, if the library is a repository."""


class Settled(NamedTuple):
    """The result of merging two edits of a file."""

    text: str | None
    """The content of the file; None if it is removed."""
    other: str | None = None
    """The user's version, if both versions are kept."""


def settle(folder: Path, name: str, base: str | None, mine: str | None, theirs: str | None) -> Settled:
    """Merge two edits of a file in the folder of a library, or keep both; None means no file."""
    if theirs in (mine, base, None):
        return Settled(mine)
    if mine == base or mine is None:
        return Settled(theirs)
    if name.endswith(SUFFIXES):
        joined = join(base, mine, theirs, partial(works, folder, name)) if base is not None else None
    else:
        joined = join_lines(base or "", mine, theirs)
    return Settled(theirs, mine) if joined is None else Settled(joined)


def check(folder: Path, name: str, text: str, *, personal: bool = True, trees: Trees | None = None) -> None:
    """Check the text of a profile or an inventory. Raises ProfileErrors.

    Args:
        folder: The library's folder, where profiles that it extends are found.
        personal: Whether the user's own settings apply.
        trees: Cache of files already read.
    """
    if name.startswith(f"{INVENTORIES}/"):
        parse_inventory(text, folder / name)
    else:
        parse(text, folder / name, personal=personal, trees=trees)


def works(folder: Path, name: str, text: str) -> bool:
    """Whether a text is a valid profile or inventory."""
    try:
        check(folder, name, text, personal=False)
    except ProfileErrors:
        return False
    return True


def beside(name: str, user: str, taken: Callable[[str], bool]) -> str:
    """Return a free file name for a user's own version, such as `2node@alice.yaml`."""
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
        name: The profile's name in its library.
        text: The new text; None removes the profile.
        base: The text that the edit began with; None for a new profile.
        subject: The first line of the commit message, instead of one made from the keys that differ.

    Raises:
        InputError: It cannot be saved; the library is unchanged.
    """
    file = name if name.endswith(SUFFIXES) else f"{name}.yaml"
    path = path_in(library, file)
    if not library.folder.is_dir() and (library.origin == "team" or library.url):
        cure = f"disttui library sync {library.name}" if library.url else "Ask its owner, or remove it from the list."
        raise InputError("the folder of this library is missing", cure, place=library.name)
    if text is not None:
        refuse(text, str(path))
    with lock(library.name, environ), nullcontext() if library.url else _folder_lock(library):
        repository = Repository(library.folder, environ) if library.url else None
        branch = repository.branch() if repository else ""
        current = text_in(library, file)
        if base is None and current is not None and current != text:
            raise InputError(
                "a profile of this name already exists",
                "Choose another name, or edit that one.",
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
            if each != file or new != current:  # an unchanged file may be open in an editor
                put(library, each, new)
        if repository and commit:
            repository.move(f"refs/heads/{branch}", commit, head)
            repository.refresh()
    joined = not other and settled.text not in (text, current)
    return Saved(library, stem_of(file), path, joined, stem_of(other), commit)


@contextmanager
def lock(name: str, environ: Mapping[str, str], *, to_fetch: bool = False) -> Iterator[None]:
    """Hold the lock for changes to the library of this name.

    Args:
        to_fetch: Hold the lock for fetching instead, which may take long and changes no files.

    Raises:
        InputError: Another process has held the lock for a minute.
    """
    with locked(inside(clones_folder(environ), f"{name}{'~fetch' * to_fetch}.lock"), _BUSY, name):
        yield


@contextmanager
def _folder_lock(library: Library) -> Iterator[None]:
    """Lock a folder that several users write to; without effect if its file system does not support locks."""
    try:
        descriptor = os.open(library.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # the first save creates the folder
        yield
        return
    try:
        wait_for_lock(descriptor, _BUSY, library.name)
        yield
    finally:
        os.close(descriptor)
