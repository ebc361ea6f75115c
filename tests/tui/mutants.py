"""Mirrors and hosts of `top` that a seed has damaged, looked at in all ways.

`python -m tests.tui.mutants FIRST COUNT SCREENS`: COUNT of them, each on so many of the three screens behind home. It
ends with the traceback of the first look that raises, and by a signal in one that takes longer than SECONDS; at the end
it prints the most memory that it has had, in MiB.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.screen import Screen
from textual.worker import WorkerCancelled

from disttui.runner.hosts.load import load_of
from disttui.runner.runs.watch import HostNow
from disttui.runner.untrusted.records import message
from disttui.tui.app import DisttuiApp
from disttui.tui.dashboard.run_screen import RunScreen
from disttui.tui.home.screen import HomeScreen
from disttui.tui.load.feed import TopChanged
from tests.tui import top_kit
from tests.tui.shelf_kit import Silent, at_home, environ
from tests.tui.snap import until
from tests.unit import test_hostile_mirror as mirrors

SECONDS = 10
"""Processor time that one look may take."""
SIZES = ((80, 24), (160, 48))
_REPLAY_KEYS, _RUN_KEYS = ("end", "z", "home", "e", "tab", "l"), ("z", "tab", "l", "d")
_NUMBERS = (
    b"0", b"-1", b"1e308", b"-1.7e308", b"5e-324", b"1e999", b"1e30", b"1E+19", b"1e-19", b"NaN", b"-Infinity",
    b"9" * 400, b"9223372036854775807", b"0.5",
)  # fmt: skip
_NUMBER = re.compile(rb"(?<=[:\[ ])-?\d[\d.e+-]*")


def mutated(data: bytes, dice: random.Random) -> bytes:
    """The same, damaged in one way."""
    kind = dice.choice(["number", "number", "value", "bytes", "lines", "file"])
    spots = list(_NUMBER.finditer(data))
    if kind == "number" and spots:
        spot = dice.choice(spots)
        return data[: spot.start()] + dice.choice(_NUMBERS) + data[spot.end() :]
    if kind == "value":
        try:
            entries = [json.loads(line) for line in data.splitlines()]
            way = dice.choice([way for way in mirrors.places(entries) if len(way) > 1])
        except (ValueError, IndexError):
            return data
        return mirrors.lines(mirrors.changed(entries, way, dice.choice(mirrors.ODD)))
    if kind == "bytes":
        at = dice.randrange(len(data) + 1)
        return data[:at] + dice.randbytes(dice.randrange(9)) + data[at + dice.randrange(9) :]
    if kind == "lines":
        lines = data.splitlines(keepends=True) * dice.choice([1, 300])
        dice.shuffle(lines)
        return b"".join(lines)
    return dice.choice(list(mirrors.DAMAGE.values()))


def spoil(base: Path, dice: random.Random) -> None:
    """Write a mirror with up to three damages."""
    whole = {name: mirrors.lines(entries) for name, entries in mirrors.FILES.items()}
    whole |= {
        "seen.json": b'{"state": "running", "step": 1, "loss": 2.5, "began": 1.7e9}\n',
        "attempt-2/rank-0.log": b"hi\n",
    }
    spoilt: dict[str, bytes] = {}
    for _ in range(dice.randint(1, 3)):
        name = dice.choice(list(whole))
        spoilt[name] = mutated(spoilt.get(name, whole[name]), dice)
    mirrors.write(base, spoilt)
    if dice.random() < 0.5:  # it is not known to have ended
        (base / "disttui/runs" / mirrors.RUN / "0/exit.json").unlink()


@contextmanager
def a_look() -> Iterator[None]:
    """End this process if it takes too long."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


async def _open(pilot: Pilot[None], *keys: str) -> None:
    """Wait until the run on the screen is shown, or why it cannot be; then press keys."""
    app = pilot.app
    await until(pilot, lambda: isinstance(app.screen, RunScreen) and (app.screen.snapshot or app._notifications))
    for key in keys:
        await pilot.press(key)
    await pilot.pause()


async def looks(
    base: Path, each: Iterable[Sequence[bytes]], size: tuple[int, int], dice: random.Random, screens: int = 3
) -> None:
    """Home, the run's replay, its dashboard, and `top`, for every mirror in turn.

    Args:
        each: Writes a mirror, and gives what the hosts of `top` tell then.
        screens: How many of the three screens behind home are opened for a mirror.
    """
    app = DisttuiApp(environ(base, XDG_DATA_HOME=str(base), TEXTUAL_ANIMATIONS="none"))
    async with app.run_test(size=size) as pilot:
        home = app.screen
        assert isinstance(home, HomeScreen)
        await pilot.press("d")
        for told in each:
            with a_look():
                home.read(anew=True)
                while app.workers:
                    with suppress(WorkerCancelled):  # by a later reading
                        await app.workers.wait_for_complete()
                    await pilot.pause()
                await at_home(pilot)
                await pilot.press("1")
            chosen = dice.sample(("replay", "run", "top"), screens)
            for name, open_it, keys in (
                ("replay", app.router.open_replay, _REPLAY_KEYS),
                ("run", app.router.open_run, _RUN_KEYS),
            ):
                if name not in chosen:
                    continue
                with a_look():
                    open_it(mirrors.RUN)
                    await pilot.pause()
                    await _open(pilot, *dice.sample(keys, 3))
                    await _back(pilot, home)
            if "top" not in chosen:
                continue
            with a_look():
                await app.push_screen(top_kit.MadeUpTop())
                loads = [load_of(message(one) or {}) for one in told]
                hosts = tuple(HostNow(f"h{at}", "seen", one, mirrors.T) for at, one in enumerate(loads) if one)
                for moment in (0, 1):
                    app.screen.post_message(TopChanged(hosts, mirrors.T + moment))
                    await pilot.pause()
                for key in ("down", "enter", "tab", "s", "escape"):
                    await pilot.press(key)
                await _back(pilot, home)


async def _back(pilot: Pilot[None], home: Screen[None]) -> None:
    while pilot.app.screen is not home:
        pilot.app.pop_screen()
        await pilot.pause()
    pilot.app.clear_notifications()


def damages(base: Path, seeds: Iterable[int]) -> Iterator[list[bytes]]:
    """Write the mirror of each seed; gives what three hosts tell."""
    for seed in seeds:
        print("seed", seed, flush=True)
        dice = random.Random(seed)
        shutil.rmtree(base / "disttui", ignore_errors=True)
        spoil(base, dice)
        record = json.dumps(top_kit.record(0, 2, mirrors.T)).encode()
        yield [mutated(record, dice) for _ in range(3)]


def main(first: int, count: int, screens: int) -> None:
    """Look at the damages of these seeds."""
    seeds = range(first, first + count)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        base = Path(folder)
        for name in ("HOME", "XDG_DATA_HOME"):
            patched.setenv(name, folder)
        patched.setattr("disttui.tui.home.screen.ask_hosts", lambda *_: {})
        patched.setattr("disttui.tui.home.screen.TopFeed", Silent)
        for at, size in enumerate(SIZES):
            asyncio.run(looks(base, damages(base, seeds[at :: len(SIZES)]), size, random.Random(first), screens))
        for _ in damages(base, seeds):
            for words in mirrors.COMMANDS:
                with a_look():
                    said = mirrors.typed(words, patched)
                assert said and "Traceback (most" not in said and mirrors.ESCAPE not in said, (words, said)
    # Not ru_maxrss, which a new program has from the one that started it.
    print(int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) >> 10)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)
