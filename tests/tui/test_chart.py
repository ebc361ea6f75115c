"""The history that charts are drawn from, and the drawing itself."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from disttui.runner.runs.state import begin
from disttui.runner.untrusted.records import LARGEST, SMALLEST
from disttui.tui.charts.chart import LABELS, Chart
from disttui.tui.charts.plot import Canvas, StepAxis, clock_ticks, scale, smooth, span, step_ticks
from disttui.tui.dashboard.load import LoadPane
from disttui.tui.run.feed import Snapshot
from disttui.tui.run.series import METRICS, NAMES, Aggregate, Bucket, MetricHistory, Track, available, bytes_, plain
from tests.tui.widget_kit import text_of


def filled(steps: int = 100, ranks: int = 2) -> MetricHistory:
    """A history of some ranks whose loss falls."""
    history = MetricHistory(ranks)
    for step in range(steps):
        for rank in range(ranks):
            history.metrics(step, 1, rank, {"t": step, "step": step, "loss": 100.0 - step + rank, "steps": steps})
        history.telemetry(step, 0, {"t": step, "cpu": 50.0, "gpus": [{"index": 0, "use": 90.0}]})
    return history


def snapshot_of(history: MetricHistory, now: float = 100.0) -> Snapshot:
    """A run with this history."""
    return Snapshot(begin("run-1", ("node1",), (2,)), history, Path("/nowhere"), began=0.0, now=now)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=2000), st.integers(8, 64))
def test_a_full_track_keeps_its_lows_and_highs(values: list[float], limit: int) -> None:
    track = Track(limit)
    for time, value in enumerate(values):
        track.put(float(time), value)
    assert len(track) <= limit
    (column,) = track.columns(0.0, len(values), 1, math.inf)
    assert column is not None
    assert (column.low, column.high) == (min(values), max(values))


@given(st.integers(1, 5), st.integers(1, 300), st.integers(8, 64))
def test_a_full_aggregate_keeps_its_lows_and_highs(ranks: int, steps: int, limit: int) -> None:
    aggregate = Aggregate(limit)
    for step in range(steps):
        for rank in range(ranks):
            aggregate.put(step + rank / 10, float(rank), step)
    assert len(aggregate) <= limit
    (column,) = aggregate.columns(0.0, steps, 1, math.inf)
    assert column is not None
    assert (column.low, column.high) == (0.0, ranks - 1)
    assert abs(column.mean - (ranks - 1) / 2) < 1e-4


def test_a_lagging_rank_finds_its_samples_after_a_merge() -> None:
    aggregate = Aggregate(8)
    for step in range(20):
        aggregate.put(float(step), float(step), step)
        if step >= 3:
            aggregate.put(step + 0.1, step - 3.0, step - 3)
    (whole,) = aggregate.columns(0.0, 20.0, 1, math.inf)
    assert whole is not None
    assert (whole.low, whole.high) == (0.0, 19.0)
    for at, column in enumerate(aggregate.columns(0.0, 20.0, 5, math.inf)):
        assert column is None or abs(column.mean - (4 * at + 1.5)) <= 4, "each value is near its own time"


def test_a_merged_sample_weighs_as_much_as_all_its_values() -> None:
    aggregate = Aggregate(2)
    for step, values in enumerate(([0.0], [0.0], [9.0])):
        for value in values:
            aggregate.put(float(step), value, step)
    aggregate.put(0.1, 6.0, 2)
    assert len(aggregate) == 2
    first, second = (column for column in aggregate.columns(0.0, 4.0, 2, math.inf))
    assert first is not None and first.mean == 0.0
    assert second is not None and second.mean == 7.5
    track = Track(2)
    for step, value in enumerate((1.0, 3.0, 5.0)):
        track.put(float(step), value)
    assert track.at(0.5) == 2.0


def test_ranks_of_one_step_are_one_sample_of_the_aggregate() -> None:
    history = filled(ranks=4)
    assert len(history.all["loss"]) == 100
    assert len(history.each["loss"]) == 4
    (column,) = history.all["loss"].columns(0, 0.5, 1, 99)
    assert column == Bucket(100.0, 103.0, 101.5)


def test_ranks_read_one_after_another_are_drawn_as_one_line() -> None:
    """In the order of the mirror's files: whole stories, longer than the samples that stay open."""
    history = MetricHistory(3)
    for rank in range(3):
        for step in range(1, 501):
            history.metrics(step + rank / 10, 1, rank, {"step": step, "loss": 1000 / step + rank})
    drawn = history.all["loss"].columns(0, 510, 51, 510)
    for at, column in enumerate(drawn[1:], 1):
        assert column is not None
        assert column.low >= 1000 / (at * 10 + 10), "every step is where it was made"
        assert column.high <= 1000 / max(1, at * 10 - 1) + 3
        assert abs(column.mean - 1 - 1000 / (at * 10 + 5)) < 0.2 + 400 / at**3
    assert len(history.all["loss"]) == 500


def test_values_without_steps_are_drawn_at_their_own_time() -> None:
    """A bar has no step in each line; a late viewer reads the whole story of one rank after the other."""
    history = MetricHistory(3)
    for rank in range(3):
        for second in range(500):
            history.metrics(second + rank / 10, 1, rank, {"loss": 1000.0 - second})
    for at, column in enumerate(history.all["loss"].columns(0, 500, 50, 510)):
        assert column is not None
        assert column.low >= 1000 - 10 * at - 11 and column.high <= 1000 - 10 * at + 1


def test_nothing_after_the_cursor_is_drawn() -> None:
    columns = filled().all["loss"].columns(0, 100, 10, until=49)
    assert columns[4] is not None
    assert columns[5:] == [None] * 5


def test_values_that_are_not_finite_numbers_are_skipped() -> None:
    history = MetricHistory(1)
    for value in ("nan", None, True, [1]):
        history.metrics(0.0, 1, 0, {"t": 0, "step": 1, "loss": value})
    assert not history.all


def test_a_job_that_invents_names_is_bounded() -> None:
    history = MetricHistory(1)
    for number in range(10 * NAMES):
        history.metrics(0.0, 1, 0, {"t": 0, "step": 1, f"m{number}": 1.0})
    assert len(history.all) == NAMES


def test_every_known_number_is_offered_with_its_name() -> None:
    history = filled()
    history.metrics(0.0, 1, 0, {"t": 0, "step": 0, "perplexity\x1b[2J": 3.0})
    assert [one.label for one in available(history)] == ["loss", "GPU use", "CPU", "perplexity"]


def test_a_scale_holds_all_values_and_stays_for_small_changes() -> None:
    first, second = scale([1.2, 4.9], log=False), scale([1.25, 4.95], log=False)
    assert first == second
    assert 0 <= first.share(1.2) < first.share(4.9) <= 1
    assert list(first.ticks(9).values()) == [0, 2, 4, 6]


def test_a_logarithmic_scale_survives_zero_and_less() -> None:
    limits = scale([0.0, -1.0, 1e-3, 10.0], log=True)
    assert limits.share(0.0) <= 0 < limits.share(1.0) < 1
    assert scale([-1.0], log=True).share(-1.0) == 0


_READ = st.floats(-LARGEST, LARGEST).filter(lambda value: abs(value) >= SMALLEST) | st.just(0.0)
"""What is read of a record."""


@given(st.lists(_READ, max_size=40), st.booleans())
@example([SMALLEST], False)
@example([SMALLEST], True)
@example([SMALLEST, LARGEST, -LARGEST], False)
@example([SMALLEST, LARGEST], True)
@example([0.001, math.nextafter(0.001, 1.0)], True)  # means of equal values
def test_any_values_can_be_drawn(values: list[float], log: bool) -> None:
    columns = [Bucket(value, value, value) for value in values]
    canvas = Canvas(20, 5)
    limits = scale(values, log=log)
    canvas.band(1, columns[:40], limits)
    canvas.curve(0, columns[:40], limits)
    assert all(len(canvas.text(y)) == 20 for y in range(5))
    assert all(0 <= row < 5 for row in limits.ticks(5))


def test_a_falling_line_falls() -> None:
    columns: list[Bucket | None] = [Bucket(value, value, value) for value in range(40, 0, -1)]
    canvas = Canvas(20, 5)
    canvas.curve(0, columns, scale([1, 40], log=False))
    assert canvas.text(0)[0] != " " == canvas.text(0)[19]
    assert canvas.text(4)[19] != " " == canvas.text(4)[0]


def test_smoothing_begins_at_the_first_value() -> None:
    smoothed = smooth([Bucket(1, 1, 1), None, Bucket(3, 3, 3)])
    assert smoothed[0] is not None and smoothed[0].mean == 1
    assert smoothed[1] is None
    assert smoothed[2] is not None and 1 < smoothed[2].mean < 3


def test_a_growing_chart_keeps_its_time_axis_for_long() -> None:
    assert span(61) == span(89) == 90


def test_where_no_byte_was_sent_no_two_ticks_are_zero() -> None:
    sent = next(one for one in METRICS if one.name == "net_tx")
    for values in ([0.0, 0.0], [0.0, 1.0], [0.0, 2.0]):
        words = sent.ticks(list(scale(values, log=False, binary=True).ticks(11).values()))
        assert len(words) == len(set(words)) and not any("." in word for word in words), words


def test_bytes_have_round_ticks_in_one_unit() -> None:
    memory = next(one for one in METRICS if one.name == "mem_used")
    for values, words in (
        ((2.7 * 2**30, 4.1 * 2**30), ["2.5 GiB", "3 GiB", "3.5 GiB", "4 GiB", "4.5 GiB"]),
        ((0.0, 1.9 * 2**30), ["0", "0.5 GiB", "1 GiB", "1.5 GiB", "2 GiB"]),
        ((0.0, 990 * 2**20), ["0", "250 MiB", "500 MiB", "750 MiB", "1000 MiB"]),
        ((0.0, 3.0), ["0", "1 B", "2 B", "3 B"]),
    ):
        assert memory.ticks(list(scale(values, log=False, binary=True).ticks(11).values())) == words
    assert bytes_(1010 * 2**20) == "1010 MiB"


def test_times_are_round_wherever_the_window_begins() -> None:
    assert clock_ticks(0, 60, 5) == [0, 15, 30, 45, 60]
    assert clock_ticks(0, 109.4, 6) == [0, 30, 60, 90]
    assert clock_ticks(13.3, 28.3, 4) == [15, 20, 25]
    assert clock_ticks(0, 8 * 3600, 5) == [0, 7200, 14400, 21600, 28800]
    assert clock_ticks(0, 12 * 86400, 5) == [0, 3 * 86400, 6 * 86400, 9 * 86400, 12 * 86400]


@given(st.floats(0, 1e7), st.floats(0.1, 1e7), st.integers(1, 12))
def test_there_are_never_more_times_than_fit(begin: float, length: float, most: int) -> None:
    found = clock_ticks(begin, begin + length, most)
    assert len(found) <= most + 1
    assert all(begin - 0.01 <= tick <= begin + length + 0.01 for tick in found)


def test_no_line_is_drawn_across_an_outage() -> None:
    before, after = [Bucket(1, 1, 1)] * 10, [Bucket(3, 3, 3)] * 10
    canvas = Canvas(20, 5)
    canvas.curve(0, [*before, *[None] * 20, *after], scale([0, 4], log=False))
    assert all(row[5:15].strip() == "" for row in map(canvas.text, range(5)))


def test_values_that_come_seldom_are_one_line() -> None:
    seldom = [Bucket(1, 1, 1) if x % 10 == 0 else None for x in range(40)]
    canvas = Canvas(20, 5)
    canvas.curve(0, seldom, scale([0, 4], log=False))
    assert any(" " not in row[:15] for row in map(canvas.text, range(5)))


def test_a_line_is_broken_where_an_attempt_begins() -> None:
    canvas = Canvas(20, 5)
    columns = [Bucket(1, 1, 1) if x % 4 == 0 else None for x in range(40)]
    canvas.curve(0, columns, scale([0, 4], log=False), [17])
    row = next(row for row in map(canvas.text, range(5)) if row.strip())
    assert row[9] == " " and " " not in row[:8] + row[10:18]


async def test_several_lines_have_a_legend_in_their_colours() -> None:
    chart, history = Chart(0), filled()
    async with text_of(chart, (60, 14), snapshot_of(history)) as (pilot, text):
        assert "━ loss" not in text()
        await pilot.press("a")
        assert "━ rank 0  ━ rank 1" in text()
        strip = chart.render_line(0)
        colours = [segment.style.color for segment in strip if segment.text == "━ " and segment.style]
        assert len(set(colours)) == 2
        await pilot.press("a")
        history.metrics(50, 1, 0, {"t": 50, "step": 50, "val_loss": 60.0})
        chart.show(snapshot_of(history))
        assert "━ loss  ━ val loss" in text()


async def test_no_time_axis_begins_in_1970_before_the_start_is_known() -> None:
    """A host's metrics and telemetry may come before the first event is read."""
    chart, load, history, now = Chart(0), LoadPane(), MetricHistory(2), 1_790_000_000.0
    for second in range(100):
        history.metrics(now + second, 1, 0, {"t": now + second, "step": second, "loss": 3.0})
        history.telemetry(now + second, 0, {"t": now + second, "cpu": 50.0, "gpus": []})
    early = replace(snapshot_of(history, now=now + 100), began=None)
    async with text_of(chart, (60, 14), early) as (pilot, text):
        assert "No numbers yet" in text() and " d" not in text() and "0:00" not in text()
        await pilot.press("right", "plus", "b", "b")
        chart.show(replace(early, began=now))
        await pilot.pause()
        assert "loss  3" in text() and "0:00" in text() and "1:30" in text()
    load.room = 10
    async with text_of(load, (100, 14), early) as (pilot, text):
        assert "cpu" in text()


async def test_a_new_attempt_is_marked_from_its_beginning_on() -> None:
    chart, history = Chart(0), filled()
    history.begun.update({1: 2.0, 2: 60.0})
    async with text_of(chart, (60, 14), snapshot_of(history, now=59.0)) as (pilot, text):
        assert "attempt" not in text()
        chart.show(snapshot_of(history))
        await pilot.pause()
        assert "┊attempt 2" in text() and "attempt 1" not in text()


async def test_a_flat_chart_with_a_value_in_its_title_has_a_line() -> None:
    for height in (3, 4):
        chart = Chart(0)
        async with text_of(chart, (60, height), snapshot_of(filled())) as (_, text):
            assert "loss  1.5" in text()
            assert "No numbers" not in text()
            assert any("\u2800" < one < "\u2900" for one in text())


async def test_a_replay_chart_has_no_scale_before_its_first_value() -> None:
    chart = Chart(0)
    async with text_of(chart, (60, 12), snapshot_of(filled(), now=-1.0)) as (pilot, text):
        assert "loss" in text() and "0.5" not in text() and "┤" not in text()
        chart.show(snapshot_of(filled()))
        await pilot.pause()
        assert "┤" in text()


async def test_a_host_that_is_as_busy_as_before_has_a_level_line() -> None:
    chart, history = Chart(0), MetricHistory(1)
    for second in range(100):
        history.telemetry(second, 0, {"t": second, "cpu": 99.0 + second % 2, "gpus": []})
    async with text_of(chart, (60, 14), snapshot_of(history)) as (_, text):
        assert "100 % ┤" in text() and " 0 % ┤" in text() and "99.5" not in text()


def test_values_are_short() -> None:
    assert [plain(value) for value in (0, 1.8321, 41234, 1.2e7, 3e-5, 999999)] == [
        "0", "1.832", "41.2k", "12M", "3e-5", "1000k",
    ]  # fmt: skip


async def test_keys_change_what_is_drawn() -> None:
    chart = Chart(0)
    async with text_of(chart, (60, 14), snapshot_of(filled())) as (pilot, text):
        assert "loss  1.5" in text()
        assert "mean of 2 ranks" in text()
        for keys, shown in (("l", "log"), ("m", "smooth"), ("plus", "last 1:00"), ("a", "each of 2 ranks")):
            await pilot.press(keys)
            assert shown in text()
        await pilot.press("right_square_bracket")
        assert "GPU use  90 %" in text()


def restarted(ranks: int = 2) -> MetricHistory:
    """Steps 0 to 49 in attempt 1, then 40 to 89 in attempt 2, one a second."""
    history = MetricHistory(ranks)
    history.begun.update({1: 0.0, 2: 50.0})
    for rank in range(ranks):
        for second in range(100):
            attempt, step = (1, second) if second < 50 else (2, second - 10)
            record = {"t": second, "step": step, "loss": step + 1000.0 * rank}
            history.metrics(second + rank / 10, attempt, rank, record)
    return history


async def test_arrow_keys_move_a_cursor_that_shows_its_step_values() -> None:
    chart = Chart(0)
    async with text_of(chart, (100, 14), snapshot_of(restarted())) as (pilot, text):
        assert " at " not in text()
        await pilot.press("right")
        assert "loss  589   at 1:40, step 89" in text()
        for _ in range(8):
            await pilot.press("left")
        title = re.search(r"loss  ([\d.]+)   at 1:\d\d, step (\d+)", text())
        assert title and float(title[1]) == int(title[2]) + 500
        assert sum("│" in row[12:-2] for row in text().splitlines()) >= 5, "the cursor's line"
        await pilot.press("a")
        assert f"━ rank 0 {title[2]}  ━ rank 1 {plain(1000 + int(title[2]))}" in text()
        chart.show(snapshot_of(restarted(), now=100.25))
        await pilot.pause()
        assert title[0] in text(), "the cursor keeps its time"
        await pilot.press("escape")
        assert " at " not in text()


async def test_hovering_shows_values_and_a_click_pins_them() -> None:
    chart = Chart(0)
    async with text_of(chart, (100, 14), snapshot_of(filled())) as (pilot, text):
        left = chart.content_offset.x + LABELS + 1
        await pilot.hover(chart, offset=(left + 20, 4))
        under = re.search(r"loss  [\d.]+   at 0:\d\d, step \d+", text())
        assert under
        await pilot.hover(chart, offset=(2, 4))
        assert " at " not in text()
        await pilot.click(chart, offset=(left + 20, 4))
        await pilot.hover(chart, offset=(2, 4))
        assert under[0] in text()


async def test_an_outage_shows_no_value() -> None:
    chart, history = Chart(0), MetricHistory(1)
    for second in (*range(40), *range(80, 100)):
        history.metrics(second, 1, 0, {"t": second, "step": second, "loss": 3.0})
    async with text_of(chart, (100, 14), snapshot_of(history)) as (pilot, text):
        left = chart.content_offset.x + LABELS + 1
        await pilot.click(chart, offset=(left + (chart.size.width - LABELS - 1) * 7 // 12, 4))
        assert "loss  no value   at 1:" in text()


async def test_by_step_each_attempt_begins_at_its_own_first_step() -> None:
    chart, history = Chart(0), restarted(1)
    async with text_of(chart, (100, 14), snapshot_of(history)) as (pilot, text):
        assert "1:30" in text()
        await pilot.press("b")
        assert "by step" in text() and "┊attempt 2" in text()
        ticks = next(row.split() for row in text().splitlines() if " 20 " in row)
        assert [word for word in ticks if word.isdigit()] == ["0", "20", "40", "60", "80", "100"]
        await pilot.press("right")
        assert "loss  89   at step 89" in text()
        await pilot.press("plus")
        assert "last 50 steps" in text()
        await pilot.press("b")
        assert "by step" not in text() and "last" not in text()
    drawn = [
        [x for x, column in enumerate(piece) if column]
        for piece in StepAxis(snapshot_of(history), None, 100).pieces(history.all["loss"])
    ]
    assert [(columns[0], columns[-1]) for columns in drawn] == [(0, 49), (40, 89)]


async def test_by_step_nothing_is_drawn_before_the_first_step() -> None:
    before_any, early = MetricHistory(1), restarted(1)
    for second in range(10):
        before_any.telemetry(second, 0, {"t": second, "cpu": 50.0})
    for history, now in ((before_any, 10.0), (early, -0.5)):
        chart = Chart(0)
        async with text_of(chart, (100, 14)) as (pilot, text):
            chart.show(snapshot_of(history, now))
            await pilot.press("b")
            await pilot.click(chart, offset=(30, 4))
            await pilot.press("right", "plus", "minus")
            assert "by step" in text()
            chart.show(snapshot_of(restarted(1)))
            await pilot.pause()
            assert "┊attempt 2" in text()


def test_a_logarithmic_axis_has_round_labels() -> None:
    def labels(values: list[float], rows: int) -> list[float]:
        return list(scale(values, log=True).ticks(rows).values())

    assert labels([2.3, 31.0], 15) == [2, 5, 10, 20, 50]
    assert labels([3e-4, 0.7], 9) == [1e-3, 1e-2, 1e-1, 1]
    assert labels([3e-4, 0.7], 25) == [2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1]
    assert labels([1.9, 2.8], 15) == [1.75, 2, 2.25, 2.5, 2.75, 3]
    assert labels([1e-9, 1e9], 9)[:2] == [1e-9, 1e-5]


@given(st.floats(0, 1e9), st.floats(1, 1e9), st.integers(1, 12))
def test_steps_are_round_and_fit(begin: float, length: float, most: int) -> None:
    found = step_ticks(begin, begin + length, most)
    assert len(found) <= most + 1
    assert all(tick == round(tick) for tick in found)
