"""What is shown is spared by the collector as long as it is shown."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttui.tui import startup
from tests.tui.snap import until
from tests.tui.synthetic_run import write
from tests.tui.test_dashboard import opened
from tests.tui.widget_kit import asynchronous


@pytest.fixture
def _collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in the app, and afterwards as tests/conftest.py leaves it."""
    monkeypatch.setattr(startup, "gc", gc)
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("_collector")
@asynchronous
async def test_a_dashboard_is_spared_until_it_is_left(tmp_path: Path) -> None:
    write(tmp_path / "run-1", hosts=1, per_host=2, steps=10)
    async with opened("replay", str(tmp_path / "run-1"), tmp_path) as (pilot, _):
        await until(pilot, lambda: gc.get_freeze_count() > 10_000)
    assert gc.get_freeze_count() == 0
