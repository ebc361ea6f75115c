"""The dashboard's events: one that is too long for its line takes further ones where rows are free."""

from __future__ import annotations

import re
from pathlib import Path

from runner.runs.state import begin
from tests.tui.snap import until
from tests.tui.widget_kit import asynchronous, text_of
from tui.dashboard.timeline import TimelinePane
from tui.run.events import Moment
from tui.run.feed import Snapshot
from tui.run.series import MetricHistory


@asynchronous
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
