"""The user's config: what it can say, and what is said of a wrong one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from textual.pilot import Pilot

from runner.errors import InputError
from runner.user_config import Settings, config_file, load_settings
from tests.tui import shelf_kit as kit
from tests.tui.shelf_kit import Doors
from tests.tui.snap import screen_text


def _write(folder: Path, text: str) -> dict[str, str]:
    environ = kit.environ(folder)
    path = config_file(environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return environ


def test_without_one_there_are_defaults(tmp_path: Path) -> None:
    assert load_settings(kit.environ(tmp_path)) == Settings()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("theme: [1", "config.yaml:1"),
        ("- a", "this is no mapping"),
        ("thme: dark", "Did you mean theme?"),
        ("theme: 3", "expected a name"),
        ("animations: perhaps", "expected true or false"),
        ("bell: loud", "expected true or false"),
        ("notify: osc8", "expected one of none, osc9, osc777"),
        ("keys: n", "expected a mapping"),
        ("keys: {home.new: 3}", "expected keys such as ctrl+n"),
        ("keys: {home.new: ','}", "expected keys such as ctrl+n"),
        ("\x00", "config.yaml"),
        ("a: " + "[" * 3000, "config.yaml"),
    ],
)
def test_a_wrong_one_is_one_clear_error(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=r"config\.yaml") as caught:
        load_settings(_write(tmp_path, text))
    assert words in str(caught.value)


def test_keys_can_be_given_to_other_actions(tmp_path: Path) -> None:
    """Footer and help tell the new key; the old one does nothing any more."""
    kit.busy_machine(tmp_path)
    environ = _write(tmp_path, "keys:\n  home.new: ctrl+n,F4\n")

    async def press(app: Doors, pilot: Pilot[None]) -> None:
        assert "^n new" in screen_text(app)
        await pilot.press("n")
        assert app.opened == []
        await pilot.press("ctrl+n")
        assert app.opened == [("wizard", None, False)]
        await pilot.press("question_mark")
        await pilot.pause()
        assert "^n" in screen_text(app)

    kit.play(tmp_path, press, settings=load_settings(environ))


def test_a_theme_that_is_not_there_is_reported(tmp_path: Path) -> None:
    async def look(app: Doors, pilot: Pilot[None]) -> None:
        await kit.until(pilot, lambda: kit.shows(app, "no theme 'drak'"))

    kit.play(tmp_path, look, settings=Settings(theme="drak"))


@pytest.mark.parametrize(
    ("more", "settings", "level"),
    [
        ({}, Settings(), "basic"),
        ({"SSH_CONNECTION": "a b c d"}, Settings(), "none"),
        ({"SSH_CONNECTION": "a b c d"}, Settings(animations=True), "basic"),
        ({}, Settings(animations=False), "none"),
    ],
)
def test_nothing_moves_over_ssh(tmp_path: Path, more: dict[str, str], settings: Settings, level: str) -> None:
    assert Doors(kit.environ(tmp_path, **more), settings).animation_level == level


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "theme: disttui-light\n"),
        ("# mine", "# mine\ntheme: disttui-light\n"),
        ("# mine\nanimations: false  # calm\n", "# mine\nanimations: false # calm\ntheme: disttui-light\n"),
        (
            "theme: nord   # at night\nkeys:\n  # left hand\n  home.new: ctrl+n\n",
            "theme: disttui-light # at night\nkeys:\n  # left hand\n  home.new: ctrl+n\n",
        ),
    ],
)
def test_a_theme_that_is_chosen_is_remembered(tmp_path: Path, before: str, after: str) -> None:
    environ = _write(tmp_path, before) if before else kit.environ(tmp_path)

    async def choose(app: Doors, pilot: Pilot[None]) -> None:
        app.theme = "disttui-light"
        await kit.until(pilot, lambda: "disttui-light is remembered in" in screen_text(app))

    kit.play(tmp_path, choose, app=Doors(environ, load_settings(environ)))
    assert load_settings(environ).theme == "disttui-light"
    assert re.sub(r"(?<=\S) +#", " #", config_file(environ).read_text()) == after


def test_a_theme_that_cannot_be_remembered_is_said_and_under_read_only_none_is(tmp_path: Path) -> None:
    environ = _write(tmp_path, "theme: nord\n")

    async def choose(app: Doors, pilot: Pilot[None]) -> None:
        config_file(environ).unlink()
        config_file(environ).mkdir()
        app.theme = "disttui-light"
        if not app.read_only:
            await kit.until(pilot, lambda: "is not remembered" in screen_text(app))

    for read_only in (False, True):
        kit.play(tmp_path, choose, app=Doors(environ, Settings(theme="nord"), read_only=read_only))
        config_file(environ).rmdir()
        config_file(environ).write_text("theme: nord\n")
