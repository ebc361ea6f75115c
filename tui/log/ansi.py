"""The bytes of one line → safe text with its colours. The same text as `runner.text.LineMaker` makes of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

from rich.color import Color
from rich.style import Style

from runner.text import SEQUENCE, UNSAFE
from runner.text.masking import masked

Run = tuple[str, Style | None]
"""A piece of text in one style; None: the default style."""

_SGR = re.compile(r"(?:\x1b\[|\x9b)([0-9;:]*)m")
_STEERS = re.compile("[\r\x1b\x9b]")


@dataclass(frozen=True)
class TextStyle:
    """What SGR sequences have set so far."""

    fg: str | None = None
    bg: str | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    reverse: bool = False
    strike: bool = False


PLAIN = TextStyle()
# Blinking and concealed text are ignored on purpose: text from a host must not flicker or hide.
_ON = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "reverse", 9: "strike"}
_OFF = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("reverse",), 29: ("strike",)}
_COLOURS = {38: "fg", 48: "bg"}


def safe_text(raw: bytes) -> str:
    """The text of a line, safe to show."""
    return "".join(text for text, _ in runs(raw))


def runs(raw: bytes) -> list[Run]:
    """The text of a line in pieces of one style each: carriage returns folded as a terminal does, tabs kept."""
    text = raw.decode("utf-8", "replace")
    if text.isascii() and text.isprintable():
        return [(masked(text), None)] if text else []
    if not _STEERS.search(text):
        text = masked(UNSAFE.sub("", SEQUENCE.sub("", text)))
        return [(text, None)] if text else []
    folded = _fold(_styled(text))
    return [(clean, style_of(look)) for piece, look in folded if (clean := masked(UNSAFE.sub("", piece)))]


@lru_cache(1024)
def style_of(look: TextStyle) -> Style | None:
    """The style for the set attributes; None without any."""
    if look == PLAIN:
        return None
    return Style(
        color=Color.parse(look.fg) if look.fg else None,
        bgcolor=Color.parse(look.bg) if look.bg else None,
        bold=look.bold or None,
        dim=look.dim or None,
        italic=look.italic or None,
        underline=look.underline or None,
        reverse=look.reverse or None,
        strike=look.strike or None,
    )


def _styled(text: str) -> list[tuple[str, TextStyle]]:
    pieces: list[tuple[str, TextStyle]] = []
    look, at = PLAIN, 0
    for sequence in SEQUENCE.finditer(text):
        if sequence.start() > at:
            pieces.append((text[at : sequence.start()], look))
        at = sequence.end()
        if sgr := _SGR.fullmatch(sequence[0]):
            look = _set(look, sgr[1])
    if at < len(text):
        pieces.append((text[at:], look))
    return pieces


def _fold(pieces: list[tuple[str, TextStyle]]) -> list[tuple[str, TextStyle]]:
    """Overwrite text as carriage returns do: later text hides earlier text, up to its own length."""
    passes: list[list[tuple[str, TextStyle]]] = [[]]
    for text, look in pieces:
        first, *others = text.split("\r")
        passes[-1].append((first, look))
        passes.extend([(other, look)] for other in others)
    shown: list[tuple[str, TextStyle]] = []
    covered = 0
    for one in reversed(passes):
        at = 0
        for text, look in one:
            rest = text[max(0, covered - at) :]
            at += len(text)
            if rest:
                shown.append((rest, look))
        covered = max(covered, at)
    return shown


def _set(look: TextStyle, parameters: str) -> TextStyle:
    """Apply one SGR sequence; malformed parameters are ignored."""
    codes = [int(code[:4] or 0) for code in re.split("[;:]", parameters[:100])]
    while codes:
        code = codes.pop(0)
        if code == 0:
            look = PLAIN
        elif code in _ON:
            look = _with(look, {_ON[code]: True})
        elif code in _OFF:
            look = _with(look, dict.fromkeys(_OFF[code], False))
        elif code in _COLOURS:
            look = _with(look, {_COLOURS[code]: _extended(codes)})
        elif code in (39, 49):
            look = _with(look, {"fg" if code == 39 else "bg": None})
        else:
            look = _simple_colour(look, code)
    return look


def _with(look: TextStyle, changes: Mapping[str, str | bool | None]) -> TextStyle:
    return replace(look, **cast("Any", changes))


def _simple_colour(look: TextStyle, code: int) -> TextStyle:
    for first, name, number in ((30, "fg", 0), (40, "bg", 0), (90, "fg", 8), (100, "bg", 8)):
        if first <= code < first + 8:
            return _with(look, {name: f"color({number + code - first})"})
    return look


def _extended(codes: list[int]) -> str | None:
    kind = codes.pop(0) if codes else 0
    if kind == 5 and codes:
        return f"color({min(codes.pop(0), 255)})"
    if kind == 2 and len(codes) >= 3:
        red, green, blue = (min(codes.pop(0), 255) for _ in range(3))
        return f"#{red:02x}{green:02x}{blue:02x}"
    return None
