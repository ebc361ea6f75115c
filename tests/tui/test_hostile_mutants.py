"""Whatever a host has written, each look at its run is a screen: no traceback, no endless wait, no endless memory."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.command import ran
from tests.tui import mutants
from tests.tui.shelf_kit import Silent
from tests.unit import test_hostile_mirror as mirrors

ROOT = Path(__file__).parents[2]


def _look_at(first: int, count: int, screens: int) -> None:
    command = [sys.executable, "-m", "tests.tui.mutants", *map(str, (first, count, screens))]
    done = ran(command, cwd=ROOT, timeout=1800)
    said = done.stdout.splitlines()
    assert done.returncode == 0, f"{said[-1:]} {done.returncode} {done.stderr[-3000:]}"
    assert int(said[-1]) < 300, "MiB"


def test_8_damaged_mirrors_crash_no_screen() -> None:
    _look_at(2, 8, 1)  # damages of all kinds


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, 400, 50))
def test_400_damaged_mirrors_crash_no_screen(first: int) -> None:
    _look_at(first, 50, 3)


_METRICS, _GROWTH = "attempt-2/rank-0.metrics.jsonl", "attempt-2/growth.jsonl"


_EXTREMES = {
    "400 digits": (_METRICS, b'{"t":1700000003,"step":3,"loss":' + b"9" * 400 + b"}"),
    "far apart": (
        _METRICS, b'{"t":1700000003,"step":3,"loss":1.7e308}\n{"t":1700000004,"step":4,"loss":-1.7e308}',
    ),
    "large size": (_GROWTH, b'{"t":1,"sizes":{"0":1e30}}'),
    "infinite size": (_GROWTH, b'{"t":1,"sizes":{"0":1e999}}'),
    "deep": (_GROWTH, b"[" * 200_000),
    "large memory": ("telemetry.jsonl", b'{"t":1700000003,"cpu":1.0,"mem_used":1e308,"mem_total":2.0}'),
    "hardly any memory": ("telemetry.jsonl", b'{"t":1700000003,"cpu":1.0,"mem_used":1.0,"mem_total":5e-324}'),
}  # fmt: skip


def test_an_extreme_number_crashes_no_screen(tmp_path: Path) -> None:
    def each() -> Iterator[list[bytes]]:
        for what, (name, text) in _EXTREMES.items():
            print(what, flush=True)
            shutil.rmtree(tmp_path / "disttui", ignore_errors=True)
            mirrors.write(tmp_path, {name: text + b"\n"})
            (tmp_path / "disttui/runs" / mirrors.RUN / "0/exit.json").unlink()
            yield [text]

    with patch("disttui.tui.home.screen.ask_hosts", lambda *_: {}), patch("disttui.tui.home.screen.TopFeed", Silent):
        asyncio.run(mutants.looks(tmp_path, each(), (100, 30), random.Random(0)))
