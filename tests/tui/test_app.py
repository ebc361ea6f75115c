"""What all screens share: help, palette, questions, toasts, and the way from one to another."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from textual.widgets import OptionList
from textual.widgets._toast import Toast

from disttui.runner.user.config import load_settings
from disttui.tui.app import DisttuiApp, PaletteProvider
from disttui.tui.dialogs.prompts import ThemeScreen
from disttui.tui.widgets.bars import FooterBar
from tests.command import ran
from tests.tui import shelf_kit as kit
from tests.tui.shelf_kit import Doors
from tests.tui.snap import assert_snapshot, press, screen_text, until

ROOT = Path(__file__).parents[2]


def test_nothing_slow_is_imported_before_the_first_screen() -> None:
    """No SSH, no schema, no YAML, no other screen: they cost more than the whole start."""
    code = (
        "import sys\nimport disttui.tui.app, disttui.tui.home.screen\nfrom disttui.tui.router import SCREENS\n"
        "slow = {'paramiko', 'torch', 'numpy', 'pydantic', 'yaml', 'ruamel', 'plotext', 'psutil', 'cryptography'}\n"
        "rooms = {f'disttui.tui.{name}' for name in ('dashboard', 'wizard', 'top', 'replay', 'run', 'log', 'charts')}\n"
        "screens = {place.partition(':')[0] for kind, place in SCREENS.items() if kind != 'home'}\n"
        "print(*sorted((slow | rooms | screens) & set(sys.modules)))\n"
    )
    done = ran([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert done.stdout.split() == []


async def test_help_tells_every_key_of_the_screen_in_words(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine, size=(100, 70)) as (app, pilot):
        await press(pilot, "question_mark")
        await assert_snapshot(pilot, "help_home_100x70")
        text = screen_text(app)
        for words in ("describe hosts and job in the wizard", "quit; runs continue, except in a sandbox", "last row"):
            assert words in text
        await press(pilot, "escape")
        assert not app.screen.is_modal


@pytest.mark.parametrize(
    ("words", "opened"),
    [("91bd", ("run", "pair-91bd")), ("edsger", ("top", ("edsger", "edsger"), None)), ("new", ("wizard", None, False))],
)
async def test_palette_finds_runs_hosts_and_actions(tmp_path: Path, words: str, opened: tuple[object, ...]) -> None:
    async with kit.home(tmp_path, kit.busy_machine) as (app, pilot):
        await pilot.press("ctrl+p", *words)
        await until(pilot, lambda: not any(worker.is_running for worker in app.workers if worker.node is app.screen))
        await until(pilot, lambda: app.screen.query_one(OptionList).option_count)
        await press(pilot, "enter", then=lambda: app.opened)
        assert app.opened == [opened]


async def test_the_palette_offers_nothing_twice(tmp_path: Path) -> None:
    app = DisttuiApp(kit.environ(tmp_path, XDG_CACHE_HOME=f"{tmp_path}/cache"))
    async with kit.home(tmp_path, app=app) as (app, pilot):
        for words in ("[2] Profiles", "✓ finished"):
            await until(pilot, lambda words=words: kit.shows(app, words))  # type: ignore[misc]
            offered = [
                (one.title, one.help.rpartition("  ")[2].casefold()) for one in PaletteProvider(app.screen)._actions()
            ]
            assert len({*offered}) == len(offered)
            assert ("Quit", "quit; runs continue, except in a sandbox") in offered
            app.router.open_replay("example")


async def test_the_line_of_the_palette_says_what_it_finds(tmp_path: Path) -> None:
    async with kit.home(tmp_path) as (app, pilot):
        await press(pilot, "ctrl+p", shows="a run, profile, host or action")
        await press(pilot, "escape", then=lambda: not kit.shows(app, "a run, profile, host or action"))


async def test_palette_previews_themes_and_saves_the_chosen_one(tmp_path: Path) -> None:
    """Escape leaves the colours as they were; what is chosen is there at the next start."""
    environ = kit.environ(tmp_path)
    async with kit.home(tmp_path, app=Doors(environ)) as (app, pilot):
        for keys, kept in ((["down", "escape"], "disttui-dark"), (["down", "enter"], "disttui-light")):
            await press(pilot, "ctrl+p", *"theme", shows="Choose a theme")
            await press(pilot, "enter", then=lambda: isinstance(app.screen, ThemeScreen) and app.screen.focused)
            await press(pilot, keys[0], then=lambda: app.theme == "disttui-light" and not app.current_theme.dark)
            await pilot.press(keys[1])
            await until(pilot, lambda kept=kept: not app.screen.is_modal and app.theme == kept)  # type: ignore[misc]
        await until(pilot, lambda: kit.shows(app, "theme disttui-light saved in"))
    assert load_settings(environ).theme == "disttui-light"


@pytest.mark.parametrize("downloads", ["", "none"], ids=["downloads", "home"])
async def test_the_palette_takes_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, downloads: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DOWNLOAD_DIR", str(tmp_path / downloads))
    async with kit.home(tmp_path) as (_, pilot):
        await press(pilot, "ctrl+p", *"screenshot", shows="Save this screen as SVG")
        await press(pilot, "enter", shows="saved:")
    assert [path.read_text()[:4] for path in tmp_path.glob("disttui-*.svg")] == ["<svg"]


async def test_a_toast_is_text_and_nothing_else(tmp_path: Path) -> None:
    async with kit.home(tmp_path) as (app, pilot):
        app.notify("\x1b]0;owned\x07[bold]a[/bold] \x9b2J\nsecond", title="[red]\x1b[2J")
        await until(pilot, lambda: kit.shows(app, "second"))
        text = screen_text(app)
        assert "[bold]a[/bold]" in text
        assert not set(text) & {"\x1b", "\x9b", "\x07"}


async def test_copy_says_by_which_way(tmp_path: Path) -> None:
    async with kit.home(tmp_path) as (app, pilot):
        app.copy("a\nb\n")
        await until(pilot, lambda: kit.shows(app, "2 lines copied (OSC 52"))


async def test_hosts_may_ask_while_they_are_reached(tmp_path: Path) -> None:
    """Questions from threads come one after another; none shows a secret; giving up is an answer."""
    answers: list[object] = []
    async with kit.home(tmp_path) as (app, pilot):
        prompts = app.prompts()
        asking = threading.Thread(
            target=lambda: answers.extend([
                prompts.secret("ada\x1b[2J", "Password:"),
                prompts.secret("ada", "Code:"),
                prompts.accept_host_key("grace", "ssh-ed25519", "SHA256:abc"),
                prompts.accept_host_key("grace", "ssh-ed25519", "SHA256:abc"),
            ])
        )  # fmt: skip
        asking.start()
        await until(pilot, lambda: kit.shows(app, "Password:"))
        await kit.asked(pilot)
        await pilot.press(*"hunter2")
        assert "hunter2" not in screen_text(app)
        await press(pilot, "enter", shows="Code:")
        await kit.asked(pilot)
        await press(pilot, "escape", shows="SHA256:abc")
        await kit.asked(pilot)
        first = app.screen
        await press(pilot, "ctrl+t", then=lambda: app.screen is not first and kit.shows(app, "SHA256:abc"))
        await kit.asked(pilot)
        await press(pilot, "escape", then=lambda: not asking.is_alive())
        assert answers == ["hunter2", None, True, False]


@pytest.mark.parametrize("size", [(80, 24), (120, 35)])
async def test_messages_of_a_host_are_shown_with_its_question(tmp_path: Path, size: tuple[int, int]) -> None:
    """However long they are, the input stays in sight; a password is shared only by a key that no typing holds."""
    answers: list[object] = []
    async with kit.home(tmp_path, size=size) as (app, pilot):
        prompts = app.prompts()
        said = "\n".join(f"│ line {number}" for number in range(24))
        asking = threading.Thread(
            target=lambda: answers.extend([
                prompts.secret("ada", "your answer:", said),
                prompts.share_password("ada", 15),
                prompts.share_password("ada", 1),
            ])
        )  # fmt: skip
        telling = threading.Thread(target=prompts.tell, args=("ada", "│ Look at your \x1b[2Jphone"))
        telling.start()
        await until(pilot, lambda: kit.shows(app, "│ Look at your phone"))
        asking.start()
        await until(pilot, lambda: kit.shows(app, "your answer:"))
        assert kit.shows(app, "ada says:")
        await until(pilot, lambda: kit.shows(app, "│ line 23"))
        await kit.asked(pilot)
        assert app.screen.focused is not None
        assert app.screen.focused.region.bottom <= size[1]
        await press(pilot, *"123", "enter", shows="on the other 15 hosts")
        await kit.asked(pilot)
        await press(pilot, "y", "ctrl+t", shows="on the other host?")
        await kit.asked(pilot)
        await press(pilot, "escape", then=lambda: not asking.is_alive())
        assert answers == ["123", True, False]


@pytest.mark.parametrize("size", [(80, 24), (120, 35)])
async def test_a_toast_covers_nothing(tmp_path: Path, size: tuple[int, int]) -> None:
    async with kit.home(tmp_path, kit.busy_machine, size=size) as (app, pilot):
        app.notify("pair-7f3a stopped after 0:03", title="a title", timeout=600)
        await until(pilot, lambda: kit.shows(app, "stopped after 0:03"))
        toast = app.screen.query_one(Toast)
        for widget in app.screen.query("Table, FooterBar, HeaderBar"):
            assert not widget.display or not widget.region.overlaps(toast.region), widget
        assert toast.region.bottom <= size[1] - 1 and toast.region.area
        app.clear_notifications()
        await until(pilot, lambda: not kit.shows(app, "stopped after 0:03"))
        assert app.screen.query_one(FooterBar).region.y == size[1] - 1
