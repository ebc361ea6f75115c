"""disttui's colours: everybody can distinguish them, on every terminal."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from rich.color import Color, ColorSystem
from textual.color import Color as Shade
from textual.theme import BUILTIN_THEMES, Theme
from textual.widgets import Input

from disttui.runner.render.status import GLYPHS
from disttui.runner.runs.summary import STATES
from disttui.tui import theme
from disttui.tui.app import DisttuiApp
from tests.tui import shelf_kit as kit
from tests.tui.snap import press, until

SCREENS = [(), ("x",), ("question_mark",), ("ctrl+p", "p"), ("slash", "a")]
_BLIND = {
    # Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def _linear(hex_colour: str) -> tuple[float, ...]:
    return tuple(
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in Shade.parse(hex_colour).normalized
    )


def _seen(hex_colour: str, kind: str) -> tuple[float, ...]:
    colour = _linear(hex_colour)
    mixed = [sum(weight * value for weight, value in zip(row, colour, strict=True)) for row in _BLIND[kind]]
    return tuple(max(0.0, min(1.0, value)) ** (1 / 2.4) for value in mixed)


def _contrast(one: str, other: str) -> float:
    low, high = sorted(
        sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), _linear(each), strict=True)) for each in (one, other)
    )
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ours", theme.THEMES, ids=lambda each: each.name)
@pytest.mark.parametrize("kind", _BLIND)
def test_running_slow_and_failed_differ_for_colour_blind_eyes(ours: Theme, kind: str) -> None:
    colours = [ours.variables[f"state-{each}"] for each in ("running", "slow", "failed")]
    for one, other in itertools.combinations(colours, 2):
        apart = sum((a - b) ** 2 for a, b in zip(_seen(one, kind), _seen(other, kind), strict=True)) ** 0.5
        assert apart > 0.12, (one, other)


@pytest.mark.parametrize("ours", theme.THEMES, ids=lambda each: each.name)
def test_words_are_legible(ours: Theme) -> None:
    """The contrast that WCAG wants of text, for every colour that words have, on every ground they stand on."""
    kinds = ("state-", "muted", "series-", "ramp-")
    words = {name: colour for name, colour in ours.variables.items() if name.startswith(kinds)}
    words |= {"foreground": ours.foreground or "", "accent": ours.accent or ""}
    for ground in (ours.background, ours.surface, ours.panel, ours.variables["selected"]):
        assert ground
        for name, colour in words.items():
            # The lines of a chart, and the words beside them, stand on the background.
            least = 3.0 if name.startswith("series-") and ground != ours.background else 4.5
            assert _contrast(colour, ground) >= least, (name, ground)


@pytest.mark.parametrize("more", [{}, {"COLORFGBG": "0;15"}], ids=["dark", "light"])
async def test_both_lines_of_what_the_palette_would_do_are_legible(tmp_path: Path, more: dict[str, str]) -> None:
    kit.busy_machine(tmp_path)
    app = DisttuiApp(kit.environ(tmp_path, **more))
    async with kit.home(tmp_path, app=app) as (app, pilot):
        await pilot.press("ctrl+p", *"pair", "minus", "7")
        ground = Shade.parse(app.theme_variables["selected"]).rich_color

        def chosen() -> dict[str, float]:
            cells = [cell for strip in app.screen._compositor.render_strips(app.size) for cell in strip if cell.style]
            styles = {cell.text.strip(): cell.style for cell in cells}
            return {
                text: _contrast(Shade.from_rich_color(style.color).hex6, Shade.from_rich_color(ground).hex6)
                for text, style in styles.items()
                if style and style.color and style.bgcolor == ground and text and not style.dim
            }

        await until(pilot, lambda: "run, running, on ada, grace" in chosen())
        assert min(chosen().values()) >= 4.5, chosen()


@pytest.mark.parametrize("more", [{}, {"COLORFGBG": "0;15"}], ids=["dark", "light"])
async def test_the_cursor_and_the_line_that_has_it_stand_out(tmp_path: Path, more: dict[str, str]) -> None:
    async with kit.home(tmp_path, kit.busy_machine, app=DisttuiApp(kit.environ(tmp_path, **more))) as (app, pilot):
        await press(pilot, "a", then=lambda: isinstance(app.focused, Input))
        one, other = app.screen.query(Input)
        cursor = one.get_component_rich_style("input--cursor")
        assert cursor.color and cursor.bgcolor
        block = Shade.from_rich_color(cursor.color if cursor.reverse else cursor.bgcolor).hex6
        assert _contrast(block, one.background_colors[1].hex6) >= 4.5
        chosen = Shade.parse(app.theme_variables["selected"])
        assert one.background_colors[1] == chosen != other.background_colors[1]


@pytest.mark.parametrize("ours", theme.THEMES, ids=lambda each: each.name)
def test_grounds_stay_grey_in_256_colours(ours: Theme) -> None:
    """As in most tmux sessions. What is selected may have a colour, and is none of the grounds."""
    seen = [_in_256(colour) for colour in (ours.background, ours.surface, ours.panel, ours.variables["rule"])]
    assert all(len(set(colour)) == 1 for colour in seen), seen
    assert _in_256(ours.variables["selected"]) not in seen


def _in_256(colour: str | None) -> tuple[int, ...]:
    return tuple(Color.parse(colour or "").downgrade(ColorSystem.EIGHT_BIT).get_truecolor())


@pytest.mark.parametrize("each", [*theme.THEMES, *BUILTIN_THEMES.values()], ids=lambda each: each.name)
def test_host_labels_differ_and_avoid_failure_red_in_16_colours(each: Theme) -> None:
    colours = {**each.to_color_system().generate(), **each.variables}
    labels = [label.hex6.lower() for label in theme.label_colours(colours)]
    assert len(set(labels)) == len(labels) >= (6 if each in theme.THEMES else 3)
    few = [Color.parse(label).downgrade(ColorSystem.STANDARD).number for label in labels]
    assert Color.parse({**theme.DEFAULTS, **colours}["state-failed"]).downgrade(ColorSystem.STANDARD).number not in few
    if each in theme.THEMES:
        assert min(_contrast(label, each.background or "") for label in labels) >= 4.5


def test_every_state_has_its_own_glyph_of_one_cell() -> None:
    glyphs = [look.glyph for look in theme.LOOKS.values()]
    assert len(set(glyphs)) == len(glyphs)
    assert all(len(glyph) == 1 for glyph in glyphs)


def test_a_stalled_run_looks_different_from_a_starting_one() -> None:
    assert {word: theme.look(word).kind for word in ("stalled", "stopping", "not seen", "starting")} == {
        "stalled": "slow",
        "stopping": "slow",
        "not seen": "unseen",
        "starting": "waiting",
    }


def test_the_glyphs_are_those_of_the_command_line() -> None:
    words = {*GLYPHS, *STATES}
    assert {word: theme.look(word).glyph for word in words} == {word: GLYPHS.get(word, "◌") for word in words}


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"COLORFGBG": "0;15"}, {"NO_COLOR": "1"}], ids=["dark", "light", "no colour"])
async def test_nothing_is_black_on_black(tmp_path: Path, more: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No text vanishes, however few colours the terminal has. Scroll bars behind a question may."""
    kit.busy_machine(tmp_path)
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    app = DisttuiApp(kit.environ(tmp_path, **more))
    async with kit.home(tmp_path, app=app) as (app, pilot):
        home = app.screen
        for keys in SCREENS:
            await pilot.press(*keys)
            await pilot.pause(0.2)
            words = 0
            for strip in app.screen._compositor.render_strips(app.size):
                for segment in strip:
                    style = segment.style
                    if style and style.color and style.bgcolor and any(letter.isalnum() for letter in segment.text):
                        words += 1
                        for system in (ColorSystem.STANDARD, ColorSystem.EIGHT_BIT, ColorSystem.TRUECOLOR):
                            assert _same(style.color, style.bgcolor, system) is False, (keys, system, segment)
            assert words > 20, keys
            while app.screen is not home:
                app.pop_screen()
                await pilot.pause()


def _same(one: Color, other: Color, system: ColorSystem) -> bool:
    return one.downgrade(system) == other.downgrade(system)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 99], ids=["some", "all"])
async def test_any_theme_of_textual_can_be_chosen(tmp_path: Path, count: int) -> None:
    app = DisttuiApp(kit.environ(tmp_path))
    async with kit.home(tmp_path, app=app) as (app, pilot):
        for name in ("ansi-dark", "textual-light", "nord", *app.available_themes)[:count]:
            app.theme = name
            await pilot.pause()
        assert app.theme_variables["state-slow"]
