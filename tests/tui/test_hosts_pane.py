"""The dashboard's table of hosts: any of many can be reached, and old figures look old."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from disttui.runner.runs.state import begin
from disttui.tui.dashboard.hosts import HostsPane
from disttui.tui.run.feed import Snapshot
from disttui.tui.run.ranks import short_names
from disttui.tui.run.series import MetricHistory
from tests.tui.snap import press, until
from tests.tui.synthetic_run import BEGIN, write
from tests.tui.test_dashboard import opened, shown
from tests.tui.widget_kit import text_of
from tests.unit.state_kit import fold


async def test_every_host_of_many_can_be_reached_sorted_and_opened(tmp_path: Path) -> None:
    folder = write(tmp_path / "run-1", hosts=40, per_host=2, steps=12)
    busy = json.dumps({"t": BEGIN + 72, "cpu": 9.0, "gpus": [{"index": 0, "use": 100, "mem_used": 1, "mem_total": 2}]})
    (folder / "37" / "telemetry.jsonl").write_text(busy + "\n")
    async with opened("replay", str(folder), tmp_path, (120, 35)) as (pilot, screen):
        screen.go_to("hosts")
        await until(pilot, lambda: re.search(r"Hosts +1-\d+ of 40", shown(pilot)))
        assert "synthetic039 ✓" not in shown(pilot)
        await press(pilot, "G", then=lambda: "synthetic039 ✓" in shown(pilot) and "synthetic000 ✓" not in shown(pilot))
        await press(pilot, "o", "o", "g", shows=("busiest first", "synthetic037 ✓"))
        assert re.search(r"host .*\n synthetic037", shown(pilot)), "the busiest comes first"
        await press(pilot, "enter", shows=("Log · synthetic037", "ranks 74,75"))


async def test_figures_of_an_unseen_host_are_dim_and_show_their_age(tmp_path: Path) -> None:
    state, now = begin("run-1", ("ada", "bob"), (1, 1)), BEGIN + 125
    for node, taken in ((0, now), (1, BEGIN)):
        state = fold(state, node, "telemetry.jsonl", {"t": taken, "cpu": 50.0, "mem_used": 1, "mem_total": 2})
    hosts = (replace(state.hosts[0], link="seen"), replace(state.hosts[1], link="not seen"))
    moment = Snapshot(replace(state, hosts=hosts), MetricHistory(2), tmp_path, now=now, seen={0: now, 1: BEGIN})
    pane = HostsPane()
    async with text_of(pane, (100, 6), moment) as (_, text):
        assert re.search(r"ada .* 50 % .* now\n", text()) and re.search(r"bob .* 50 % .* 2:05 ago\n", text())
        quiet = pane.component("muted")
        loads = [next(part for part in strip if part.text.strip() == "50 %") for strip in pane.draw(100, 5)[1:]]
        assert [load.style == quiet for load in loads] == [False, True]


def _moment(names: tuple[str, ...], folder: Path) -> Snapshot:
    state = begin("run-1", names, (8,) * len(names))
    gpu = {"index": 0, "use": 94, "mem_used": 1 << 30, "mem_total": 2 << 30}
    for node in range(len(names)):
        record = {"t": BEGIN, "cpu": 50.0, "mem_used": 1 << 30, "mem_total": 2 << 30, "gpus": [gpu]}
        state = fold(state, node, "telemetry.jsonl", record)
    return Snapshot(state, MetricHistory(8 * len(names)), folder, now=BEGIN)


async def test_in_little_room_the_load_of_the_gpus_comes_first(tmp_path: Path) -> None:
    pane = HostsPane()
    async with text_of(pane, (40, 5), _moment(("synthetic000", "synthetic001"), tmp_path)) as (_, text):
        assert "gpu" in text() and "94 %" in text() and "mem" not in text()


async def test_hosts_of_one_domain_are_told_apart_in_little_room(tmp_path: Path) -> None:
    pane = HostsPane()
    async with text_of(
        pane, (40, 5), _moment(("gpu00.cluster.example.org", "gpu01.cluster.example.org"), tmp_path)
    ) as (_, text):
        assert "gpu00 " in text() and "gpu01 " in text() and "94 %" in text()


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["a.x.org", "b.x.org"], ["a", "b"]), (["a.x.org", "b.y.org"], ["a.x.org", "b.y.org"]),
        (["10.0.0.1", "11.0.0.1"], ["10.0.0.1", "11.0.0.1"]), (["a", "b"], ["a", "b"]), (["a.x.org"], ["a.x.org"]),
        (["a.x.org", "a.x.org"], ["a.x.org", "a.x.org"]), ([], []),
    ],
)  # fmt: skip
def test_a_domain_is_left_out_where_all_hosts_share_it(names: list[str], short: list[str]) -> None:
    assert short_names(names) == short


def test_a_title_counts_no_rows_before_there_are_any(tmp_path: Path) -> None:
    pane = HostsPane()
    pane.show(_moment(("node1", "node2"), tmp_path))
    assert str(pane.border_title) == "Hosts", "not yet laid out: it has no height"
