"""What can be done with a run that has ended: again, from its checkpoint, the line that failed, its story."""

from __future__ import annotations

import threading
from typing import ClassVar

from textual import work
from textual.binding import BindingType
from textual.message import Message

from runner.api.rerunning import Checkpoint
from runner.diagnose.cause import find
from runner.diagnose.frames import Frame
from runner.errors import DisttuiError, InputError
from runner.formatting import number
from runner.render.story import ending
from runner.runs.history import KnownRun
from runner.runs.store import host_folder
from tui.dashboard.panes import PanesScreen
from tui.dashboard.source import failing_frame, on_this_machine
from tui.keys import CHANGE, bind
from tui.run.again import run_again, saved_on_hosts
from tui.run.feed import Snapshot
from tui.terminal.editor import open_editor


class CheckpointFound(Message):
    """A run that has ended is known to have saved a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.checkpoint = checkpoint


class EndedScreen(PanesScreen):
    """The part of dashboard and replay for what has ended."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("ended.again", "r", "again", "run again", "run it once more, with the same profile", group=CHANGE),
        bind("ended.resume", "R", "resume", "from checkpoint", "run it again from its newest checkpoint", group=CHANGE),
        bind("ended.story", "y", "copy_story", "copy story", "copy how it ended, as `disttui show` tells it"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._known: KnownRun | None = None
        self._checkpoint: Checkpoint | None = None
        self._looked = False
        self._failing: tuple[object, Frame | None] = (None, None)

    def show(self, snapshot: Snapshot, *, at_once: bool = False) -> None:
        """Show another moment; at the end, see what there is to go on from."""
        ended = self._over
        super().show(snapshot, at_once=at_once)
        if self._over != ended:
            self.refresh_bindings()
        if self._over and not self._looked and self._known is not None and not self.disttui.read_only:
            self._looked = True
            threading.Thread(target=self._look, args=(self._known,), name="saved", daemon=True).start()

    def _look(self, run: KnownRun) -> None:
        found = saved_on_hosts(run, self.disttui.ssh_config)
        if found is not None:
            self.post_message(CheckpointFound(found))

    def on_checkpoint_found(self, event: CheckpointFound) -> None:
        """Offer to go on from it."""
        self._checkpoint = event.checkpoint
        self.refresh_bindings()

    @property
    def _over(self) -> bool:
        return self.snapshot is not None and self.snapshot.state.result is not None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only what can be done."""
        if action in ("again", "resume"):
            usable = self._over and self._known is not None and (action == "again" or self._checkpoint is not None)
            return usable and super().check_action(action, parameters) is True
        if action == "copy_story":
            return self._over
        if action == "edit_failure":
            return self._frame is not None
        return super().check_action(action, parameters)

    @property
    def _frame(self) -> Frame | None:
        """The line that failed."""
        if not self._over or self.snapshot is None:
            return None
        if self._failing[0] is not self.snapshot.state:
            self._failing = (self.snapshot.state, failing_frame(find(self.snapshot.state)))
        return self._failing[1]

    def action_again(self) -> None:
        """Ask, then check the hosts and run it again."""
        if self._known is not None:
            self._again(None)

    def action_resume(self) -> None:
        """The same from its newest checkpoint."""
        if self._known is not None and self._checkpoint is not None:
            self._again(self._checkpoint)

    @work(group="ask", exclusive=True)
    async def _again(self, checkpoint: Checkpoint | None) -> None:
        if self._known is not None:
            await run_again(self.disttui, self._known, checkpoint)

    def action_copy_story(self) -> None:
        """Copy the end as `disttui show` prints it."""
        snapshot = self.snapshot
        if snapshot is None or snapshot.state.result is None:
            return
        end = number(snapshot.state.result.get("t"))
        elapsed = end - self._known.started if self._known is not None and end is not None else snapshot.elapsed
        folder = self._known.folder if self._known is not None else snapshot.mirror
        self.disttui.copy("\n".join(ending(snapshot.state, elapsed, folder, {}, len(snapshot.state.attempts))))

    def action_edit_failure(self) -> None:
        """Open the user's editor where the run failed, if this machine has that file."""
        frame, snapshot = self._frame, self.snapshot
        cause = find(snapshot.state) if snapshot is not None else None
        if frame is None or snapshot is None or cause is None:
            return
        try:
            workdir = _workdir(snapshot, cause.failure.node)
            place = on_this_machine(self._known, cause.failure.node, workdir, frame, cause.failure.traceback)
            open_editor(self.app, self.disttui.environ, place.path, place.line)
        except DisttuiError as error:
            self.disttui.notify(str(error), severity="warning", timeout=12)


def _workdir(snapshot: Snapshot, node: int) -> str:
    from runner.runs.history import read_object

    try:
        spec = read_object(host_folder(snapshot.mirror, node) / "spec.json") or {}
    except InputError:
        spec = {}
    told = spec.get("workdir")
    return told if isinstance(told, str) else ""
