"""How fast the app is there, and what it costs while nothing happens: `python -m tests.bench.app_start [ROUNDS]`."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.bench.screen import screen

ROOT = Path(__file__).parents[2]
_APP = [str(Path(sys.executable).with_name("disttui"))]
_BARE = """
from textual.app import App
from textual.widgets import DataTable, Footer, Header
class Bare(App):
    def compose(self):
        yield Header()
        yield DataTable()
        yield Footer()
    def on_mount(self):
        self.query_one(DataTable).add_columns("2 Profiles", "b")
Bare().run()
"""
PAINTED = "Profiles"
FILLED = "start from a profile"


class Start(NamedTuple):
    """One start."""

    paint: float
    """Seconds from exec to the first screen."""
    filled: float
    """Seconds until it shows what was read."""
    cpu: float
    """Share of a core while idle."""
    flow: float
    """Bytes a second to the terminal while idle."""


def measure(command: list[str], environ: dict[str, str], *, fills: bool = False, idle: float = 0.0) -> Start:
    """Start an app in a terminal, wait for its screen, look at it for `idle` seconds, end it."""
    with screen(command, environ) as app:
        paint = app.until(PAINTED) + app.spawned
        filled = paint + (app.until(FILLED) if fills else 0.0)
        if not idle:
            return Start(paint, filled, 0.0, 0.0)
        app.drain(5.0)
        before, since = app.cpu, time.monotonic()
        flow = app.drain(idle)
        lasted = time.monotonic() - since
        return Start(paint, filled, (app.cpu - before) / lasted, flow / lasted)


def environment(home: str) -> dict[str, str]:
    """Of a user with a colour terminal who has nothing yet."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    return {**kept, "HOME": home, "TERM": "xterm-256color", "COLORTERM": "truecolor"}


def main(rounds: int) -> None:
    """Print medians, the app and a bare Textual app in turn."""
    with tempfile.TemporaryDirectory() as home:
        environ = environment(home)
        starts: dict[str, list[float]] = {"first paint": [], "bare, first paint": [], "filled": []}
        for _ in range(rounds):
            ours = measure(_APP, environ, fills=True)
            starts["first paint"].append(ours.paint)
            starts["filled"].append(ours.filled)
            starts["bare, first paint"].append(measure([sys.executable, "-c", _BARE], environ).paint)
        for name, times in starts.items():
            print(f"{name}: {statistics.median(times) * 1000:.0f} ms (best {min(times) * 1000:.0f})")
        quiet = measure(_APP, environ, idle=20.0)
        print(f"idle: {quiet.cpu * 100:.2f} % of a core, {quiet.flow:.0f} bytes/s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
