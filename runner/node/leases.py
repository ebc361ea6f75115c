"""Leases of this host and its GPUs: a file for each, which belongs to its user and is locked by a living process.

The files lie in a folder that everybody may write and that is sticky, so nobody can remove or change another's. Whose
a lease is, the file's owner says, and not its text; that it still counts, its lock (a killed process leaves none). Two
that take the same GPU cannot both get it: each writes its file first and then looks at all others, so the second sees
the first. A lock on the folder lets one after the other do so; without it both may see each other, and neither gets it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple, cast

from ..protocol.leases import Lease, LeaseText, Wish, in_the_way, person, place_of, short
from ..protocol.names import RUN
from . import folders, locks, procs
from .problem import Problem

VARIABLE = "DISTTUI_LEASES"
"""Names another folder, for all users of a host alike."""
_FOLDER = "/var/tmp"
PREFIX = "disttui-lease-"
_SIZE = 4096
"""Bytes of a lease: one write, so that no reader sees half of it."""
_MOST, _MOST_OF_ONE = 2000, 256
"""Files, and leases that count, of one user: nobody's can hide those of others."""
_MOST_GPUS = 64
_TURN = 3.0
"""Seconds to wait for the lock of the folder, which is held for milliseconds; another user may hold it for ever."""
_LATEST = 1e11


class Taken(Problem):
    """Others have what is wanted."""

    def __init__(self, leases: List[Lease], what: str, cure: str) -> None:
        super().__init__(what, cure)
        self.leases = leases


class Seen(NamedTuple):
    """The leases that count, and what makes them incomplete; empty: nothing."""

    leases: List[Lease]
    problem: str


class HeldLease:
    """A lease of this process; it counts until `release`, or until every process that has its descriptor has ended."""

    def __init__(self, fd: int, path: str, text: LeaseText) -> None:
        self.fd = fd
        self.path = path
        self.text = text

    def write(self, text: LeaseText) -> None:
        """Replace the content. Raises OSError."""
        os.pwrite(self.fd, _encode(text), 0)
        self.text = text

    def take_turn(self) -> bool:
        """Turn a place in the line into a lease; False: others have what it names. Raises OSError."""
        place = os.path.dirname(self.path)
        with _turn(place):
            self.write(cast("LeaseText", {**self.text, "state": "held", "since": round(time.time(), 3)}))
            if not in_the_way(wish_of(self.text), _look(place, time.time()).leases):
                return True
            self.wait()
        return False

    def wait(self) -> None:
        """Go back into line. Raises OSError."""
        self.write(cast("LeaseText", {**self.text, "state": "waiting"}))

    def note_progress(self, step: object, steps: object) -> None:
        """Let those who wait see how far the run is; values of a script, which may be anything. Never raises."""
        if _is_whole(step, 1 << 53) and _is_whole(steps, 1 << 53) and step != self.text["step"]:
            with contextlib.suppress(OSError):
                self.write(cast("LeaseText", {**self.text, "step": step, "steps": steps}))

    def adopt(self) -> None:
        """Make it stand for this process, which has inherited the descriptor. Never raises."""
        with contextlib.suppress(OSError):
            os.set_inheritable(self.fd, False)
            self.write(cast("LeaseText", {**self.text, **procs.identity(os.getpid())}))

    def close(self) -> None:
        """Leave it to the process that has inherited the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def release(self) -> None:
        """Give it up. Never raises."""
        if self.fd < 0:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self.fd), os.lstat(self.path)):
                os.unlink(self.path)
        self.close()


def folder() -> str:
    """Where the leases of this host lie. Raises Problem where they could not be trusted there."""
    path = os.environ.get(VARIABLE) or _FOLDER
    cure = f"its owner makes it by: chmod 1777 {path}"
    try:
        weak = folders.weakness(os.path.abspath(path))
        mode = os.stat(path).st_mode
    except OSError as error:
        raise Problem(f"leases cannot be kept in {path}: {error.strerror}", cure) from None
    if weak:
        raise Problem(f"leases cannot be kept in {path}: {weak}", cure)
    if mode & 0o1777 != 0o1777:
        raise Problem(
            f"leases cannot be kept in {path}: not every user can write there and read what others wrote", cure
        )
    if locks.is_remote(path):
        raise Problem(f"leases cannot be kept in {path}: it is on a file server, which several hosts may share",
                      f"name a folder of this host in {VARIABLE}")  # fmt: skip
    return path


def look() -> Seen:
    """All leases of this host that count, the oldest first."""
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
        "alone": False, "since": round(time.time(), 3), "until": None, "note": "", "by": by[:100], "priority": 0,
        "order": 0.0, **own, "step": None, "steps": None,
    }  # fmt: skip
    return cast("LeaseText", {**text, **more})


def take(text: LeaseText, ignore: bool = False) -> HeldLease:
    """Take a lease.

    Args:
        ignore: Take it although others have what it names.

    Raises:
        Taken: Others have what it names.
        Problem: This host can keep no leases.
    """
    place = folder()
    if not _can_be_read(text):
        raise Problem("this is more than a lease can hold", f"name {_MOST_GPUS} GPUs at most, and write a shorter note")
    with _turn(place):
        _tidy(place)
        try:
            held = _make(place, text)
        except OSError as error:
            what = f"no lease can be made in {place}: {error.strerror}"
            taken = [] if ignore else in_the_way(wish_of(text), _look(place, time.time()).leases)
            if taken:
                raise Taken(taken, f"{holders(taken)}, and {what}", "make room there") from None
            raise Problem(what, "make room there") from None
        try:
            if text["state"] == "held" and not ignore:
                _refuse(place, text)
        except Taken:
            held.release()
            raise
    return held


def wish_of(text: LeaseText) -> Wish:
    """What a lease of this user asks for."""
    place = place_of(text) if text["order"] else None
    return Wish(text["kind"], text["run"], text["gpus"], text["alone"], os.getuid(), person(text["by"]), place)


def release_by_hand(gpus: Optional[List[int]], name: Optional[str] = None) -> List[Lease]:
    """Remove this user's leases by hand of any of these GPUs, None: all of them; returns what was removed.

    Args:
        name: Remove only the one whose file has this name.

    Raises:
        Problem: This host can keep no leases.
    """
    place = folder()
    removed = []
    for path, lease in _valid(place, time.time()):
        mine = lease["uid"] == os.getuid() and lease["kind"] == "hand"
        mine = mine and name in (None, os.path.basename(path))
        if mine and (gpus is None or lease["gpus"] is None or not set(gpus).isdisjoint(lease["gpus"])):
            with contextlib.suppress(FileNotFoundError):
                os.truncate(path, 0)  # a name for the same file that another user has made must not keep it
                os.unlink(path)
                removed.append(lease)
    return removed


def holders(leases: List[Lease]) -> str:
    """Who has these leases, as a text: `alice's llama-7f3a holds GPUs 0, 1`."""
    return "; ".join(_holder(lease) for lease in leases[:4]) + ("; and others" if len(leases) > 4 else "")


def _holder(lease: Lease) -> str:
    gpus = lease["gpus"]
    if gpus is None:
        what = "the whole host"
    elif gpus:
        what = f"GPU {gpus[0]}" if len(gpus) == 1 else f"GPUs {', '.join(map(str, gpus))}"
    else:
        what = "its CPUs"
    if lease["state"] == "waiting":
        return f"{lease['user']}'s {short(lease['run'])} is in line for {what}"
    if lease["kind"] == "run":
        return f"{lease['user']}'s {short(lease['run'])} holds {what}{_progress(lease)}"
    until = lease["until"]
    end = f" for {_span(until - time.time())} more" if until is not None else ", with no end"
    note = f" ({lease['note']})" if lease["note"] else ""
    return f"{lease['user']} has {what} by hand{end}{note}"


def _progress(lease: Lease) -> str:
    step, steps = lease["step"], lease["steps"]
    if not step or not steps or step > steps:
        return ""
    left = (time.time() - lease["since"]) * (steps - step) / step
    return f", {100 * step // steps} % done, about {_span(left)}"


def _span(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.0f} h"


def _refuse(place: str, text: LeaseText) -> None:
    leases = _look(place, time.time()).leases
    taken = in_the_way(wish_of(text), leases)
    if taken:
        cure = "ask them, take other GPUs, wait with --when-free, or go on all the same with --ignore-leases"
        raise Taken(taken, holders(taken), cure)


@contextlib.contextmanager
def _turn(place: str) -> Iterator[None]:
    """Hold the folder's lock for a block, where it can be had in time."""
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
    """Make a lease's file. Raises OSError."""
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
            pass  # another process of this user has taken it for one that no longer counts
        except OSError:
            _remove(fd, path)
            raise
        _remove(fd, path)


def _remove(fd: int, path: str) -> None:
    os.close(fd)
    with contextlib.suppress(OSError):
        os.unlink(path)


def _tidy(place: str) -> None:
    """Remove this user's leases that no longer count."""
    now = time.time()
    for path in _paths(place):
        opened = _open(path)
        if opened is None:
            continue
        fd, info = opened
        try:
            if info.st_uid == os.getuid() and not _counts(fd, _decode(os.pread(fd, _SIZE, 0)), now):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
        except OSError:
            pass  # it is locked: it is being made
        finally:
            os.close(fd)


def _look(place: str, now: float) -> Seen:
    of: Dict[int, List[Lease]] = {}
    for _, lease in _valid(place, now):
        of.setdefault(lease["uid"], []).append(lease)
    for own in of.values():  # what is held, and the first in line, are never left out for others that wait
        own.sort(key=lambda lease: (lease["state"] == "waiting", place_of(lease)))
    found = [lease for own in of.values() for lease in own[:_MOST_OF_ONE]]
    many = [folders.user_name(uid) for uid, own in of.items() if len(own) > _MOST_OF_ONE]
    problem = (
        f"{', '.join(many)} has more than {_MOST_OF_ONE} leases in {place}: the others are left out" if many else ""
    )
    return Seen(sorted(found, key=lambda lease: (lease["since"], lease["run"])), problem)


def _valid(place: str, now: float) -> Iterator[Tuple[str, Lease]]:
    for path in _paths(place):
        opened = _open(path)
        if opened is None:
            continue
        fd, info = opened
        try:
            text = _decode(os.pread(fd, _SIZE, 0)) or _decode(os.pread(fd, _SIZE, 0))
            if text is not None and _counts(fd, text, now):
                user = folders.user_name(info.st_uid)
                yield path, cast("Lease", {**text, "user": user, "uid": info.st_uid})
        except OSError:
            pass
        finally:
            os.close(fd)


def _paths(place: str) -> List[str]:
    found: Dict[int, List[str]] = {}
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if not entry.name.startswith(PREFIX):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    of = found.setdefault(entry.stat(follow_symlinks=False).st_uid, [])
                    if len(of) < _MOST:
                        of.append(entry.path)
    except OSError:
        return []
    return sorted(path for of in found.values() for path in of)


def _open(path: str) -> Optional[Tuple[int, os.stat_result]]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or info.st_size > _SIZE:
        os.close(fd)
        return None
    return fd, info


def _counts(fd: int, text: Optional[LeaseText], now: float) -> bool:
    """Whether a lease counts: of a run, while its process lives and has it locked; by hand, until its end."""
    if text is None:
        return False
    if text["kind"] == "hand":
        return text["until"] is None or text["until"] > now
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES) and _may_live(text)
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _may_live(text: LeaseText) -> bool:
    """Whether the process of a locked lease may live: every user can lock a dead one's."""
    if text["boot_id"] != procs.boot_id():
        return False
    if text["pid_namespace"] != procs.pid_namespace():
        return True  # of a container: it cannot be seen from here
    try:
        os.kill(text["pid"], 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    proc = procs.read(text["pid"])  # None: /proc hides others' processes
    return proc is None or (not proc.dead and proc.start == text["start_time"])


def _encode(text: LeaseText) -> bytes:
    data = json.dumps(text, separators=(",", ":")).encode()
    if len(data) >= _SIZE:
        raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
    return data.ljust(_SIZE - 1) + b"\n"


def _can_be_read(text: LeaseText) -> bool:
    """Whether it counts once it is written."""
    try:
        return _decode(_encode(text)) is not None
    except OSError:
        return False


def _decode(data: bytes) -> Optional[LeaseText]:
    """A lease's text with every field checked, None for what no version of disttui writes."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    text = {name: found.get(name) for name in LeaseText.__annotations__}
    right = (
        text["kind"] in ("run", "hand")
        and text["state"] in ("held", "waiting")
        and isinstance(text["run"], str)
        and (text["run"] == "" if text["kind"] == "hand" else bool(RUN.fullmatch(text["run"])))
        and _are_gpus(text["gpus"])
        and isinstance(text["alone"], bool)
        and _is_time(text["since"])
        and _is_time(text["order"])
        and (text["until"] is None or _is_time(text["until"]))
        and all(
            isinstance(value, str) and len(value) <= 200
            for value in (text["note"], text["by"], text["boot_id"], text["pid_namespace"])
        )
        and all(_is_whole(text[name], 1 << 31) for name in ("node_rank", "pid"))
        and isinstance(text["priority"], int)
        and _is_whole(abs(text["priority"]), 101)
        and not isinstance(text["priority"], bool)
        and all(text[name] is None or _is_whole(text[name], 1 << 53) for name in ("start_time", "step", "steps"))
    )
    return cast("LeaseText", text) if right else None


def _are_gpus(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and len(value) <= _MOST_GPUS and all(_is_whole(one, 1024) for one in value)


def _is_whole(value: Any, below: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _LATEST
