"""The dashboard's events: one that is too long for its line takes further ones where rows are free."""

from __future__ import annotations

import re
from pathlib import Path

from disttui.runner.protocol.events import Event
from disttui.runner.runs.state import begin
from disttui.tui.dashboard.timeline import TimelinePane
from disttui.tui.run.events import Moment, moment
from disttui.tui.run.feed import Snapshot
from disttui.tui.run.series import MetricHistory
from tests.tui.snap import until
from tests.tui.widget_kit import text_of


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
