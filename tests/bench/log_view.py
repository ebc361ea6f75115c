"""Figures of the log view: `python -m tests.bench.log_view [LINES]`.

Ingest with the event loop's worst stall meanwhile, memory, first and all hits of a search, and a repaint, each with
one rank and with four merged by time.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.pilot import Pilot

from disttui.tui.log import LogSources, LogView, Pattern

SIZE = (160, 50)
"""Leaves 49 rows for lines."""
TICK = 0.002
"""Seconds that the watch on the event loop sleeps between looks."""


class Bare(App[None]):
    """A log view and nothing else."""

    def __init__(self, mirror: Path) -> None:
        super().__init__()
        self.view = LogView(LogSources(mirror))

    def compose(self) -> ComposeResult:
        """Only the view."""
        yield self.view


class Watch:
    """Looks at the event loop all the time, and keeps the longest that it did not come round."""

    def __init__(self) -> None:
        self.worst = 0.0
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(TICK)
            self.worst = max(self.worst, time.perf_counter() - begin - TICK)

    def stop(self) -> float:
        """End it; return the worst stall in milliseconds."""
        self._task.cancel()
        return self.worst * 1000


def write_mirror(mirror: Path, lines: int, ranks: int) -> None:
    """A mirror of `lines` lines of about 86 bytes, and of the notes of their growth."""
    for rank in range(ranks):
        folder = mirror / str(rank // 2) / "attempt-1"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"rank-{rank}.log").open("w") as log:
            for step in range(lines // ranks):
                rare = "needle" if step == lines // ranks - 7 else "3.0e-4"
                log.write(
                    f"2026-11-20 16:00 INFO step {step:8d} loss {1 + step % 97 / 100:.4f} lr {rare} tokens/s 41200 ok\n"
                )
        size = (folder / f"rank-{rank}.log").stat().st_size
        with (folder / "growth.jsonl").open("a") as growth:
            for note in range(1, 4001):
                growth.write(json.dumps({"t": 1e9 + note / 4, "sizes": {rank: size * note // 4000}}) + "\n")


async def until(pilot: Pilot[None], met: Callable[[], bool]) -> float:
    """Wait for something; return the seconds that it took."""
    begin = time.perf_counter()
    while not met():
        await asyncio.sleep(TICK)
    return time.perf_counter() - begin


def memory() -> float:
    """Resident memory, MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def search(pilot: Pilot[None], view: LogView, pattern: Pattern) -> tuple[float, float]:
    """Milliseconds to the first hit on the screen, and to all, from the first line on."""
    first = 0.0
    begin = time.perf_counter()
    view.find(pattern, begin=True)

    def all_found() -> bool:
        nonlocal first
        progress = view.lines.progress
        mine = view.lines.view.find is pattern and progress.work is view.reading.work
        if mine and progress.hits and not first:
            first = time.perf_counter() - begin
        return mine and progress.searched

    await until(pilot, all_found)
    return first * 1000, (time.perf_counter() - begin) * 1000


async def repaint(view: LogView) -> float:
    """Milliseconds to draw all rows anew, the middle one of 50 screens elsewhere in the log."""
    lines = view.lines
    taken = []
    for turn in range(50):
        lines.jump(turn * lines.progress.total // 50)
        await asyncio.sleep(0)
        lines._styles_cache.clear()
        begin = time.perf_counter()
        lines.render_lines(Region(0, 0, *lines.size))
        taken.append((time.perf_counter() - begin) * 1000)
    return sorted(taken)[25]


async def measure(mirror: Path, lines: int) -> dict[str, str]:
    """All figures of one mirror."""
    app, figures = Bare(mirror), {}
    async with app.run_test(size=SIZE) as pilot:
        watch = Watch()
        taken = await until(pilot, lambda: app.view.lines.lines.count == lines)
        figures["ingest"] = f"{lines / taken:,.0f} lines/s, worst stall {watch.stop():.0f} ms"
        figures["memory"] = f"{memory():.0f} MiB"
        for name, pattern in (
            ("find, frequent", Pattern("loss 1.5")),
            ("find, the last lines only", Pattern("needle", case=True)),
            ("find, regex", Pattern(r"loss 1\.5[0-3]\d+", regex=True, case=True)),
        ):
            watch = Watch()
            first, everything = await search(pilot, app.view, pattern)
            figures[name] = f"first {first:.0f} ms, all {everything:.0f} ms, worst stall {watch.stop():.0f} ms"
        app.view.find(None)
        figures["repaint"] = f"{await repaint(app.view):.1f} ms for {app.view.lines.size.height} lines"
        figures["memory at the end"] = f"{memory():.0f} MiB"
    return figures


def main() -> None:
    """Measure and print."""
    lines = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    for ranks in (1, 4):
        with tempfile.TemporaryDirectory() as folder:
            write_mirror(Path(folder), lines, ranks)
            print(f"{lines:,} lines of {ranks} rank(s)")
            for name, figure in asyncio.run(measure(Path(folder), lines)).items():
                print(f"  {name:28}{figure}")


if __name__ == "__main__":
    main()
