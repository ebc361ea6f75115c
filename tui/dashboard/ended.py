"""What can be done with a run that has ended: again, from its checkpoint, the line that failed, its story."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from textual.app import App
from textual.message import Message

from runner.api.rerunning import Checkpoint
from runner.diagnose.cause import find
from runner.diagnose.frames import Frame
from runner.errors import DisttuiError, InputError
from runner.render.story import ending
from runner.runs.registry import KnownRun
from runner.runs.store import host_folder
from tui.dashboard.source import failing_frame, on_this_machine
from tui.run.again import saved_on_hosts
from tui.run.feed import Snapshot
from tui.terminal.editor import open_editor


class CheckpointFound(Message):
    """An ended run has saved a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.checkpoint = checkpoint


class Ended:
    """Finds the newest checkpoint of an ended run, and the source line that failed."""

    def __init__(self) -> None:
        self.checkpoint: Checkpoint | None = None
        self._looked = False
        self._failing: tuple[object, Frame | None] = (None, None)

    def look(self, run: KnownRun, ssh_config: str | None, tell: Callable[[CheckpointFound], object]) -> None:
        """Look for a checkpoint on the hosts, once, in a thread; it calls `tell` if it finds one."""

        def looking() -> None:
            if found := saved_on_hosts(run, ssh_config):
                tell(CheckpointFound(found))

        if not self._looked:
            self._looked = True
            threading.Thread(target=looking, name="saved", daemon=True).start()

    def frame(self, snapshot: Snapshot) -> Frame | None:
        """The line of the user's code that failed."""
        if snapshot.state.result is None:
            return None
        if self._failing[0] is not snapshot.state:
            self._failing = (snapshot.state, failing_frame(find(snapshot.state)))
        return self._failing[1]

    def edit(self, app: App[None], environ: Mapping[str, str], snapshot: Snapshot, run: KnownRun | None) -> None:
        """Open the user's editor at that line, or say why this machine does not have it."""
        frame, cause = self.frame(snapshot), find(snapshot.state)
        if frame is None or cause is None:
            return
        try:
            workdir = _workdir(snapshot, cause.failure.node)
            place = on_this_machine(run, cause.failure.node, workdir, frame, cause.failure.traceback)
            open_editor(app, environ, place.path, place.line)
        except DisttuiError as error:
            app.notify(str(error), severity="warning", timeout=12)


def story(snapshot: Snapshot, run: KnownRun | None) -> str:
    """How a run ended, as `disttui show` prints it."""
    folder = run.folder if run is not None else snapshot.mirror
    return "\n".join(ending(snapshot.state, snapshot.state.elapsed, folder, {}, len(snapshot.state.attempts)))


def _workdir(snapshot: Snapshot, node: int) -> str:
    from runner.runs.registry import read_object

    try:
        spec = read_object(host_folder(snapshot.mirror, node) / "spec.json") or {}
    except InputError:
        spec = {}
    workdir = spec.get("workdir")
    return workdir if isinstance(workdir, str) else ""
