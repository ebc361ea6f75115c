"""A machine that has seen some runs and has some profiles, as files in a folder."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast, overload
from unittest.mock import patch

from textual.pilot import Pilot
from textual.screen import Screen

from disttui.tui.app import DisttuiApp
from disttui.tui.dashboard.run_screen import RunScreen
from disttui.tui.dialogs.question import Question
from disttui.tui.load.feed import TopFeed
from disttui.tui.router import Router
from tests.files import new_file
from tests.tui.snap import is_drawn, screen_text, until

NOW = 1_790_000_000.0
CURVE = 40
"""Metrics of a run that has made more steps."""


def environ(folder: Path, **more: str) -> dict[str, str]:
    """An environment whose user has nothing but `folder`."""
    base = {
        "HOME": str(folder), "XDG_DATA_HOME": str(folder / "data"), "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_STATE_HOME": str(folder / "state"), "PATH": os.environ["PATH"], "TERM": "xterm-256color",
    }  # fmt: skip
    return {**base, **more}


def add_profile(folder: Path, name: str, text: str) -> Path:
    """Save one of the user's own profiles."""
    return new_file(folder / "config" / "disttui" / "profiles" / f"{name}.yaml", text)


def add_run(
    folder: Path,
    run: str,
    hosts: dict[str, int],
    *,
    ago: float,
    heard: float = 2.0,
    end: str = "",
    step: int | None = None,
    steps: int | None = None,
    loss: float | None = None,
    by: str = "alice@laptop",
    source: str | None = None,
) -> Path:
    """Make the mirror of a run that began `ago` seconds before NOW, and was last heard of `heard` seconds before."""
    place = folder / "data" / "disttui" / "runs" / run
    name = run.rpartition("-")[0]
    profile = {"disttui": 1, "name": name, "hosts": list(hosts)}
    started = NOW - ago
    known = {
        "disttui": 1, "run": run, "profile": profile, "source": source, "run_dir": "~/.disttui/runs",
        "hosts": [{"name": host, "host": host, "nproc": count} for host, count in hosts.items()],
        "started": started, "by": by, "ssh_config": None, "sandbox": False,
    }  # fmt: skip
    spec = {"run": run, "node_rank": 0, "hosts": list(hosts), "nproc": list(hosts.values()), "profile": profile}
    _write(place / "run.json", known, started)
    _write(place / "0" / "spec.json", spec, started)
    heard_at = NOW - heard
    _write(place / "0" / "events.jsonl", {"t": started, "e": "attempt", "attempt": 1}, heard_at)
    if step is not None:
        path = place / "0" / "attempt-1" / "rank-0.metrics.jsonl"
        _write(path, {"t": heard_at, "step": step, "steps": steps, "loss": loss}, heard_at)
        if step > CURVE and loss:
            shares = [part / CURVE for part in range(1, CURVE + 1)]
            metrics = [
                {"t": started + (heard_at - started) * share, "step": round(step * share), "steps": steps,
                 "loss": loss * (1 + math.exp(-6 * share)) if share < 1 else loss}
                for share in shares
            ]  # fmt: skip
            path.write_text("".join(f"{json.dumps(metric)}\n" for metric in metrics))
            os.utime(path, (heard_at, heard_at))
    if end:
        _write(place / "0" / "exit.json", {"t": heard_at, "state": end, "code": int(end != "finished")}, heard_at)
    return place


def busy_machine(folder: Path) -> None:
    """Runs in every state, profiles good and bad."""
    pair = add_profile(
        folder, "pair",
        "disttui: 1\nhosts: [ada, grace]\nnum_processes: 4\ndescription: two boxes under the desk\n"
        "job: {builtin: bytegpt}\n",
    )  # fmt: skip
    add_profile(
        folder, "uneven",
        "disttui: 1\nhosts: [{host: ada, num_processes: 8}, {host: edsger, num_processes: 2}]\n"
        "description: eight GPUs here, two there\njob: {script: train.py}\n",
    )  # fmt: skip
    add_profile(folder, "broken", "disttui: 1\nhosts: [ada]\nnum_procesess: 2\njob: {builtin: bytegpt}\n")
    both = {"ada": 4, "grace": 4}
    add_run(folder, "pair-7f3a", both, ago=751, step=1240, steps=5000, loss=1.832, source=str(pair))
    add_run(
        folder, "uneven-02c1", {"ada": 8, "edsger": 2}, ago=8100, heard=1260, step=88_400, steps=200_000, loss=2.417
    )
    add_run(folder, "pair-91bd", both, ago=93_000, heard=89_000, end="finished", step=5000, steps=5000, loss=1.204)
    add_run(folder, "pair-5e20", both, ago=180_000, heard=179_300, end="failed", step=412, steps=5000, loss=3.9)
    add_run(folder, "llama-c3d4", {f"gpu{n:02}": 8 for n in range(16)}, ago=400_000, heard=350_000, end="stopped",
            step=12_000, steps=100_000, loss=2.01, by="bob@desk")  # fmt: skip
    add_run(folder, "pair-0a11", both, ago=900_000, heard=899_990, end="lost")


def _write(path: Path, data: Any, at: float) -> None:
    new_file(path, json.dumps(data) + "\n")
    os.utime(path, (at, at))


class Silent(TopFeed):
    """Watches no host: tests show a screen what they like."""

    def start(self) -> None:
        """Begin nothing."""


class Doors(DisttuiApp):
    """The app, which notes which screens it is asked to open instead of opening them."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.opened: list[tuple[Any, ...]] = []
        self.router = NotingRouter(self, self._keys)
        self.router.opened = self.opened


class NotingRouter(Router):
    """Notes what it is asked to open."""

    opened: list[tuple[Any, ...]]

    def open_run(self, run_id: str, *, instead: Screen[Any] | None = None, repeats: str = "") -> None:
        self.opened.append(("run", run_id))

    def open_replay(self, run: str, playing: bool = False) -> None:
        self.opened.append(("replay", run))

    def open_wizard(self, profile: Path | None = None, *, launch: bool = False) -> None:
        self.opened.append(("wizard", profile, launch))

    def open_sandbox(self) -> None:
        self.opened.append(("sandbox",))

    def open_top(self, hosts: Sequence[str] = (), profile: Path | None = None) -> None:
        self.opened.append(("top", tuple(hosts), profile))


App = TypeVar("App", bound=DisttuiApp)
Fill = Callable[[Path], object]


@overload
def home(
    folder: Path, fill: Fill | None = ..., *, size: tuple[int, int] = ..., app: App
) -> AbstractAsyncContextManager[tuple[App, Pilot[None]]]: ...


@overload
def home(
    folder: Path, fill: Fill | None = ..., *, size: tuple[int, int] = ..., **options: Any
) -> AbstractAsyncContextManager[tuple[Doors, Pilot[None]]]: ...


@asynccontextmanager
async def home(
    folder: Path,
    fill: Fill | None = None,
    *,
    size: tuple[int, int] = (100, 30),
    app: DisttuiApp | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Any, Pilot[None]]]:
    """The app of a user who has what is in `folder`, at its home screen. The clock stands still at NOW, in UTC.

    Args:
        fill: Called with the folder, to write what the user has.
    """
    if fill is not None:
        fill(folder)
    environment = environ(folder)
    with (
        patch.dict(os.environ, {**environment, "TZ": "UTC"}),
        patch("disttui.tui.home.screen.now", lambda: NOW),
        patch("disttui.tui.home.screen.ask_hosts", lambda *_: {}),  # there are none
        patch("disttui.tui.home.screen.TopFeed", Silent),
    ):
        time.tzset()
        shown = app or Doors(environment, **options)
        async with shown.run_test(size=size, notifications=True) as pilot:
            await at_home(pilot)
            yield shown, pilot


@asynccontextmanager
async def replayed(folder: Path, size: tuple[int, int]) -> AsyncIterator[tuple[DisttuiApp, Pilot[None], RunScreen]]:
    """The replay of the example, which comes into `folder`, with its numbers and its log."""
    app = DisttuiApp(environ(folder, XDG_CACHE_HOME=f"{folder}/cache", TEXTUAL_ANIMATIONS="none"))
    async with app.run_test(size=size) as pilot:
        app.router.open_replay("example")
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.snapshot and app.screen.log_view)
        assert isinstance(app.screen, RunScreen)
        yield app, pilot, app.screen


def shows(app: DisttuiApp, words: str) -> bool:
    """Whether words are on the screen."""
    return is_drawn(app) and words in screen_text(app)


async def asked(pilot: Pilot[None], *keys: str) -> None:
    """Press keys, and wait until a question is up, and takes answers."""

    def up() -> bool:
        screen = pilot.app.screen
        return isinstance(screen, Question) and screen.ready and is_drawn(pilot.app)

    await pilot.press(*keys)
    await until(pilot, up)


async def at_home(pilot: Pilot[None]) -> None:
    """Wait until the home screen shows what there is."""
    await until(pilot, lambda: cast(DisttuiApp, pilot.app).inventory.read)
