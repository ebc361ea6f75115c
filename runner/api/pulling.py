"""Copies a run's checkpoints and results to this machine."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from disttui.runner.api.questions import HostNotice, ignore, problem_of
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, HostError, InputError, LinkLostError
from disttui.runner.formatting import amount, gibibytes, number
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.survey import HostsError
from disttui.runner.paths import PathError, inside
from disttui.runner.protocol.regular import read_regular
from disttui.runner.runs.registry import KnownRun, refuse_sandbox
from disttui.runner.runs.remote import REACH, Reached
from disttui.runner.text import clean
from disttui.runner.untrusted.records import each, mapping, whole

_MOST_NAMED = 5
"""Most skipped files that are named."""
_HALVES = ".pull"
"""Folder of partial files below the target, which no host can name."""
_BLOCKED = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY)
"""Errors of a file in place of a folder, or the reverse."""
_GROWTH = 64 << 20
"""Bytes that a file may have grown by since it was listed."""
_LATEST = 1e11
"""Latest accepted modification time: unix time of the year 5138."""
_FOLDERS = ("checkpoints", "outputs")
"""Folders of what a host may offer: it cannot name anything among a user's own files."""
_PULLED = "pulled"
"""File in the run's local folder with the paths of all files ever pulled, each followed by NUL, @, its host and NUL."""
_READS = 10 << 20
"""Bytes per second that a host reads at least when it computes a checksum."""


class Offered(NamedTuple):
    """A file of the run on a host."""

    name: str
    size: int
    mtime: float
    inode: int | None
    """Id that is the same on all hosts that share the file; None: unknown."""


class ToFetch(NamedTuple):
    """The files to be fetched from a host."""

    host: str
    files: int
    size: int


class PulledFile(NamedTuple):
    """A file that has been copied, with the right checksum."""

    path: Path
    size: int
    host: str


PullNews = ToFetch | PulledFile | HostNotice


@dataclass(frozen=True)
class Pulled:
    """The result of a pull."""

    offered: int
    """Number of the run's files on the hosts."""
    fetched: tuple[PulledFile, ...]
    """The files that were not here before."""
    bytes: int
    """Bytes copied."""
    looked: tuple[str, ...]
    """Hosts that were asked."""
    unreached: tuple[str, ...]
    """Hosts whose files are missing."""


def pull(
    viewer: Viewer,
    run: KnownRun,
    to: Path,
    tell: Callable[[PullNews], object] = ignore,
    *,
    choose: Callable[[Sequence[Offered]], Sequence[Offered]] = lambda files: files,
    came: Callable[[int], object] = ignore,
) -> Pulled:
    """Copy the run's files from its hosts; skips existing files, continues partial ones.

    Args:
        tell: Takes each copied file, and the errors of hosts.
        choose: Chooses the files that are wanted of those that a host has.
        came: Takes the number of bytes that have come since it was called before.

    Raises:
        DisttuiError: A host cannot be reached or names files that cannot be stored, a file changed while it was read,
            or the disk is full. The other files have been copied then.
    """
    refuse_sandbox(run)
    total, fetched = 0, []
    with viewer.reach(run) as reached:
        answers, problems = _listed(reached, run)
        for node, error in reached.errors.items():
            tell(problem_of(run.hosts[node].name, error, "; its files are skipped"))
        taken: dict[str, Offered] = {}
        there = {b"", *(os.fsencode(run.hosts[node].name) for node in answers)}
        for node, answer in sorted(answers.items()):
            host = run.hosts[node].name
            for text in left_out(answer):
                tell(HostNotice(host, f"skipped: {text}"))
            is_ours = partial(_is_ours, reached.links[node], run, node)
            try:
                wanted, refused = _wanted(to, host, choose(offered(answer)), taken, is_ours, _pulled(run), there)
            except HostError as error:
                problems.append(error)
                continue
            if refused:
                more = f" and {len(refused) - _MOST_NAMED} more" if len(refused) > _MOST_NAMED else ""
                what = f"{amount(len(refused), 'file')} skipped: {', '.join(refused[:_MOST_NAMED])}{more}"
                cure = "Move conflicting files here, or rename them there; do not trust names that lead out of a run."
                problems.append(HostError(host, what, cure))
            if wanted:
                tell(ToFetch(host, len(wanted), sum(file.size for file in wanted.values())))
            try:
                for path, file in wanted.items():
                    total += _fetch(reached.links[node], run, node, to, path, file, came)
                    fetched.append(PulledFile(path, file.size, host))
                    tell(fetched[-1])
            except HostError as error:
                problems.append(error)
    if problems:
        raise problems[0] if len(problems) == 1 else HostsError(problems)
    looked, silent = ([run.hosts[node].name for node in sorted(nodes)] for nodes in (answers, reached.errors))
    return Pulled(len(taken), tuple(fetched), total, tuple(looked), tuple(silent))


def _listed(reached: Reached, run: KnownRun) -> tuple[dict[int, Any], list[DisttuiError]]:
    """Node rank → the files that a host offers, and why others offer none; those that were lost are in `reached`.

    Raises DisttuiError if there is no answer.
    """
    reached.refuse_none()
    answers = reached.ask("files", **run.request())
    errors = {node: answer for node, answer in answers.items() if isinstance(answer, DisttuiError)}
    reached.errors.update((node, error) for node, error in errors.items() if isinstance(error, LinkLostError))
    if len(reached.errors) == len(run.hosts):
        reached.refuse_some()
    found = {node: answer for node, answer in answers.items() if node not in errors}
    return found, [error for node, error in errors.items() if node not in reached.errors]


def left_out(answer: Any) -> tuple[str, ...]:
    """Outputs of the job that are not offered, and why."""
    texts = mapping(answer).get("left_out")
    return tuple(clean(text[:1000]) for text in texts[:100] if isinstance(text, str)) if isinstance(texts, list) else ()


def _wanted(
    to: Path,
    host: str,
    files: Sequence[Offered],
    taken: dict[str, Offered],
    is_ours: Callable[[Path, Offered], bool],
    pulled: Mapping[bytes, bytes],
    there: Container[bytes],
) -> tuple[dict[Path, Offered], list[str]]:
    """Return target path → file for a host's missing files, and why others are refused.

    Refused are bad names, and names of existing files that are not from this run. All other files go into `taken`.
    What hosts that are not `there` have sent stays as it is.
    """
    wanted: dict[Path, Offered] = {}
    refused: list[str] = []
    for file in files:
        known = taken.get(file.name)
        if known == file:
            continue  # the same file, on a disk shared with another host
        try:
            alike = known is not None and known._replace(inode=file.inode) == file
            if alike and is_ours(_place(to, host, file.name, apart=False), file):
                continue  # a copy, or on a shared file system whose inode numbers differ between hosts
            path = _place(to, host, file.name, apart=known is not None)
            if known is None and pulled.get(_key(path), b"") not in there and not _is_here(path, file):
                path = _place(to, host, file.name, apart=True)  # its host may be gone for good
        except PathError as error:
            refused.append(error.what)
            continue
        taken.setdefault(file.name, file)
        if _is_here(path, file):
            continue
        if os.path.lexists(path) and _key(path) not in pulled:
            refused.append(f"{clean(str(path))} exists, and is not from this run")
            continue
        wanted[path] = file
    return wanted, refused


def offered(answer: Any) -> tuple[Offered, ...]:
    """The files in an answer of the op `files`, without malformed ones."""
    files = mapping(answer).get("files")
    return each(files, _offered, len(files) if isinstance(files, list) else 0)


def _offered(file: Mapping[str, object]) -> Offered | None:
    name, size, mtime = file.get("name"), whole(file.get("size")), number(file.get("mtime"))
    if not isinstance(name, str) or size is None or mtime is None or abs(mtime) > _LATEST:
        return None
    return Offered(name, size, mtime, whole(file.get("inode")))


def _place(to: Path, host: str, name: str, *, apart: bool) -> Path:
    """The target path of a host's file, in a folder of the host if `apart`. Raises PathError for a bad name."""
    if name.partition("/")[0] not in _FOLDERS:
        raise PathError(f"{clean(repr(name[:100]))} is not a checkpoint or output of a run")
    # Files of the same name on several hosts go to separate folders.
    return inside(to, host.replace("/", "-"), name) if apart else inside(to, name)


def _fetch(
    link: Link, run: KnownRun, node: int, to: Path, path: Path, file: Offered, came: Callable[[int], object]
) -> int:
    # The name includes the host, so that data of another host is never used as the beginning.
    whose = f"{run.run}\0{link.host}\0{file.name}".encode(errors="replace")
    half = inside(to, _HALVES, hashlib.sha256(whose).hexdigest())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half.parent.mkdir(exist_ok=True)
        begun, free = half.stat().st_size if half.exists() else 0, shutil.disk_usage(to).free
        if file.size - begun > free:
            what = f"{clean(file.name)} needs {gibibytes(file.size)}, but {to} has {gibibytes(free)} free"
            raise HostError(link.host, what, "Free space, or pull elsewhere with --to.")
        with half.open("ab") as out:
            came(begun)
            answer = _receive(link, run, node, file, out, begun, came)
        if answer.get("size") != half.stat().st_size or answer.get("sha256") != _digest(half):
            half.unlink()
            raise HostError(link.host, f"{clean(file.name)} changed while it was read", "Pull again.")
        os.utime(half, (file.mtime, file.mtime))
        # The folder may be missing if this is a run that another one resumed.
        with contextlib.suppress(FileNotFoundError), inside(run.folder, _PULLED).open("ab") as pulled:
            pulled.write(_key(path) + b"\0@" + os.fsencode(run.hosts[node].name) + b"\0")
        half.replace(path)
    except OSError as error:
        if error.errno in _BLOCKED:
            cure = "A file or folder of this name exists: move it, or pull elsewhere with --to."
            raise HostError(link.host, f"{clean(str(path))} cannot be written: {error.strerror}", cure) from None
        raise InputError(f"{error.strerror}", "Free space, or pull elsewhere with --to.", place=f"{path}") from None
    finally:
        with contextlib.suppress(OSError):
            half.parent.rmdir()  # fails while there are other partial files
    return path.stat().st_size - begun


def _pulled(run: KnownRun) -> dict[bytes, bytes]:
    """Path → host of all files ever pulled; the host is b"" in records of older versions."""
    found: dict[bytes, bytes] = {}
    with contextlib.suppress(OSError):
        path = b""
        for word in read_regular(inside(run.folder, _PULLED)).split(b"\0"):
            if word.startswith(b"@"):
                found[path] = word[1:]
            else:
                path = word
                found[path] = b""
    return found


def _key(path: Path) -> bytes:
    return os.fsencode(path.resolve())


def _receive(
    link: Link, run: KnownRun, node: int, file: Offered, out: BinaryIO, begun: int,
    came: Callable[[int], object] = ignore,
) -> Mapping[str, object]:  # fmt: skip
    failed: list[OSError | HostError] = []
    at, heard = begun, time.monotonic()

    def take(item: Any) -> None:
        nonlocal at, heard
        if not isinstance(item, tuple) or failed:
            return
        at, heard = at + len(item[3]), time.monotonic()
        if at > 2 * file.size + _GROWTH:
            cure = "Pull again; if it happens again, do not trust this host."
            what = f"{clean(file.name)} was {gibibytes(file.size)}, but {gibibytes(at)} arrived without its end"
            failed.append(HostError(link.host, what, cure))
            return
        try:
            out.write(item[3])
            came(len(item[3]))
        except OSError as error:
            failed.append(error)

    request = {**run.request(), "node_rank": node, "name": file.name, "offset": begun}
    future = link.stream("fetch", take, **request)
    while True:
        try:
            answer = future.result(1.0)
        except FutureTimeout:
            patience = REACH + begun / _READS  # the host first reads the part that is here, for the checksum
            if not failed and time.monotonic() - heard < patience:
                continue
            # So that late pieces of this file are not written to the next one.
            link.close()
            what = f"no data of {clean(file.name)} for {patience:.0f} s"
            raise failed[0] if failed else HostError(link.host, what, "Pull again later.") from None
        if failed:
            raise failed[0]
        return mapping(answer)


def _is_ours(link: Link, run: KnownRun, node: int, path: Path, file: Offered) -> bool:
    """Whether a host's file equals the local one, by the host's SHA-256. Raises HostError."""
    try:
        with Path(os.devnull).open("wb") as nowhere:
            answer = _receive(link, run, node, file, nowhere, file.size)
        return answer.get("sha256") == _digest(path)
    except OSError:
        return False


def _is_here(path: Path, file: Offered) -> bool:
    try:
        seen = path.stat()
    except OSError:
        return False
    return seen.st_size == file.size and abs(seen.st_mtime - file.mtime) < 1e-3


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()
