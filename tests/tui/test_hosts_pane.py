"""The dashboard's hosts, their load and events: any of many can be reached, and what there is room for is shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from disttui.runner.protocol.events import Event
from disttui.runner.runs.state import begin
from disttui.tui.dashboard.hosts import HostsPane
from disttui.tui.dashboard.load import LoadPane, held
from disttui.tui.dashboard.timeline import TimelinePane
from disttui.tui.run.events import Moment, moment
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


async def test_an_event_is_cut_only_where_no_row_is_free(tmp_path: Path) -> None:
    words = "attempt 1 begins: 8 ranks, master 10.0.0.1:29500"
    moments = tuple(Moment(float(at), "waiting", "ada", words) for at in range(3))
    state = begin("run-1", ("ada",), (8,))
    pane = TimelinePane()
    async with text_of(pane, (40, 5)) as (pilot, text):
        pane.show(Snapshot(state, MetricHistory(8), tmp_path, now=9.0, moments=moments[:1]))
        await until(pilot, lambda: re.search(r"begins: 8 ranks,\s+master\s+10.0.0.1:29500", text()))
        pane.show(Snapshot(state, MetricHistory(8), tmp_path, now=9.0, moments=moments))
        await until(pilot, lambda: text().count("attempt 1 begins") == 3)
        assert text().count("…") == 2 and text().count("29500") == 1, "the newest has the row that is left"


async def test_an_event_of_the_whole_run_stands_beside_no_host(tmp_path: Path) -> None:
    state = begin("run-1", ("ada", "bob"), (1, 1))
    events: tuple[tuple[int, Event], ...] = (
        (0, {"t": 1.0, "e": "join", "node": 1}),
        (0, {"t": 2.0, "e": "step", "attempt": 1}),
        (1, {"t": 3.0, "e": "death", "attempt": 1, "rank": 1, "code": -9}),
        (0, {"t": 4.0, "e": "stopping", "attempt": 1, "reason": "failure"}),
    )
    moments = tuple(found for node, event in events if (found := moment(event, node, event["t"], state)))
    pane = TimelinePane()
    async with text_of(pane, (90, 6)) as (pilot, text):
        pane.show(Snapshot(state, MetricHistory(2), tmp_path, now=9.0, moments=moments))
        await until(pilot, lambda: "stopping" in text())
        shown = [line for line in text().splitlines() if re.search(r"bob has|attempt 1|rank 1|stopping", line)]
        assert "bob rank 1 ended" in shown[2], shown
        assert "ada" not in text() and shown[0].count("bob") == 1, "the leader tells of them, and did nothing"
        begin_at = {re.search("bob has|attempt|rank|stopping", line).start() for line in shown}  # type: ignore[union-attr]
        assert len(shown) == 4 and len(begin_at) == 1, "all words begin in one column"


def test_an_unseen_host_is_named_with_the_host_that_misses_it() -> None:
    state = begin("run-1", ("ada", "bob"), (1, 1))
    for node, missed, words in ((0, 1, "bob is unreachable from ada"), (1, 0, "ada is unreachable from bob")):
        found = moment({"t": 1.0, "e": "host", "node": missed, "state": "not seen"}, node, 1.0, state)
        assert found is not None and found.text == words
