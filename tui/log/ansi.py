"""Converts the bytes of a line to safe text with colours; the text is the same as that of `runner.text.LineMaker`."""

from __future__ import annotations

import re
from functools import lru_cache

from rich.ansi import AnsiDecoder
from rich.style import Style

from disttui.runner.text import SEQUENCE, UNSAFE
from disttui.runner.text.masking import masked

Run = tuple[str, Style | None]
"""A piece of text in one style; None is the default style."""

_SGR = re.compile(r"(?:\x1b\[|\x9b)([0-9;:]*)m")
_STEERS = re.compile("[\r\x1b\x9b]")


def safe_text(raw: bytes) -> str:
    """The text of a line, safe to show."""
    return "".join(text for text, _ in runs(raw))


def runs(raw: bytes) -> list[Run]:
    """The text of a line in pieces of one style each; folds carriage returns as a terminal does, and keeps tabs."""
    text = raw.decode("utf-8", "replace")
    if text.isascii() and text.isprintable():
        return [(masked(text), None)] if text else []
    if not _STEERS.search(text):
        text = masked(UNSAFE.sub("", SEQUENCE.sub("", text)))
        return [(text, None)] if text else []
    folded = _fold(_styled(text))
    return [(clean, look) for piece, look in folded if (clean := masked(UNSAFE.sub("", piece)))]


@lru_cache(1024)
def _kept(style: Style) -> Style | None:
    """The colours and attributes of a style that are shown; None if there are none."""
    color, bgcolor = (None if one is None or one.is_default else one for one in (style.color, style.bgcolor))
    # Blinking and concealed text are ignored on purpose: text from a host must not flicker or hide.
    kept = Style(
        color=color, bgcolor=bgcolor, bold=style.bold or None, dim=style.dim or None, italic=style.italic or None,
        underline=style.underline or None, reverse=style.reverse or None, strike=style.strike or None,
    )  # fmt: skip
    return kept or None


def _styled(text: str) -> list[Run]:
    """Split text at its escape sequences; rich applies the SGR ones, and ignores malformed parameters."""
    pieces: list[Run] = []
    decoder, look, at = AnsiDecoder(), None, 0
    for sequence in SEQUENCE.finditer(text):
        if sequence.start() > at:
            pieces.append((text[at : sequence.start()], look))
        at = sequence.end()
        if sgr := _SGR.fullmatch(sequence[0]):
            decoder.decode_line(f"\x1b[{sgr[1][:100].replace(':', ';')}m")
            look = _kept(decoder.style)
    if at < len(text):
        pieces.append((text[at:], look))
    return pieces


def _fold(pieces: list[Run]) -> list[Run]:
    """Overwrite text as carriage returns do: later text hides earlier text, up to its own length."""
    passes: list[list[Run]] = [[]]
    for text, look in pieces:
        first, *others = text.split("\r")
        passes[-1].append((first, look))
        passes.extend([(other, look)] for other in others)
    shown: list[Run] = []
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
