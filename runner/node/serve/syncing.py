"""Receives trees from a viewer: gives each run a copy of its code, and each host one of the data (docs/formats.md)."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
import zlib
from functools import partial
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, Optional, Sequence, Set, Union

from ...protocol import tree
from ...protocol.names import CODE, RUN_DIR, WHOLE
from ...protocol.objects import DamagedError, Store, Writer, write_tree
from ...protocol.requests import OBJECT
from .. import folders, journal
from ..disk import fullness, room
from ..problem import Problem
from . import spare

if TYPE_CHECKING:
    from ...protocol import requests
    from ...protocol.files import Spec

_SMALL = 16 << 20
"""Most bytes of a tree that is written quickly: writing it may serve to find missing objects."""
_CODE = re.compile(CODE + r"(\.claim|\.setup|\.[0-9a-f]{16}\.part)?")


def sync(request: requests.SyncRequest, cache: str) -> requests.TreeAnswer:
    """Return what this host lacks of a tree; if it lacks nothing, make the run's copy.

    Args:
        cache: This user's cache folder of disttui.

    Raises:
        Problem: The disk has no room, the copy cannot be written, or the tree is malformed.
    """
    return answer(store_of(request, cache), request)


def answer(
    store: Store, request: requests.SyncRequest, *, grown: bool = False, hopeful: bool = True
) -> requests.TreeAnswer:
    """Answer as `sync` from a store; one that has `grown` is tidied before the copy is made.

    Args:
        hopeful: Make a small copy without checking each object first: that also finds missing ones.
    """
    target, data = full_path(request["to"]), request.get("data", "")
    with explained(store.folder):
        if data:
            _check_free(target, request["tree"])
        entries = entries_of(store, request)
        if entries is None:
            return {"store": store.name, "manifest": False, "missing": [], "begun": {}, "placed": False}
        objects = tree.objects(entries)
        lacks: List[int] = []
        sure = bool(data) or not hopeful or sum(objects.values()) > _SMALL
        if sure:
            lacks = [index for index, (name, size) in enumerate(objects.items()) if not store.has(name, size)]
        if data and lacks and is_staged(target, request["tree"], entries):
            lacks = []
        if lacks:
            sizes = list(objects.values())
            check_room(store.folder, sum(sizes[index] for index in lacks))
            numbers = {name: index for index, name in enumerate(objects)}
            begun: Dict[str, int] = {}
            for name, size in store.begun():
                number = numbers.get(name)
                if number is not None and size < sizes[number]:
                    begun[str(number)] = max(size, begun.get(str(number), 0))
            missing = _ranges(lacks)
            return {"store": store.name, "manifest": True, "missing": missing, "begun": begun, "placed": False}
        if grown:
            store.tidy({request["tree"], *objects})
    run_dir = _run_dir(request)
    with explained(os.path.dirname(target)):
        try:
            begin = partial(spare.take, store, run_dir, request["tree"])
            placed = _place_data(store, entries, target, request) if data else place(store, entries, target, begin)
        except OSError:
            if sure:
                raise
            placed = False
        if not placed:
            return answer(store, request, hopeful=False)  # an object was missing or damaged, and is missing now
        if not data:
            _sweep(run_dir, target)
    return {"store": store.name, "manifest": True, "missing": [], "begun": {}, "placed": True}


def put(request: requests.SyncRequest, cache: str, pieces: Iterator[bytes]) -> requests.TreeAnswer:
    """Receive objects, compressed as one stream, and answer as `sync` does.

    Raises:
        Problem: As in `sync`, or what arrives is damaged.
    """
    store = store_of(request, cache)
    with explained(store.folder):
        _receive(store, pieces)
    return answer(store, request, grown=True)


def place(
    store: Store,
    entries: Sequence[tree.Entry],
    target: str,
    begin: Callable[[str], Optional[Set[bytes]]] = lambda _: None,
) -> bool:
    """Make a copy of a tree at `target` unless it exists; False if the store lacks an object after all.

    The files belong to the copy: whatever a job does to them, other runs and the store are not affected.

    Args:
        begin: May make a folder with a part of the tree, and then returns the paths of the rest.
    """
    _check_safe(target)
    return _place(store, entries, target, lambda: _exists(target), lambda part: os.rename(part, target), begin=begin)


def _place(
    store: Store,
    entries: Sequence[tree.Entry],
    target: str,
    there: Callable[[], bool],
    move: Callable[[str], None],
    *,
    share: bool = False,
    begin: Callable[[str], Optional[Set[bytes]]] = lambda _: None,
) -> bool:
    """Write a tree next to its place unless it is `there`, then `move` it; of hosts with one disk, only one does so."""
    parent = os.path.dirname(target)
    if there():
        return True
    claim = f"{target}.claim"
    try:
        os.mkdir(claim, 0o700)
    except FileExistsError:
        # Seconds to wait for another host with the same disk that is writing the same copy
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline and os.path.lexists(claim):
            os.listdir(parent)  # makes a client of a file server notice new files
            if there():
                return True
            time.sleep(0.05)
        if there():
            return True
    part = f"{target}.{os.urandom(8).hex()}.part"
    try:
        write_tree(store, _rest(entries, part, begin(part)), os.fsencode(part), share=share)
        try:
            move(part)
        except OSError:
            if not there():
                raise
    except DamagedError:
        return False
    except FileExistsError as error:
        what = f"{_text(error.filename)} clashes with another name on this disk"
        raise Problem(what, "rename one of them") from None
    except OSError as error:
        if full := fullness(parent):  # known only until what was written is removed
            what = f"the files cannot be written: {error.strerror or error} ({full})"
            raise Problem(what, "free space, or correct the folder") from None
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(claim, ignore_errors=True)
    return True


def _rest(entries: Sequence[tree.Entry], part: str, begun: Optional[Set[bytes]]) -> Sequence[tree.Entry]:
    """The entries that must still be written to a folder; makes it unless it has been begun."""
    if begun is None:
        os.mkdir(part, 0o700)
        return entries
    return [one for one in entries if one.path in begun]


def _place_data(store: Store, entries: Sequence[tree.Entry], target: str, request: requests.SyncRequest) -> bool:
    """Make `target` a tree, replacing an older version of it; False as in `place`."""
    name = request["tree"]

    def move(part: str) -> None:
        made = os.path.join(part, os.path.basename(target)) if request.get("data") == "file" else part
        _check_free(target)
        # Noted first: the new target must be known as ours even if this process is killed at any point.
        new = os.lstat(made).st_ino
        mark(target, name, new, [*_own(target), new])
        if os.path.lexists(target):
            os.rename(target, os.path.join(f"{target}.claim", os.urandom(8).hex()))
        os.rename(made, target)

    return _place(store, entries, target, lambda: is_staged(target, name, entries), move, share=True)


def data_folder(target: str) -> str:
    """The folder next to data for its objects and markers. Raises Problem."""
    _check_safe(target)
    return os.path.join(os.path.dirname(target), ".disttui-data")


def mark(target: str, name: str, inode: int, own: Sequence[object]) -> None:
    """Record that a tree is at a path. Raises OSError.

    Args:
        own: Inodes of what may be replaced there.
    """
    journal.write_json(_marker(target), {"tree": name, "inode": inode, "own": list(own)[-8:]})


def _marker(target: str) -> str:
    return os.path.join(data_folder(target), f"{tree.digest(os.fsencode(target))[:32]}.json")


def is_staged(target: str, name: str, entries: Sequence[tree.Entry]) -> bool:
    """Whether a tree is at a path and, judging by times and sizes, unchanged."""
    noted = journal.read_object(_marker(target))
    try:
        top = os.lstat(target)
        if noted.get("tree") != name or noted.get("inode") != top.st_ino:
            return False
        at = os.lstat(_marker(target)).st_mtime
        for entry in entries:
            path = os.path.join(os.fsencode(target), entry.path) if stat.S_ISDIR(top.st_mode) else os.fsencode(target)
            seen = os.lstat(path)
            if seen.st_size != entry.size or (noted.get("own") and seen.st_mtime > at):
                return False
    except OSError:
        return False
    return True


def _own(target: str) -> List[object]:
    own = journal.read_object(_marker(target)).get("own")
    return own if isinstance(own, list) else []


def _check_free(target: str, name: str = "") -> None:
    """Raise Problem if something is in the way that was not staged and is not the tree `name` itself."""
    noted = journal.read_object(_marker(target))
    if not os.path.lexists(target) or (name and noted.get("tree") == name):
        return
    if os.lstat(target).st_ino not in _own(target):
        raise Problem(f"{target} exists, and is not from disttui", "move it away, or choose another `to`")


def _check_safe(target: str) -> None:
    weak = folders.weakness(os.path.dirname(target), make=True)
    if weak:
        cure = "correct its mode, or choose another folder"
        raise Problem(f"{target} would not be safe from other users: {weak}", cure)


def require(spec: Spec) -> None:
    """Check that a run's code is on this host. Raises Problem."""
    if spec.get("tree") and not _exists(full_path(spec["workdir"])):
        raise Problem(f"the run's code is not in {spec['workdir']}", "start the run again")


def prepare(request: requests.SyncRequest, cache: str) -> None:
    """Make a spare copy of a run's code for the next one, if it is worth it."""
    if request["size"] < spare.WORTH:
        return
    with contextlib.suppress(Problem):
        spare.make(open_store(cache), _run_dir(request), request["tree"], full_path(request["to"]))


def remove(spec: Spec, run: str) -> None:
    """Remove a run's copy of its code from where the profile has put it, outside of the run's folder."""
    target = full_path(str(spec.get("workdir") or "~"))
    if spec.get("tree") and os.path.basename(target) == run and os.path.isdir(target):
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(f"{target}.setup", ignore_errors=True)


def store_of(request: requests.SyncRequest, cache: str) -> Store:
    """The store with the objects of a tree. Raises Problem."""
    return open_store(data_folder(full_path(request["to"])) if request.get("data") else cache)


def open_store(cache: str) -> Store:
    """The store below a folder. Raises Problem."""
    try:
        os.makedirs(cache, 0o700, exist_ok=True)
        return Store(os.path.join(cache, "objects"), brief=True)
    except OSError as error:
        raise Problem(
            f"{cache} cannot be used: {error.strerror or error}", "make it writable only for you, with free space"
        ) from None


@contextlib.contextmanager
def explained(folder: str) -> Iterator[None]:
    """Turn operating system errors into problems with a cure."""
    try:
        yield
    except OSError as error:
        why = fullness(folder) or f"{_text(error.filename or folder)}: {error.strerror or error}"
        raise Problem(f"the files cannot be written: {why}", "free space, or correct the folder") from None


def _text(path: Union[str, bytes]) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def entries_of(store: Store, request: requests.SyncRequest) -> Optional[Sequence[tree.Entry]]:
    """The entries of a tree, None if the host does not have its manifest."""
    name, size = str(request["tree"]), int(request["size"])
    if not tree.HASH.fullmatch(name) or not store.has(name, size):
        return None
    try:
        return tree.decode(store.read(name, tree.MOST_BYTES))
    except DamagedError:
        return None
    except ValueError as error:
        raise Problem(f"the tree {name[:12]} cannot be used: {error}") from None


def check_room(folder: str, wanted: int) -> None:
    free = room(folder).free
    if free < wanted:
        what = f"the files need {wanted / 1e6:,.1f} MB in {folder}, but the disk has {free / 1e6:,.1f} MB free"
        raise Problem(what, "free space, or exclude files")


def _ranges(numbers: Sequence[int]) -> List[List[int]]:
    """[first, count] of each sequence of consecutive numbers."""
    found: List[List[int]] = []
    for number in numbers:
        if found and number == sum(found[-1]):
            found[-1][1] += 1
        else:
            found.append([number, 1])
    return found


def _receive(store: Store, pieces: Iterator[bytes]) -> None:
    """Store the objects of a stream. Raises Problem if it is damaged, or OSError."""
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    writer: Optional[Writer] = None
    begun = b""
    left = 0
    between = True
    try:
        for piece in pieces:
            packed = piece
            while packed:
                data = memoryview(begun + unpacker.decompress(packed, 1 << 18))
                packed, begun = unpacker.unconsumed_tail, b""
                while True:
                    if between:
                        if len(data) < OBJECT.size:
                            begun = bytes(data)
                            break
                        name, size, offset = OBJECT.unpack_from(data)
                        data = data[OBJECT.size :]
                        writer, left, between = open_writer(store, name.hex(), size, offset), size - offset, False
                    taken = data[:left]
                    data, left = data[len(taken) :], left - len(taken)
                    if writer:
                        writer.write(taken)
                    if left:
                        break
                    if writer:
                        writer.done()
                    writer, between = None, True
        if not unpacker.eof:
            raise zlib.error
    except (zlib.error, DamagedError):
        raise Problem("the files arrived damaged", "start the run again") from None
    finally:
        if writer is not None:
            writer.close(remove=False)


def open_writer(store: Store, name: str, size: int, offset: int) -> Optional[Writer]:
    """Return a writer for an object; None if another viewer has sent it by now. Raises Problem, OSError."""
    for _ in range(2):
        if store.has(name, size):
            return None
        try:
            return store.writer(name, offset)
        except FileNotFoundError:
            continue  # a complete object replaces its beginnings
    raise Problem("files that arrived before were removed", "start the run again")


def _run_dir(request: requests.SyncRequest) -> str:
    return full_path(request.get("run_dir") or RUN_DIR)


def full_path(to: str) -> str:
    """Expand a path as the host's user means it."""
    return os.path.abspath(os.path.expanduser(to))


def _exists(target: str) -> bool:
    """Whether a copy is there. Raises Problem if something else is, or another user's."""
    try:
        seen = os.lstat(target)
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
        raise Problem(f"{target} exists, and is not your folder", "remove it, or set job.sync.to")
    return True


def _sweep(run_dir: str, own: str) -> None:
    """Remove the code of runs that were never started here, and the remains of unfinished copies.

    A folder must have the full id of a run as its name, and contain nothing else: others may keep theirs here as well.
    """
    if not os.path.isdir(run_dir):
        return
    now = time.time()
    with os.scandir(run_dir) as runs:
        for run in runs:
            try:
                if not WHOLE.fullmatch(run.name) or not run.is_dir(follow_symlinks=False):
                    continue
                paths = [os.path.join(run.path, name) for name in os.listdir(run.path) if _CODE.fullmatch(name)]
                newest = max((os.lstat(path).st_mtime for path in paths), default=now)
                # Seconds after which the copy of a run that was never started is removed: its data may take hours
                if own in paths or now - newest < 86400.0 or len(paths) < len(os.listdir(run.path)):
                    continue
                for path in paths:
                    shutil.rmtree(path, ignore_errors=True)
                os.rmdir(run.path)
            except OSError:
                continue
