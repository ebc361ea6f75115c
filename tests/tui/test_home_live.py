"""What is alive on the home screen: curves and time left, hosts and their GPUs, others' runs, news, first steps."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from disttui.runner.errors import HostError
from disttui.runner.formatting import figure
from disttui.runner.runs.summary import summary_of
from disttui.runner.runs.watch import HostNow
from disttui.tui.home import rows
from disttui.tui.home.screen import HomeScreen, visit
from disttui.tui.inventory import Inventory, read_inventory
from disttui.tui.load.feed import TopChanged
from disttui.tui.screen import DisttuiScreen
from disttui.tui.widgets.table import Table
from tests.tui import shelf_kit as kit
from tests.tui.scenes.home import failed, live, watched
from tests.tui.shelf_kit import Doors
from tests.tui.snap import assert_snapshots, press, screen_text, until
from tests.tui.top_kit import host as kit_host
from tests.tui.top_kit import lease


class SideScreen(DisttuiScreen):
    """Another screen."""


BIG = ((80, 24), (120, 35), (200, 50))


async def test_home_shows_curves_time_left_and_the_load_of_hosts(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine) as (_, pilot):
        await watched(pilot)
        await assert_snapshots(pilot, "home_live_{}", BIG)


def test_time_left_follows_the_latest_pace(tmp_path: Path) -> None:
    """A run that was resumed at step 900 has not made 900 steps in ten minutes."""
    place = kit.add_run(tmp_path, "pair-7f3a", {"ada": 1}, ago=600, heard=0, step=1000, steps=2000, loss=2.0)
    path = place / "0" / "attempt-1" / "rank-0.metrics.jsonl"
    lines = [f'{{"t": {kit.NOW - 100 + step}, "step": {900 + step}, "loss": 2, "steps": 2000}}\n' for step in (0, 100)]
    path.write_text("".join(lines))
    os.utime(path, (kit.NOW, kit.NOW))
    inventory = read_inventory(kit.environ(tmp_path), kit.NOW)
    (row,) = rows.runs(inventory, kit.NOW)
    assert "".join(part[0] for part in row.cells[-1]) == "50 % ━━─── 16:40 left"


@pytest.mark.parametrize("loss", [0.0123456, 12345.678, 9.87654e-5])
def test_a_loss_reads_as_in_the_list_of_runs(tmp_path: Path, loss: float) -> None:
    kit.add_run(tmp_path, "pair-7f3a", {"ada": 1}, ago=900, step=1, loss=loss)
    (row,) = rows.runs(read_inventory(kit.environ(tmp_path), kit.NOW), kit.NOW)
    assert [(figure(loss), "")] in row.cells


def test_impossible_losses_and_moments_are_drawn(tmp_path: Path) -> None:
    place = kit.add_run(tmp_path, "pair-7f3a", {"ada": 1}, ago=600, heard=0, step=1000, steps=2000, loss=2.0)
    path = place / "0" / "attempt-1" / "rank-0.metrics.jsonl"
    lines = [
        f'{{"t": {t}, "step": {step}, "loss": {loss}}}\n'
        for t, step, loss in ((1, 1, 1e18), (2, 2, -1e18), (1e308, 3, 1e308))
    ]
    path.write_text("".join(lines))
    (row,) = read_inventory(kit.environ(tmp_path), kit.NOW).runs
    assert rows.sparkline(row.losses).startswith("▇▁")
    assert rows.details(row, kit.NOW, "", chart=(10, 3)) and (row.pace or 0) < 1e6
    assert "started" not in (summary_of({"run": "a", "started": 1e300}) or {"started": 0})


async def test_the_cause_of_a_failure_stands_in_its_row(tmp_path: Path) -> None:
    async with kit.home(tmp_path, failed, size=(100, 30)) as (app, pilot):
        await until(pilot, lambda: re.search("✗ failed +vit-5e20 .* rank 3: torch", screen_text(app)))
        assert kit.shows(app, "no data for 21 min")


async def test_details_draw_the_loss_where_there_is_room(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine, size=(200, 50)) as (app, pilot):
        await until(pilot, lambda: re.search(r"\n  3\.409 +█", screen_text(app)))
        assert re.search(r"\n  1\.832 +█+[▁-█]+", screen_text(app))


async def test_details_of_a_host_show_each_gpu_and_who_has_it(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine, size=(120, 45)) as (app, pilot):
        await watched(pilot)
        await press(pilot, "3", "j", "j", "d", then=lambda: re.search(r"GPU 0 .* °C  free", screen_text(app)))
        assert re.search(r"GPU 3 .* °C  carol's reservation, for 2 h more", screen_text(app)), screen_text(app)
        await press(pilot, "k", shows="Is an SSH server running there?")


def test_a_run_of_others_is_not_seen_without_its_host() -> None:
    twice = (lease("bob", [0], run="vit-02c1"), lease("bob", [1], run="vit-02c1", node_rank=1))
    host = replace(kit_host(1, 2), leases=twice, heard=kit.NOW - 60)
    (row,) = rows.others(Inventory(), {"a": host}, kit.NOW)
    assert (row.state, row.hosts, row.seen) == ("running", (host.name,), kit.NOW)
    assert rows.facts(Inventory(read=True), {"a": host}, kit.NOW)[0] == "1 running"
    (row,) = rows.others(Inventory(), {"a": replace(host, state="not seen")}, kit.NOW)
    assert (row.state, row.seen) == ("not seen", kit.NOW - 60)


@pytest.mark.parametrize("readable", [True, False])
async def test_a_run_of_others_is_listed_and_opens_if_it_may_be_read(tmp_path: Path, readable: bool) -> None:
    kit.busy_machine(tmp_path)
    asked: list[tuple[Any, ...]] = []
    pressed_again = threading.Event()

    def adopt(viewer: object, run: str, host: str) -> SimpleNamespace:
        asked.append((run, host))
        assert pressed_again.wait(60)
        if not readable:
            raise HostError("ada", "it belongs to bob")
        return SimpleNamespace(run=run)

    with patch("disttui.runner.api.finding.adopt", adopt):
        async with kit.home(tmp_path, size=(120, 35)) as (app, pilot):
            await watched(pilot)
            kit.add_profile(tmp_path, "ada", "disttui: 1\nhosts: [ada, bert]\njob: {script: x.py}\n")
            assert re.search(r"● running +llama-02c1 .* 41 % .* 2\.9 h left", screen_text(app)), screen_text(app)
            app.screen.query_one("#runs", Table).select("llama-02c1")
            await pilot.pause()
            footer = screen_text(app).splitlines()[-1]
            assert "x stop" not in footer and "r run" not in footer, "it is not this user's"
            await pilot.press("D", "a")
            assert not app.screen.is_modal
            await pilot.press("space")
            assert not app.screen.query_one("#runs", Table).marked
            await press(pilot, "enter", "enter", shows="reading llama-02c1 from ada")
            pressed_again.set()
            await until(pilot, lambda: app.opened)
            assert asked == [("llama-02c1", "ada")]
            assert app.opened == [("run", "llama-02c1") if readable else ("top", ("ada", "ada"), None)]
            assert readable or kit.shows(app, "llama-02c1 of bob cannot be read")


def test_nodes_of_slurm_are_not_connected_to(tmp_path: Path) -> None:
    """They are reached through the login node, and a host could give any names."""
    kit.add_run(tmp_path, "queued-new1", {"n1": 1, "root@other:2222": 1, "a b": 1}, ago=5)
    path = tmp_path / "data/disttui/runs/queued-new1/run.json"
    data = json.loads(path.read_text())
    for host in data["hosts"]:
        host.update(host="login", user="me", port=22)
    path.write_text(json.dumps(data))
    found = read_inventory(kit.environ(tmp_path), kit.NOW)
    assert [row.hosts for row in found.runs] == [("n1", "root@other:2222", "a b")]
    assert {row.name for row in found.hosts} == {"me@login:22", "local"}


async def test_hosts_are_watched_only_while_home_is_shown(tmp_path: Path) -> None:
    kit.busy_machine(tmp_path)
    begun: list[Sequence[str]] = []
    closed: list[Sequence[str]] = []

    class Noting(kit.Silent):
        def start(self) -> None:
            begun.append(self._words)

        def close(self) -> None:
            closed.append(self._words)

    async with kit.home(tmp_path) as (app, pilot):
        with patch("disttui.tui.home.screen.TopFeed", Noting):
            kit.add_run(tmp_path, "pair-new1", {"hopper": 4}, ago=5)
            await until(pilot, lambda: begun)
            assert set(begun[0]) == {"ada", "edsger", "grace", "hopper", "local"}
            await press(pilot, "question_mark", then=lambda: app.screen.is_modal)
            assert not closed, "the help covers a part of it"
            await press(pilot, "escape", then=lambda: isinstance(app.screen, HomeScreen))
            await app.push_screen(SideScreen())
            await until(pilot, lambda: closed)
            await press(pilot, "q", then=lambda: len(begun) == 2)


async def test_two_readings_at_once_are_one_visit(tmp_path: Path) -> None:
    """The second one took the first one's for the last visit: no news were shown on a busy machine."""
    app, calls, again = Doors(kit.environ(tmp_path)), list[float](), threading.Event()

    def noted(_: Mapping[str, str]) -> float:
        calls.append(0.0)
        if len(calls) == 1:
            app.call_from_thread(app.screen.read, True)  # type: ignore[attr-defined]
            again.wait(1)
        again.set()
        return 0.0

    with patch("disttui.tui.home.screen.visit", noted):
        async with kit.home(tmp_path, app=app) as (app, pilot):
            await until(pilot, lambda: app.inventory.read and not app.workers)
            assert len(calls) == 1


async def test_news_since_the_last_visit_are_shown_once(tmp_path: Path) -> None:
    failed(tmp_path)
    environ = kit.environ(tmp_path)
    with patch("disttui.tui.home.screen.now", lambda: kit.NOW - 3600):
        assert visit(environ) == 0.0
    async with kit.home(tmp_path, size=(120, 35)) as (app, pilot):
        await until(pilot, lambda: kit.shows(app, "in the last 1.0 h  ✗ vit-5e20 failed: rank 3: torch.OutOfMem"))
        assert not kit.shows(app, "pair-5e20 failed"), "that was before"
    async with kit.home(tmp_path, size=(120, 35)) as (app, pilot):
        await until(pilot, lambda: kit.shows(app, "✗ failed"))
        assert not kit.shows(app, "in the last")


async def test_a_newcomer_is_offered_a_sandbox_and_ssh_config_hosts(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text("Host ada grace\n  User alice\nHost *.example\n  Port 22\n")
    app = Doors(kit.environ(tmp_path), ssh_config=str(config))
    async with kit.home(tmp_path, size=(120, 35), app=app) as (app, pilot):
        await until(pilot, lambda: kit.shows(app, "in your ssh config"))
        assert re.search(r"\n +ada .*\n +grace .*\n +this machine", screen_text(app)), screen_text(app)
        assert app.screen._watched == ["local"], "no host of a newcomer is connected to"  # type: ignore[attr-defined]
        await press(pilot, "s", then=lambda: app.opened)
        assert app.opened == [("sandbox",)]


async def test_read_only_a_newcomer_cannot_train(tmp_path: Path) -> None:
    async with kit.home(tmp_path, app=Doors(kit.environ(tmp_path), read_only=True)) as (app, pilot):
        await press(pilot, "s")
        assert not app.opened


async def test_a_change_of_a_host_repaints_its_own_row(tmp_path: Path) -> None:
    """Every byte costs over a slow link."""
    async with kit.home(tmp_path, kit.busy_machine) as (app, pilot):
        await watched(pilot)
        with patch.object(Table, "refresh", autospec=True) as refreshed:
            app.screen.post_message(TopChanged(live(), kit.NOW))
            await pilot.pause(0.1)
            assert not refreshed.called
            app.screen.post_message(TopChanged(live(kit.NOW + 9), kit.NOW))
            await until(pilot, lambda: refreshed.called)
            assert {call.args[0].id for call in refreshed.call_args_list} == {"hosts"}


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 35), (200, 50)])
async def test_a_newcomer_sees_what_others_run_on_their_hosts(tmp_path: Path, size: tuple[int, int]) -> None:
    async with kit.home(tmp_path, size=size) as (app, pilot):
        await until(pilot, lambda: kit.shows(app, "Profiles · 4"))
        assert "Runs" not in screen_text(app)
        used = replace(kit_host(1, 2), name="local", leases=(lease("bob", [0], run="vit-02c1"),))
        app.screen.post_message(TopChanged((used,), kit.NOW))
        await until(pilot, lambda: kit.shows(app, "[1] Runs"))
        await press(pilot, "1", shows="● running  vit-02c1")
        assert ("train now, on this machine" in screen_text(app)) == (size[1] > 12)
        assert "[2]" in screen_text(app) and "[3]" in screen_text(app)
        app.screen.post_message(TopChanged((HostNow("local", since=kit.NOW),), kit.NOW))  # connected again
        await pilot.pause()
        assert "● running  vit-02c1" in screen_text(app)
