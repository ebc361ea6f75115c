"""The user's config: its settings, and the errors of a wrong one."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from disttui.runner.errors import InputError
from disttui.runner.profile.save import change_config
from disttui.runner.user.config import Settings, config_file, load_settings
from tests.tui import shelf_kit as kit
from tests.tui.shelf_kit import Doors
from tests.tui.snap import press, screen_text, until


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
        ("- a", "not a mapping"),
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


async def test_keys_can_be_given_to_other_actions(tmp_path: Path) -> None:
    """Footer and help tell the new key; the old one does nothing any more."""
    kit.busy_machine(tmp_path)
    environ = _write(tmp_path, "keys:\n  home.new: ctrl+n,F4\n")
    async with kit.home(tmp_path, settings=load_settings(environ)) as (app, pilot):
        assert "^n new" in screen_text(app)
        await pilot.press("n")
        assert app.opened == []
        await pilot.press("ctrl+n")
        assert app.opened == [("wizard", None, False)]
        await press(pilot, "question_mark")
        assert "^n" in screen_text(app)


async def test_a_theme_that_is_not_there_is_reported(tmp_path: Path) -> None:
    async with kit.home(tmp_path, settings=Settings(theme="drak")) as (app, pilot):
        await until(pilot, lambda: kit.shows(app, "unknown theme 'drak'"))


@pytest.mark.parametrize("text", ["libraries:\n", "theme: ~\nkeys:\nsecret_commands:\n"])
def test_a_key_without_a_value_counts_as_not_given(tmp_path: Path, text: str) -> None:
    assert load_settings(_write(tmp_path, text)) == Settings()


async def test_a_wrong_library_is_reported_and_runs_are_still_listed(tmp_path: Path) -> None:
    kit.busy_machine(tmp_path)
    environ = _write(tmp_path, "libraries: [team]\n")
    async with kit.home(tmp_path) as (app, pilot):
        await until(pilot, lambda: bool(app.inventory.problems))
        assert "config.yaml:1:13: not a library, expected own, examples" in "".join(app.inventory.problems)
        assert app.inventory.runs
        config_file(environ).write_text("libraries: [own]\n")
        await press(pilot, "f5", then=lambda: bool(app.inventory.profiles))
        assert not [problem for problem in app.inventory.problems if "config.yaml" in problem]


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
async def test_a_theme_that_is_chosen_is_remembered(tmp_path: Path, before: str, after: str) -> None:
    environ = _write(tmp_path, before) if before else kit.environ(tmp_path)
    async with kit.home(tmp_path, app=Doors(environ, load_settings(environ))) as (app, pilot):
        app.theme = "disttui-light"
        await until(pilot, lambda: "theme disttui-light saved in" in screen_text(app))
    assert load_settings(environ).theme == "disttui-light"
    assert re.sub(r"(?<=\S) +#", " #", config_file(environ).read_text()) == after


@pytest.mark.parametrize(
    "text", ["animations: no\nkeys: {home.new: on, home.top: 12:30}\n", "keys:\n- &a no\n- *a\n", "{bell: yes}\n"]
)
def test_a_change_of_one_key_leaves_the_words_of_the_others(tmp_path: Path, text: str) -> None:
    environ = _write(tmp_path, text)
    change_config(environ, lambda _: {"theme": "nord"})
    now = config_file(environ).read_text()
    assert now.replace("theme: nord\n", "").replace(", theme: nord", "") == text


def test_a_config_not_editable_by_key_is_left_unchanged(tmp_path: Path) -> None:
    for text in ("a: &a {theme: x}\n<<: *a\n", "[]\n"):
        environ = _write(tmp_path, text)
        with pytest.raises(InputError, match=r"config\.yaml"):
            change_config(environ, lambda _: {"theme": "nord"})
        assert config_file(environ).read_text() == text


@pytest.mark.parametrize("text", ["~\n", "# mine\nnull # none\n", "--- Null", "# only words\n", "---\n~\n"])
def test_an_empty_config_gains_a_key_and_keeps_its_comments(tmp_path: Path, text: str) -> None:
    environ = _write(tmp_path, text)
    change_config(environ, lambda _: {"theme": "nord"})
    now = config_file(environ).read_text()
    assert load_settings(environ).theme == "nord" and now.count("#") == text.count("#")


def test_a_lock_on_the_config_folder_does_not_delay_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disttui.runner.profile.save._PATIENCE", 0.1)
    environ = _write(tmp_path, "bell: true\n")
    folder = config_file(environ).parent
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        change_config(environ, lambda _: {"theme": "nord"})
    finally:
        os.close(descriptor)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.glob(".*")} == {".config.lock": 0o600}


def test_changes_of_the_config_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    environ = kit.environ(tmp_path)

    def give(number: int) -> None:
        def change(data: Mapping[str, object]) -> dict[str, object]:
            before = data.get("keys")
            return {"keys": {**(before if isinstance(before, dict) else {}), f"home.k{number}": "f1"}}

        change_config(environ, change)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(give, range(24)))
    assert len(load_settings(environ).keys) == 24


def test_a_new_config_is_the_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    environ, before = kit.environ(tmp_path), os.umask(0o002)
    try:
        change_config(environ, lambda _: {"theme": "nord"})
    finally:
        os.umask(before)
    assert stat.S_IMODE(config_file(environ).stat().st_mode) == 0o600


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_theme_that_cannot_be_saved_is_reported(tmp_path: Path, read_only: bool) -> None:
    environ = _write(tmp_path, "theme: nord\n")
    async with kit.home(tmp_path, settings=Settings(theme="nord"), read_only=read_only) as (app, pilot):
        config_file(environ).unlink()
        config_file(environ).mkdir()
        app.theme = "disttui-light"
        if not read_only:
            await until(pilot, lambda: "cannot save theme" in screen_text(app))
