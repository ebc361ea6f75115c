"""How the wizard looks where something is in the way: questions, hosts that fail, files with errors; its contrast."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from rich.segment import Segment
from textual.color import Color
from textual.pilot import Pilot
from textual.widgets import Static

from disttui.tui.app import DisttuiApp
from disttui.tui.dialogs.profile_error import ProfileErrorScreen
from disttui.tui.dialogs.prompts import AppPrompts
from disttui.tui.dialogs.question import Question
from disttui.tui.wizard import WizardScreen
from disttui.tui.wizard.check import Pane
from disttui.tui.wizard.hosts_screen import run_detached
from tests.tui.shelf_kit import shows
from tests.tui.snap import assert_snapshots, press, screen_text, snapshot, until
from tests.tui.test_theme import _contrast
from tests.tui.test_wizard_host_form import edit, said
from tests.tui.wizard_kit import HOSTS, called, record, walk, wizard

KEY = ("ssh-ed25519", "SHA256:4mA3rvvJq0H7vI3bhoP0wQqJcH6y6m3vLJxO9q2nMeo")
TWO = ("gpu1", "gpu2")
ALL = ("gpu1", "silent", "down", "changed")
Act = Callable[[Pilot[None], WizardScreen], Awaitable[None]]


def keys(hosts: tuple[str, ...], step: int, *pressed: str) -> Act:
    """Go to a step, and press keys there."""

    async def act(pilot: Pilot[None], opened: WizardScreen) -> None:
        await walk(pilot, opened, hosts, step)
        for key in pressed:
            await press(pilot, key)

    return act


def asked(ask: Callable[[AppPrompts], object]) -> Act:
    """Have a host ask something while it is reached."""

    async def act(pilot: Pilot[None], opened: WizardScreen) -> None:
        await walk(pilot, opened, ("silent",), 1)
        await _asked(pilot, ask)

    return act


async def _asked(pilot: Pilot[None], ask: Callable[[AppPrompts], object]) -> None:
    app = pilot.app
    assert isinstance(app, DisttuiApp)
    run_detached(lambda: ask(app.prompts()))
    await called(pilot, Question)


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that are recorded, and a home whose path is the same everywhere."""
    record(monkeypatch, HOSTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/ada/.config")


def pressed(*keys: str) -> Act:
    """Press keys where it is."""

    async def act(pilot: Pilot[None], opened: WizardScreen) -> None:
        for key in keys:
            await press(pilot, key)

    return act


def on(*keys: str, step: int) -> Act:
    """Press keys that lead to another step."""

    async def act(pilot: Pilot[None], opened: WizardScreen) -> None:
        await pressed(*keys)(pilot, opened)
        await until(pilot, lambda: opened._at == step - 1)

    return act


async def _host_form(pilot: Pilot[None], opened: WizardScreen) -> None:
    await edit(pilot, opened, 1)
    await press(pilot, "down", "space", then=lambda: said(opened, 1).get("gpus") == [1])


async def _password(pilot: Pilot[None], opened: WizardScreen) -> None:
    await press(pilot, "escape", then=lambda: pilot.app.screen is opened)
    await _asked(pilot, lambda prompts: prompts.secret("gpu1", "Password for ada: "))


WALKS: dict[str, list[tuple[str, Act]]] = {
    "two hosts": [
        ("none", keys((), 1)),
        ("1", keys(TWO, 1)),
        ("2", on("enter", step=2)),
        ("3", on("enter", step=3)),
        ("host", _host_form),
        ("4", on("a", "escape", "enter", step=4)),
        ("5", on("enter", step=5)),
        ("save", pressed("s")),
        ("check-profile", pressed("escape", "2")),
        ("check-commands", pressed("3")),
    ],
    "failures": [("silent", keys(ALL, 1, "down", "j")), ("down", pressed("j")), ("changed", pressed("j"))],
    "questions": [("key", asked(lambda prompts: prompts.accept_host_key("gpu1", *KEY))), ("password", _password)],
    "leave": [("leave", keys(("gpu1",), 1, "escape"))],
    "hardware": [("hardware-down", keys(("gpu1", "gpu2", "desk", "down", "silent"), 2, "j", "j", "j"))],
    "errors": [("check-errors", keys(("gpu1", "desk"), 5))],
}
"""Names of snapshots, each with what is done after the one before it."""


@pytest.mark.slow
@pytest.mark.parametrize("walked", WALKS)
async def test_it_looks_so(tmp_path: Path, walked: str) -> None:
    async with wizard(tmp_path) as (pilot, opened):
        for scene, act in WALKS[walked]:
            await act(pilot, opened)
            await assert_snapshots(pilot, f"wizard-{scene}-{{}}")


async def test_a_file_with_errors_looks_so(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("disttui: 1\nhosts: [ada, ada]\nnum_procesess: 2\njob: {script: train.py, module: train}\n")
    app = DisttuiApp({"HOME": str(tmp_path), "TERM": "xterm-256color"})
    async with app.run_test() as pilot:
        app.router.open_wizard(path)
        await until(pilot, lambda: isinstance(app.screen, ProfileErrorScreen) and shows(app, "✗"))
        await assert_snapshots(pilot, "profile-error-{}")


async def test_an_error_in_an_extended_file_is_edited_in_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, path, edited = tmp_path / "base.yaml", tmp_path / "broken.yaml", list[tuple[Path, int]]()
    base.write_text("disttui: 1\n\n\nnum_procesess: 2\n")
    path.write_text("disttui: 1\nextends: base.yaml\nhosts: [ada, ada]\njob: {builtin: bytegpt}\n")
    monkeypatch.setattr(
        "disttui.tui.dialogs.profile_error.open_editor", lambda _, __, path, line: edited.append((path, line))
    )
    app = DisttuiApp({"HOME": str(tmp_path), "TERM": "xterm-256color"})
    async with app.run_test(size=(160, 30)) as pilot:
        app.router.open_wizard(path)
        await until(pilot, lambda: isinstance(app.screen, ProfileErrorScreen) and shows(app, "✗"))
        assert f"✗ {base}:4:1: " in screen_text(app), screen_text(app)
        await press(pilot, "e", "n", "e", then=lambda: edited == [(base, 4), (path, 3)])


@pytest.mark.parametrize(
    ("scene", "said", "not_said"),
    [
        ("1-80x24", ["8 × A100-SXM4 80 GiB · 128 cores · 1008 GiB"], []),
        ("2-80x24", ["8 × A100-SXM4 80 GiB "], ["address"]),  # this column gives way before the GPUs are cut
        ("host-40x12", ["processes  1", "GPU 1      [x] GTX 1080"], []),
        ("key-40x12", ["Trust its key"], ["has a question"]),
        ("check-errors-80x24", ["cannot start", "s save"], ["enter launch"]),
        ("changed-80x24", ["r retries", "X removes 2", "sandbox"], []),
        ("password-40x12", ["kept only in memory"], []),
    ],
)
def test_the_snapshots_show_what_matters(scene: str, said: list[str], not_said: list[str]) -> None:
    shown = snapshot(f"wizard-{scene}")
    assert all(words in shown for words in said) and not any(words in shown for words in not_said), shown


async def test_the_help_names_the_place_of_the_cursor_in_words(tmp_path: Path) -> None:
    async with wizard(tmp_path, size=(100, 70)) as (pilot, opened):
        await keys(TWO, 1, "down")(pilot, opened)
        for step, place in enumerate(("the list of hosts", "", "the list of hosts", "the form", "the panes"), 1):
            if step > 1:
                await on("enter", step=step)(pilot, opened)
            if place:
                await pressed("question_mark")(pilot, opened)
                shown = screen_text(pilot.app)
                assert f"In {place}, where the cursor is" in shown, shown
                assert step != 3 or re.search(r"0-9 +type a number", shown), shown
                assert "in runs" not in shown, "a title of the notes is the name of no place"
                await pressed("escape")(pilot, opened)


async def test_on_the_smallest_terminal_everything_can_be_reached(tmp_path: Path) -> None:
    async with wizard(tmp_path, size=(40, 12)) as (pilot, opened):
        await keys(("gpu1", "desk"), 1, "down", "question_mark")(pilot, opened)
        shown = screen_text(pilot.app)
        assert "space" in shown and "select or deselect" in shown, "the help begins with keys\n" + shown
        await on("escape", "enter", step=2)(pilot, opened)
        await on("enter", step=3)(pilot, opened)
        await pressed("tab", "j")(pilot, opened)
        shown = screen_text(pilot.app)
        assert "› backend    gloo" in shown and "desk has no GPU" in shown, shown
        assert "✗ 1 error" in shown, shown


async def test_a_path_and_what_is_wrong_with_it_are_legible(tmp_path: Path) -> None:
    async with wizard(tmp_path, size=(40, 12)) as (pilot, opened):
        await keys(TWO, 5, "s")(pilot, opened)
        assert "/bytegpt-2node.yaml" in screen_text(pilot.app), screen_text(pilot.app)
        await pressed(*["backspace"] * 5, "enter")(pilot, opened)
        await until(pilot, lambda: "ends in .yaml" in screen_text(pilot.app))
        for size in ((40, 12), (80, 24)):
            await pilot.resize_terminal(*size)
            shown = screen_text(pilot.app)
            said = r"\n +✗ a profile's file ends in \.yaml *\n +→ Write bytegpt-2node\.yaml\."
            assert re.search(said, shown), shown


async def test_footer_says_what_escape_does_in_the_line_for_hosts(tmp_path: Path) -> None:
    async with wizard(tmp_path, size=(80, 24)) as (pilot, opened):
        await keys((), 1)(pilot, opened)
        assert "esc back" in screen_text(pilot.app), screen_text(pilot.app)
        await pressed(*"gpu")(pilot, opened)
        assert "esc clear" in screen_text(pilot.app), screen_text(pilot.app)


async def test_the_checks_show_how_the_ranks_divide_the_model(tmp_path: Path) -> None:
    path = tmp_path / "divided.yaml"
    path.write_text("disttui: 1\nhosts: [gpu1]\njob: {builtin: bytegpt}\nparallel: {tp: 4}\n")
    async with wizard(tmp_path, profile=path) as (pilot, _):
        await until(pilot, lambda: "dp_replicate 2 × tp 4 = 8" in screen_text(pilot.app))


async def test_the_checks_take_the_rows_that_the_profile_leaves_empty(tmp_path: Path) -> None:
    async with wizard(tmp_path, size=(160, 44)) as (pilot, opened):
        await keys(TWO, 5)(pilot, opened)
        checks, profile = (pilot.app.screen.query_one(f"#pane-{name}", Pane) for name in ("checks", "profile"))
        assert checks.max_scroll_y == profile.max_scroll_y == 0, screen_text(pilot.app)


async def test_a_new_empty_line_is_not_an_error_until_enter(tmp_path: Path) -> None:
    async with wizard(tmp_path, size=(80, 24)) as (pilot, opened):
        await keys(("gpu1",), 4)(pilot, opened)
        for kind in ("script", "module", "command"):
            await pressed("right")(pilot, opened)
            shown = screen_text(pilot.app)
            assert kind in opened._view.draft.data["job"] and "e.g." in shown and "✗" not in shown, shown
        for _ in range(3):
            pilot.app.clear_notifications()
            await pressed("enter")(pilot, opened)
            shown = screen_text(pilot.app)
            assert "step 4 of 5" in shown and "expected" in str(*pilot.app._notifications), shown
            opened.query_one("#choice-kind").focus()
            await pressed("left")(pilot, opened)


async def test_the_name_of_the_line_with_the_cursor_stands_out(tmp_path: Path) -> None:
    async with wizard(tmp_path, size=(80, 24)) as (pilot, opened):
        await keys(("gpu1",), 4, "down")(pilot, opened)
        names = {line.id: line.query(Static).first().rich_style.color for line in pilot.app.screen.query(".line")}
        assert names["line-args"] != names["line-kind"] == names["line-workdir"]


@pytest.mark.parametrize("more", [{}, {"COLORFGBG": "0;15"}], ids=["dark", "light"])
async def test_every_word_can_be_read(tmp_path: Path, more: dict[str, str]) -> None:
    """WCAG's contrast of text, measured on what is drawn: every step, the row under the cursor too."""
    async with wizard(tmp_path, size=(100, 30), more=more) as (pilot, opened):
        await walk(pilot, opened, ("gpu1", "gpu2", "desk"), 1)
        seen = 0
        for step in range(5):
            for _ in range(3):
                await press(pilot, "down")
                for segment, ground in _words(pilot):
                    assert segment.style and segment.style.color
                    colour = Color.from_rich_color(segment.style.color).hex6
                    assert _contrast(colour, ground) >= 4.5, (segment, ground)
                    seen += 1
            if step < 4:
                opened._try(step + 1)
                await until(pilot, lambda step=step: opened._at == step + 1)  # type: ignore[misc]
        assert seen > 500


def _words(pilot: Pilot[None]) -> Iterator[tuple[Segment, str]]:
    """What is written on the screen, with its ground."""
    for strip in pilot.app.screen._compositor.render_strips(pilot.app.size):
        for segment in strip:
            if segment.style and segment.style.bgcolor and any(letter.isalnum() for letter in segment.text):
                yield segment, Color.from_rich_color(segment.style.bgcolor).hex6
