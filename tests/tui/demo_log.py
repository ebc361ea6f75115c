"""A small app with nothing but a log view: `python -m tests.tui.demo_log MIRROR [--grow]`."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from textual import events
from textual.app import App, ComposeResult
from textual.widgets import Footer

from disttui.tui.key_queue import KeyQueue
from disttui.tui.log import LogSources, LogView

NAMES = ("node1", "node2")
COLOURED = "\x1b[1;31mWARNING\x1b[0m gradient norm \x1b[38;5;208m7.4\x1b[0m above \x1b[32m1.0\x1b[0m, clipped"
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "train.py", line 88, in <module>',
    "    loss.backward()",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
)


class DemoLog(App[None]):
    """Shows one mirror."""

    def __init__(self, mirror: Path) -> None:
        super().__init__()
        self._keys = KeyQueue(self, super().on_event)
        self.mirror = mirror
        self.copied: list[str] = []
        self.opened: list[tuple[Path, int]] = []
        self.older: list[tuple[int, int]] = []

    async def on_event(self, event: events.Event) -> None:
        """Take what is typed in turn."""
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            await self._keys.take(event)
        else:
            await super().on_event(event)

    async def on_key_queue_passed(self, message: KeyQueue.Passed) -> None:
        """Take the next key."""
        await self._keys.passed(message)

    def compose(self) -> ComposeResult:
        """The view over a footer."""
        yield LogView(LogSources(self.mirror, NAMES))
        yield Footer()

    def on_mount(self) -> None:
        """Begin in the lines."""
        self.log_view.lines.focus()

    @property
    def log_view(self) -> LogView:
        """The view."""
        return self.query_one(LogView)

    def on_log_view_yanked(self, event: LogView.Yanked) -> None:
        """Keep what was copied."""
        self.copied.append(event.text)
        self.notify(f"{event.lines} lines copied", markup=False)

    def on_log_view_pager_requested(self, event: LogView.PagerRequested) -> None:
        """Keep what was to be opened."""
        self.opened.append((event.path, event.line))

    def on_log_view_older_requested(self, event: LogView.OlderRequested) -> None:
        """Keep what was asked for."""
        self.older += [(one.start, one.upto) for one in event.wanted]


def training_line(rank: int, step: int) -> str:
    """What a rank prints at a step."""
    if rank == 3 and step == 60:
        return "\n".join(TRACEBACK)
    if step % 25 == 7:
        return COLOURED
    if step % 10 == 0:
        return f"saved checkpoint at step {step}"
    return (
        f"step {step:5d} | loss {4.2 - step / 100 % 3 + rank / 100:.4f} | lr 3.0e-04 | {41200 + step % 7 * 100:,} tok/s"
    )


class Writer:
    """Writes a mirror of two hosts with two ranks each, as the runner would."""

    def __init__(self, mirror: Path, attempt: int = 1, begin: float = 1_800_000_000.0) -> None:
        self.mirror = mirror
        self.attempt = attempt
        self.now = begin

    def path(self, rank: int) -> Path:
        """A rank's log."""
        folder = self.mirror / str(rank // 2) / f"attempt-{self.attempt}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"rank-{rank}.log"

    def write(self, lines: dict[int, list[str]], *, seconds: float = 0.25) -> None:
        """Append lines of some ranks, and note the growth `seconds` later."""
        self.now += seconds
        for rank, texts in lines.items():
            with self.path(rank).open("a") as log:
                log.writelines(text + "\n" for text in texts)
            note = {"t": self.now, "sizes": {str(rank): self.path(rank).stat().st_size}}
            with (self.path(rank).parent / "growth.jsonl").open("a") as growth:
                growth.write(json.dumps(note) + "\n")

    def steps(self, first: int, last: int) -> None:
        """Let four ranks make steps."""
        for step in range(first, last):
            self.write({rank: [training_line(rank, step)] for rank in range(4)})


def main() -> None:
    """Show a mirror; --grow makes one that grows."""
    mirror = Path(sys.argv[1])
    if "--grow" in sys.argv:
        writer = Writer(mirror, begin=time.time() - 100)
        writer.steps(0, 400)

        def grow() -> None:
            for step in range(400, 100000):
                time.sleep(0.25)
                writer.now = time.time() - 0.25
                writer.steps(step, step + 1)

        threading.Thread(target=grow, daemon=True).start()
    DemoLog(mirror).run()


if __name__ == "__main__":
    main()
