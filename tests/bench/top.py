"""`python -m tests.bench.top`: what `disttui top` costs, at the viewer's end and on a host that is looked at.

The screen is the real one, in a real terminal (a pty) of 160×48; its hosts are made up, and every figure of every GPU
changes every second. The host's end samples this machine, filled up to 500 processes.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from disttui.runner.hosts.load import load_of
from disttui.runner.node.telemetry.sampler import Processes
from disttui.runner.runs.watch import HostNow
from disttui.tui.app import DisttuiApp
from disttui.tui.load.feed import TopChanged, TopFeed
from disttui.tui.top.screen import TopScreen
from tests.bench.screen import screen as terminal
from tests.tui import top_kit as kit

WARM, LONG = 8.0, 20.0
PROCESSES = 500


class MadeUp(TopFeed):
    """Hosts that are busy with nothing."""

    shape = (2, 8)

    def _work(self) -> None:
        chance = random.Random(1)
        while not self._closed.wait(1.0):
            hosts = []
            for number in range(self.shape[0]):
                record = kit.record(number, self.shape[1], time.time(), processes=32)
                for gpu in record["gpus"]:
                    gpu |= {"use": chance.uniform(80, 100), "power": chance.gauss(600, 30), "temp": chance.gauss(70, 2)}
                    gpu["mem_used"] += chance.randrange(1 << 30)
                record |= {"cpu": chance.uniform(20, 60), "net_rx": chance.gauss(2e9, 1e8), "load": chance.gauss(30, 1)}
                load = load_of(json.loads(json.dumps(record)))
                hosts.append(HostNow(f"madeup{number}", "seen", load, record["t"]))
            self._target.post_message(TopChanged(tuple(hosts), time.time()))


class BenchTop(TopScreen):
    """The screen on made-up hosts."""

    def make_feed(self) -> TopFeed:
        """The made-up one."""
        return MadeUp(self, (), None, self.disttui.viewer)


def serve(hosts: str, gpus: str) -> None:
    """The app itself, in the child."""
    MadeUp.shape = (int(hosts), int(gpus))
    app = DisttuiApp(os.environ)
    app.call_later(app.push_screen, BenchTop())
    app.run()


def screen(hosts: int, gpus: int) -> tuple[float, float]:
    """Share of a core, and bytes a second to the terminal."""
    with terminal([sys.executable, "-m", "tests.bench.top", "serve", str(hosts), str(gpus)]) as app:
        app.drain(WARM)
        before, begun = app.cpu, time.monotonic()
        sent = app.drain(LONG)
        passed = time.monotonic() - begun
        return (app.cpu - before) / passed, sent / passed


def host() -> float:
    """Share of a core that sampling the processes takes at 1 Hz."""
    missing = PROCESSES - sum(path.name.isdigit() for path in Path("/proc").iterdir())
    children = [subprocess.Popen(["sleep", "120"]) for _ in range(max(0, missing))]
    try:
        processes = Processes()
        for _ in range(3):
            processes.sample(time.monotonic(), {})
            time.sleep(1.0)
        before = time.process_time()
        for _ in range(10):
            processes.sample(time.monotonic(), {})
            time.sleep(1.0)
        return (time.process_time() - before) / 10
    finally:
        for child in children:
            child.kill()
            child.wait()


def main() -> None:
    """Print the table."""
    print("| what | of a core | to the terminal |\n|---|---|---|", flush=True)
    for hosts, gpus in ((2, 8), (64, 8)):
        cpu, flow = screen(hosts, gpus)
        print(f"| top, {hosts * gpus} GPUs, 1 Hz | {cpu:.1%} | {flow / 1024:.0f} KiB/s |", flush=True)
    print(f"| a host's sampling of {PROCESSES} processes, 1 Hz | {host():.2%} | |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:])
    else:
        main()
