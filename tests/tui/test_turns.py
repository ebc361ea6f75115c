"""Keys that arrive together, as over a slow link or in a paste, mean what they would mean one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual import events
from textual.geometry import Offset
from textual.widgets import Input
from textual.widgets._toast import Toast

from disttui.tui.app import DisttuiApp
from disttui.tui.dialogs import question
from disttui.tui.dialogs.help import HelpScreen
from disttui.tui.dialogs.prompts import TrustScreen
from disttui.tui.home.screen import HomeScreen
from disttui.tui.log import LogView
from disttui.tui.replay.screen import ReplayScreen
from disttui.tui.wizard.hosts_screen import run_detached
from tests.tui import shelf_kit as kit
from tests.tui.snap import press, screen_text, until
from tests.tui.test_app_terminal import CLI, terminal
from tests.tui.test_dashboard import opened
from tests.tui.widget_kit import burst


async def test_what_is_typed_behind_find_and_filter_is_their_text(tmp_path: Path) -> None:
    async with opened("replay", "example", tmp_path) as (pilot, screen):
        log = screen.query_one(LogView)
        burst(pilot.app, "slash", *"step", "space", "2", "enter")
        await until(pilot, lambda: str(log.lines.view.find) == "“step 2”" and screen.focused is log.lines)
        burst(pilot.app, "g", "ampersand", *"loss", "enter", "j", "slash", *"zz", "escape", "y", "2")
        await until(pilot, lambda: [str(one) for one in log.lines.view.choice.patterns] == ["“loss”"])
        await until(pilot, lambda: log.lines.view.choice.ranks == frozenset([2]))
        assert str(log.lines.view.find) == "“step 2”", "escape left the prompt without an answer"


async def test_a_paste_follows_the_keys_before_it(tmp_path: Path) -> None:
    async with opened("replay", "example", tmp_path) as (pilot, screen):
        burst(pilot.app, "slash")
        pilot.app.post_message(events.Paste("step 2"))
        burst(pilot.app, "enter")
        log = screen.query_one(LogView)
        await until(pilot, lambda: str(log.lines.view.find) == "“step 2”")


async def test_the_filter_of_the_home_screen(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine) as (app, pilot):
        burst(app, "slash", *"uneven", "enter", "enter")
        await until(pilot, lambda: app.opened)
        assert app.screen.query_one("#filter", Input).value == "uneven"
        assert app.opened == [("run", "uneven-02c1")]


async def test_keys_typed_before_a_question_do_not_answer_it(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine) as (app, pilot):
        burst(app, "2", "j", "r", "y", "enter", "escape")
        await kit.asked(pilot)
        await until(pilot, lambda: not app._keys._ahead)  # each of them starts the waiting time again
        assert app.screen.is_modal and not app.opened
        await kit.asked(pilot)
        await press(pilot, "y", then=lambda: app.opened)


async def test_a_question_never_comes_up_over_a_line_with_the_focus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[object] = []
    monkeypatch.setattr(question, "READING_TIME", 1000.0)  # however slowly the keys arrive
    async with kit.home(tmp_path) as (app, pilot):
        await pilot.press("slash", "n")
        run_detached(lambda: answers.append(app.prompts().accept_host_key("grace", "ssh-ed25519", "SHA256:abc")))
        await until(pilot, lambda: kit.shows(app, "^o answer") and kit.shows(app, "grace has a question"))
        await pilot.press("y", "enter")  # which leaves the line
        await until(pilot, lambda: isinstance(app.screen, TrustScreen))
        burst(app, *"yes", "left", "enter", "ctrl+t", "escape")
        await pilot.pause()
        await until(pilot, lambda: not app._keys._ahead)
        assert isinstance(app.screen, TrustScreen) and not answers, "a user who continues typing has not read it"
        app.screen._answers_from = 0.0
        await press(pilot, "ctrl+t", then=lambda: answers)
        assert answers == [True]


async def test_keys_after_one_that_opens_a_screen_go_to_that_screen(tmp_path: Path) -> None:
    async with kit.home(tmp_path, app=DisttuiApp(kit.environ(tmp_path))) as (app, pilot):
        burst(app, "e", "e", "question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert [type(one) for one in app.screen_stack[-3:]] == [HomeScreen, ReplayScreen, HelpScreen]


async def test_a_key_whose_widget_closes_does_not_block_others(tmp_path: Path) -> None:
    async with kit.home(tmp_path) as (app, pilot):
        for _ in range(5):
            burst(app, "question_mark", "escape")
        burst(app, "slash", *"abc")
        await until(pilot, lambda: app.screen.query("#filter") and app.screen.query_one("#filter", Input).value)
        await until(pilot, lambda: app.screen.query_one("#filter", Input).value == "abc")


async def test_two_clicks_on_a_notice_close_it(tmp_path: Path) -> None:
    """The second pointed at a widget that the first had removed, whose parent Textual needs: the app crashed."""
    async with kit.home(tmp_path) as (app, pilot):
        app.notify("saved", timeout=60)
        await until(pilot, lambda: "saved" in screen_text(app))
        row = next(row for row, line in enumerate(screen_text(app).splitlines()) if "saved" in line)
        at = Offset(screen_text(app).splitlines()[row].index("saved"), row)
        await until(pilot, lambda: isinstance(app.get_widget_at(*at)[0], Toast))
        for kind in (events.MouseDown, events.MouseUp, events.MouseDown, events.MouseMove, events.MouseUp):
            app.post_message(kind(None, at.x, at.y, 0, 0, 1, False, False, False, at.x, at.y))
        await until(pilot, lambda: not app.screen.query(Toast))


def test_in_a_terminal_one_write_is_enough(tmp_path: Path) -> None:
    with terminal([*CLI, "runs", "replay", "example"], tmp_path) as shown:
        shown.until(b"lines")
        shown.type(b"/Error\r")
        shown.until("/ “Error” ".encode())
        shown.type(b"\x11")
        assert shown.end() == 0


def test_host_names_in_the_wizard(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text("Host edsger\n")
    with terminal([*CLI, "--ssh-config", str(config)], tmp_path) as shown:
        shown.until(b"profiles")
        shown.type(b"n")
        shown.until(b"edsger")
        shown.type(b"ada grace")
        shown.until(b"adds ada, grace")
        shown.type(b"\x11")
        assert shown.end() == 0
