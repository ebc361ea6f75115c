"""The dashboard and the replay as a person uses them."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from disttui.runner.protocol.slurm import Queued
from disttui.runner.runs.condition import run_word
from disttui.runner.runs.contents import read_content
from disttui.runner.runs.follow import LinkNews, QueueNews
from disttui.runner.runs.following import Refresh, Update
from disttui.runner.runs.state import begin, link, queue_up
from disttui.tui.app import DisttuiApp
from disttui.tui.charts.chart import LABELS, Chart, Sought
from disttui.tui.dashboard.hosts import HostsPane
from disttui.tui.dashboard.rank_grid import RankGrid
from disttui.tui.dashboard.run_screen import TYPING, RunScreen
from disttui.tui.dashboard.screen import DashboardScreen
from disttui.tui.dashboard.story import StoryPane, facts, story
from disttui.tui.log import LogView
from disttui.tui.log.view import TAIL
from disttui.tui.router import First, Opener
from disttui.tui.run.feed import LeaderClock, LiveFeed, RunChanged, Snapshot, SnapshotBuilder
from tests.tui.snap import SIZES, assert_snapshots, press, screen_text, until
from tests.tui.synthetic_run import BEGIN, fail, write
from tests.tui.widget_kit import burst
from tests.unit.state_kit import fold

HOSTILE = "\x1b]0;owned\x07\x9b2J[bold red]evil[/]\u202e\n\r"


@pytest.fixture(autouse=True)
def _times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@asynccontextmanager
async def opened(
    kind: Opener, run: str, home: Path, size: tuple[int, int] = (160, 48), *, read_only: bool = False
) -> AsyncIterator[tuple[Pilot[None], RunScreen]]:
    """Open a run in the app and wait until it is shown, its log too."""
    environ = {"XDG_DATA_HOME": str(home), "XDG_CACHE_HOME": str(home), "XDG_CONFIG_HOME": str(home), "HOME": str(home)}
    app = DisttuiApp(environ, first=First(kind, (run,)), read_only=read_only)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: getattr(app.screen, "snapshot", None) is not None)
        await until(pilot, lambda: "lines" in screen_text(app) or size[1] < 20)
        assert isinstance(app.screen, RunScreen)
        yield pilot, app.screen


def shown(pilot: Pilot[None]) -> str:
    return screen_text(pilot.app)


@pytest.mark.parametrize("sizes", [(*SIZES[:3], (200, 50), (79, 24)), SIZES[3:]], ids=["all panes", "few panes"])
async def test_looks(sizes: Sequence[tuple[int, int]], tmp_path: Path) -> None:
    """Begun where it has room and where it has little: what has the focus at the beginning differs."""
    write(tmp_path / "run-1", hosts=2, per_host=8, steps=60)
    async with opened("replay", str(tmp_path / "run-1"), tmp_path, sizes[0]) as (pilot, _):
        await press(pilot, "comma", shows=("● running", "320 lines"))
        await assert_snapshots(pilot, "dashboard-{}", sizes)


async def test_the_cursor_goes_through_the_life_of_the_example(tmp_path: Path) -> None:
    async with opened("replay", "example", tmp_path) as (pilot, _screen):
        await until(pilot, lambda: "✓ finished" in shown(pilot))
        await pilot.press("home")
        begun = ("waiting for the hosts", "starting the ranks", "no step yet")
        await until(pilot, lambda: any(words in shown(pilot) for words in begun))
        for _ in range(5):
            await pilot.press("e")
        await until(pilot, lambda: "rank 3 ended with SIGKILL" in shown(pilot))
        assert "attempt 1 of 3" in shown(pilot)
        await press(pilot, "end", shows="attempt 2 of 3")


async def test_the_last_event_is_the_end_of_the_run(tmp_path: Path) -> None:
    async with opened("replay", "example", tmp_path) as (pilot, _screen):
        await until(pilot, lambda: "✓ finished" in shown(pilot))
        await press(pilot, "E", shows="● running  1:56")
        await press(pilot, "e", then=lambda: re.search(r" 3:09 *\n", shown(pilot)))
        await until(pilot, lambda: "✓ finished  3:09" in shown(pilot))
        assert "the run has finished" in shown(pilot)


async def test_playing_moves_the_cursor_and_stops_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paused = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + paused)
    monkeypatch.setattr("disttui.tui.replay.player.time", clock)
    async with opened("replay", "example", tmp_path) as (pilot, _screen):
        await press(pilot, "home", "x", "x", "x", "x", "x")
        paused = 4  # at this speed the whole run takes three seconds, none of which have passed in the pause
        await press(pilot, "space", shows=("▶ playing", "space pause"))
        await until(pilot, lambda: "‖ paused" in shown(pilot) and "✓ finished" in shown(pilot))
        await until(pilot, lambda: "space play" in shown(pilot))


async def test_a_space_in_what_is_looked_for_plays_nothing(tmp_path: Path) -> None:
    async with opened("replay", "example", tmp_path) as (pilot, screen):
        await press(pilot, "slash", "s", "t", "e", "p", "space", "2", "enter", shows="/ “step 2” ")
        playback = screen.snapshot.playback if screen.snapshot else None
        assert playback is not None and not playback.playing


async def test_digits_choose_a_rank_its_log_and_its_line(tmp_path: Path) -> None:
    write(tmp_path / "run-1", hosts=4, per_host=8, steps=20)
    async with opened("replay", str(tmp_path / "run-1"), tmp_path) as (pilot, screen):
        burst(pilot.app, "1", "7")
        await until(pilot, lambda: re.search(r"rank 17 ✓ finished \d+ ms on synthetic002", shown(pilot)))
        assert "Log · rank 17" in shown(pilot)
        await until(pilot, lambda: "20 lines" in shown(pilot))
        assert {chart.rank for chart in screen.query(Chart)} == {17}
        await pilot.press("escape")
        assert screen.query_one(RankGrid).cursor is None
        await until(pilot, lambda: "640 lines" in shown(pilot))
        # It counts when they were typed, not when the screen, which may be busy, comes to them.
        began = events.Key("1", "1").time
        for key, later, rank in (
            ("1", 10.0, 1),
            ("8", 10.0 + 0.9 * TYPING, 18),
            ("2", 20.0, 2),
            ("3", 20.0 + 1.1 * TYPING, 3),
        ):
            typed = events.Key(key, key)
            typed.time = began + later
            pilot.app.post_message(typed)
            await until(pilot, lambda: screen.query_one(RankGrid).cursor == rank)  # noqa: B023 (called here)


async def test_the_title_of_the_log_names_whose_lines_it_has(tmp_path: Path) -> None:
    async with opened("replay", "example", tmp_path) as (pilot, screen):
        screen.query_one(HostsPane).focus()
        await press(pilot, "enter", shows=("Log · node1", "ranks 0,1"))
        await pilot.press("a")  # a key of the log, which has the focus now
        await until(pilot, lambda: "Log · " not in shown(pilot) and "all ranks  63 lines" in shown(pilot))
        assert screen.query_one(RankGrid).cursor is None
        await press(pilot, "3", shows=("Log · rank 3", "rank 3  2 lines"))
        assert screen.query_one(RankGrid).cursor == 3


async def test_a_pane_fills_the_screen_and_gives_it_back(tmp_path: Path) -> None:
    async with opened("replay", "example", tmp_path) as (pilot, _screen):
        await until(pilot, lambda: "│ done:" in shown(pilot))
        before = shown(pilot)
        await pilot.press("tab", "z")
        assert "Hosts" not in shown(pilot) and "loss" in shown(pilot)
        await pilot.press("tab", "tab")
        assert "step time" in shown(pilot)
        await pilot.press("shift+tab", "shift+tab", "z", "shift+tab")
        assert [line[:60] for line in shown(pilot).split("\n")] == [line[:60] for line in before.split("\n")]


async def test_another_metric_can_be_picked(tmp_path: Path) -> None:
    async with opened("replay", "example", tmp_path) as (pilot, screen):
        screen.go_to("chart0")
        await press(pilot, "c", shows="validation loss")
        await press(pilot, "j", "j", "enter", then=lambda: "step time" in str(screen.query_one("#chart0").border_title))


async def test_a_run_that_has_ended_is_reported_with_its_cause(tmp_path: Path) -> None:
    mirror = write(tmp_path / "disttui" / "runs" / "run-1", hosts=2, per_host=2, steps=20)
    fail(mirror, 3, node=1)
    async with opened("run", "run-1", tmp_path) as (pilot, _):
        await until(pilot, lambda: "✗ failed" in shown(pilot) and "rank 3 on synthetic001 raised" in shown(pilot))
        assert "rank 3 on synthetic001 raised ValueError" in shown(pilot)
        assert "ValueError: no such token" in shown(pilot)


def _failed(folder: Path, hosts: int = 2) -> None:
    """A run whose rank 3 has raised, as its mirror."""
    mirror = write(folder / "disttui" / "runs" / "run-1", hosts=hosts, per_host=4, steps=40)
    frames = "".join(f'  File "/home/ada/train.py", line {line}, in step\n    call()\n' for line in range(8))
    fail(mirror, 3, frames)


def _panes(pilot: Pilot[None]) -> list[str]:
    """The first word of each pane's title, from the top, and how many rows stand under it."""
    found: list[list[Any]] = []
    for row in shown(pilot).split("\n")[2:-2]:
        if row.startswith("─"):  # and nothing else until the pane has its title
            found.append([(row.strip("─").split() or [""])[0], 0])
        elif found and row.strip():
            found[-1][1] += 1
    return [f"{name} {rows}" for name, rows in found]


async def test_a_narrow_terminal_stacks_loss_hosts_and_log(tmp_path: Path) -> None:
    write(tmp_path / "disttui" / "runs" / "run-1", hosts=2, per_host=4, steps=40)
    async with opened("run", "run-1", tmp_path, (79, 24)) as (pilot, _):
        await until(pilot, lambda: [pane.split()[0] for pane in _panes(pilot)] == ["loss", "Hosts", "Log"])
        await until(pilot, lambda: "Hosts 3" in _panes(pilot) and "step 19/40" in shown(pilot))
        assert "100 %" in shown(pilot)
        await pilot.press("shift+tab")
        # Hosts and log stay, and the ranks take no more rows than they need.
        await until(pilot, lambda: _panes(pilot)[:2] == ["Hosts 3", "Ranks 2"] and "step 19/40" in shown(pilot))
        assert int(_panes(pilot)[2].removeprefix("Log ")) > 9
        await pilot.resize_terminal(40, 12)
        await until(pilot, lambda: [pane.split()[0] for pane in _panes(pilot)] == ["Ranks", "Log"])
        await press(pilot, "tab", then=lambda: [pane.split()[0] for pane in _panes(pilot)] == ["loss", "Log"])
        await pilot.resize_terminal(160, 48)
        await until(pilot, lambda: "─Hosts" in shown(pilot).split("\n")[2] and "─loss" in shown(pilot).split("\n")[2])


async def test_charts_are_stacked_where_two_do_not_fit_side_by_side(tmp_path: Path) -> None:
    write(tmp_path / "disttui" / "runs" / "run-1", hosts=1, per_host=2, steps=20)
    async with opened("run", "run-1", tmp_path, (120, 40)) as (pilot, screen):
        for height, count, most in ((40, 2, 6), (40, 2, 2), (72, 3, 6), (30, 1, 6)):
            await pilot.resize_terminal(120, height)
            screen.arrangement.tell(story=False, charts=most)
            screen.arrangement.arrange()
            await pilot.pause()
            regions = [chart.region for chart in screen.query(Chart) if chart.display]
            assert [chart.id for chart in screen.query(Chart) if chart.display] == [f"chart{n}" for n in range(count)]
            assert len({region.x for region in regions}) == len({region.width for region in regions}) == 1
            assert max(region.height for region in regions) - min(region.height for region in regions) <= 1


@pytest.mark.parametrize("height", [24, 50])
async def test_hosts_stay_whole_between_story_and_log_when_narrow(height: int, tmp_path: Path) -> None:
    _failed(tmp_path, hosts=6)
    mirror = str(tmp_path / "disttui" / "runs" / "run-1")
    async with opened("replay", mirror, tmp_path, (79, height)) as (pilot, screen):
        await pilot.press("end")
        pane, upper = screen.query_one("#hosts"), screen.query_one("#upper")
        await until(pilot, lambda: "What happened" in shown(pilot) and "ValueError" in shown(pilot))
        await until(pilot, lambda: upper.region.contains_region(pane.region))


async def test_the_headline_of_a_failure_is_not_cut_without_a_mark(tmp_path: Path) -> None:
    write(tmp_path / "run-1", hosts=2, per_host=1, steps=5, ended=False, names="node{}")
    cause = {"node": 1, "rank": None, "kind": "host lost", "last": BEGIN, "at": BEGIN + 20}
    end = {"t": BEGIN + 20, "state": "failed", "code": 1, "cause": cause, "attempt": 1, "left": []}
    (tmp_path / "run-1" / "0" / "exit.json").write_text(json.dumps(end))
    async with opened("replay", str(tmp_path / "run-1"), tmp_path, (40, 12)) as (pilot, screen):
        await press(pilot, "end", shows="─What happened")
        pane = screen.query_one(StoryPane)
        await until(pilot, lambda: pane.size.height == 3 and pane.render_line(2).text.rstrip().endswith("…"))
        assert "last heartbeat 2026" in " ".join(shown(pilot).split())


async def test_the_footer_of_a_chart_has_the_keys_of_the_run_too(tmp_path: Path) -> None:
    write(tmp_path / "run-1", hosts=2, per_host=1, steps=5)
    async with opened("replay", str(tmp_path / "run-1"), tmp_path, (79, 24)) as (pilot, screen):
        await until(pilot, lambda: screen.focused is screen.query_one("#chart0"))
        await until(pilot, lambda: "c pick  tab pane" in shown(pilot).splitlines()[-1])
        await pilot.resize_terminal(200, 50)
        await until(pilot, lambda: "a per rank" in shown(pilot).splitlines()[-1])


@pytest.mark.parametrize("size", [(80, 24), (79, 24), (40, 12)], ids=lambda size: "{}x{}".format(*size))
async def test_a_failed_run_shows_more_than_titles(size: tuple[int, int], tmp_path: Path) -> None:
    _failed(tmp_path)
    async with opened("run", "run-1", tmp_path, size) as (pilot, screen):
        await until(pilot, lambda: "─What happened" in shown(pilot))
        await until(pilot, lambda: size[1] < 20 or "step 19/40" in shown(pilot))
        assert "ValueError: no such token" in shown(pilot)

        def heights() -> dict[str | None, int]:
            return {pane.id: pane.region.height for pane in screen.query(".pane") if pane.region}

        await until(pilot, lambda: all(high >= (2 if name == "ranks" else 4) for name, high in heights().items()))
        assert len(heights()) >= (2 if size[1] < 20 else 4)
        if size[1] > 20:
            await until(pilot, lambda: "synthetic001 ■ interrupted" in shown(pilot))  # hosts are no bare title


def _out_of_reach(folder: Path) -> None:
    """A run that is running as far as is known here, as its mirror."""
    mirror = write(folder / "disttui" / "runs" / "run-1", hosts=2, per_host=2, steps=20, ended=False)
    run = json.loads((mirror / "run.json").read_text())
    for host in run["hosts"]:
        host.update(host="127.0.0.1", port=1, user="nobody")
    (mirror / "run.json").write_text(json.dumps(run))


async def test_hosts_out_of_reach_leave_what_is_known(tmp_path: Path) -> None:
    _out_of_reach(tmp_path)
    async with opened("run", "run-1", tmp_path) as (pilot, screen):
        await until(pilot, lambda: "◇ not seen" in shown(pilot))
        await until(pilot, lambda: "unreachable since" in shown(pilot) and "its state is unknown" in shown(pilot))
        assert "step 20 / 20" in shown(pilot)
        assert "s stop" in shown(pilot) and screen.check_action("stop", ())


async def test_run_time_does_not_fall_back_to_the_local_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaderClock, "now", lambda _: time.time() + 3600)
    _out_of_reach(tmp_path)
    async with opened("run", "run-1", tmp_path) as (pilot, screen):
        await until(pilot, lambda: screen.snapshot and screen.snapshot.now > time.time() + 3000)
        assert isinstance(screen, DashboardScreen)
        screen._tick()
        assert screen.snapshot is not None and screen.snapshot.now > time.time() + 3000


async def test_viewer_that_cannot_write_shows_no_state(tmp_path: Path) -> None:
    """On a full disk a run was shown as running for ever, and `s` sent no stop."""
    _out_of_reach(tmp_path)
    async with opened("run", "run-1", tmp_path) as (pilot, screen):
        assert isinstance(screen, DashboardScreen) and screen._feed is not None
        news = LinkNews(0, "failed", "rank-0.log: No space left on device\n  → Free space, and attach again.")
        screen._feed._following._news.put(news)
        await until(pilot, lambda: not re.search(r"\bs stop\b", shown(pilot)))
        assert shown(pilot).count("No space left on device") == 2, "of both hosts"
        assert "◇ not seen" in shown(pilot) and screen.check_action("stop", ()) is False


async def test_read_only_has_no_stop(tmp_path: Path) -> None:
    _out_of_reach(tmp_path)
    async with opened("run", "run-1", tmp_path, read_only=True) as (pilot, screen):
        await until(pilot, lambda: "◇ not seen" in shown(pilot))
        assert not re.search(r"\bs stop\b", shown(pilot))
        assert "read-only" in shown(pilot).splitlines()[0]
        assert screen.check_action("stop", ()) is False


async def test_an_unknown_run_is_one_clear_error(tmp_path: Path) -> None:
    app = DisttuiApp({"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}, first=First("run", ("nosuch",)))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: any("no run 'nosuch'" in seen.message for seen in app._notifications))
        assert any("→ List runs: disttui ps. If" in seen.message for seen in app._notifications)


async def test_hostile_bytes_from_a_host_reach_no_strip(tmp_path: Path) -> None:
    mirror = write(tmp_path / "run-1", hosts=2, per_host=2, steps=10, names=HOSTILE + "{}")
    evil: list[dict[str, Any]] = [
        {"e": "note", "level": "error", "text": HOSTILE}, {"e": "alarm", "kind": HOSTILE, "text": HOSTILE, "value": 1},
        {"e": "error", "attempt": 1, "rank": 1, "type": HOSTILE, "message": HOSTILE, "traceback": HOSTILE, "at": 1},
        {"e": "straggler", "attempt": 1, "rank": 1, "median": 1, "others": 2, "shows": [HOSTILE]},
        {"e": "stall", "attempt": 1, "since": 1, "pace": 1, "silent": {HOSTILE: 3}},
        {"e": "attempt", "attempt": 2, "master": HOSTILE, "port": HOSTILE, "world_size": 4},
    ]  # fmt: skip
    with (mirror / "0" / "events.jsonl").open("a") as events:
        for event in evil:
            events.write(json.dumps({"t": BEGIN + 20, **event}) + "\n")
    metric = {"t": BEGIN + 19, "step": 9, "loss": 1.0, HOSTILE: 5.0}
    with (mirror / "0" / "attempt-1" / "rank-0.metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps(metric) + "\n")
    end: dict[str, Any] = {"t": BEGIN + 25, "state": "failed", "code": 1, "attempt": 1, "left": []}
    end["cause"] = {"node": 0, "rank": 1, "kind": "exception", "type": HOSTILE, "message": HOSTILE}
    (mirror / "0" / "exit.json").write_text(json.dumps(end))
    spec = json.loads((mirror / "0" / "spec.json").read_text())
    (mirror / "0" / "spec.json").write_text(json.dumps({**spec, "backend": HOSTILE}))
    async with opened("replay", str(mirror), tmp_path) as (pilot, screen):
        for keys in (("1",), ("e",), ("E", "E"), ("end",), ("z",), *[("tab",)] * 10, ("z",)):
            await press(pilot, *keys)
            assert not [char for char in shown(pilot) if char not in "\n\t" and not char.isprintable()]
            assert "owned" not in shown(pilot)
        assert "[bold red]evil[/]" in shown(pilot)
        screen.go_to("chart0")
        screen.query_one("#chart0", Chart).action_pick()
        await until(pilot, lambda: "validation" in shown(pilot) or "[bold red]evil[/]" in shown(pilot))
        assert "\x1b" not in shown(pilot)


async def test_the_log_is_at_the_cursor(tmp_path: Path) -> None:
    async with opened("replay", "example", tmp_path) as (pilot, _):
        await until(pilot, lambda: "validation loss 1.687" in shown(pilot))
        await press(pilot, "E", "E", "E", "E", "comma", shows="attempt 1, latest 2")
        await press(pilot, "comma", "comma", shows=("step 2", "● REPLAY"))
        assert "step 400/400" not in shown(pilot)
        await press(pilot, "space", shows="▶ playing")
        assert "● REPLAY" in shown(pilot) and "PAUSED" not in shown(pilot), "the log follows the cursor"


async def test_a_click_in_a_replays_chart_puts_the_cursor_there(tmp_path: Path) -> None:
    async with opened("replay", "example", tmp_path) as (pilot, screen):
        chart = screen.query(Chart).first()
        axis = chart.content_offset.x + LABELS + 1
        await pilot.click(chart, offset=(axis + (chart.size.width - LABELS - 1) // 2, 3))
        await until(pilot, lambda: screen.snapshot and screen.snapshot.state.result is None)
        assert screen.snapshot and screen.snapshot.playback
        play = screen.snapshot.playback
        assert 0.4 < (screen.snapshot.now - play.begin) / (play.end - play.begin) < 0.6
        await pilot.click(chart, offset=(3, 3))
        await pilot.pause()
        assert 0.4 < (screen.snapshot.now - play.begin) / (play.end - play.begin) < 0.6


async def test_newest_event_is_visible_below_many_hosts_and_ranks(tmp_path: Path) -> None:
    write(tmp_path / "run-1", hosts=12, per_host=4, steps=20)
    async with opened("replay", str(tmp_path / "run-1"), tmp_path, (80, 24)) as (pilot, screen):
        await press(pilot, "comma", shows="attempt 1 is training")
        events = screen.query_one("#events")
        assert events.region.bottom <= screen.query_one("#left").region.bottom


async def test_before_its_first_attempt_a_replay_counts_no_lines(tmp_path: Path) -> None:
    async with opened("replay", "example", tmp_path, (80, 24)) as (pilot, _):
        await until(pilot, lambda: "validation loss 1.687" in shown(pilot) and "✓ finished" in shown(pilot))
        await press(pilot, "home", shows=("printed nothing yet", " 0 lines  attempt 1, latest 2"))
        assert "attempt 0" not in shown(pilot)


async def test_the_footer_under_a_prompt_has_no_key_that_only_types(tmp_path: Path) -> None:
    write(tmp_path / "run-1", hosts=1, per_host=2, steps=10)
    async with opened("replay", str(tmp_path / "run-1"), tmp_path, (120, 35)) as (pilot, _):
        for key, offered, others in (("slash", "^t case", "^n not"), ("ampersand", "^n not", "f follow")):
            await pilot.press(key)
            await until(pilot, lambda offered=offered: offered in shown(pilot))  # type: ignore[misc]
            footer = shown(pilot).splitlines()[-1]
            assert "/ find" not in footer and others not in footer
            await press(pilot, "escape", shows="f follow")
        await press(pilot, "t", shows="from the start")
        await until(pilot, lambda: "esc close" in shown(pilot) and "^r regex" not in shown(pilot))


async def test_header_and_chart_say_the_same_loss(tmp_path: Path) -> None:
    """Ranks differ in it: both say the mean."""
    write(tmp_path / "run-1", hosts=2, per_host=8, steps=60)
    async with opened("replay", str(tmp_path / "run-1"), tmp_path) as (pilot, screen):
        for _ in range(3):
            before = screen.snapshot
            await pilot.press("comma")
            await until(pilot, lambda before=before: screen.snapshot is not before)  # type: ignore[misc]
            snapshot, chart = screen.snapshot, screen.query(Chart).first()
            assert snapshot is not None
            mean = snapshot.history.all["loss"].at(snapshot.now)
            said = f"{mean:.4g}"
            await until(pilot, lambda said=said: f"· mean loss {said}" in shown(pilot).partition("\n")[0])  # type: ignore[misc]
            await until(pilot, lambda said=said, chart=chart: f"loss  {said} " in f"{chart.border_title} ")  # type: ignore[misc]


async def test_a_replays_log_has_no_line_later_than_its_cursor(tmp_path: Path) -> None:
    async with opened("replay", "example", tmp_path) as (pilot, screen):
        await until(pilot, lambda: "validation loss 1.687" in shown(pilot) and "✓ finished" in shown(pilot))
        assert screen.snapshot and screen.snapshot.playback
        begin, view = screen.snapshot.playback.begin, screen.log_view
        assert view is not None

        def at(attempt: int, now: float) -> bool:
            log = view.lines.progress.work.log
            return log.attempt == attempt and view.lines.contents.until == now and 0 < view.lines.contents.upto < TAIL

        for attempt, after in ((2, 170.0), (1, 60.0)):
            screen.post_message(Sought(begin + after))
            await until(pilot, partial(at, attempt, begin + after))
            view.lines.action_follow()
            await until(pilot, view.lines.shown_places)
            log, places = view.lines.progress.work.log, view.lines.shown_places()
            assert max(log.time_of(log.order.items[place]) for place in places) <= begin + after
            assert len(log.order) > max(places) + 1
        screen.post_message(Sought(begin))
        await until(pilot, lambda: "printed nothing yet" in shown(pilot))
        await press(pilot, "end", shows="step 400/400")


async def test_a_log_opened_after_a_seek_ends_at_the_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved, plain = asyncio.Event(), LogView.on_mount

    async def late(view: LogView) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(moved.wait(), 30)
        plain(view)

    monkeypatch.setattr(LogView, "on_mount", late)
    app = DisttuiApp({"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}, first=First("replay", ("example",)))
    async with app.run_test(size=(160, 48)) as pilot:
        while getattr(app.screen, "snapshot", None) is None:  # the pilot would wait for the log
            await asyncio.sleep(0.02)
        screen = app.screen
        assert isinstance(screen, RunScreen) and screen.snapshot and screen.snapshot.playback
        screen.post_message(Sought(screen.snapshot.playback.begin))
        while screen.snapshot.state.attempt:
            await asyncio.sleep(0.02)
        moved.set()
        await until(pilot, lambda: screen.log_view and screen.log_view.lines.progress.total)
        await until(pilot, lambda: "printed nothing yet" in shown(pilot), 10)


def test_a_failed_attempt_is_an_event_with_its_cause(tmp_path: Path) -> None:
    """Reported by the leader alone, with the rank to blame, so that enter leads to its log."""
    state = begin("run-1", ("ada", "grace"), (1, 1))
    cause = {"node": 1, "rank": 1, "kind": "exception", "type": "ValueError", "message": f"bad {HOSTILE}", "at": BEGIN}
    event = {"t": BEGIN, "e": "failed", "attempt": 1, "cause": cause}
    taker = SnapshotBuilder(state, tmp_path)
    for node in (0, 1):
        taker.take(fold(state, node, "events.jsonl", event), node, read_content("events.jsonl", event))
    (seen,) = taker.snapshot.moments
    assert seen.text.startswith("attempt 1 failed: rank 1 on grace raised ValueError: bad ")
    assert (seen.look, seen.rank) == ("failed", 1)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", seen.text)


async def test_a_queued_run_says_what_it_waits_for(tmp_path: Path) -> None:
    mirror = write(tmp_path / "run-1", hosts=2, per_host=1, steps=0, ended=False)
    for node in "01":
        shutil.rmtree(mirror / node / "attempt-1")
        for name in ("events.jsonl", "telemetry.jsonl"):
            (mirror / node / name).write_text("")
    note = {"t": BEGIN + 3, "e": "note", "level": "info", "text": f"queued: n2: bob's llama-7f3a{HOSTILE}, 41 % done"}
    (mirror / "0" / "events.jsonl").write_text(
        json.dumps({"t": BEGIN, "e": "join", "node": 0}) + f"\n{json.dumps(note)}\n"
    )
    async with opened("replay", str(mirror), tmp_path, (80, 24)) as (pilot, screen):
        await until(pilot, lambda: "─What it waits for" in shown(pilot))
        assert "◌ queued: n2: bob's llama-7f3a" in shown(pilot) and "waiting for its turn" in shown(pilot)
        assert "\x1b" not in shown(pilot)
        await pilot.resize_terminal(200, 50)
        await until(pilot, lambda: shown(pilot).count("No numbers yet: waiting for its turn") == 1)
        assert shown(pilot).count("queued: n2: bob's llama-7f3a") == 2, "story and events say why"
        await pilot.resize_terminal(40, 24)
        await until(pilot, lambda: "41 % done" not in shown(pilot).partition("What it waits for")[2].splitlines()[1])
        rows = [screen.query_one(StoryPane).render_line(y) for y in (0, 1)]
        assert all(segment.style and segment.style.bold for row in rows for segment in row if segment.text.strip())


def test_a_job_of_slurm_says_its_number_and_why_it_waits(tmp_path: Path) -> None:
    job: Queued = {"job": "12", "state": "PENDING", "reason": "Resources", "start": "", "nodes": []}
    before = begin("run-1", ("slurm-0",), (2,))
    state = queue_up(before, job)
    posted: list[RunChanged] = []

    class Waits:
        """What `Following` tells of a job that waits."""

        mirror = tmp_path
        state = before

        def __iter__(self) -> Iterator[Update]:
            self.state = state
            yield QueueNews(job)

    LiveFeed(SimpleNamespace(post_message=posted.append), Waits()).run()  # type: ignore[arg-type]
    snapshot = posted[-1].snapshot
    assert story(snapshot)[0][0] == "◌ job 12 is queued: Resources (waiting for free nodes)"
    assert "job 12" in facts(snapshot, snapshot)
    assert story(SnapshotBuilder(queue_up(state, {**job, "state": "RUNNING"}), tmp_path).snapshot)[0] == []


def test_run_ends_on_screen_when_its_leader_is_given_up(tmp_path: Path) -> None:
    """For `attach` it was lost then; the screen went on to wait for the leader."""
    posted: list[RunChanged] = []

    class GivesUp:
        """What `Following` tells when the leader stays away."""

        mirror = tmp_path
        state = begin("run-1", ("n1", "n2"), (1, 1))

        def __iter__(self) -> Iterator[Update]:
            self.state = fold(self.state, 1, "exit.json", {"state": "lost", "code": 1})
            yield Refresh()
            self.state = link(self.state, 0, "gone")

    LiveFeed(SimpleNamespace(post_message=posted.append), GivesUp()).run()  # type: ignore[arg-type]
    assert run_word(posted[-1].snapshot.state) == "lost"


async def test_a_run_that_has_ended_stays_at_its_end(tmp_path: Path) -> None:
    """However late it is looked at, its charts end with it."""
    write(tmp_path / "disttui" / "runs" / "run-1", hosts=2, per_host=1, steps=40)
    async with opened("run", "run-1", tmp_path) as (pilot, screen):
        await until(pilot, lambda: "✓ finished" in shown(pilot) and "40 lines" in shown(pilot))
        assert screen.snapshot and screen.snapshot.now == BEGIN + 52
        assert not re.search("[0-9] d ", shown(pilot)), "no axis of days"


async def test_no_host_is_hidden_while_rows_below_the_ranks_are_empty(tmp_path: Path) -> None:
    _failed(tmp_path)
    mirror = str(tmp_path / "disttui" / "runs" / "run-1")
    async with opened("replay", mirror, tmp_path, (80, 24)) as (pilot, _):
        await press(pilot, "end", then=lambda: "ValueError" in shown(pilot) and "of 2─" not in shown(pilot))
        await until(pilot, lambda: "synthetic000" in shown(pilot) and "synthetic001" in shown(pilot))


async def test_panes_drawn_in_stages_show_the_newest_snapshot(tmp_path: Path) -> None:
    write(tmp_path / "run-1", hosts=2, per_host=2, steps=30)
    async with opened("replay", str(tmp_path / "run-1"), tmp_path) as (pilot, screen):
        await press(pilot, "comma", shows="● running")
        newest = screen.snapshot
        assert newest is not None
        drawn: list[float] = []
        grid = screen.query_one(RankGrid)
        showing = grid.show

        def show(snapshot: Snapshot) -> None:
            drawn.append(snapshot.now)
            showing(snapshot)

        grid.show = show  # type: ignore[method-assign]
        # The run ends while they are drawn in turn.
        screen._drawn_at = 0.0
        screen.show(replace(newest, now=1.0))
        screen.show(replace(newest, now=2.0), at_once=True)
        await until(pilot, lambda: drawn[-1:] == [2.0])
        # What comes while they are drawn does not begin from the first pane again.
        screen._drawn_at = 0.0
        screen.show(replace(newest, now=3.0))
        turn = screen._turn
        screen._drawn_at = 0.0
        screen.show(replace(newest, now=4.0))
        assert turn is not None
        assert screen._turn is turn


def test_a_nan_loss_is_reported_while_running_and_at_the_end(tmp_path: Path) -> None:
    state = begin("demo-1a2b", ("node1",), (1,))
    begun = {"t": BEGIN, "e": "attempt", "attempt": 1, "master": "m", "port": 1, "world_size": 1}
    state = fold(state, 0, "events.jsonl", begun)
    state = fold(state, 0, "attempt-1/rank-0.metrics.jsonl", {"t": BEGIN + 1, "step": 1, "loss": "nan"})
    assert story(SnapshotBuilder(state, tmp_path).snapshot) == (["▲ the loss is nan since step 1"], "warning")
    end = {"t": BEGIN + 2, "state": "finished", "code": 0, "cause": None, "attempt": 1, "left": []}
    assert story(SnapshotBuilder(fold(state, 0, "exit.json", end), tmp_path).snapshot) == (
        ["▲ the loss is nan since step 1"],
        "warning",
    )
