"""`python -m tests.bench.app_thousand`: the app on a replayed run of 1,024 ranks, through the real command in a pty.

The mirror is synthetic: 128 hosts with eight GPUs each, 600 steps of a second; no such run ever took place.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.bench.app_keys import row, typing
from tests.bench.app_start import environment
from tests.bench.screen import screen
from tests.tui.synthetic_run import write

DISTTUI = str(Path(sys.executable).with_name("disttui"))
STEPS = 600
PLAYED = 20.0
SIZE = (200, 50)


def measure() -> None:
    """Make the mirror, open it, play it from its beginning, jump, type, and print the figures."""
    with tempfile.TemporaryDirectory() as home:
        mirror = write(Path(home) / "synthetic-1", steps=STEPS)
        with screen([DISTTUI, "runs", "replay", str(mirror)], environment(home), SIZE) as app:
            first = app.until("synthetic-1")
            known = app.until("1024 finished", 300) + first
            app.drain(3.0)
            print(
                f"| 1,024 ranks, {STEPS} steps | first screen {first:.2f} s, all ranks at their end {known:.1f} s; "
                f"{app.cpu:.1f} s of CPU, {app.memory[0]:.0f} MiB |",
                flush=True,
            )
            app.press("\x1b[H")
            app.press(" ")
            app.until("1023 running", 300)
            before, begun = app.cpu, time.monotonic()
            sent = app.drain(PLAYED)
            passed = time.monotonic() - begun
            print(
                f"| playing, a step a second | {(app.cpu - before) / passed:.1%} of a core, "
                f"{sent / passed / 1024:.0f} KiB/s |",
                flush=True,
            )
            print(row("1,024 ranks playing", typing(app, 200)))


if __name__ == "__main__":
    measure()
