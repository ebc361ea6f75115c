"""Changes to Textual: what is shown is spared by the collector, and a late timer fires."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
import textual.timer

from disttui.tui import startup
from tests.tui.snap import until
from tests.tui.synthetic_run import write
from tests.tui.test_dashboard import opened


@pytest.fixture
def _collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in the app, and afterwards as tests/conftest.py leaves it."""
    monkeypatch.setattr(startup, "gc", gc)
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("_collector")
async def test_a_dashboard_is_spared_until_it_is_left(tmp_path: Path) -> None:
    write(tmp_path / "run-1", hosts=1, per_host=2, steps=10)
    async with opened("replay", str(tmp_path / "run-1"), tmp_path) as (pilot, _):
        await until(pilot, lambda: gc.get_freeze_count() > 10_000)
    assert gc.get_freeze_count() == 0


async def test_a_resize_is_drawn_though_its_timer_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the process does not run between the two looks at the clock with which a timer begins."""
    app = startup.TextualInside()
    async with app.run_test(size=(80, 24)) as pilot:
        late = chain([0.0], repeat(1.0))
        monkeypatch.setattr(textual.timer, "_time", SimpleNamespace(get_time=lambda: time.monotonic() + next(late)))
        await pilot.resize_terminal(60, 20)
        await until(pilot, lambda: app.screen.size == (60, 20))
