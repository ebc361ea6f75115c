"""The help: the keys of the pane with the cursor first, a line to search in, and no key with two meanings unsaid."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import click
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input, Static

from disttui.runner.cli.app import cli
from disttui.tui.app import DisttuiApp
from disttui.tui.charts.chart import Chart
from disttui.tui.dialogs.help import HelpScreen
from disttui.tui.keys import SHELL_COMMANDS
from tests.tui import shelf_kit as kit
from tests.tui import top_kit
from tests.tui.snap import press, screen_text, until
from tests.tui.wizard_kit import HOSTS, walked


def _opened(app: App[None]) -> bool:
    return isinstance(app.screen, HelpScreen) and app.screen._compositor.size == app.size


async def test_help_lists_focused_pane_first_and_flags_shared_keys(tmp_path: Path) -> None:
    async with kit.replayed(tmp_path, (110, 90)) as (app, pilot, screen):
        for pane in ("hosts", "events"):
            screen.go_to(pane)
            await until(pilot, lambda pane=pane: app.focused is screen.query_one(f"#{pane}"))  # type: ignore[misc]
            await press(pilot, "question_mark", then=lambda: _opened(app))
            titles = [line for line in screen_text(app).splitlines() if "where the cursor is" in line]
            assert len(titles) == 1 and f"In {pane.capitalize()}, where" in titles[0]
            shown = screen_text(app)
            assert shown.index("where the cursor is") < shown.index("next pane")
            closed = app.screen
            assert isinstance(closed, HelpScreen)
            await press(pilot, "escape", then=lambda: app.screen is screen)
            closed.on_resize()  # a size that comes while it closes is no error
        screen.go_to("hosts")
        await press(pilot, "question_mark", then=lambda: _opened(app))
        shown = screen_text(app)
        assert "o          by trouble" in shown and "o in Log: pager" in shown, shown
        assert "0-9        choose a rank by its number" in shown, shown
        for columns in (80, 40):
            await pilot.resize_terminal(columns, 90)
            await until(pilot, lambda: app.size.width == columns and _opened(app))  # noqa: B023
            words = app.screen.query_one(".words", Static)
            lines = str(words.content).splitlines()
            assert "by trouble, by load, or as in the profile" in " ".join(" ".join(lines).split())
            assert max(map(len, lines)) <= words.size.width, "no line is cut off"


async def test_what_the_app_leaves_to_the_command_line_is_there(tmp_path: Path) -> None:
    for words, _ in SHELL_COMMANDS:
        name, _, rest = words.partition(" ")
        found = cli.commands[name]
        assert not rest or (isinstance(found, click.Group) and rest in found.commands)
    asked = {"lease list", "lease add", "lease queue", "sweep", "runs weights", "library"}
    assert asked <= {words for words, _ in SHELL_COMMANDS}
    async with kit.home(tmp_path) as (_, pilot):
        with patch.object(DisttuiApp, "copy") as copied:
            await press(pilot, "ctrl+p", *"disttui sweep", shows="copy this command: a queued run for each value")
            await press(pilot, "enter", then=lambda: copied.called)
        copied.assert_called_once_with("disttui sweep")


async def test_a_line_finds_keys_by_words_by_the_key_and_by_the_id(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine) as (app, pilot):
        await press(pilot, "question_mark", then=lambda: _opened(app) and "describe hosts and job" in screen_text(app))
        await press(pilot, "slash", *"palette", then=lambda: "describe hosts and job" not in screen_text(app))
        assert "find a run, profile, host or action" in screen_text(app)
        await press(pilot, "escape", shows="describe hosts and job")
        await press(pilot, "slash", *"home.stop", shows="stop this run on all hosts")
        assert "describe hosts and job" not in screen_text(app)
        line = app.screen.query_one(Input)
        line.value = "lease"
        await until(pilot, lambda: "disttui lease list" in screen_text(app) and "stop this run" not in screen_text(app))
        line.value = "home.stopzz"
        await until(pilot, lambda: "no matching key" in screen_text(app))
        await press(pilot, "escape", "escape", then=lambda: not isinstance(app.screen, HelpScreen))


async def test_what_is_looked_for_is_seen_on_40_columns(tmp_path: Path) -> None:
    async with kit.home(tmp_path, size=(40, 12)) as (app, pilot):
        await press(pilot, "question_mark", then=lambda: _opened(app))
        await pilot.press("slash", *"lease")
        await until(pilot, lambda: re.search(r"disttui lease list +who uses which\n {20,}GPU", screen_text(app)))


async def test_the_pane_of_hosts_in_top_is_called_by_its_name(tmp_path: Path) -> None:
    """Its title has numbers alone."""
    async with kit.home(tmp_path, size=(80, 40)) as (app, pilot):
        screen = top_kit.MadeUpTop()
        await app.push_screen(screen)
        screen.show(top_kit.hosts(2, 4), top_kit.NOW)
        await until(pilot, lambda: "2 hosts, 8 GPUs" in screen_text(app))
        await pilot.press("question_mark")
        await until(pilot, lambda: _opened(app) and "In hosts, where the cursor is" in screen_text(app))


async def _help(pilot: Pilot[None], key: str = "question_mark") -> str:
    """All lines of the help over a screen, which is closed again."""
    before = pilot.app.screen
    await press(pilot, key, then=lambda: isinstance(pilot.app.screen, HelpScreen) and _opened(pilot.app))
    words = str(pilot.app.screen.query_one(".words", Static).content)
    await press(pilot, "escape", then=lambda: pilot.app.screen is before)
    return words


async def test_help_omits_keys_that_the_focused_line_takes_as_text(tmp_path: Path) -> None:
    async with walked(tmp_path, HOSTS, 1, (110, 60), names=["gpu1"]) as (pilot, _):
        words = await _help(pilot, "f1")
        assert "  f1 " in words and "? f1" not in words and "q esc" not in words
        assert "  esc  " in words and "at the first, leave the wizard" in words
        assert "\nOpen\n" not in f"\n{words}"
        assert words.count("next step") == 1, "in the list of hosts; in the line enter adds first"
        await pilot.press("tab")
        assert "q esc" in await _help(pilot)


async def test_the_help_of_a_replay_says_what_its_keys_do_there(tmp_path: Path) -> None:
    async with kit.replayed(tmp_path, (110, 60)) as (app, pilot, screen):
        chart = next(iter(screen.query(Chart)))
        chart.focus()
        await until(pilot, lambda: app.focused is chart)
        words = await _help(pilot)
        assert "the values at a cursor" not in words and re.search(r"\. → +move the cursor one step forward", words)
        assert "the run continues" not in words
        screen.query_one("#ranks").focus()
        await until(pilot, lambda: app.focused is screen.query_one("#ranks"))
        await press(pilot, "l", shows="─rank 0 ")
        words = await _help(pilot)
        assert "In Ranks, where the cursor is" in words, "whatever the title says of the rank under the cursor"
        assert re.search(r"l → +next rank", words) and re.search(r"  \. +move the cursor one step forward", words)


async def test_help_over_an_own_profile_says_that_e_edits_it(tmp_path: Path) -> None:
    kit.add_profile(tmp_path, "pair", "disttui: 1\nhosts: [ada]\njob: {builtin: bytegpt}\n")
    async with kit.home(tmp_path, size=(110, 60)) as (app, pilot):
        await until(pilot, lambda: app.focused is not None and app.focused.id == "profiles")
        words = await _help(pilot)
        assert "open this profile in $EDITOR" in words and "replay a recorded run" not in words
        await pilot.press("j")
        words = await _help(pilot)
        assert "replay a recorded run" in words and "open this profile in $EDITOR" not in words
