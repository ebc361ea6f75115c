"""How fast the app is there, and what it costs while nothing happens: `python -m tests.bench.app_start [ROUNDS]`."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_APP = "from runner.cli import main; main()"
_BARE = """
from textual.app import App
from textual.widgets import DataTable, Footer, Header
class Bare(App):
    def compose(self):
        yield Header()
        yield DataTable()
        yield Footer()
    def on_mount(self):
        self.query_one(DataTable).add_columns("2 profiles", "b")
Bare().run()
"""
PAINTED = b"profiles"


class Start(NamedTuple):
    """One start."""

    paint: float
    """Seconds from exec to the first screen."""
    size: int
    """Bytes of the first screen."""
    cpu: float
    """Share of a core while idle."""
    flow: float
    """Bytes a second to the terminal while idle."""


def measure(code: str, environ: dict[str, str], idle: float = 0.0, size: tuple[int, int] = (48, 160)) -> Start:
    """Start python with `code` in a pseudo-terminal, wait for its screen, look at it for `idle` seconds, end it."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    begun = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env=environ,
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    try:
        seen = b""
        while PAINTED not in seen:
            assert select.select([master], [], [], 60)[0], f"no screen in 60 s, but {seen[-300:]!r}"
            seen += os.read(master, 65536)
        paint = time.monotonic() - begun
        if not idle:
            return Start(paint, len(seen), 0.0, 0.0)
        _drain(master, 5.0)
        before, since = _cpu(child.pid), time.monotonic()
        flow = _drain(master, idle)
        lasted = time.monotonic() - since
        return Start(paint, len(seen), (_cpu(child.pid) - before) / lasted, flow / lasted)
    finally:
        child.terminate()
        _drain(master, 1.0)
        child.kill()
        child.wait()
        os.close(master)


def _drain(master: int, seconds: float) -> int:
    deadline, total = time.monotonic() + seconds, 0
    while (left := deadline - time.monotonic()) > 0:
        if select.select([master], [], [], left)[0]:
            try:
                total += len(os.read(master, 65536))
            except OSError:
                break
    return total


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def environment(home: str) -> dict[str, str]:
    """Of a user with a colour terminal who has nothing yet."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    return {**kept, "HOME": home, "TERM": "xterm-256color", "COLORTERM": "truecolor"}


def main(rounds: int) -> None:
    """Print medians, the app and a bare Textual app in turn."""
    with tempfile.TemporaryDirectory() as home:
        environ = environment(home)
        starts = {"disttui": [], "bare": []}  # type: dict[str, list[float]]
        for _ in range(rounds):
            starts["disttui"].append(measure(_APP, environ).paint)
            starts["bare"].append(measure(_BARE, environ).paint)
        for name, paints in starts.items():
            print(
                f"{name}: first screen after {statistics.median(paints) * 1000:.0f} ms (best {min(paints) * 1000:.0f})"
            )
        quiet = measure(_APP, environ, idle=20.0)
        print(f"disttui idle: {quiet.cpu * 100:.2f} % of a core, {quiet.flow:.0f} bytes/s; first {quiet.size} bytes")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
