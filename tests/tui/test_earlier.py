"""Of a long log a late viewer has the end at first, and what is before it when it asks; clocks known late."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.app import App

from disttui.runner.runs.follow import LogRead
from disttui.runner.runs.following import Refresh, Update
from disttui.runner.runs.state import begin
from disttui.tui.log import LogView
from disttui.tui.run.feed import LiveFeed, LogsCut, RunChanged
from tests.tui.demo_log import DemoLog, Writer
from tests.tui.live_kit import live, watched
from tests.tui.log_kit import log_view
from tests.tui.snap import press, screen_text, until
from tests.tui.synthetic_run import BEGIN, write
from tests.tui.test_dashboard import opened

EARLY = 60_000
"""Lines of each rank: 1.5 MB, of which a late viewer is sent 256 KiB at first."""


@pytest.mark.torch
async def test_earlier_lines_come_at_the_first_and_in_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fetched = threading.Event(), LiveFeed.earlier

    def earlier(*arguments: Any) -> None:
        assert slow.wait(60)
        fetched(*arguments)

    monkeypatch.setattr(LiveFeed, "earlier", earlier)
    with live(tmp_path / "home", early=EARLY) as run:
        async with watched(run, run.elsewhere("late")) as (pilot, app):
            await until(pilot, lambda: app.screen.query(LogView) and "older lines on the host" in screen_text(app))
            view = app.screen.query_one(LogView)
            await pilot.press("slash", *"counts", "enter")
            await until(pilot, lambda: re.search("/ “counts” [0-9]+ of", screen_text(app)))
            await press(pilot, "0", "g", shows=("rank 0", "line 1 of"))
            await until(pilot, lambda: "loading earlier lines …" in screen_text(app))
            await until(pilot, lambda: re.search("▌.*\n rank 0 early line ", screen_text(app)))
            below = re.findall("▌.*\n rank 0 early line ([0-9]+)", screen_text(app))
            assert len(view.lines.lines) < EARLY / 2
            slow.set()
            await until(pilot, lambda: len(view.lines.lines) > EARLY and "earlier lines" not in screen_text(app))
            assert "older lines" not in screen_text(app)
            shown = screen_text(app)
            assert re.findall("▌.*\n rank 0 early line ([0-9]+)", shown) == below, shown
            await press(pilot, "g", shows="▌rank 0 early line 0 ")
            await press(pilot, "k", "G", shows="● FOLLOW")
        mirrored = tmp_path / "home" / "late" / "disttui" / "runs" / run.run / "0" / "attempt-1" / "rank-0.log"
        copy = mirrored.read_bytes()
        assert len(copy) > EARLY * 20 and copy == run.log(0).read_bytes()[: len(copy)]
        async with watched(run, run.elsewhere("later")) as (pilot, app):
            await until(pilot, lambda: app.screen.query(LogView) and "older lines on the host" in screen_text(app))
            await press(pilot, "slash", *"rank 1 early line 77", "enter", shows="1 of")
            assert "rank 1 early line 77" in screen_text(app)


def _held_from(writer: Writer, rank: int, start: int) -> bytes:
    """Let the mirror hold a log from an offset on only; returns what it lacks."""
    path = writer.path(rank)
    whole = path.read_bytes()
    path.write_bytes(b"\0" * start + whole[start:])
    kept = writer.mirror / str(rank // 2) / ".mirror.json"
    held = json.loads(kept.read_text()) if kept.exists() else {}
    kept.write_text(json.dumps({**held, f"attempt-1/rank-{rank}.log": [0, start]}))
    return whole[:start]


def _fill(writer: Writer, rank: int, lacked: bytes) -> None:
    with writer.path(rank).open("r+b") as log:
        log.write(lacked)
    (writer.mirror / str(rank // 2) / ".mirror.json").unlink()


async def test_range_filter_and_folding_stay_where_they_are(tmp_path: Path) -> None:
    """Lines of two ranks, earlier ones among the first shown: whatever was on the screen is on it, in its place."""
    writer = Writer(tmp_path)
    writer.steps(0, 200)
    lacked = {rank: _held_from(writer, rank, writer.path(rank).stat().st_size // 2) for rank in (0, 3)}
    async with log_view(writer) as (app, pilot):
        view = app.log_view
        await pilot.press("ampersand", *"step", "enter", "x")
        await until(pilot, lambda: "fold" in screen_text(app))
        await until(pilot, lambda: _shows_all(view))
        await press(pilot, "g", *"jjjjj", "v", *"jjj", then=lambda: app.older)
        assert "loading earlier lines …" in screen_text(app)
        before, lines = screen_text(app), len(view.lines.lines)
        for rank, data in lacked.items():
            _fill(writer, rank, data)
        view.read_anew()
        await until(pilot, lambda: len(view.lines.lines) > lines)
        await until(pilot, lambda: "loading" not in screen_text(app) and _shows_all(view))
        assert "fold" in screen_text(app) and "& “step”" in screen_text(app)
        was, now = _marked(before), _marked(screen_text(app))
        assert was[-1] == now[-1], "the cursor, in its row of the screen"
        assert was[0][1] == now[0][1], "the other end of the range"
        assert {line for _, line in was} < {line for _, line in now}, "earlier lines are among them"


def _shows_all(view: LogView) -> bool:
    """Whether every line of its last choice is found."""
    return view.lines.progress.complete and view.lines.progress.work is view.reading.work


def _marked(shown: str) -> list[tuple[int, str]]:
    """Screen row and text of the lines that are chosen, without the bar at the right, which comes and goes."""
    return [(y, line[1:].partition(" tok/s")[0]) for y, line in enumerate(shown.splitlines()) if line[0] in "▌┃"]


async def test_refused_lines_are_requested_again_at_the_first_line(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.steps(0, 200)
    _held_from(writer, 0, 4000)
    async with log_view(writer) as (app, pilot):
        await press(pilot, "slash", *"nowhere", "enter", then=lambda: app.older == [(4000, 0)])
        app.log_view.older_refused()
        await until(pilot, lambda: "“nowhere” not found" in screen_text(app))
        await pilot.press("g", "j", "k")
        assert len(app.older) == 1, "it has just been refused"
        await press(pilot, "G", "g", then=lambda: len(app.older) == 2)


async def test_lines_are_in_the_order_of_the_leaders_clock(tmp_path: Path) -> None:
    """The clock of the second host is 100 s ahead; that is known only when its lines have been shown."""
    writer = Writer(tmp_path)
    for step in range(0, 40, 2):
        writer.write({0: [f"line {step:02}"]})
        writer.now += 100
        writer.write({2: [f"line {step + 1:02}"]})
        writer.now -= 100
    async with log_view(writer) as (app, pilot):
        view = app.log_view
        await until(pilot, lambda: len(_numbers(app)) > 15)
        assert not _in_order(app), "by their own clocks"
        assert not view.sources.set_offsets({1: 0.01}), "too little to read anything anew for"
        assert view.sources.set_offsets({1: 100.0})
        view.read_anew()
        await until(pilot, lambda: _in_order(app))


async def test_a_dashboard_hands_the_clocks_to_its_log(tmp_path: Path) -> None:
    """Live and in a replay: the leader's `clock` event says how far the other host's clock is ahead."""
    mirror = write(tmp_path / "disttui" / "runs" / "run-1", hosts=2, per_host=1, steps=40, log_lines=0)
    with (mirror / "0" / "events.jsonl").open("a") as events:
        events.write(json.dumps({"t": BEGIN + 1, "e": "clock", "node": 1, "offset": 100.0}) + "\n")
    for node in (0, 1):
        folder = mirror / str(node) / "attempt-1"
        (folder / f"rank-{node}.log").write_text("".join(f"line {step:02}\n" for step in range(node, 40, 2)))
        notes = [{"t": BEGIN + 12 + step / 2 + 100 * node, "sizes": {str(node): 8 * (step + 1)}} for step in range(20)]
        (folder / "growth.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    for kind in ("run", "replay"):
        async with opened(kind, "run-1", tmp_path) as (pilot, _):
            await until(pilot, lambda: len(_numbers(pilot.app)) > 10)
            await until(pilot, lambda: _in_order(pilot.app))


def _numbers(app: App[None]) -> list[int]:
    return [int(number) for number in re.findall("│ line ([0-9]+)", screen_text(app))]


def _in_order(app: App[None]) -> bool:
    numbers = _numbers(app)
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_log_that_is_behind_says_so_and_is_skipped_by_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[LogView.SkipRequested] = []
    monkeypatch.setattr(DemoLog, "on_log_view_skip_requested", lambda self, event: asked.append(event), raising=False)
    writer = Writer(tmp_path)
    writer.write({0: ["a line"]})
    async with log_view(writer) as (app, pilot):
        await pilot.press("S")
        assert not asked, "nothing is behind"
        app.log_view.show_lag("log 23 s behind, 310.0MB pending")
        await until(pilot, lambda: "log 23 s behind, 310.0MB pending, S skips" in screen_text(app))
        await press(pilot, "S", then=lambda: asked)
        app.log_view.show_lag("")
        await until(pilot, lambda: "behind" not in screen_text(app))


def test_logs_are_read_again_where_a_skip_has_cut_them(tmp_path: Path) -> None:
    posted: list[Any] = []

    class Follows:
        mirror = tmp_path
        state = begin("r-1", ("n1",), (1,))
        skipped = 0

        def skip(self) -> None:
            self.skipped += 1

        def __iter__(self) -> Iterator[Update]:
            yield LogRead(0, "attempt-1/rank-0.log", b"", restart=True)
            yield Refresh(310_000_000, 23.0)
            assert not any(isinstance(one, LogsCut) for one in posted), "a file that begins is not cut"
            feed.skip()
            yield LogRead(0, "attempt-1/rank-0.log", b"", restart=True)
            yield Refresh()

    follows = Follows()
    feed = LiveFeed(SimpleNamespace(post_message=posted.append), follows)  # type: ignore[arg-type]
    feed.run()
    assert follows.skipped == 1
    assert [type(one) for one in posted] == [RunChanged, LogsCut, RunChanged]
    lags = [one.snapshot.lag for one in posted if isinstance(one, RunChanged)]
    assert lags == ["log 23 s behind, 310.0MB pending", ""]
