"""What a viewer may fetch of a run besides the mirror: ranges of its files, its checkpoints and outputs."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from typing import TYPE_CHECKING, Callable, List, NamedTuple, Tuple

from ...protocol.limits import CHUNK, READ_LIMIT
from ..journal import read_object
from ..observe.log_limit import data_from
from ..problem import Problem

if TYPE_CHECKING:
    from ...protocol import requests

_FILES = 20000
_CHECKPOINTS, _OUTPUTS = "checkpoints", "outputs"
"""The prefixes of names that can be pulled; a viewer accepts no others."""

Send = Callable[[int, int, int, bytes], None]


def read(folder: str, request: requests.ReadRequest, send: Send, cancelled: threading.Event) -> requests.ReadUpTo:
    """Send `length` bytes of a file from `offset`; less at its end, nothing for holes. Raises Problem or OSError."""
    offset, length = int(request["offset"]), int(request["length"])
    if not 0 <= length <= READ_LIMIT or offset < 0:
        raise Problem("%d bytes from %d on cannot be read in one request" % (length, offset))
    fd = _open(folder, str(request["name"]))
    try:
        end = offset + length
        while not cancelled.is_set() and (offset := data_from(fd, offset)) < end:
            data = os.pread(fd, min(CHUNK, end - offset), offset)
            if not data:
                break
            send(0, 0, offset, data)
            offset += len(data)
    finally:
        os.close(fd)
    return {"end": offset}


class Outputs(NamedTuple):
    """The outputs of a run in its job's folder, as its spec names them."""

    workdir: str
    names: List[str]


def outputs_of(folder: str) -> Outputs:
    """The outputs of the run in a host's folder; none if the spec is missing or from an older version."""
    spec = read_object(os.path.join(folder, "spec.json"))
    names = spec.get("outputs")
    workdir = os.path.abspath(os.path.expanduser(str(spec.get("workdir") or "~")))
    return Outputs(workdir, [name for name in names if isinstance(name, str)] if isinstance(names, list) else [])


def files(run_folder: str, outputs: Outputs) -> requests.FilesAnswer:
    """The files of a run that can be pulled: its checkpoints, and the job's outputs."""
    found: List[requests.File] = []
    left_out: List[str] = []
    for path, folders, names in os.walk(os.path.join(run_folder, _CHECKPOINTS)):
        _note(found, path, os.path.relpath(path, run_folder), names, folders)
    for output in outputs.names:
        try:
            at = outputs.workdir
            for part in output.split("/"):
                if part in ("", ".", ".."):
                    raise Problem("%r is not a valid name below %s" % (output, outputs.workdir))
                at = os.path.join(at, part)
                if stat.S_ISLNK(os.lstat(at).st_mode):
                    raise Problem("%s is a symbolic link" % at)
            _note_output(found, left_out, os.path.join(outputs.workdir, output), os.path.join(_OUTPUTS, output))
        except Problem as problem:
            left_out.append(problem.what)
        except OSError as error:
            left_out.append("%s: %s" % (os.path.join(outputs.workdir, output), error.strerror))
    return {"files": found, "left_out": left_out}


def _note_output(found: List[requests.File], left_out: List[str], top: str, name: str) -> None:
    if not stat.S_ISDIR(os.lstat(top).st_mode):
        _note(found, os.path.dirname(top), os.path.dirname(name), [os.path.basename(top)], [])
        return
    links = 0
    for path, folders, names in os.walk(top):
        inside = os.path.relpath(path, top)
        links += sum(os.path.islink(os.path.join(path, one)) for one in (*folders, *names))
        _note(found, path, name if inside == "." else os.path.join(name, inside), names, folders)
    if links:
        left_out.append("%d symbolic link%s below %s" % (links, "s" * (links > 1), top))


def _note(found: List[requests.File], path: str, inside: str, names: List[str], folders: List[str]) -> None:
    """Note the files of one folder, whose name for the viewer is `inside`; the depth is bounded."""
    if inside.count(os.sep) >= 16:
        del folders[:]
    for name in sorted(names):
        try:
            seen = os.lstat(os.path.join(path, name))
        except FileNotFoundError:
            continue  # the running job has just removed it
        if stat.S_ISREG(seen.st_mode):
            named = os.path.join(inside, name)
            found.append({"name": named, "size": seen.st_size, "mtime": seen.st_mtime, "inode": seen.st_ino})
        if len(found) > _FILES:
            raise Problem("%s has more than %d files" % (path, _FILES), "copy them by hand")


def fetch(
    run_folder: str, outputs: Outputs, request: requests.FetchRequest, send: Send, cancelled: threading.Event
) -> requests.Fetched:
    """Send a file from `offset` to its end. The answer has the size and the SHA-256 of the whole file."""
    offset = int(request["offset"])
    fd = _open(*_base(run_folder, outputs, str(request["name"])))
    digest = hashlib.sha256()
    at = 0
    try:
        while not cancelled.is_set():
            data = os.pread(fd, CHUNK if at >= offset else min(CHUNK, offset - at), at)
            if not data:
                break
            digest.update(data)
            if at >= offset:
                send(0, 0, at, data)
            at += len(data)
    finally:
        os.close(fd)
    return {"size": at, "sha256": digest.hexdigest()}


def _base(run_folder: str, outputs: Outputs, name: str) -> Tuple[str, str]:
    """Split a name of `files` into its base folder and the rest. Raises Problem for a name outside of these folders."""
    top, _, rest = name.partition("/")
    if top != _OUTPUTS:
        return run_folder, name
    if not any(rest == output or rest.startswith(output + "/") for output in outputs.names):
        raise Problem("%r is not an output of the run" % name)
    return outputs.workdir, rest


def _open(base: str, name: str) -> int:
    """Open a file under `base` for reading; no part of its path may be a link. Raises Problem or OSError."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise Problem("%r is not a file of a run" % name)
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        kind = os.O_NONBLOCK if last else os.O_DIRECTORY
        try:
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=fd)
        except OSError as error:
            raise Problem("%s: %s" % (os.path.join(base, name), error.strerror)) from None
        finally:
            os.close(fd)
        fd = inner
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Problem("%s is not a file" % os.path.join(base, name))
    return fd
