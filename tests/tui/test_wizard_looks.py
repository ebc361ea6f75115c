"""How the wizard looks where something is in the way: questions, hosts that fail, files with errors; its contrast."""

from __future__ import annotations

import asyncio
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
from tests.tui.snap import assert_snapshots, screen_text, until
from tests.tui.test_theme import _contrast
from tests.tui.wizard_kit import HOSTS, called, record, walk, wizard

KEY = ("ssh-ed25519", "SHA256:4mA3rvvJq0H7vI3bhoP0wQqJcH6y6m3vLJxO9q2nMeo")
ALL = ("gpu1", "silent", "down", "changed")
Act = Callable[[Pilot[None], WizardScreen], Awaitable[None]]


def keys(hosts: tuple[str, ...], step: int, *pressed: str) -> Act:
    """Go to a step, and press keys there."""

    async def act(pilot: Pilot[None], opened: WizardScreen) -> None:
        await walk(pilot, opened, hosts, step)
        for key in pressed:
            await pilot.press(key)
            await pilot.pause()

    return act


def asked(ask: Callable[[AppPrompts], object]) -> Act:
    """Have a host ask something while it is reached."""

    async def act(pilot: Pilot[None], opened: WizardScreen) -> None:
        await walk(pilot, opened, ("silent",), 1)
        app = pilot.app
        assert isinstance(app, DisttuiApp)
        run_detached(lambda: ask(app.prompts()))
        await called(pilot, Question)

    return act


SCENES: dict[str, Act] = {
    "none": keys((), 1),
    "down": keys(ALL, 1, "down", "j", "j"),
    "changed": keys(ALL, 1, "down", "j", "j", "j"),
    "silent": keys(ALL, 1, "down", "j"),
    "key": asked(lambda prompts: prompts.accept_host_key("gpu1", *KEY)),
    "password": asked(lambda prompts: prompts.secret("gpu1", "Password for ada: ")),
    "leave": keys(("gpu1",), 1, "escape"),
    "hardware-down": keys(("gpu1", "gpu2", "desk", "down", "silent"), 2, "j", "j", "j"),
    "check-errors": keys(("gpu1", "desk"), 5),
    "check-profile": keys(("gpu1", "gpu2"), 5, "2"),
    "check-commands": keys(("gpu1", "gpu2"), 5, "3"),
    "save": keys(("gpu1", "gpu2"), 5, "s"),
}


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that are recorded, and a home whose path is the same everywhere."""
    record(monkeypatch, HOSTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/ada/.config")


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
def test_it_looks_so(tmp_path: Path, scene: str) -> None:
    async def play() -> None:
        async with wizard(tmp_path) as (pilot, opened):
            await SCENES[scene](pilot, opened)
            await assert_snapshots(pilot, f"wizard-{scene}-{{}}")

    asyncio.run(play())


def test_a_file_with_errors_looks_so(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("disttui: 1\nhosts: [ada, ada]\nnum_procesess: 2\njob: {script: train.py, module: train}\n")

    async def play() -> None:
        app = DisttuiApp({"HOME": str(tmp_path), "TERM": "xterm-256color"})
        async with app.run_test() as pilot:
            app.router.open_wizard(path)
            await until(pilot, lambda: isinstance(app.screen, ProfileErrorScreen) and shows(app, "✗"))
            await assert_snapshots(pilot, "profile-error-{}")

    asyncio.run(play())


def test_an_error_in_an_extended_file_is_edited_in_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, path, edited = tmp_path / "base.yaml", tmp_path / "broken.yaml", list[tuple[Path, int]]()
    base.write_text("disttui: 1\n\n\nnum_procesess: 2\n")
    path.write_text("disttui: 1\nextends: base.yaml\nhosts: [ada, ada]\njob: {builtin: bytegpt}\n")
    monkeypatch.setattr(
        "disttui.tui.dialogs.profile_error.open_editor", lambda _, __, path, line: edited.append((path, line))
    )

    async def play() -> None:
        app = DisttuiApp({"HOME": str(tmp_path), "TERM": "xterm-256color"})
        async with app.run_test(size=(160, 30)) as pilot:
            app.router.open_wizard(path)
            await until(pilot, lambda: isinstance(app.screen, ProfileErrorScreen) and shows(app, "✗"))
            assert f"✗ {base}:4:1: " in screen_text(app), screen_text(app)
            await pilot.press("e", "n", "e")
            await until(pilot, lambda: edited == [(base, 4), (path, 3)])

    asyncio.run(play())


def seen(size: tuple[int, int], act: Act, look: Callable[[Pilot[None], str], None], folder: Path) -> None:
    """Look at what is on the screen after an act."""

    async def play() -> None:
        async with wizard(folder, size=size) as (pilot, opened):
            await act(pilot, opened)
            await pilot.pause()
            look(pilot, screen_text(pilot.app))

    asyncio.run(play())


def test_host_form_shows_its_values_on_the_smallest_terminal(tmp_path: Path) -> None:
    def look(_: Pilot[None], shown: str) -> None:
        assert re.search(r"processes +8", shown) and "GPU 3      [x] A100" in shown, shown

    seen((40, 12), keys(("gpu1", "gpu2"), 3, "e"), look, tmp_path)


def test_a_column_that_is_cut_off_gives_way_before_the_gpus_are(tmp_path: Path) -> None:
    def look(_: Pilot[None], shown: str) -> None:
        assert "8 × A100-SXM4 80 GiB " in shown and "address" not in shown, shown

    seen((80, 24), keys(("gpu1", "gpu2"), 2), look, tmp_path)


def test_a_host_is_listed_with_its_gpus_cores_and_memory(tmp_path: Path) -> None:
    def look(_: Pilot[None], shown: str) -> None:
        assert "8 × A100-SXM4 80 GiB · 128 cores · 1008 GiB" in shown, shown

    seen((80, 24), keys(("gpu1",), 1), look, tmp_path)


def test_the_name_of_the_line_with_the_cursor_stands_out(tmp_path: Path) -> None:
    def look(pilot: Pilot[None], _: str) -> None:
        names = {line.id: line.query(Static).first().rich_style.color for line in pilot.app.screen.query(".line")}
        assert names["line-args"] != names["line-kind"] == names["line-workdir"]

    seen((80, 24), keys(("gpu1",), 4, "down"), look, tmp_path)


def test_an_open_question_is_not_covered_by_its_own_hint(tmp_path: Path) -> None:
    def look(_: Pilot[None], shown: str) -> None:
        assert "Trust its key" in shown and "has a question" not in shown, shown

    seen((40, 12), SCENES["key"], look, tmp_path)


def test_with_errors_the_footer_offers_no_launch(tmp_path: Path) -> None:
    def look(_: Pilot[None], shown: str) -> None:
        assert "cannot start" in shown and "enter launch" not in shown and "s save" in shown, shown

    seen((80, 24), keys(("gpu1", "desk"), 5), look, tmp_path)


@pytest.mark.parametrize(
    ("step", "place"), [(1, "the list of hosts"), (3, "the list of hosts"), (4, "the form"), (5, "the panes")]
)
def test_the_help_names_the_place_of_the_cursor_in_words(tmp_path: Path, step: int, place: str) -> None:
    pressed = ("down", "question_mark") if step == 1 else ("question_mark",)

    def look(_: Pilot[None], shown: str) -> None:
        assert f"In {place}, where the cursor is" in shown, shown
        assert step != 3 or re.search(r"0-9 +type a number", shown), shown
        assert "in runs" not in shown, "a title of the notes is the name of no place"

    seen((100, 70), keys(("gpu1", "gpu2"), step, *pressed), look, tmp_path)


def test_on_the_smallest_terminal_the_help_begins_with_keys(tmp_path: Path) -> None:
    def look(_: Pilot[None], shown: str) -> None:
        assert "space" in shown and "select or deselect" in shown, shown

    seen((40, 12), keys(("gpu1",), 1, "down", "question_mark"), look, tmp_path)


@pytest.mark.parametrize("size", [(80, 24), (40, 12)], ids=["80x24", "40x12"])
def test_a_path_error_and_its_cure_are_on_separate_lines(tmp_path: Path, size: tuple[int, int]) -> None:
    async def act(pilot: Pilot[None], opened: WizardScreen) -> None:
        await keys(("gpu1",), 5, "s", *["backspace"] * 5, "enter")(pilot, opened)
        await until(pilot, lambda: "ends in .yaml" in screen_text(pilot.app))

    def look(_: Pilot[None], shown: str) -> None:
        assert re.search(r"\n +✗ a profile's file ends in \.yaml *\n +→ Write bytegpt\.yaml\.", shown), shown

    seen(size, act, look, tmp_path)


def test_a_failed_host_lists_the_keys_that_help(tmp_path: Path) -> None:
    def look(_: Pilot[None], shown: str) -> None:
        assert "r retries" in shown and "X removes 2" in shown and "sandbox" in shown, shown

    seen((80, 24), SCENES["changed"], look, tmp_path)


def test_on_the_smallest_terminal_the_whole_run_can_be_reached(tmp_path: Path) -> None:
    def look(_: Pilot[None], shown: str) -> None:
        assert "› backend    gloo" in shown and "desk has no GPU" in shown, shown
        assert "✗ 1 error" in shown, shown

    seen((40, 12), keys(("gpu1", "desk"), 3, "tab", "j"), look, tmp_path)


def test_save_path_shows_the_file_name_on_40_columns(tmp_path: Path) -> None:
    def look(_: Pilot[None], shown: str) -> None:
        assert "/bytegpt-2node.yaml" in shown, shown

    seen((40, 12), SCENES["save"], look, tmp_path)


def test_on_the_smallest_terminal_no_hint_of_a_dialog_is_broken(tmp_path: Path) -> None:
    def look(_: Pilot[None], shown: str) -> None:
        assert "kept only in memory" in shown, shown

    seen((40, 12), SCENES["password"], look, tmp_path)


@pytest.mark.parametrize(("typed", "escape"), [("", "esc back"), ("gpu", "esc clear")], ids=["empty", "typed"])
def test_footer_says_what_escape_does_in_the_line_for_hosts(tmp_path: Path, typed: str, escape: str) -> None:
    def look(_: Pilot[None], shown: str) -> None:
        assert escape in shown, shown

    seen((80, 24), keys((), 1, *typed), look, tmp_path)


def test_the_checks_show_how_the_ranks_divide_the_model(tmp_path: Path) -> None:
    path = tmp_path / "divided.yaml"
    path.write_text("disttui: 1\nhosts: [gpu1]\njob: {builtin: bytegpt}\nparallel: {tp: 4}\n")

    async def play() -> None:
        async with wizard(tmp_path, profile=path) as (pilot, _):
            await until(pilot, lambda: "dp_replicate 2 × tp 4 = 8" in screen_text(pilot.app))

    asyncio.run(play())


def test_the_checks_take_the_rows_that_the_profile_leaves_empty(tmp_path: Path) -> None:
    def look(pilot: Pilot[None], shown: str) -> None:
        checks, profile = (pilot.app.screen.query_one(f"#pane-{name}", Pane) for name in ("checks", "profile"))
        assert checks.max_scroll_y == profile.max_scroll_y == 0, shown

    seen((160, 44), keys(("gpu1", "gpu2"), 5), look, tmp_path)


@pytest.mark.parametrize("right", [1, 2, 3])
def test_a_new_empty_line_is_not_an_error_until_enter(tmp_path: Path, right: int) -> None:
    def look(_: Pilot[None], shown: str) -> None:
        assert "e.g." in shown and "✗" not in shown, shown

    def refused(pilot: Pilot[None], shown: str) -> None:
        assert "step 4 of 5" in shown and "expected" in str(*pilot.app._notifications), shown

    seen((80, 24), keys(("gpu1",), 4, *["right"] * right), look, tmp_path)
    seen((80, 24), keys(("gpu1",), 4, *["right"] * right, "enter"), refused, tmp_path)


@pytest.mark.parametrize("more", [{}, {"COLORFGBG": "0;15"}], ids=["dark", "light"])
def test_every_word_can_be_read(tmp_path: Path, more: dict[str, str]) -> None:
    """WCAG's contrast of text, measured on what is drawn: every step, the row under the cursor too."""

    async def play() -> None:
        async with wizard(tmp_path, size=(100, 30), more=more) as (pilot, opened):
            await walk(pilot, opened, ("gpu1", "gpu2", "desk"), 1)
            seen = 0
            for step in range(5):
                for _ in range(3):
                    await pilot.press("down")
                    await pilot.pause()
                    for segment, ground in _words(pilot):
                        assert segment.style and segment.style.color
                        colour = Color.from_rich_color(segment.style.color).hex6
                        assert _contrast(colour, ground) >= 4.5, (segment, ground)
                        seen += 1
                if step < 4:
                    opened._try(step + 1)
                    await until(pilot, lambda step=step: opened._at == step + 1)  # type: ignore[misc]
            assert seen > 500

    asyncio.run(play())


def _words(pilot: Pilot[None]) -> Iterator[tuple[Segment, str]]:
    """What is written on the screen, with its ground."""
    for strip in pilot.app.screen._compositor.render_strips(pilot.app.size):
        for segment in strip:
            if segment.style and segment.style.bgcolor and any(letter.isalnum() for letter in segment.text):
                yield segment, Color.from_rich_color(segment.style.bgcolor).hex6
