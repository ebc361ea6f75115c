"""Actions on a run that has ended: rerun, resume, edit the failing line, copy the summary."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from textual.app import App

from disttui.runner.diagnose.cause import RootCause, find
from disttui.runner.diagnose.frames import Frame, frames, own
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.paths import PathError, expanded, inside
from disttui.runner.render.story import ending
from disttui.runner.runs.notes import Checkpoint
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.store import host_folder
from disttui.runner.text import clean
from disttui.tui.run.feed import Snapshot
from disttui.tui.terminal import open_editor


class Ended:
    """The newest checkpoint of an ended run, and the source line that failed."""

    def __init__(self) -> None:
        self.checkpoint: Checkpoint | None = None
        self._looked = False
        self._failing: tuple[object, Frame | None] = (None, None)

    def look(self, run: KnownRun, ssh_config: str | None, tell: Callable[[Checkpoint], object]) -> None:
        """Search the hosts for checkpoints in a thread, once; call `tell` with the newest if there is one."""

        def looking() -> None:
            from disttui.runner.api.listing import PATIENCE
            from disttui.runner.api.rerunning import checkpoints
            from disttui.runner.api.viewer import Viewer

            with Viewer(ssh_config=ssh_config, runs_bring_theirs=True) as viewer, suppress(DisttuiError):
                if found := checkpoints(viewer, run, PATIENCE):
                    tell(found[0])

        if not self._looked:
            self._looked = True
            threading.Thread(target=looking, name="saved", daemon=True).start()

    def frame(self, snapshot: Snapshot) -> Frame | None:
        """The line of the user's code that failed; None if the run has not ended or no line is known."""
        if snapshot.state.result is None:
            return None
        if self._failing[0] is not snapshot.state:
            self._failing = (snapshot.state, failing_frame(find(snapshot.state)))
        return self._failing[1]

    def edit(self, app: App[None], environ: Mapping[str, str], snapshot: Snapshot, run: KnownRun | None) -> None:
        """Open the user's editor at the line that failed, or report why it is not on this machine."""
        frame, cause = self.frame(snapshot), find(snapshot.state)
        if frame is None or cause is None:
            return
        try:
            workdir = _workdir(snapshot, cause.failure.node)
            path = on_this_machine(run, cause.failure.node, workdir, frame, cause.failure.traceback)
            open_editor(app, environ, path, frame.line)
        except DisttuiError as error:
            app.notify(str(error), severity="warning", timeout=12)


def story(snapshot: Snapshot, run: KnownRun | None) -> str:
    """The end of a run, as `disttui runs show` prints it."""
    folder = run.folder if run is not None else snapshot.mirror
    return "\n".join(ending(snapshot.state, snapshot.state.elapsed, folder, {}, len(snapshot.state.attempts)))


def _workdir(snapshot: Snapshot, node: int) -> str:
    from disttui.runner.runs.registry import read_object

    try:
        spec = read_object(host_folder(snapshot.mirror, node) / "spec.json") or {}
    except InputError:
        spec = {}
    workdir = spec.get("workdir")
    return workdir if isinstance(workdir, str) else ""


_MOST = 4 << 20
"""Maximum size of a file to search, in bytes: source files are not larger."""
_UP = 3
"""Number of folders above the profile's folder that are searched for the file as well."""


def failing_frame(cause: RootCause | None) -> Frame | None:
    """The innermost frame of the user's own code in the failure's traceback; None without one."""
    found = own(frames(cause.failure.traceback)) if cause else None
    return found if found and found.file and found.line > 0 and not found.library else None


def on_this_machine(run: KnownRun | None, node: int, workdir: str, frame: Frame, traceback: str) -> Path:
    """The file on this machine that a frame of a host's traceback refers to.

    A file with the same path, or at the same place below the profile's folder, is accepted only if its line is that of
    the traceback; if the host is this machine, also if the traceback has no source line.

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
            return path
        differs = path
    where = "" if run is None else f"{clean(run.hosts[node].name)}: "
    if differs:
        raise InputError(
            f"{where}{clean(frame.file)}:{frame.line}: {clean(str(differs))} on this machine differs",
            "It has changed, or is another version.",
        )
    raise InputError(
        f"{where}{clean(frame.file)}:{frame.line}: no such file on this machine",
        "" if local else "Searched this path and the profile's folder.",
    )


def _candidates(run: KnownRun | None, workdir: str, file: str) -> Iterator[Path]:
    """Yield regular files that may be copies of the file on the host, the most likely first."""
    there = PurePosixPath(file)
    relative = there
    if there.is_absolute():
        yield from _file(Path("/"), str(there.relative_to("/")))
        try:
            relative = there.relative_to(PurePosixPath(workdir))
        except ValueError:
            relative = PurePosixPath(there.name)
    elif workdir:
        yield from _file(expanded(workdir), str(there))
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
    """The source line below a frame of a traceback, stripped, or empty."""
    head = f'File "{frame.file}", line {frame.line}, in '
    lines = traceback.splitlines()
    for at in range(len(lines) - 2, -1, -1):
        if lines[at].strip().startswith(head) and not lines[at + 1].strip().startswith("File "):
            return lines[at + 1].strip()
    return ""
