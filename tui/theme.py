"""Colours and glyphs: disttui's two themes, and the style of each state of a run, host or rank.

Glyph and word identify a state; colours only help. They lie on a blue–orange axis, which people with red-green or
blue-yellow blindness can distinguish, and they also differ in lightness.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import dist
from typing import NamedTuple

from rich.color import ColorSystem
from textual.color import Color
from textual.content import Content
from textual.theme import Theme

DARK = "disttui-dark"
LIGHT = "disttui-light"


class StateStyle(NamedTuple):
    """The glyph and the style names of a kind of state."""

    kind: str
    """running, waiting, slow, failed, unseen, done or stopped."""
    glyph: str
    """A character that is one cell wide."""

    @property
    def style(self) -> str:
        """The style for Content and markup, such as `$state-running`."""
        return f"$state-{self.kind}"

    @property
    def css(self) -> str:
        """The component class for widgets that draw strips, such as `state--running`."""
        return f"state--{self.kind}"


_GLYPHS = {
    "running": "●", "waiting": "◌", "slow": "▲", "failed": "✗", "unseen": "◇", "done": "✓", "stopped": "■",
}  # fmt: skip
LOOKS: Mapping[str, StateStyle] = {kind: StateStyle(kind, glyph) for kind, glyph in _GLYPHS.items()}
_KINDS = {
    "running": ("running",),
    "slow": ("slow", "straggler", "warning", "stopping", "stalled", "blocking", "silent"),
    "failed": ("failed", "lost", "error", "gone"),
    "unseen": ("not seen", "unknown", "incomplete"),
    "done": ("finished", "ok", "done"),
    "stopped": ("stopped", "ended", "interrupted"),
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words}

RAMP = 8
FULL = 5
"""The step of the ramp for full load: higher steps look like a failure."""
SERIES = 8
COLOURS: Mapping[str, str] = {
    **{look.css: f"state-{kind}" for kind, look in LOOKS.items()},
    **{f"ramp--{step}": f"ramp-{step}" for step in range(RAMP)},
    **{f"series--{index}": f"series-{index}" for index in range(SERIES)},
    **{name: name for name in ("muted", "faint", "rule", "accent")},
    "selected": "selected-text",
    "strong": "",
}
"""Name of a style → theme variable: states, the ramp from a low (blue) to a high (orange) load or deviation, series for
the lines of a chart, and less or more important text. `Drawn.component` accepts these in addition to the widget's
COMPONENT_CLASSES; "selected" also has a background, and "strong" is only bold."""
LOUD = frozenset(f"state--{kind}" for kind in ("failed", "slow", "unseen"))
"""States that are drawn like text on terminals without colours: orange would become a darker grey, and the most
important states the least visible."""


def look(word: str) -> StateStyle:
    """The style of a state word of `disttui.runner.render.status`; unknown words get that of "waiting"."""
    return LOOKS[_KIND_OF.get(word, "waiting")]


def state_words(word: str) -> Content:
    """A state's glyph and word in its colour."""
    seen = look(word)
    return Content.styled(f"{seen.glyph} {word}", seen.style)


def _variables(**colours: str) -> dict[str, str]:
    named = {name.replace("_", "-"): colour for name, colour in colours.items() if name not in ("ramp", "series")}
    for family in ("ramp", "series"):
        named |= {f"{family}-{step}": colour for step, colour in enumerate(colours[family].split())}
    return named


def _theme(name: str, dark: bool, base: str, variables: dict[str, str]) -> Theme:
    background, surface, panel, foreground, accent = base.split()
    return Theme(
        name=name, dark=dark, background=background, surface=surface, panel=panel, foreground=foreground,
        primary=accent, secondary=accent, accent=accent, boost=surface, text_alpha=1.0,
        success=variables["state-done"], warning=variables["state-slow"], error=variables["state-failed"],
        variables={
            **variables,
            "border": accent, "border-blurred": variables["rule"],
            "block-cursor-foreground": variables["selected-text"], "block-cursor-background": variables["selected"],
            "block-cursor-text-style": "none",
            "block-hover-background": surface,
            "input-cursor-text-style": "none", "input-selection-background": f"{accent} 35%",
            "scrollbar": variables["rule"], "scrollbar-hover": variables["muted"], "scrollbar-active": accent,
            "scrollbar-background": background, "scrollbar-background-hover": background,
            "scrollbar-background-active": background, "scrollbar-corner-color": background,
            "footer-background": background, "footer-key-foreground": accent,
            "link-color": accent,
        },
    )  # fmt: skip


_DARK = _theme(
    DARK, True, "#0e131a #171a1e #20252b #d7dee7 #62b0f0",
    _variables(
        muted="#98a0aa", faint="#4d5660", rule="#30363d", selected="#1d2e4e", selected_text="#f2f6fa",
        state_running="#62b0f0", state_waiting="#a6afba", state_slow="#f0b545", state_failed="#ff7b4a",
        state_unseen="#c59bef", state_done="#7fb8c4", state_stopped="#a6afba",
        ramp="#5c99e0 #76a9da #8ab6de #a9c5dd #d3c9ae #e8b865 #f09a3e #f4772e",
        series="#62b0f0 #f0a345 #b48ae0 #8fd0c8 #ff7b4a #e3d36b #8ea2ff #d99bb8",
    ),
)  # fmt: skip
_LIGHT = _theme(
    LIGHT, False, "#fafbfc #f1f2f4 #e6e9ec #23272d #0b63b5",
    _variables(
        muted="#55626f", faint="#a3adb8", rule="#c9d2dc", selected="#cfe2f7", selected_text="#0d1a28",
        state_running="#0b63b5", state_waiting="#55626f", state_slow="#8f5600", state_failed="#8c1515",
        state_unseen="#7440ad", state_done="#1a6a78", state_stopped="#55626f",
        ramp="#1d4f91 #2a609f #3a6589 #42545c #70603a #86580f #9a4c0c #ab3e10",
        series="#0b63b5 #a35f00 #7440ad #1a7a6e #b93511 #7c6f00 #4353c4 #a13c6e",
    ),
)  # fmt: skip

_LABELS = ("primary", "warning", "success", "secondary", "accent")
_APART = 40.0
"""Minimum Euclidean distance in RGB (0 to 255 per channel) between two label colours."""
_LEGIBLE = 0.4
"""Minimum difference in brightness (0 to 1) between a label and its background."""


def label_colours(variables: Mapping[str, str]) -> list[Color]:
    """The theme's colours that suit labels: legible, distinct, and unlike a failure's, even with 16 colours."""
    variables = {**DEFAULTS, **variables}
    names = [*(f"series-{index}" for index in range(SERIES)), *(f"text-{name}" for name in _LABELS)]
    ground, *failures = (Color.parse(variables[name]) for name in ("background", "text-error", "state-failed"))
    found: list[Color] = []
    for colour in (Color.parse(variables[name]) for name in names):
        apart = all(dist(colour.rgb, other.rgb) > _APART for other in found)
        apart &= all(dist(colour.rgb, other.rgb) > 1.5 * _APART for other in failures)
        if apart and _in_16(colour) != _in_16(failures[1]) and abs(colour.brightness - ground.brightness) >= _LEGIBLE:
            found.append(colour)
    return found or [Color.parse(variables["foreground"])]


def _in_16(colour: Color) -> int | None:
    return colour.rich_color.downgrade(ColorSystem.STANDARD).number


THEMES = (_DARK, _LIGHT)
DEFAULTS = _DARK.variables
"""Values of disttui's variables under Textual's own themes, so that users may choose any of them."""


def suggested(environ: Mapping[str, str]) -> str:
    """The theme that fits the terminal's background according to COLORFGBG; dark without it."""
    return LIGHT if environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15") else DARK
