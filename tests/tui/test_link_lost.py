"""Hosts that are not reached any more, or not yet: the dashboard lives on, and what it shows stays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from disttui.tui.app import DisttuiApp
from disttui.tui.log import LogView
from disttui.tui.router import First
from tests.cluster import Cluster
from tests.cluster.typed import User, wait_gone
from tests.faults.kit import Fault
from tests.tui.shelf_kit import shows
from tests.tui.snap import press, screen_text, until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]


@pytest.fixture
def fault(cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[Fault]:
    (tmp_path / "home").mkdir()
    begun = Fault.begin(User(cluster(2), tmp_path / "home"), wait=False)
    begun.wait_steps(1)
    begun.running.process.kill()  # the viewer that started it
    begun.running.process.wait()
    yield begun
    begun.finish()
    wait_gone(begun.me.cluster, 90)  # what a cut viewer has left on a host ends after a minute of silence


def _app(fault: Fault, **options: Any) -> DisttuiApp:
    config = str(fault.me.cluster.ssh_config)
    return DisttuiApp(fault.me.environment(), first=First("run", (fault.run,)), ssh_config=config, **options)


async def test_a_cut_link_is_reported_and_reestablished(fault: Fault) -> None:
    here, second = fault.me.cluster.viewer_address, fault.hosts[1]
    with patch.dict(os.environ, fault.me.environment()):
        app = _app(fault)
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            await until(pilot, lambda: shows(app, "node2:1 │ rank 1 of attempt 1 counts"))
            second.cut_viewer(here, True)
            await until(pilot, lambda: shows(app, "◇ node2 unreachable since"))
            seen = " ".join(screen_text(app).split())
            assert "its state is unknown" in seen, screen_text(app)
            assert "node2: node2:" not in seen
            assert "rank 0 of attempt 1 counts" in seen, "what it shows stays, and the other host continues"
            await until(pilot, lambda: shows(app, "◇ 1 not seen"))
            second.cut_viewer(here, False)
            await until(pilot, lambda: not shows(app, "not seen"))
            lines = app.screen.query_one(LogView).lines
            count = fault.steps(1)
            await until(pilot, lambda: f"rank 1 of attempt 1 counts {count}" in _last_of(lines, 1))
            await press(pilot, "q", then=lambda: app._exit)


def _last_of(lines: Any, rank: int) -> str:
    log = lines.progress.work.log
    source = next((one for one in log.sources if one.rank == rank), None)
    return source.index.path.read_text() if source else ""


async def test_a_silent_host_delays_only_its_own_part(fault: Fault) -> None:
    """Cut off from the beginning: the other host is shown at once, and the app can be left at once."""
    here, second = fault.me.cluster.viewer_address, fault.hosts[1]
    second.cut_viewer(here, True)
    with patch.dict(os.environ, fault.me.environment()):
        app = _app(fault)
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            await until(pilot, lambda: shows(app, "rank 0 of attempt 1 counts"))
            await press(pilot, "slash", *"counts", "enter", shows="/ “counts”")
            await until(pilot, lambda: shows(app, "◇ node2 unreachable since"))
            await pilot.press("q", "q")
    second.cut_viewer(here, False)
