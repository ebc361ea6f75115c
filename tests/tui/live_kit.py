"""A real run on this machine, in a home of its own, which the app can attach to."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from textual.pilot import Pilot

from disttui.tui.app import DisttuiApp
from disttui.tui.router import First
from tests.cluster.typed import COMMAND
from tests.files import new_file
from tests.light import light_python
from tests.tui.shelf_kit import environ
from tests.unit.waiting import Patience

_JOB = """
import json, os, pathlib, sys, time

enough, early, says = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rank = os.environ["RANK"]
print("".join(f"rank {rank} early line {number}\\n" for number in range(early)), end="", flush=True)
step = 0
with open(os.environ["DISTTUI_METRICS"], "a") as metrics:
    while not enough.exists():
        step += 1
        print(f"rank {rank} counts {step} {says}", flush=True)
        metrics.write(json.dumps({"t": time.time(), "step": step, "steps": 9999, "loss": 1 / step}) + "\\n")
        metrics.flush()
        time.sleep(0.1)
"""


class Live:
    """A run that continues until it is stopped; the viewer that started it has left.

    Args:
        home: The home folder of the user who runs it; it also contains the mirrors.
        early: Lines that every rank prints before anything else.
        says: A word of every line after that.
    """

    def __init__(self, home: Path, *, early: int = 0, says: str = "on", **keys: Any) -> None:
        self.home = home
        self.environ = environ(home, LANG="C.UTF-8")
        self.enough = home / "enough"
        new_file(home / "job.py", _JOB)
        job = {"script": str(home / "job.py"), "args": [str(self.enough), str(early), says]}
        python = light_python(home / "light")
        profile = {"disttui": 1, "name": "live", "hosts": ["local"], "num_processes": 2, "python": python}
        (home / "live.yaml").write_text(json.dumps({**profile, "job": job, **keys}))
        self.said = self.typed("run", "--detach", str(home / "live.yaml"))
        """What its start printed."""
        self.run = next(line for line in self.said.splitlines() if line.startswith("live-") and " " not in line)

    def typed(self, *words: str) -> str:
        """What a command prints, on both streams."""
        done = subprocess.run(
            [COMMAND, *words], env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    @property
    def folder(self) -> Path:
        """The run directory."""
        return self.home / ".disttui" / "runs" / self.run / "0"

    def log(self, rank: int) -> Path:
        """What a rank has printed."""
        return self.folder / "attempt-1" / f"rank-{rank}.log"

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind that the run reports."""
        path = self.folder / "events.jsonl"
        lines = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["e"] == kind]

    def wait_counting(self, seconds: float = 120) -> None:
        """Until both ranks count."""
        patience = Patience(seconds)
        while not all(self.log(rank).exists() and b" counts " in self.log(rank).read_bytes() for rank in (0, 1)):
            assert not patience.ended, (self.folder / "events.jsonl").read_text()
            time.sleep(0.1)

    def pids(self) -> list[int]:
        """Its ranks, launcher, supervisor and warden, as far as they live."""
        up = json.loads((self.folder / "supervisor.json").read_text())
        seen = [event["pid"] for kind in ("rank", "launch") for event in self.events(kind)]
        return [pid for pid in (up["pid"], up["warden"]["pid"], *seen) if Path(f"/proc/{pid}/cmdline").exists()]

    def elsewhere(self, name: str) -> dict[str, str]:
        """The environment of a viewer that knows the run, and has nothing of it yet."""
        data = self.home / name
        known = self.home / "data" / "disttui" / "runs" / self.run / "run.json"
        new_file(data / "disttui" / "runs" / self.run / "run.json", known.read_bytes())
        return {**self.environ, "XDG_DATA_HOME": str(data)}


@contextmanager
def live(home: Path, **options: Any) -> Iterator[Live]:
    """A run that counts; it is stopped at the end if it still runs."""
    made = Live(home, **options)
    try:
        made.wait_counting()
        yield made
    finally:
        made.typed("stop", "--now", made.run)


@asynccontextmanager
async def watched(
    run: Live, environment: dict[str, str] | None = None, *, size: tuple[int, int] = (100, 30), **options: Any
) -> AsyncIterator[tuple[Pilot[None], DisttuiApp]]:
    """The app on the run, as `disttui attach` opens it."""
    environment = environment or run.environ
    with patch.dict(os.environ, environment):
        app = DisttuiApp(environment, **{"first": First("run", (run.run,)), **options})
        async with app.run_test(size=size, notifications=True) as pilot:
            yield pilot, app
