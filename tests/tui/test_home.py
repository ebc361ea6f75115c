"""The home screen: what it shows of a machine's runs, profiles and hosts, and where its keys lead."""

from __future__ import annotations

import json
import math
import os
import re
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from textual.events import MouseScrollDown

from disttui.runner.runs.registry import load_run
from disttui.tui.app import DisttuiApp
from disttui.tui.home import rows
from disttui.tui.home.rows import run_columns, runs
from disttui.tui.home.screen import HomeScreen, ask_hosts
from disttui.tui.inventory import Inventory, ProfileRow, read_inventory
from disttui.tui.theme import THEMES
from disttui.tui.widgets.table import Table
from tests.tui import shelf_kit as kit
from tests.tui.scenes.home import failed
from tests.tui.shelf_kit import Doors
from tests.tui.snap import SIZES, assert_snapshots, press, screen_text, until

DARK_DONE = THEMES[0].variables["state-done"]
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e[bold red]evil[/]\x00"


async def test_of_a_busy_machine(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine) as (_, pilot):
        await assert_snapshots(pilot, "home_{}", (*SIZES, (120, 35)))


async def test_of_a_newcomer_says_what_to_press(tmp_path: Path) -> None:
    async with kit.home(tmp_path) as (app, pilot):
        await assert_snapshots(pilot, "newcomer_{}")
        await pilot.press("enter")
        assert app.opened[0][0] == "wizard"
        assert app.opened[0][1].name == "2node.yaml"


async def test_the_runs_key_leads_nowhere_while_no_runs_are_shown(tmp_path: Path) -> None:
    async with kit.home(tmp_path) as (app, pilot):
        await until(pilot, lambda: kit.shows(app, "› 2node"))
        await pilot.press("1")
        await press(pilot, "enter", then=lambda: app.opened)
        assert app.opened[0][0] == "wizard", "the cursor is where it was"


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ((2, 2), "2 × 2 = 4"), ((8, 6), "8 + 6 = 14"), ((2,), "2"), ((None, None), "auto"), ((2, None), "2 + auto"),
        ((None, 1, 2, 3, 4), "auto + 1 + 2 + 3 …"),
    ],
)  # fmt: skip
def test_process_counts_of_a_profile_are_summed_over_hosts(counts: tuple[int | None, ...], shown: str) -> None:
    hosts = tuple(f"node{rank}" for rank in range(len(counts)))
    assert rows.processes(ProfileRow("mine", Path("mine.yaml"), "own", hosts, counts)) == shown


async def test_home_says_that_it_is_reading_until_it_has_read(tmp_path: Path) -> None:
    with patch.object(HomeScreen, "read"), patch("disttui.tui.home.screen.ask_hosts", lambda *_: {}):
        app = DisttuiApp(kit.environ(tmp_path, TEXTUAL_ANIMATIONS="none"))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: isinstance(app.screen, HomeScreen) and kit.shows(app, "reading"))
            assert not kit.shows(app, "none yet")


async def test_a_slow_read_is_not_begun_again_before_its_end(tmp_path: Path) -> None:
    """On a slow disk the profiles would never appear."""
    goes_on, begun = threading.Event(), list[None]()

    def slowly(*arguments: Any) -> Inventory:
        begun.append(None)
        assert goes_on.wait(60)
        return read_inventory(*arguments)

    kit.add_profile(tmp_path, "pair", "disttui: 1\nhosts: [ada]\njob: {builtin: bytegpt}\n")
    slow = patch("disttui.tui.home.screen.read_inventory", slowly)
    with slow, patch("disttui.tui.home.screen.ask_hosts", lambda *_: {}):
        app = DisttuiApp(kit.environ(tmp_path, TEXTUAL_ANIMATIONS="none"))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: begun and isinstance(app.screen, HomeScreen))
            assert isinstance(app.screen, HomeScreen)
            await pilot.pause()
            before = len(begun)
            for _ in range(3):
                app.screen._look_again()
                await pilot.pause()
            assert len(begun) == before
            goes_on.set()
            await until(pilot, lambda: kit.shows(app, "pair"))


async def test_read_only_it_offers_no_run_and_no_tags(tmp_path: Path) -> None:
    kit.add_profile(tmp_path, "pair", "disttui: 1\nhosts: [ada]\njob: {builtin: bytegpt}\n")
    async with kit.home(tmp_path, size=(160, 40), app=Doors(kit.environ(tmp_path), read_only=True)) as (app, pilot):
        await until(pilot, lambda: kit.shows(app, "  none yet"))
        assert not kit.shows(app, "r runs the selected profile")
        kit.add_run(tmp_path, "pair-7f3a", {"ada": 1}, ago=100)
        await press(pilot, "f5", shows=("pair-7f3a", "o order"))
        assert "space mark" in screen_text(app) and "tags" not in screen_text(app)


async def test_beside_runs_that_leave_room_the_profiles_have_it(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine, size=(200, 50)) as (app, pilot):
        profiles, runs = app.screen.query_one("#profiles", Table), app.screen.query_one("#runs", Table)
        await until(pilot, lambda: profiles.size.width > 85)
        assert "alice@laptop" in screen_text(app) and "12,000 / 100,000" in screen_text(app), "the runs lose no column"
        await pilot.resize_terminal(120, 50)
        await until(pilot, lambda: runs.size.width > 110 and profiles.size.width > 110)


async def test_a_command_in_a_toast_is_not_broken(tmp_path: Path) -> None:
    async with kit.home(tmp_path, size=(80, 24)) as (app, pilot):
        app.notify("library lab: the library is not on this machine: disttui library sync lab")
        await until(pilot, lambda: kit.shows(app, "→ disttui library sync lab"))


async def test_keys_lead_to_the_other_screens(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine) as (app, pilot):
        await pilot.press("enter", "j", "j", "enter", "n", "t", "2", "j", "enter", "3", "enter")
        pair = tmp_path / "config" / "disttui" / "profiles" / "pair.yaml"
        assert app.opened == [
            ("run", "pair-7f3a"), ("replay", "pair-91bd"), ("wizard", None, False), ("top", (), None),
            ("wizard", pair, False), ("top", ("ada", "ada"), None),
        ]  # fmt: skip


async def test_everything_can_be_clicked(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine) as (app, pilot):
        await pilot.click("#runs", offset=(5, 3), times=2)
        footer = screen_text(app).splitlines()[-1]
        await pilot.click("FooterBar", offset=(footer.index("n new"), 0))
        await pilot.pause()
        assert app.opened == [("run", "uneven-02c1"), ("wizard", None, False)]


async def test_the_hosts_of_a_run_are_cut_before_they_are_left_out(tmp_path: Path) -> None:
    kit.busy_machine(tmp_path)
    kit.add_run(tmp_path, "sweep-lr-01-03e5", {"ada": 4, "grace": 4, "edsger": 2}, ago=100)
    async with kit.home(tmp_path, size=(108, 30)) as (app, _):
        shown = screen_text(app)
        assert re.search("took +when +hosts +progress", shown) and re.search("ada, grace,[ a-z]*…", shown), shown


async def test_running_a_profile_asks_first(tmp_path: Path) -> None:
    """The safe answer has the focus, so that enter alone starts nothing."""
    async with kit.home(tmp_path, kit.busy_machine) as (app, pilot):
        await pilot.press("2", "j")
        for answer in ("n", "escape", "enter", "y"):
            assert not app.opened
            await press(pilot, "r", then=lambda: app.screen.is_modal)
            assert "Checks 2 hosts first: ada, grace." in screen_text(app)
            assert "2 × 4 = 8 processes" in screen_text(app)
            await kit.asked(pilot)
            await press(pilot, answer, then=lambda: not app.screen.is_modal)
            await pilot.pause()
        assert app.opened[0][2] is True


async def test_running_a_profile_with_errors_shows_them(tmp_path: Path) -> None:
    broken = kit.add_profile(tmp_path, "broken", "disttui: 1\nhosts: []\n")
    async with kit.home(tmp_path) as (app, pilot):
        await until(pilot, lambda: "has errors" in screen_text(app))
        await press(pilot, "r", then=lambda: bool(app.opened) or app.screen.is_modal)
        assert app.opened == [("wizard", broken, False)]


async def test_stop_is_offered_only_for_active_runs(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine) as (app, pilot):
        assert "x stop" in screen_text(app)
        await press(pilot, "G")
        assert "x stop" not in screen_text(app)
        await pilot.press("x")
        assert not app.screen.is_modal


async def test_a_stop_that_fails_says_why(tmp_path: Path) -> None:
    """A host that no name server knows: the app stays, and tells what ssh would."""
    kit.add_run(tmp_path, "pair-7f3a", {"no-such-host.invalid": 1}, ago=100)
    async with kit.home(tmp_path) as (app, pilot):
        await kit.asked(pilot, "x")
        await press(pilot, "y", shows="was not stopped")
        assert "no-such-host.invalid" in screen_text(app)


async def test_read_only_offers_no_change(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine, read_only=True) as (app, pilot):
        text = screen_text(app)
        assert "read-only" in text
        assert "x stop" not in text
        assert "r run" not in text
        await press(pilot, "x", "r")
        assert not app.screen.is_modal


async def test_filter(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine) as (app, pilot):
        await press(pilot, "slash", *"pair fail")
        assert [app.screen.query_one("#runs", Table).key, app.screen.query_one("#runs", Table).count] == [
            "pair-5e20",
            1,
        ]
        await pilot.press("enter", "enter")
        assert app.opened == [("replay", "pair-5e20")]
        await until(pilot, lambda: screen_text(app).count("no matching rows") == 2)  # profiles and hosts
        await press(pilot, "escape")
        assert app.screen.query_one("#runs", Table).count == 6
        assert app.screen.query_one("#runs", Table).key == "pair-5e20"


async def test_titles_count_filtered_rows_and_columns_stay(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine, size=(80, 24)) as (app, pilot):
        head = screen_text(app).splitlines()[2]
        await pilot.press("slash", *"pair")
        await until(pilot, lambda: all(kit.shows(app, words) for words in ("Runs · 4 of 6", "Profiles · 1 of 7")))
        assert screen_text(app).splitlines()[2] == head
        await press(pilot, "escape", shows=("Runs · 6 ", "Profiles · 7 "))


async def test_a_filter_shows_its_sign_and_the_footer_its_keys(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine, size=(80, 24)) as (app, pilot):
        await press(pilot, "slash", *"pair", shows=(" / filter pair", "enter apply  esc all rows"))
        assert "/ filter" not in screen_text(app).splitlines()[-1], "there it would be one more letter"
        await press(pilot, "enter", shows=("enter open", " / filter pair"))
        await press(pilot, "escape", then=lambda: "filter pair" not in screen_text(app) and kit.shows(app, "Runs · 6 "))
        await press(pilot, "slash", shows="text to search for")
        await pilot.press("enter")  # there is nothing to keep
        await until(pilot, lambda: not kit.shows(app, "text to search for") and isinstance(app.focused, Table))


async def test_when_a_run_began_stands_in_its_row_on_40_columns(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine, size=(40, 12)) as (app, pilot):
        await until(pilot, lambda: re.search(r"running +pair-7f3a +13 min ago", screen_text(app)))
        await press(pilot, "3", then=lambda: re.search(r"edsger +◇ uneven-02c1", screen_text(app)))


async def test_a_long_cause_wraps_beside_its_name_and_details_scroll(tmp_path: Path) -> None:
    async with kit.home(tmp_path, failed, size=(80, 24)) as (app, pilot):
        await pilot.press("j", "j", "d")
        await until(pilot, lambda: re.search(r"\n  cause    rank 3: .*\n           [\w.]", screen_text(app)))
        await pilot.resize_terminal(40, 12)
        details = app.screen.query_one("#details")
        await until(pilot, lambda: details.max_scroll_y > 0)
        await pilot._post_mouse_events([MouseScrollDown], "#details")
        await until(pilot, lambda: details.scroll_y > 0)
        await press(pilot, "k", shows="not seen  uneven-02c1")


async def test_failure_cause_is_visible_in_details_on_40_columns(tmp_path: Path) -> None:
    # its losses are known, too
    async with kit.home(tmp_path, failed, size=(40, 12)) as (_, pilot):
        await press(pilot, "j", "j", "d", shows="OutOfMemoryError")


async def test_a_run_that_appears_on_disk_is_listed_automatically(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine) as (app, pilot):
        await pilot.press("j")
        kit.add_run(tmp_path, "pair-new1", {"ada": 4}, ago=5)
        await until(pilot, lambda: kit.shows(app, "pair-new1"))
        assert app.screen.query_one("#runs", Table).key == "uneven-02c1", "the cursor stays on its run"


async def test_damaged_and_hostile_files(tmp_path: Path) -> None:
    """They are reported or ignored; their content reaches the terminal only as text."""
    kit.busy_machine(tmp_path)
    runs = tmp_path / "data" / "disttui" / "runs"
    (runs / "torn-1").mkdir()
    (runs / "torn-1" / "run.json").write_text('{"run": "torn')
    kit.add_profile(
        tmp_path, "hostile",
        json.dumps({"disttui": 1, "hosts": ["ada"], "job": {"builtin": "bytegpt"}, "description": f"me {HOSTILE}"}),
    )  # fmt: skip
    kit.add_run(tmp_path, "hostile-1", {"ada": 2}, ago=50, by=HOSTILE, step=3, steps=4, loss=float("nan"))
    async with kit.home(tmp_path, size=(160, 48)) as (app, pilot):
        await until(pilot, lambda: kit.shows(app, "damaged"))
        text = screen_text(app)
        assert not set(text) & {"\x1b", "\x9b", "\x07", "\x00", "\u202e"}
        assert "[bold red]evil[/]" in text, "markup of others is shown as it is"
        assert "hostile-1" in text


async def test_a_storm_of_sizes(tmp_path: Path) -> None:
    """Whatever the size between, the last one is drawn as if it had been the first."""
    async with kit.home(tmp_path, kit.busy_machine) as (app, pilot):
        before = screen_text(app)
        for width, height in [(1, 1), (200, 60), (41, 13), (80, 5), (300, 12), (40, 12), (119, 23), (120, 24)]:
            await pilot.resize_terminal(width, height)
        await pilot.resize_terminal(100, 30)
        await until(pilot, lambda: app.screen.focused is not None)
        assert screen_text(app) == before


async def test_a_profile_with_errors_is_opened_at_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.busy_machine(tmp_path)
    path = tmp_path / "config" / "disttui" / "profiles" / "broken.yaml"
    path.write_text("disttui: 1\n" + "# padding\n" * 60 + "hosts: [ada]\nnum_procesess: 2\njob: {builtin: bytegpt}\n")
    app = DisttuiApp(kit.environ(tmp_path))
    async with kit.home(tmp_path, app=app) as (app, pilot):
        await press(pilot, "2", "enter", shows="✗ unknown key 'num_procesess'")
        assert "  63  num_procesess: 2" in screen_text(app)
        assert "n next" not in screen_text(app), "there is one error"
        opened: list[Path | None] = []
        monkeypatch.setattr(app.router, "open_wizard", lambda profile=None, **_: opened.append(profile))
        path.write_text("disttui: 1\nhosts: [ada]\njob: {builtin: bytegpt}\n")
        await press(pilot, "r", then=lambda: opened)
        assert opened == [path]


async def test_a_run_that_falls_silent_is_called_not_seen(tmp_path: Path) -> None:
    """Nothing changes on the disk: time alone makes the difference."""
    kit.add_run(tmp_path, "pair-7f3a", {"ada": 1}, ago=100, step=1, steps=9, loss=1.0)
    async with kit.home(tmp_path) as (app, pilot):
        assert "● running" in screen_text(app)
        with patch("disttui.tui.home.screen.now", lambda: kit.NOW + 60):
            await until(pilot, lambda: kit.shows(app, "◇ not seen"))


@pytest.mark.parametrize("begins", ["queued: ", "in line: "])  # the second: of earlier versions
async def test_a_queued_run_is_not_running_and_shows_its_reason(tmp_path: Path, begins: str) -> None:
    place = kit.add_run(tmp_path, "pair-7f3a", {"ada": 1}, ago=100)
    spec = json.loads((place / "0" / "spec.json").read_text())
    (place / "0" / "spec.json").write_text(json.dumps({**spec, "queue": {"round": 0}}))
    note = {"t": kit.NOW - 5, "e": "note", "level": "info"}
    events = [{**note, "text": f"{begins}ada: bob's llama-02c1 holds GPU {gpu}"} for gpu in (0, 1)]
    (place / "0" / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    os.utime(place / "0" / "events.jsonl", (kit.NOW - 5, kit.NOW - 5))
    job = kit.add_run(tmp_path, "batch-91bd", {"login": 2}, ago=200)
    (job / "0" / "events.jsonl").unlink()
    said = {"state": "queued", "job": "12", "waits": "Resources", "started": kit.NOW - 200}
    (job / "seen.json").write_text(json.dumps(said))
    os.utime(job / "seen.json", (kit.NOW - 5, kit.NOW - 5))
    async with kit.home(tmp_path) as (app, pilot):
        await press(pilot, "d", shows="waits")
        assert "nothing running · 2 queued" in screen_text(app)
        assert "1:40" not in screen_text(app), "it has taken no time yet"
        assert "◌ queued" in screen_text(app) and "ada: bob's llama-02c1 holds GPU 1" in screen_text(app)
        lines = screen_text(app).splitlines()
        head, row = (next(line for line in lines if words in line) for words in (" took ", "◌ queued "))
        end = head.index("took") + len("took")
        assert not row[end - len("1:40") : end].strip(), "its wait is not how long it took"
        await press(pilot, "j", shows="job 12: Resources (waiting for free nodes)")


def test_a_run_that_only_waited_took_no_time(tmp_path: Path) -> None:
    kit.add_run(tmp_path, "short-7f3a", {"ada": 1}, ago=100, heard=90, end="finished")
    place = kit.add_run(tmp_path, "pair-5e20", {"ada": 1}, ago=900, heard=100, end="failed")
    spec = json.loads((place / "0" / "spec.json").read_text())
    (place / "0" / "spec.json").write_text(json.dumps({**spec, "queue": {"round": 0}}))
    (place / "0" / "events.jsonl").unlink()
    inventory = read_inventory(kit.environ(tmp_path), kit.NOW)
    at = [column.title for column in run_columns(inventory)].index("took")
    assert [(row.key, row.cells[at]) for row in runs(inventory, kit.NOW, "duration")] == [
        ("short-7f3a", "0:10"),
        ("pair-5e20", ""),
    ]


@pytest.mark.parametrize("begins", ["queued: ", "in line: "])  # the second: of earlier versions
def test_a_run_took_no_time_while_it_waited_in_a_queue(tmp_path: Path, begins: str) -> None:
    """One had its turn after ten minutes; one is a job of Slurm whose login node is not seen now."""
    place = kit.add_run(tmp_path, "turn-7f3a", {"ada": 1}, ago=900, heard=100, end="finished")
    spec = json.loads((place / "0" / "spec.json").read_text())
    (place / "0" / "spec.json").write_text(json.dumps({**spec, "queue": {"round": 0}}))
    waits = {"t": kit.NOW - 890, "e": "note", "level": "info", "text": f"{begins}ada: bob's llama-02c1 holds GPU 0"}
    turn = {"t": kit.NOW - 290, "e": "attempt", "attempt": 1, "master": "ada", "port": 1, "world_size": 1}
    (place / "0" / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in (waits, turn)))
    job = kit.add_run(tmp_path, "batch-91bd", {"login": 2}, ago=1000)
    (job / "0" / "events.jsonl").unlink()
    (job / "seen.json").write_text(json.dumps({"state": "queued", "job": "12", "waits": "Resources"}))
    for path in (*job.rglob("*"), job):
        os.utime(path, (kit.NOW - 600, kit.NOW - 600))
    inventory = read_inventory(kit.environ(tmp_path), kit.NOW)
    assert [row.state for row in inventory.runs if row.run == "batch-91bd"] == ["not seen"]
    at = [column.title for column in run_columns(inventory)].index("took")
    assert {row.key: row.cells[at] for row in runs(inventory, kit.NOW)} == {"turn-7f3a": "3:10", "batch-91bd": ""}


async def test_details_show_the_loss_of_the_row_and_its_rank(tmp_path: Path) -> None:
    """A host has just told of a later step than its mirror holds."""
    folder = kit.add_run(tmp_path, "pair-7f3a", {"ada": 1, "grace": 1}, ago=900, step=1, loss=4.0)
    path = folder / "0" / "attempt-1" / "rank-0.metrics.jsonl"
    path.write_text("".join(json.dumps({"t": 1, "step": step, "loss": 4.0 - step / 10}) + "\n" for step in range(9)))
    load_run(folder).note_seen({"run": "pair-7f3a", "attempt": 1, "step": 20, "loss": 1.25})
    async with kit.home(tmp_path) as (app, pilot):
        await press(pilot, "d", shows="4 to 1.25, rank 0")
        assert screen_text(app).count("1.25") == 2


async def test_a_loss_of_zero_reads_as_in_the_list_of_runs(tmp_path: Path) -> None:
    kit.add_run(tmp_path, "pair-7f3a", {"ada": 1}, ago=900, step=1, loss=0.0)
    async with kit.home(tmp_path) as (app, pilot):
        await until(pilot, lambda: kit.shows(app, "pair-7f3a"))
        assert "0.000" not in screen_text(app)


async def test_run_details_show_the_loss_curve_and_failure_cause(tmp_path: Path) -> None:
    folder = kit.add_run(tmp_path, "pair-5e20", {"ada": 1}, ago=900, heard=100, end="failed", step=1, loss=4.0)
    metrics = [{"t": 1, "step": step, "loss": 4.0 - step / 100} for step in range(300)]
    path = folder / "0" / "attempt-1" / "rank-0.metrics.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in metrics) + "{broken\n")
    end = json.loads((folder / "0" / "exit.json").read_text())
    cause = {"node": 0, "rank": 3, "kind": "exception", "type": "ValueError", "message": "no such token\x1b[2J"}
    (folder / "0" / "exit.json").write_text(json.dumps({**end, "cause": cause}))
    async with kit.home(tmp_path) as (app, pilot):
        await press(pilot, "d", shows="rank 3: ValueError: no such token")
        assert re.search(r"loss +▇[▁-▇]{22}▁  4 to 1.01\b", screen_text(app)), screen_text(app)
        assert "[1] Runs · 1" in screen_text(app)


async def test_a_loss_of_nan_and_a_silent_run_are_marked(tmp_path: Path) -> None:
    kit.add_run(tmp_path, "pair-5e20", {"ada": 1}, ago=900, heard=100, end="finished", step=1, loss=math.nan)
    folder = kit.add_run(tmp_path, "pair-7f3a", {"ada": 1}, ago=900, step=7, loss=2.0)
    answered = {"run": "pair-7f3a", "node_rank": 0, "state": "running", "step": 8, "attempt": 1, "silent": 24.2}
    (folder / "seen.json").write_text(json.dumps(answered))
    async with kit.home(tmp_path) as (app, pilot):
        await press(pilot, "d", shows="▲ silent")
        assert kit.shows(app, "no step for 24 s at the last check")
        await press(pilot, "j", shows="the loss is nan")


async def test_an_example_is_not_offered_to_run(tmp_path: Path) -> None:
    """Its hosts are placeholders; the one on this machine runs."""
    async with kit.home(tmp_path) as (app, pilot):
        await until(pilot, lambda: kit.shows(app, "› 2node"))
        assert "node1" not in screen_text(app) and "2 of yours" in screen_text(app)
        await press(pilot, "r", "d", shows="2 of yours: enter asks which")
        assert len(app.screen_stack) == 1
        await press(pilot, "G", then=lambda: "r run" in screen_text(app).splitlines()[-1])


async def test_home_shows_why_the_hosts_of_a_run_do_not_answer(tmp_path: Path) -> None:
    kit.add_run(tmp_path, "pair-7f3a", {"no-such-host.invalid": 1}, ago=100, heard=90)
    async with kit.home(tmp_path) as (app, pilot):
        with patch(
            "disttui.tui.home.screen.ask_hosts", ask_hosts
        ):  # inside the patch of `play`, and gone before that goes
            await pilot.press("d")
            app.screen._ask()  # type: ignore[attr-defined]
            await until(pilot, lambda: kit.shows(app, "no reply"))
        assert "not refreshed: " in screen_text(app)


async def test_the_id_of_a_run_is_never_the_column_that_is_cut(tmp_path: Path) -> None:
    kit.add_run(tmp_path, "a-rather-long-name-7f3a", {"ada": 1}, ago=100, step=1_234_567, steps=2_000_000, loss=1.0)
    async with kit.home(tmp_path, size=(44, 20)) as (app, _):
        assert "a-rather-long-name-7f3a" in screen_text(app)


async def test_a_rerun_uses_the_recorded_profile(tmp_path: Path) -> None:
    """Not the file, which may have changed, or be gone."""
    place = kit.add_run(tmp_path, "pair-91bd", {"ada": 4}, ago=900, heard=100, end="finished")
    known = json.loads((place / "run.json").read_text())
    known["profile"] |= {"job": {"script": "train.py"}, "launch": {"grace": 7}}
    (place / "run.json").write_text(json.dumps(known))
    opened: list[Any] = []
    async with kit.home(tmp_path) as (app, pilot):
        app.router.open_again = opened.append  # type: ignore[assignment, method-assign]
        await kit.asked(pilot, "r")
        assert "Rerun pair-91bd" in screen_text(app)
        await press(pilot, "enter", then=lambda: opened)
    assert (opened[0].profile.launch.grace, opened[0].resume_from) == (7, None)


async def test_every_profile_and_host_is_seen_on_40_columns(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine, size=(40, 12)) as (app, pilot):
        for pane, names in (("2", ("broken", "pair", "uneven", "2node", "2x8gpu")), ("3", ("ada", "edsger", "grace"))):
            await pilot.press(pane)
            await until(pilot, lambda names=names: all(kit.shows(app, f" {name}") for name in names))  # type: ignore[misc]


async def test_cursor_starts_on_profiles_while_there_are_no_runs(tmp_path: Path) -> None:
    """And what to press; a first run then takes the cursor."""
    kit.add_profile(tmp_path, "pair", "disttui: 1\nhosts: [ada]\njob: {builtin: bytegpt}\n")
    async with kit.home(tmp_path, size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: kit.shows(app, "none yet; r runs the selected profile"))
        await until(pilot, lambda: app.focused is not None and app.focused.id == "profiles")
        assert "enter open" in screen_text(app)
        await press(pilot, "1", then=lambda: not kit.shows(app, "enter open"))
        await pilot.press("2")
        kit.add_run(tmp_path, "pair-7f3a", {"ada": 1}, ago=100)
        await press(pilot, "f5", then=lambda: app.focused is not None and app.focused.id == "runs")


async def test_a_host_has_details_and_stays_in_sight_above_them(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine, size=(80, 24)) as (app, pilot):
        await press(pilot, "3", "d", shows="disttui top ada")
        assert re.search(r"running +● running pair-7f3a  ◇ not seen uneven-02c1", screen_text(app)), screen_text(app)
        assert "[3] Hosts · 4" in screen_text(app)
        assert app.focused is not None and app.focused.id == "hosts"
        await press(pilot, "1", then=lambda: kit.shows(app, "started") and not kit.shows(app, "[3] Hosts"))


async def test_a_question_taller_than_the_terminal_scrolls_by_keys(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine, size=(40, 12)) as (app, pilot):
        await kit.asked(pilot, "j", "j", "space", "space", "space", "D")
        assert "cannot be undone." not in screen_text(app)
        await press(pilot, *["down"] * 8, shows="cannot be undone.")
        await press(pilot, "n", then=lambda: not app.screen.is_modal)


async def test_themes_are_seen_on_the_screen_beside_their_list(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine, size=(80, 24)) as (app, pilot):
        await press(pilot, "ctrl+p", *"theme", shows="Choose a theme")
        await press(pilot, "enter", shows="disttui-light")
        assert "[1] Runs · 6" in screen_text(app) and "enter choose   esc cancel" in screen_text(app)
        strip = app.screen._compositor.render_strips(app.size)[5]
        (word,) = [segment for segment in strip if "finished" in segment.text]
        assert word.style is not None and word.style.color is not None
        assert word.style.color.name == DARK_DONE, "in its own colour, not dimmed"
