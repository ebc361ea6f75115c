"""On a large terminal few hosts are shown with what they do; many are a list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from disttui.tui.dashboard.load import LoadPane, held
from tests.tui.snap import press, until
from tests.tui.synthetic_run import write
from tests.tui.test_dashboard import opened, shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hosts", "per_host", "gpus", "kinds"),
    [
        (2, 2, False, ["cpu", "memory"]),
        (2, 4, True, ["gpu 0", "gpu 1", "gpu 2", "gpu 3", "cpu"]),
        (2, 8, True, ["8 gpus", "cpu"]),
        (6, 1, True, ["gpu"]),
        (24, 1, True, []),
    ],
)
async def test_at_200x50_hosts_have_bars_and_curves_as_many_as_fit(
    hosts: int, per_host: int, gpus: bool, kinds: list[str], tmp_path: Path
) -> None:
    write(tmp_path / "run-1", hosts=hosts, per_host=per_host, steps=30, gpus=gpus)
    async with opened("replay", str(tmp_path / "run-1"), tmp_path, (200, 50)) as (pilot, screen):
        await press(pilot, "comma", shows="● running")
        pane = screen.query_one(LoadPane)
        await until(pilot, lambda: pane.display == bool(kinds))
        await until(pilot, lambda: ("─Load over the run─" in shown(pilot)) == bool(kinds))
        # Nothing of it is cut off.
        await until(pilot, lambda: not kinds or pane.size.height == pane.rows(pane.size.width))
        rows = [pane.render_line(y).text for y in range(pane.size.height)] if kinds else []
        found = [match[1] for row in rows if (match := re.search(r"((?:\b\d )?[a-z]+(?: \d)?) +[━╸─]", row))]
        assert found == kinds * hosts
        assert all("▁" <= row.rstrip()[-1] <= "█" for row in rows[-1:])
        assert "the run" in shown(pilot) or "attempt 1" in shown(pilot), "the events are there, too"


async def test_a_small_terminal_has_no_load(tmp_path: Path) -> None:
    write(tmp_path / "run-1", hosts=2, per_host=2, steps=30)
    async with opened("replay", str(tmp_path / "run-1"), tmp_path, (80, 24)) as (pilot, screen):
        assert not screen.query_one(LoadPane).display
        assert "Events" in shown(pilot)


def test_a_number_holds_until_the_next_but_not_over_a_gap() -> None:
    assert held([None, 1.0, None, None, 2.0, None], 3) == [None, 1.0, 1.0, 1.0, 2.0, 2.0]
    assert held([1.0, None, None, None, 2.0], 2) == [1.0, 1.0, 1.0, None, 2.0], "nothing was heard for a while"
    assert held([1.0, None, 2.0], 0) == [1.0, None, 2.0], "a column is longer than that"


async def test_at_the_beginning_of_a_run_the_curves_have_no_holes(tmp_path: Path) -> None:
    write(tmp_path / "run-1", hosts=2, per_host=2, steps=30)
    async with opened("replay", str(tmp_path / "run-1"), tmp_path, (200, 50)) as (pilot, screen):
        await pilot.press("home", "full_stop", "greater_than_sign")
        pane = screen.query_one(LoadPane)

        def curves() -> list[str]:
            rows = [pane.render_line(y).text for y in range(pane.size.height)] if pane.display else []
            return [row.rstrip()[30:].strip() for row in rows if "%" in row]

        await until(pilot, lambda: curves() and all(curves()))
        assert not any(" " in curve.partition("%")[2].strip() for curve in curves()), curves()
