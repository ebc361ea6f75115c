"""Leases of this host and its GPUs: a file for each, which belongs to its user and is locked by a living process.

The files lie in a sticky folder that everyone may write to, so no user can remove or change another's. A lease belongs
to the owner of its file, whatever its text says, and counts while it is locked (a killed process leaves no lock). Two
that take the same GPU cannot both get it: each writes its file first and then checks all others, so the second sees the
first. A lock on the folder makes starts take turns; without it both may see each other, and neither gets the GPU.
Queued runs need no lock: of those that see each other, only the first in the queue tries again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple, cast

from ..protocol.leases import (
    GPU_NUMBERS,
    Lease,
    LeaseText,
    LeastRound,
    Share,
    Wish,
    holder,
    is_whole,
    place_of,
    read_text,
    share,
)
from ..protocol.leases import wish_of as lease_wish
from ..protocol.limits import MOST_GPUS
from . import folders, locks, procs
from .problem import Problem

VARIABLE = "DISTTUI_LEASES"
"""Overrides the folder, which all users of a host must share."""
PREFIX = "disttui-lease-"
_SIZE = 4096
"""Bytes of a lease: one write, so that no reader sees half of it."""
_MOST, _MOST_OF_ONE = 2000, 256
"""Most files in all, and most valid leases per user, so that none can hide those of others."""
_TURN = 3.0
"""Seconds to wait for the lock of the folder, which is held for milliseconds; another user may hold it forever."""


class Taken(Problem):
    """Others hold what was requested."""

    def __init__(self, leases: List[Lease], what: str, cure: str) -> None:
        super().__init__(what, cure)
        self.leases = leases


class Seen(NamedTuple):
    """The leases that count, and why they are incomplete ("" if they are complete)."""

    leases: List[Lease]
    problem: str


class HeldLease:
    """A lease of this process; it counts until `release`, or until every process that has its descriptor has ended."""

    def __init__(self, fd: int, path: str, text: LeaseText) -> None:
        self.fd = fd
        self.path = path
        self.text = text
        """The intended content of the file, which may differ after a `write` that failed."""
        self._unwritten = False
        self._wants = {name: text[name] for name in ("since", "gpus", "count")}
        """The request to restore when it goes back into the queue."""

    def write(self, text: LeaseText) -> None:
        """Replace the content. Raises OSError: `repair` tries again."""
        self.text, self._unwritten = text, True
        if os.pwrite(self.fd, _encode(text), 0) < _SIZE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._unwritten = False

    def repair(self) -> None:
        """Make the lease visible to others: write what could not be written, or a new file if it was removed.

        The warden does not share a new file, which lasts as long as this process. Raises OSError.
        """
        if not self._is_there():
            new = _make(os.path.dirname(self.path), self.text)
            self.close()
            self.fd, self.path, self._unwritten = new.fd, new.path, False
        elif self._unwritten:
            self.write(self.text)

    def take_turn(self, least: LeastRound = lambda uid: 0) -> bool:
        """Turn a place in the queue into a lease; False if others hold what it wants. Raises OSError if it still waits.

        Args:
            least: See `share`.
        """
        self.repair()
        now = time.time()
        chosen = share(wish_of(self.text), _look(os.path.dirname(self.path), now).leases, least)
        if chosen.taken:
            return False
        new = {**self.text, "state": "held", "since": round(now, 3), "gpus": chosen.gpus, "count": None}
        try:
            self.write(cast("LeaseText", new))
            if not self._is_there():
                raise FileNotFoundError(errno.ENOENT, "the file was removed")
        except OSError:
            with contextlib.suppress(OSError):
                self.wait()
            raise
        if not share(wish_of(self.text), _look(os.path.dirname(self.path), now).leases, least).taken:
            return True
        self.wait()
        return False

    def wait(self) -> None:
        """Go back into the queue. Raises OSError."""
        self.write(cast("LeaseText", {**self.text, **self._wants, "state": "waiting"}))

    def move(self, round_number: int, order: float) -> None:
        """Move to another place in the queue. Raises OSError."""
        self.write(cast("LeaseText", {**self.text, "round": round_number, "order": order}))

    def note_progress(self, step: object, steps: object) -> None:
        """Show waiting users how far the run is. The values come from a script and may be anything. Never raises."""
        news = self._unwritten or step != self.text["step"]
        if self.fd >= 0 and news and is_whole(step, 1 << 53) and is_whole(steps, 1 << 53):
            with contextlib.suppress(OSError):
                self.write(cast("LeaseText", {**self.text, "step": step, "steps": steps}))

    def adopt(self, warden: Optional[procs.ProcessIdentity] = None) -> None:
        """Transfer it to this process, which has inherited the descriptor, and its warden. Raises OSError."""
        os.set_inheritable(self.fd, False)
        pid, start = (warden["pid"], warden["start_time"]) if warden else (None, None)
        own = {**procs.identity(os.getpid()), "warden_pid": pid, "warden_start_time": start}
        # The previous process may have had its turn, or moved in the queue, since this one was started.
        text = _decode(os.pread(self.fd, _SIZE, 0)) or self.text
        self.write(cast("LeaseText", {**text, **own}))

    def close(self) -> None:
        """Leave the lease to the process that has inherited the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def release(self) -> None:
        """Release the lease. Never raises."""
        if self.fd < 0:
            return
        with contextlib.suppress(OSError):
            if self._is_there():
                os.unlink(self.path)
        with contextlib.suppress(OSError):
            fcntl.flock(self.fd, fcntl.LOCK_UN)  # also of the warden's descriptor: the file may still exist
        self.close()

    def _is_there(self) -> bool:
        """Whether others see the lease's file. Raises OSError."""
        try:
            return os.path.samestat(os.fstat(self.fd), os.lstat(self.path))
        except FileNotFoundError:
            return False


def folder() -> str:
    """The folder with this host's leases. Raises Problem if leases could not be trusted there."""
    path = os.environ.get(VARIABLE) or "/var/tmp"
    try:
        weak = folders.weakness(os.path.abspath(path))
        mode = os.stat(path).st_mode
    except OSError as error:
        cure = f"ask root to create it: install -d -m 1777 {path}"
        raise Problem(f"cannot store leases in {path}: {error.strerror}", cure) from None
    if weak:
        cure = "let root own it and its parents, and set the sticky bit on those that others can write"
        raise Problem(f"cannot store leases in {path}: {weak}", cure)
    if mode & 0o1777 != 0o1777:
        what = f"cannot store leases in {path}: not every user can read and write there"
        raise Problem(what, f"ask its owner to change that: chmod 1777 {path}")
    if locks.is_remote(path):
        raise Problem(f"cannot store leases in {path}: it is on a file server, which hosts may share",
                      f"set {VARIABLE} to a folder of this host")  # fmt: skip
    return path


def look() -> Seen:
    """All valid leases of this host, oldest first."""
    try:
        place = folder()
    except Problem as problem:
        return Seen([], problem.what)
    return _look(place, time.time())


def new_text(run: str, node_rank: int, gpus: Optional[List[int]], by: str, **more: Any) -> LeaseText:
    """The text of a new lease of this process."""
    own = procs.identity(os.getpid())
    text: LeaseText = {
        "kind": "run" if run else "hand", "state": "held", "run": run, "node_rank": node_rank, "gpus": gpus,
        "count": None, "alone": False, "since": round(time.time(), 3), "until": None, "note": "",
        "by": printable(by)[:100],
        "round": 0, "order": 0.0, **own, "quota": None, "warden_pid": None, "warden_start_time": None,
        "step": None, "steps": None,
    }  # fmt: skip
    return cast("LeaseText", {**text, **more})


def printable(text: str) -> str:
    """A text in the form that a lease may hold: one line, without control characters."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))


def take(text: LeaseText, ignore: bool = False) -> HeldLease:
    """Take a lease.

    Args:
        ignore: Take it even if others hold what it names.

    Raises:
        Taken: Others hold what it names.
        Problem: This host cannot keep leases.
    """
    place = folder()
    if not _can_be_read(text):
        cure = f"use at most {MOST_GPUS} GPUs with numbers below {GPU_NUMBERS}, an earlier end, or a shorter note"
        raise Problem("this lease is too large", cure)
    wanted = len(text["gpus"] or ()) if text["count"] is None else text["count"]
    if text["quota"] is not None and wanted > text["quota"] and not ignore:
        what = f"this run uses {wanted} GPUs, but the host's `quota` is {text['quota']} per user"
        raise Taken([], what, "use fewer with `gpus`, or start anyway with --ignore-leases")
    with _turn(place):
        # Remove this user's expired leases first.
        now = time.time()
        for file in _files(_found(place)):
            if file.uid == os.getuid() and not _counts(file, now):
                with contextlib.suppress(OSError):  # it is locked: another process is creating it
                    fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(file.path)
        try:
            held = _make(place, text)
        except OSError as error:
            what = f"cannot create a lease in {place}: {error.strerror}"
            taken = [] if ignore else share(wish_of(text), _look(place, time.time()).leases).taken
            if taken:
                raise Taken(taken, f"{holders(taken)}; {what}", "ask them") from None
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise Problem(what, "free space there" if full else "check why you cannot create files there") from None
        try:
            if text["state"] == "held" and not ignore:
                _refuse(place, text)
        except Taken:
            held.release()
            raise
    return held


def wish_of(text: LeaseText) -> Wish:
    """What a lease of this user asks for."""
    return lease_wish({**text, "user": "", "uid": os.getuid()})


def release_by_hand(gpus: Optional[List[int]], name: Optional[str] = None) -> List[Lease]:
    """Release this user's manual leases, or some of their GPUs, and return what was released.

    Args:
        gpus: Release only these; None releases all. They do not match a lease of the whole host.
        name: Remove only the one whose file has this name.

    Raises:
        Problem: This host cannot keep leases, or GPUs are to be released from a lease of the whole host.
    """
    place = folder()
    removed = []
    for path, lease in _valid(_found(place), time.time()):
        mine = lease["uid"] == os.getuid() and lease["kind"] == "hand"
        mine = mine and (name is None or _is_same(path, os.path.join(place, os.path.basename(name))))
        if not mine or not (gpus is None or lease["gpus"] is None or set(gpus) & set(lease["gpus"])):
            continue
        if gpus is not None and lease["gpus"] is None:
            raise Problem("you have leased the whole host, not single GPUs", "release it without --gpus")
        rest = [one for one in lease["gpus"] or () if gpus is not None and one not in gpus]
        with contextlib.suppress(FileNotFoundError):
            if rest:
                text = {name: lease[name] for name in LeaseText.__annotations__}  # type: ignore[literal-required]
                _make(place, cast("LeaseText", {**text, "gpus": rest})).close()
            os.truncate(path, 0)  # a name for the same file that another user has made must not keep it
            os.unlink(path)
            gone = None if lease["gpus"] is None else [one for one in lease["gpus"] if one not in rest]
            removed.append(cast("Lease", {**lease, "gpus": gone}))
    return removed


def holders(leases: List[Lease]) -> str:
    """The holders of these leases as a text: `alice's llama-7f3a holds GPUs 0, 1`."""
    now = time.time()
    return "; ".join(holder(lease, now) for lease in leases[:4]) + ("; and others" if len(leases) > 4 else "")


def reason(wish: Wish, mine: Share) -> str:
    """Why a request is not granted; "" if it is."""
    what = "GPUs" if wish.gpus else "CPU runs"
    quota = f"the `quota` of {wish.quota} {what} per user would be exceeded: " if mine.by_quota else ""
    return quota + holders(mine.taken)


def _refuse(place: str, text: LeaseText) -> None:
    wish = wish_of(text)
    mine = share(wish, _look(place, time.time()).leases)
    if mine.taken:
        cure = "ask them, or use other GPUs"
        if text["kind"] == "run":
            cure += ", wait with --when-free, or start anyway with --ignore-leases"
        raise Taken(mine.taken, reason(wish, mine), cure)


@contextlib.contextmanager
def _turn(place: str) -> Iterator[None]:
    """Hold the folder's lock for a block, if it can be acquired in time."""
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _TURN
        while time.monotonic() < deadline:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.005)
        yield
    finally:
        os.close(fd)


def _make(place: str, text: LeaseText) -> HeldLease:
    """Create a lease's file. Raises OSError."""
    while True:
        path = os.path.join(place, PREFIX + os.urandom(8).hex())
        # Others may open it once it is locked: until then they could lock it first.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = HeldLease(fd, path, text)
            held.write(text)
            os.fchmod(fd, 0o644)
            if os.path.samestat(os.fstat(fd), os.lstat(path)):
                return held
        except (BlockingIOError, FileNotFoundError):
            pass  # another process of this user has removed it as expired
        except OSError:
            _remove(fd, path)
            raise
        _remove(fd, path)


def _remove(fd: int, path: str) -> None:
    os.close(fd)
    with contextlib.suppress(OSError):
        os.unlink(path)


def _look(place: str, now: float) -> Seen:
    of: Dict[int, List[Lease]] = {}
    files = _found(place)
    for _, lease in _valid(files, now):
        of.setdefault(lease["uid"], []).append(lease)
    for own in of.values():  # never leave out active leases and the first in the queue in favour of waiting ones
        own.sort(key=lambda lease: (lease["state"] == "waiting", place_of(lease)))
    found = [lease for own in of.values() for lease in own[:_MOST_OF_ONE]]
    many = [folders.user_name(uid) for uid, own in of.items() if len(own) > _MOST_OF_ONE]
    have = f"{', '.join(many)} {'has' if len(many) == 1 else 'have'} more than {_MOST_OF_ONE} leases in {place}"
    problem = f"{have}; the others are ignored" if many else _crowd(place, files)
    return Seen(sorted(found, key=lambda lease: (lease["since"], lease["run"])), problem)


def _crowd(place: str, files: Dict[int, List[str]]) -> str:
    """Users with so many files there that reading them takes long; "" if there are none."""
    users = [folders.user_name(uid) for uid, of in files.items() if len(of) == _MOST]
    have = f"{', '.join(users)} {'has' if len(users) == 1 else 'have'} {_MOST} or more files in {place}"
    return f"{have} named like leases, which slows every reading of leases" if users else ""


def _valid(files: Dict[int, List[str]], now: float) -> Iterator[Tuple[str, Lease]]:
    names: Dict[int, str] = {}  # looked up once each: a directory server that is down delays every lookup
    for file in _files(files):
        if file.text is not None and _counts(file, now):
            if file.uid not in names:
                names[file.uid] = folders.user_name(file.uid)
            yield file.path, cast("Lease", {**file.text, "user": names[file.uid], "uid": file.uid})


class _File(NamedTuple):
    """A file that may be a lease, open for reading while it is examined."""

    path: str
    fd: int
    uid: int
    text: Optional[LeaseText]


def _files(files: Dict[int, List[str]]) -> Iterator[_File]:
    for path in sorted(path for of in files.values() for path in of):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            info = os.fstat(fd)
            if stat.S_ISREG(info.st_mode) and info.st_size <= _SIZE:
                text = _decode(os.pread(fd, _SIZE, 0)) or _decode(os.pread(fd, _SIZE, 0))
                yield _File(path, fd, info.st_uid, text)
        except OSError:
            pass
        finally:
            os.close(fd)


def _found(place: str) -> Dict[int, List[str]]:
    """User id → paths that may be leases, `_MOST` of them at most."""
    found: Dict[int, List[str]] = {}
    seen: Set[Tuple[int, int]] = set()
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if not entry.name.startswith(PREFIX):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    info = entry.stat(follow_symlinks=False)
                    of = found.setdefault(info.st_uid, [])
                    # Links that another user has made to a lease must not use up its owner's share.
                    if len(of) < _MOST and (info.st_dev, info.st_ino) not in seen:
                        seen.add((info.st_dev, info.st_ino))
                        of.append(entry.path)
    except OSError:
        return {}
    return found


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.lstat(other))
    except OSError:
        return False


def _counts(file: _File, now: float) -> bool:
    """Whether a lease is valid: a run's while its process lives and holds the lock, a manual one until it expires."""
    text = file.text
    if text is None:
        return False
    if text["kind"] == "hand":
        return text["until"] is None or text["until"] > now
    try:
        fcntl.flock(file.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES) and _may_live(text)
    fcntl.flock(file.fd, fcntl.LOCK_UN)
    return False


def _may_live(text: LeaseText) -> bool:
    """Whether the process of a locked lease may live: every user can lock a dead one's file."""
    if text["boot_id"] != procs.boot_id():
        return False
    if text["pid_namespace"] != procs.pid_namespace():
        return True  # it runs in a container and cannot be seen from here
    # The warden takes the place of a killed supervisor, and needs a moment to record that.
    pairs = ((text["pid"], text["start_time"]), (text["warden_pid"], text["warden_start_time"]))
    return any(pid is not None and _may_be(pid, start) for pid, start in pairs)


def _may_be(pid: int, start: Optional[int]) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    proc = procs.read(pid)  # None: /proc hides others' processes
    return proc is None or (not proc.dead and proc.start == start)


def _encode(text: LeaseText) -> bytes:
    data = json.dumps(text, separators=(",", ":"), ensure_ascii=False).encode()
    if len(data) >= _SIZE:
        raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
    return data.ljust(_SIZE - 1) + b"\n"


def _can_be_read(text: LeaseText) -> bool:
    """Whether readers accept this text as a lease."""
    try:
        return _decode(_encode(text)) is not None
    except OSError:
        return False


def _decode(data: bytes) -> Optional[LeaseText]:
    try:
        return read_text(json.loads(data))
    except (ValueError, RecursionError):
        return None
