"""`python -m tests.bench.dashboard [PART…]`: what the dashboard costs, in CPU and in bytes to a real terminal (a pty).

sixteen  two hosts with eight GPUs each, a step and telemetry every second
flood    64 ranks that print 50 lines a second each, all shown
grid     1,024 ranks, the grid drawn anew
chart    one chart of 90×14 cells drawn anew, ours and plotext's

The screens, the fold and the log view are the real ones; records come from a thread instead of from SSH, lines from
another process that writes the mirror.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from disttui.runner.api.viewer import Viewer
from disttui.runner.runs.contents import read_content
from disttui.runner.runs.following import Following
from disttui.runner.runs.registry import KnownRun, load_run
from disttui.runner.runs.state import link
from disttui.tui.app import DisttuiApp
from disttui.tui.charts.chart import Chart
from disttui.tui.dashboard import screen as dashboard
from disttui.tui.dashboard.rank_grid import RankGrid
from disttui.tui.router import First
from disttui.tui.run.feed import LiveFeed
from tests.bench.screen import Screen, screen
from tests.tui.synthetic_run import write
from tests.tui.test_chart import filled, snapshot_of
from tests.tui.test_rank_grid import running
from tests.tui.widget_kit import text_of
from tests.unit.state_kit import fold

WARM = 10.0
LONG = 20.0


@dataclass(frozen=True)
class Cost:
    """What the app took while it was measured."""

    cpu: float
    """Share of a core."""
    bytes_per_s: float

    def row(self, name: str) -> str:
        """A line of the table."""
        return f"| {name} | {self.cpu:.1%} | {self.bytes_per_s / 1024:.0f} KiB/s |"


class Generated(LiveFeed):
    """A live feed whose records are made here, one a second of every rank and host."""

    def run(self) -> None:
        """Make records until it is closed."""
        known = self._following.run
        state, counts = known.begin(), [host.nproc for host in known.hosts]
        chance = random.Random(1)
        go: dict[str, Any] = {"e": "attempt", "attempt": 1, "master": "m", "port": 1, "world_size": sum(counts)}
        for node in range(len(counts)):
            state = fold(link(state, node, "seen"), node, "events.jsonl", {"t": time.time(), **go})
            self.record(state, node, read_content("events.jsonl", {"t": time.time(), **go}))
        step = 0
        while not self._left:
            step += 1
            rank = 0
            for node, count in enumerate(counts):
                now = time.time()
                gpus = [
                    {"index": index, "use": chance.uniform(90, 99), "mem_used": 60 << 30, "mem_total": 80 << 30,
                     "power": chance.gauss(600, 20), "temp": 65}
                    for index in range(count)
                ]  # fmt: skip
                seen: dict[str, Any] = {
                    "t": now,
                    "cpu": chance.uniform(20, 40),
                    "mem_used": 200 << 30,
                    "mem_total": 512 << 30,
                }
                seen |= {"net_rx": chance.gauss(2e9, 1e8), "net_tx": chance.gauss(2e9, 1e8), "gpus": gpus}
                state = fold(state, node, "telemetry.jsonl", seen)
                self.record(state, node, read_content("telemetry.jsonl", seen))
                for _ in range(count):
                    made = {
                        "t": now,
                        "step": step,
                        "steps": 5000,
                        "loss": 2 + 100 / (step + 30) + chance.gauss(0, 0.02),
                    }
                    made |= {"lr": 3e-4, "grad_norm": chance.gauss(0.8, 0.1), "tokens_per_s": chance.gauss(4e5, 2e3)}
                    made |= {"step_time": chance.gauss(1, 0.01), "forward_time": chance.gauss(0.3, 0.01)}
                    state = fold(state, node, f"attempt-1/rank-{rank}.metrics.jsonl", made)
                    self.record(state, node, read_content(f"attempt-1/rank-{rank}.metrics.jsonl", made))
                    rank += 1
            self.refresh()
            time.sleep(1 - time.time() % 1)


def serve(mirror: str, hosts: str, per_host: str) -> None:
    """The app itself, in the child."""

    @contextmanager
    def follow(viewer: Viewer, run: KnownRun, **_: object) -> Iterator[Following]:
        yield Following(run, Path(mirror), partial(viewer.link_to, run))

    with patch.multiple(dashboard, find_run=lambda *_: load_run(Path(mirror)), follow=follow, LiveFeed=Generated):
        DisttuiApp({**os.environ, "XDG_DATA_HOME": mirror}, first=First("run", ("bench-1",))).run()


def lines(mirror: str, ranks: str, per_host: str, pace: str) -> None:
    """The ranks' output, in a process of its own."""
    files = [
        (Path(mirror) / str(rank // int(per_host)) / "attempt-1" / f"rank-{rank}.log").open("ab", buffering=0)
        for rank in range(int(ranks))
    ]
    step = 0
    while True:
        for _ in range(10):
            step += 1
            share = max(1, int(pace) // 10) if int(pace) >= 10 else int(step % 10 < int(pace))
            text = "".join(
                f"step {step * 10 + one}/5000  loss 1.8321  grad 0.81  41.2k tok/s\n" for one in range(share)
            )
            for file in files:
                file.write(text.encode())
            time.sleep(0.1)


@contextmanager
def flooded(hosts: int, per_host: int, ranks_that_print: int, pace: int) -> Iterator[Screen]:
    """The app in a terminal, on a run whose ranks print."""
    with tempfile.TemporaryDirectory() as folder:
        mirror = write(Path(folder) / "bench-1", hosts, per_host, steps=0, ended=False, log_lines=0, names="gpu{:02}")
        module = [sys.executable, "-m", "tests.bench.dashboard"]
        arguments = [str(mirror), str(ranks_that_print), str(per_host), str(pace)]
        writer = subprocess.Popen([*module, "lines", *arguments])
        try:
            with screen([*module, "serve", str(mirror), str(hosts), str(per_host)]) as app:
                yield app
        finally:
            writer.kill()
            writer.wait()


def live(hosts: int, per_host: int, ranks_that_print: int, pace: int) -> Cost:
    """Run the app in a pty and measure it."""
    with flooded(hosts, per_host, ranks_that_print, pace) as app:
        app.drain(WARM)
        before, begun = app.cpu, time.monotonic()
        sent = app.drain(LONG)
        passed = time.monotonic() - begun
        return Cost((app.cpu - before) / passed, sent / passed)


def _spent(draw: Callable[[], object], times: int = 40) -> float:
    """The median of the CPU milliseconds of a call."""
    spent = []
    for _ in range(times):
        begun = time.process_time()
        draw()
        spent.append(time.process_time() - begun)
    return median(spent) * 1000


async def grid() -> float:
    """Milliseconds of a refresh of 1,024 ranks, all of which have changed."""
    widget = RankGrid()
    async with text_of(widget, (120, 40)) as (pilot, _):
        snapshots = [running(128, 8, slow=slow) for slow in (3, 700)]
        widget.show(snapshots[0])
        await pilot.pause()

        def draw() -> None:
            snapshots.reverse()
            widget.show(snapshots[0])

        return _spent(draw)


async def chart() -> float:
    """Milliseconds of a chart of 90×14 cells from 2,000 samples of eight ranks."""
    widget = Chart(0)
    async with text_of(widget, (92, 15)) as (pilot, _):
        widget.show(snapshot_of(filled(2000, 8), 2000.0))
        await pilot.pause()
        return _spent(lambda: widget.draw(90, 14))


def plotext_chart() -> str:
    """The same by plotext 6, with two points a column, and its output made into text for Textual."""
    begun = time.process_time()
    try:
        import plotext  # type: ignore
    except ImportError:
        return "plotext is not installed"
    from rich.text import Text

    imported = (time.process_time() - begun) * 1000
    columns = [column for column in filled(2000, 8).all["loss"].columns(0, 2000, 160, 2000) if column]
    places = [float(at) for at in range(len(columns)) for _ in (0, 1)]
    values = [value for column in columns for value in (column.low, column.high)]

    def draw() -> None:
        figure = plotext.figure
        figure.clear()
        figure.plot_size(90, 14)
        figure.draw(figure.signal(places, values, marker="braille"))
        Text.from_ansi(str(figure.build()))

    return f"{_spent(draw):.1f} ms, and {imported:.0f} ms to import"


def main(parts: list[str]) -> None:
    """Measure the parts that are named, or all."""
    parts = parts or ["sixteen", "flood", "grid", "chart"]
    print("| what | of a core | to the terminal |\n|---|---|---|", flush=True)
    if "sixteen" in parts:
        print(live(2, 8, 1, 1).row("16 GPUs, 1 Hz"), flush=True)
    if "flood" in parts:
        print(live(8, 8, 64, 50).row("64 ranks × 50 lines/s"), flush=True)
    if "grid" in parts:
        print(f"\n1,024 ranks drawn anew: {asyncio.run(grid()):.1f} ms")
    if "chart" in parts:
        print(f"\nchart: ours {asyncio.run(chart()):.1f} ms · plotext {plotext_chart()}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:])
    elif sys.argv[1:2] == ["lines"]:
        lines(*sys.argv[2:])
    else:
        main(sys.argv[1:])
