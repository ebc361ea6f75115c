"""`python -m tests.bench.app_gigabyte [GB]`: the app on a run with 1 GB of logs, through the real command in a pty.

The mirror is synthetic: 16 ranks on 2 hosts, lines of about 86 bytes; no such run ever took place.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.bench.app_start import environment
from tests.bench.screen import screen
from tests.tui.synthetic_run import BEGIN, write

DISTTUI = str(Path(sys.executable).with_name("disttui"))
RANKS = 16
BLOCK = 1 << 20
ALL = rf"/ “needle” ([0-9]+ of )?{RANKS} "
"""What stands under the log when the search is through."""


def write_logs(mirror: Path, total: int) -> int:
    """Fill the logs of a mirror; returns how many lines they have."""
    lines = 0
    for rank in range(RANKS):
        path = mirror / str(rank // 8) / "attempt-1" / f"rank-{rank}.log"
        with path.open("w") as log:
            size = step = 0
            while size < total // RANKS:
                many = [
                    f"2026-11-20 16:00 INFO step {step + one:8d} loss {1 + one % 97 / 100:.4f} tokens/s 41200 lr 3e-4\n"
                    for one in range(BLOCK // 80)
                ]
                step += len(many)
                size += log.write("".join(many))
            size += log.write("needle at the end\n")
        lines += step + 1
        notes = ({"t": BEGIN + note / 4, "sizes": {str(rank): size * note // 240}} for note in range(1, 241))
        with (path.parent / "growth.jsonl").open("a") as growth:
            growth.writelines(json.dumps(note) + "\n" for note in notes)
    return lines


def measure(gigabytes: float) -> None:
    """Make the mirror, open it, search it, and print the figures."""
    with tempfile.TemporaryDirectory() as home:
        mirror = write(Path(home) / "synthetic-1", 2, 8, steps=60, log_lines=0)
        lines = write_logs(mirror, int(gigabytes * 1e9))
        with screen([DISTTUI, "runs", "replay", str(mirror)], environment(home)) as app:
            first = app.until("synthetic-1")
            app.press("\x1b[F")
            known = app.until(f"{lines:,} lines", 300) + first
            app.drain(3.0)
            opened, (own, mapped) = app.cpu, app.memory
            print(f"| {gigabytes:g} GB, {lines:,} lines | dashboard {first:.2f} s, every line known {known:.1f} s |")
            print(
                f"| memory | {own:.0f} MiB, and {mapped:.0f} MiB of mapped files; {opened:.1f} s of CPU |", flush=True
            )
            app.press("/")
            app.drain(1.0)
            app.press("needle\r")
            print(f"| find, the last line of each rank only: all hits | {app.until(ALL, 300):.2f} s |", flush=True)
            app.drain(1.0)
            begun = app.cpu
            app.drain(10.0)
            print(f"| at rest after that | {(app.cpu - begun) / 10:.1%} of a core, {app.memory[0]:.0f} MiB |")


if __name__ == "__main__":
    measure(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
