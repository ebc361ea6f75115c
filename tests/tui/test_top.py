"""The screen `top`: made-up hosts in every state, and this machine as it is."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from disttui.runner.hosts.load import load_of
from disttui.runner.runs.watch import HostNow
from disttui.tui.app import DisttuiApp
from disttui.tui.load import meters
from disttui.tui.load.feed import KEEP, LoadHistory, step_of
from disttui.tui.router import First
from disttui.tui.top.hosts import HostsTable, lay_out
from disttui.tui.top.panes import ProcessPane
from disttui.tui.top.screen import TopScreen
from disttui.tui.widgets.drawn import cells
from tests.counting import counted
from tests.tui import snap
from tests.tui import top_kit as kit
from tests.tui.shelf_kit import environ, shows
from tests.tui.snap import assert_snapshot, assert_snapshots, press, screen_text


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@asynccontextmanager
async def opened(
    folder: Path, size: tuple[int, int] = (100, 30)
) -> AsyncIterator[tuple[DisttuiApp, kit.MadeUpTop, Pilot[None]]]:
    app = DisttuiApp(environ(folder))
    async with app.run_test(size=size, notifications=True) as pilot:
        screen = kit.MadeUpTop()
        await app.push_screen(screen)
        await pilot.pause()
        yield app, screen, pilot


async def until(app: DisttuiApp, pilot: Pilot[None], *words: str) -> None:
    """Wait until the screen shows all of them; between two screens it shows nothing."""
    await snap.until(pilot, lambda: all(shows(app, word) for word in words))


def feed(screen: TopScreen, count: int, gpus: int, seconds: int = 60) -> None:
    for second in range(seconds):
        screen.show(kit.hosts(count, gpus, kit.NOW + second), kit.NOW + second)


async def test_looks(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, screen, pilot):
        feed(screen, 2, 4)
        await assert_snapshots(pilot, "top_{}")


async def test_looks_of_one_gpu_and_of_trouble(tmp_path: Path) -> None:
    async with opened(tmp_path, (80, 24)) as (_, screen, pilot):
        feed(screen, 2, 4)
        await press(pilot, "j", "j", "enter")
        await assert_snapshot(pilot, "top_gpu")
        await pilot.press("escape")
        screen.show(kit.troubled(), kit.NOW)
        await pilot.pause()
        await assert_snapshot(pilot, "top_trouble")


async def test_the_owner_of_a_gpu_is_in_its_row_and_can_be_filtered(tmp_path: Path) -> None:
    leases = (
        kit.lease("bob", [0]),
        kit.lease("eve", [1], kind="hand", note="mine", until=kit.NOW + 7200),
        kit.lease("ada", [2], state="waiting"),
    )
    whole = (kit.lease("carol", None, kind="hand"),)
    async with opened(tmp_path, (200, 50)) as (app, screen, pilot):
        one, other, plain = kit.host(0, 3), kit.host(1, 1), kit.host(2, 0)
        screen.show((replace(one, leases=leases), replace(other, leases=whole), replace(plain, leases=whole)), kit.NOW)
        await until(app, pilot, "madeup2")
        rows = screen_text(app).splitlines()
        assert "4 GPUs" in rows[0] and "3 leased" in rows[0]
        assert "bob's llama-7f3a, 41 % done, about 86 min left, alice made-up-7f3a" in rows[4], rows[4]
        assert re.search(r"eve's reservation, for 2(\.0)? h more: .*mine", rows[5]), rows[5]
        assert "alice made-up-7f3a" in rows[6] and "ada" not in rows[6], "a queued user does not have it yet"
        assert "carol's reservation, until released" in rows[8] and "carol reserved the whole host" in rows[9]
        assert "the whole host" not in rows[7], "its GPUs say so"
        await press(pilot, "j", "enter", "j", "enter")
        assert "bob's llama-7f3a, 41 % done" in screen_text(app).splitlines()[0]
        await press(pilot, "escape", "slash", *"eve", "enter")
        assert {entry.host.name for entry in screen.query_one(HostsTable).items} == {"madeup0"}
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert re.search(r"°C +bob", screen_text(app)), "the owner alone, in little room"


async def test_leases_are_whole_on_120_columns(tmp_path: Path) -> None:
    async with opened(tmp_path, (120, 35)) as (app, screen, pilot):
        screen.show(kit.leased(), kit.NOW)
        await until(app, pilot, "alice's made-up-7f3a, 41 % done, about 86 min left", "carol reserved the whole host")
        assert "left" in screen_text(app).splitlines()[6]


async def test_down_to_one_host_and_gpu_and_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, screen, pilot):
        feed(screen, 3, 2)
        load, processes = screen.query_one(HostsTable), screen.query_one(ProcessPane)
        await pilot.press("j", "j", "j", "enter")
        assert load.only == "madeup1" and {entry.host.name for entry in load.items} == {"madeup1"}
        assert {one.host for one in processes.items} == {"madeup1"}
        await pilot.resize_terminal(80, 23)
        await snap.until(pilot, lambda: "├ 0 MADE" in screen_text(app) and "╰ 1 MADE" in screen_text(app))
        await pilot.resize_terminal(100, 30)
        await pilot.press("j", "enter")
        assert load.only == "madeup1/0" and [entry.key for entry in load.items] == ["madeup1/0"]
        assert [one.process.gpus for one in processes.items] == [(0,)]
        await pilot.pause()
        assert "temperature" in screen_text(app)
        before = app.size
        await pilot.press("z")
        await pilot.resize_terminal(100, 31)
        assert load.room == 10**6, "zoomed it has the whole screen"
        await pilot.press("z")
        await pilot.resize_terminal(40, 12)
        await snap.until(pilot, lambda: "command" in screen_text(app) and not screen.max_scroll_y)
        await pilot.resize_terminal(*before)
        await pilot.press("escape")
        assert load.only == "" and load.here is not None and load.here.key == "madeup1/0"
        await pilot.press("escape")
        assert app.screen is not screen


async def test_sorting_by_key_and_by_click_keeps_the_cursor(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, screen, pilot):
        feed(screen, 20, 1)
        load = screen.query_one(HostsTable)
        await pilot.press("j", "s")

        def said() -> list[float]:
            loads = [entry.host.load for entry in load.items]
            return [one.cpu for one in loads if one and one.cpu is not None]

        shares = said()
        assert shares == sorted(shares, reverse=True) and len(shares) == 20
        assert load.here is not None and load.here.host.name == "madeup1"
        await pilot.press("v")
        assert said() == sorted(shares)
        await pilot.press("S", "tab", "s", "s")
        processes = screen.query_one(ProcessPane)
        sizes = [one.process.rss or 0 for one in processes.items]
        assert sizes == sorted(sizes, reverse=True) and processes.sort_words == "by memory ▾"
        await pilot.pause()
        heads = screen_text(app).splitlines()[processes.region.y + 1]
        await pilot.click(ProcessPane, offset=(heads.index("user") + 1, 1))
        assert processes.sort_words == "by user ▾"


async def test_a_filter_holds_for_its_pane_until_escape(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, screen, pilot):
        feed(screen, 12, 0)
        load, processes = screen.query_one(HostsTable), screen.query_one(ProcessPane)
        await pilot.press("slash", *"madeup11", "enter")
        assert [entry.key for entry in load.items] == ["madeup11"] and load.has_focus
        await press(pilot, "slash", *"nobody", shows="no matching rows")
        await pilot.press("escape", "tab", "slash", *"bob", "space", *"note", "enter")
        assert len(load.items) == 12 and processes.items
        assert {(one.process.user, one.process.command) for one in processes.items} == {("bob", "python notebook.py")}
        assert screen.query_one("#filter", Input).value == "bob note"
        await pilot.press("escape")
        assert len(processes.items) == 72


async def test_lost_hosts_keep_their_figures(tmp_path: Path) -> None:
    async with opened(tmp_path, (160, 48)) as (app, screen, pilot):
        seen = kit.host(0, 1)
        screen.show((seen,), kit.NOW)
        await pilot.pause()
        figures = re.findall(r"[\d.]+G/[\d.]+G", screen_text(app))
        assert len(figures) == 2
        screen.show((replace(seen, state="not seen", problem="silent for 6 s"),), kit.NOW + 6)
        await pilot.pause()
        assert "unreachable since 14:13:20  silent for 6 s" in screen_text(app)
        assert re.findall(r"[\d.]+G/[\d.]+G", screen_text(app)) == figures


async def test_control_bytes_of_hosts_reach_no_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\x1b[2J\x9b31m[bold]x[/]"
    record = kit.record(0, 1, kit.NOW)
    record["gpus"][0]["name"] = evil
    for process in record["processes"]:
        process |= {"user": evil, "command": evil + "\nline", "tag": evil + "/0/1"}
    hosts = (
        HostNow("madeup0", "seen", load_of(record), kit.NOW),
        HostNow("madeup" + evil, "failed", problem=evil, cure=evil),
    )
    async with opened(tmp_path, (160, 48)) as (app, screen, pilot):
        screen.show(hosts, kit.NOW)
        await press(pilot, "s", "tab", "enter")
        strips = screen._compositor.render_strips(app.size)
        text = "".join(segment.text for strip in strips for segment in strip)
        assert "[bold]x[/]" in text, "shown as it is written"
        assert not [char for char in text if ord(char) < 32 or 127 <= ord(char) < 160]


async def test_sixty_four_hosts_stay_fluent(tmp_path: Path) -> None:
    async with opened(tmp_path, (200, 50)) as (_, screen, pilot):
        feed(screen, 64, 8, 3)
        await pilot.press("e")
        hosts = kit.hosts(64, 8, kit.NOW + 10)
        with counted() as calls:
            screen.show(hosts, kit.NOW + 10)
            await pilot.pause()
        assert len(screen.query_one(HostsTable).items) == 64 * 9
        assert calls.number < 500_000  # measured: 170,000


def test_columns_of_a_curve_keep_their_samples() -> None:
    history, width = LoadHistory(), 10
    shown: list[list[float | None]] = []
    for second in range(100):
        history.take((kit.host(0, 1, kit.NOW + second),))
        shown.append(history.columns("madeup0", 0, "use", width))
    step = step_of(width)
    assert step == 18 and len(shown[-1]) == 6
    assert all(one[:-1] == other[: len(one) - 1] for one, other in pairwise(shown))
    for second in range(KEEP * 2):
        history.take((kit.host(0, 1, kit.NOW + 100 + second),))
    assert len(history.columns("madeup0", 0, "use", 60)) == 60
    assert history.columns("nobody", None, "use", 60) == []


@pytest.mark.parametrize("value", [None, 0.0, 1.0, 999.4, 999.6, 1e6, 99.95e6, 123e9, 9.9e14, -5.0])
def test_numbers_keep_their_width(value: float | None) -> None:
    assert len(meters.size(value)) == len(meters.rate(value)) == 5


async def test_this_machine_as_it_is(tmp_path: Path) -> None:
    app = DisttuiApp(environ(tmp_path), first=First("top", (["local"],)))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(app, pilot, "● local", "python", " % ")
        screen = app.screen
        assert isinstance(screen, TopScreen)
        await pilot.press("x")
        await until(app, pilot, "0 hosts")


async def test_a_name_that_is_no_host_and_a_host_that_never_answers(tmp_path: Path) -> None:
    app = DisttuiApp(environ(tmp_path), first=First("top", (["two words"],)))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(app, pilot, "is not a host")
        app.router.open_top(["nobody.invalid", "local"])
        await until(app, pilot, "✗ nobody.", "failed  the name 'nobody.invalid'", "● local")


@pytest.mark.parametrize("first", [True, False])
async def test_q_on_the_screen_of_a_command_exits_to_the_shell(tmp_path: Path, first: bool) -> None:
    app = DisttuiApp(environ(tmp_path), first=First("top", (["local"],)) if first else None)
    async with app.run_test(size=(100, 30)) as pilot:
        if not first:
            app.router.open_top(["local"])
        await until(app, pilot, "● local")
        await press(pilot, "enter", "q")
        assert app.is_running and isinstance(app.screen, TopScreen)
        await press(pilot, "q")
        assert app._exit is first and len(app.screen_stack) == (2 if first else 1)


@pytest.mark.parametrize("first", [First("top", (["local"],)), None])
async def test_ctrl_c_explains_how_to_quit_and_quits_when_repeated(tmp_path: Path, first: Any) -> None:
    app = DisttuiApp(environ(tmp_path), first=first)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        if first:
            await until(app, pilot, "● local")
        await pilot.press("ctrl+c")
        await until(app, pilot, "ctrl+c again")
        assert not app._exit
        await press(pilot, "ctrl+c")
        assert app._exit


def test_on_120_columns_there_is_room_for_run_names() -> None:
    for width, trend in ((106, 0), (118, 0), (120, 9), (198, 54)):
        plan = lay_out(width, 8, 8)
        assert plan.who >= min(12, width // 10) and plan.trend == trend


async def test_rows_for_gpus_are_offered_only_where_there_are_gpus(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, screen, pilot):
        feed(screen, 2, 0, 1)
        await until(app, pilot, "enter open", "s sort", "/ filter")
        assert "e GPUs" not in screen_text(app)
        feed(screen, 2, 2, 1)
        await until(app, pilot, "e GPUs")
        await pilot.press("j", "enter")
        await until(app, pilot, "madeup0  GPU 0")
        await snap.until(pilot, lambda: not any(shows(app, words) for words in ("enter open", "e GPUs")))
        await pilot.press("escape")
        await until(app, pilot, "enter open", "e GPUs")


async def test_the_figures_of_one_gpu_alone_are_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path, (80, 24)) as (app, screen, pilot):
        feed(screen, 2, 4)
        await until(app, pilot, "8 GPUs")
        await pilot.press("j", "j", "enter")
        await until(app, pilot, "madeup0 GPU 1  51 % busy · memory 68 % full · 400 W", "  1 MADE-UP 80GB  ━")


async def test_a_filter_has_a_sign_in_the_pane_that_it_holds_for(tmp_path: Path) -> None:
    async with opened(tmp_path, (80, 24)) as (app, screen, pilot):
        feed(screen, 2, 0, 1)
        await pilot.press("slash", *"madeup1")
        await until(app, pilot, "2 hosts   filter 'madeup1'", "/ filter madeup1", "enter apply  esc all rows")
        await pilot.press("enter")
        await until(app, pilot, "/ filter madeup1", "enter open")
        await press(pilot, "escape", then=lambda: "filter madeup1" not in screen_text(app) and shows(app, "madeup0"))


async def test_filter_line_is_visible_on_12_rows_with_one_host(tmp_path: Path) -> None:
    async with opened(tmp_path, (40, 12)) as (app, screen, pilot):
        feed(screen, 2, 0)
        await pilot.press("enter", "slash", *"bob")
        await until(app, pilot, "/ filter bob", "enter apply", "Last ", "cpu ", "bob")
        assert not screen.max_scroll_y


def test_bars_of_a_single_gpu_use_the_room_of_host_columns() -> None:
    assert [lay_out(width, 14, 8, users=15, alone=True).bar for width in (76, 116, 196)] == [6, 9, 21]
    assert lay_out(116, 14, 8, users=15).bar < 8


async def test_hosts_that_are_there_stand_above_those_that_are_not(tmp_path: Path) -> None:
    gone = [HostNow(f"gone{number}", "failed", problem="the name does not resolve") for number in range(20)]
    async with opened(tmp_path, (80, 24)) as (app, screen, pilot):
        screen.show((*gone, kit.host(0, 0)), kit.NOW)
        await until(app, pilot, "● madeup0", "1 of 21 seen · 64 CPUs 36 % busy")
        assert screen.query_one(HostsTable).items[1].host.name == "gone0", "the others keep their order"


async def test_users_of_a_gpu_are_named_in_full_on_80_columns(tmp_path: Path) -> None:
    async with opened(tmp_path, (80, 24)) as (app, screen, pilot):
        screen.show(kit.leased(), kit.NOW)
        for width in (79, 80, 100, 119):
            await pilot.resize_terminal(width, 24)
            await snap.until(pilot, lambda: app.size.width == width)  # noqa: B023
            rows = [row for row in screen_text(app).splitlines() if "°C" in row]
            assert len(rows) == 6 and all(re.search(r"(alice|bob|carol)", row) for row in rows), rows
            assert width > 100 or all(re.search(r" (alice|bob, alice|carol, alice)$", row) for row in rows), rows


async def test_heads_stand_over_their_columns_at_every_width(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, screen, _):
        load = screen.query_one(HostsTable)
        for hosts in (kit.hosts(2, 4), kit.leased(), kit.hosts(2, 0)):
            screen.show(hosts, kit.NOW)
            for width in range(70, 220):
                load._plan = load._laid_out(width)
                assert cells(load.head(width)) == cells(load.row(load.items[0], width)), width
        screen.show(kit.hosts(1, 1), kit.NOW)
        screen.narrow("madeup0/0")
        for width in range(70, 220):
            load._plan = load._laid_out(width)
            assert cells(load.head(width)[:-1]) == cells(load.row(load.items[0], width)[:-1]), width
