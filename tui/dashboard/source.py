"""Finds the line of the user's own code where a run failed, in this machine's copy of the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from runner.diagnose.cause import RootCause
from runner.diagnose.frames import Frame, own
from runner.diagnose.traceback import frames
from runner.errors import InputError
from runner.paths import PathError, inside
from runner.runs.registry import KnownRun
from runner.text import clean

_MOST = 4 << 20
"""The largest file to search, in bytes: source files are not longer."""
_UP = 3
"""How many folders to search for the job's folder, from the profile's own upwards."""


class SourceLine(NamedTuple):
    """A line of a file on this machine."""

    path: Path
    line: int


def failing_frame(cause: RootCause | None) -> Frame | None:
    """The innermost frame of the user's own code in the traceback of the failure; None without one."""
    found = own(frames(cause.failure.traceback)) if cause else None
    return found if found and found.file and found.line > 0 and not found.library else None


def on_this_machine(run: KnownRun | None, node: int, workdir: str, frame: Frame, traceback: str) -> SourceLine:
    """The place of a host's frame in the files of this machine.

    If the host is another machine, a file with the same path, or at the same place below the profile's folder, counts
    as the same only if the line is the same, too.

    Args:
        workdir: The job's folder on the host, from its spec; may be empty.
        traceback: The traceback that the frame is from.

    Raises:
        InputError: This machine has no such file, or another version of it.
    """
    text = _text_of(traceback, frame)
    local = run is None or run.sandbox or run.hosts[node].host == "local"
    differs = None
    for path in _candidates(run, workdir, frame.file):
        line = _line_of(path, frame.line)
        if line is None:
            continue
        if line.strip() == text or (local and not text):
            return SourceLine(path, frame.line)
        differs = path
    where = "" if run is None else f"{clean(run.hosts[node].name)}: "
    if differs:
        raise InputError(
            f"{where}{clean(frame.file)}:{frame.line}: {clean(str(differs))} of this machine has another line there",
            "It has been changed since, or is another version.",
        )
    raise InputError(
        f"{where}{clean(frame.file)}:{frame.line}: this machine has no such file",
        "" if local else "Looked there, and in the folder of the profile.",
    )


def _candidates(run: KnownRun | None, workdir: str, file: str) -> Iterator[Path]:
    """Yield regular files that may be copies of the host's file, the likeliest first."""
    there = PurePosixPath(file)
    relative = there
    if there.is_absolute():
        yield from _file(Path("/"), str(there.relative_to("/")))
        try:
            relative = there.relative_to(PurePosixPath(workdir))
        except ValueError:
            relative = PurePosixPath(there.name)
    elif workdir:
        yield from _file(Path(workdir).expanduser(), str(there))
    if run is not None and run.source:
        folder = Path(run.source).parent
        for base in (folder, *list(folder.parents)[:_UP]):
            yield from _file(base, str(relative))


def _file(folder: Path, name: str) -> Iterator[Path]:
    try:
        path = inside(folder, name)
        if path.is_file() and path.stat().st_size <= _MOST:
            yield path
    except (PathError, OSError, RuntimeError):
        return


def _line_of(path: Path, number: int) -> str | None:
    try:
        lines = path.read_bytes()[:_MOST].decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    return lines[number - 1] if number <= len(lines) else ""


def _text_of(traceback: str, frame: Frame) -> str:
    """The source line that a traceback shows below a frame; empty without one."""
    head = f'File "{frame.file}", line {frame.line}, in '
    lines = traceback.splitlines()
    for at in range(len(lines) - 2, -1, -1):
        if lines[at].strip().startswith(head) and not lines[at + 1].strip().startswith("File "):
            return lines[at + 1].strip()
    return ""
