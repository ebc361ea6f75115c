"""Glyphs for terminals that cannot show ours: the same words and charts, a cell for a cell, in what they can.

This is decided once, at the start, and done where text becomes bytes. So it applies to everything that is printed or
drawn by the app, and no character can make a write fail.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from io import TextIOWrapper
from typing import TextIO

_ASCII = {
    "●": "o", "○": ".", "◌": ".", "▲": "^", "▴": "^", "▾": "v", "▼": "v", "▶": ">", "◀": "<", "◇": "?", "■": "#",
    "✗": "x", "×": "x", "✓": "v", "•": "*", "·": "-", "…": "~",
    "→": ">", "←": "<", "↑": "^", "↓": "v", "›": ">", "≠": "!", "≥": ">",
    "°": "'", "‖": "|", "–": "-", "—": "-", "“": '"', "”": '"', "‘": "'", "’": "'", "²": "2",
    "▁": "_", "▂": ".", "▃": "-", "▄": "=", "▅": "+", "▆": "*", "▇": "%", "█": "#", "▀": "'", "▔": "'",
    "░": ".", "▒": ":", "▓": "%",
    "─": "-", "━": "=", "╸": "=", "╺": "-", "│": "|", "┊": "|", "┃": "#",
}  # fmt: skip
_BRAILLE, _BOXES, _BLOCKS = range(0x2800, 0x2900), range(0x2500, 0x2580), range(0x2580, 0x25A0)
_HIGH, _LOW = 0x1B, 0xE4
"""The dots of a braille character's upper and lower half."""
_JOINED = re.compile("\u200d.|[\ufe0e\ufe0f]")
"""Characters that combine with the one before to one cell."""
_PREFIX = "disttui_"
_FULL = ("utf-8", "utf-16", "utf-32")


def encoding_of(environ: Mapping[str, str], encoding: str, *, utf8_mode: bool, terminal: bool) -> str | None:
    """The encoding of a stream that cannot show our glyphs, or None where it can.

    Args:
        encoding: The encoding that Python has chosen for the stream.
        utf8_mode: Whether Python runs in its UTF-8 mode, which it also uses for a locale without an encoding.
        terminal: Whether the stream is a terminal: a file can hold every character of its encoding.
    """
    base = _name(encoding)
    if base not in _FULL or not terminal:
        return None if base in _FULL else base
    if utf8_mode and environ.get("PYTHONUTF8") != "1" and "PYTHONIOENCODING" not in environ:
        said = _said(environ)
        if said not in _FULL:
            return said
    return base if environ.get("TERM") == "linux" else None


def fit(stream: TextIO, environ: Mapping[str, str], *, utf8_mode: bool) -> None:
    """Make a stream replace characters that it cannot show."""
    if not isinstance(stream, TextIOWrapper):
        return
    base = encoding_of(environ, stream.encoding, utf8_mode=utf8_mode, terminal=stream.isatty())
    if base is not None:
        stream.reconfigure(encoding=_PREFIX + base.replace("-", "_"))
    elif stream.errors == "strict":
        stream.reconfigure(errors="replace")


def reduced(stream: TextIO | None) -> bool:
    """Whether `fit` has found that a stream cannot show all our glyphs."""
    return stream is not None and str(stream.encoding).startswith(_PREFIX)


def plain(text: str, base: str) -> str:
    """The text with characters that the encoding `base` has, as wide as before.

    Where that is UTF-8, the terminal has a font of a few hundred characters: what lies beyond Latin-1 and is a glyph of
    ours becomes ASCII, other scripts stay.
    """
    if text.isascii():
        return text
    if base not in _FULL:
        text = _JOINED.sub("", text)
    return "".join([letter if letter < "\x7f" else _shown(letter, base) for letter in text])


@lru_cache(4096)
def _shown(letter: str, base: str) -> str:
    if base in _FULL:
        return letter if ord(letter) < 0x100 else _glyph(letter) or letter
    try:
        letter.encode(base)
    except UnicodeError:
        return _glyph(letter) or _other(letter)
    return letter


def _glyph(letter: str) -> str:
    code = ord(letter)
    if letter in _ASCII:
        return _ASCII[letter]
    if code in _BRAILLE:
        high, low = code & _HIGH, code & _LOW
        return ":" if high and low else "'" if high else "." if low else " "
    return "+" if code in _BOXES else "|" if code in _BLOCKS else ""


def _other(letter: str) -> str:
    """A letter without its accents, or a question mark for each cell."""
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return ""
    bare = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    if len(bare) == 1:
        return bare
    return "??" if unicodedata.east_asian_width(letter) in "WF" else "?"


def _said(environ: Mapping[str, str]) -> str:
    """The encoding in the locale's name, UTF-8 where it has none."""
    # Python itself sets LC_CTYPE to C.UTF-8 where the locale is C: the user has not chosen that.
    kinds = [environ.get("LC_ALL"), environ.get("LC_CTYPE"), environ.get("LANG")]
    if kinds[1] in ("C.UTF-8", "C.utf8", "UTF-8"):
        kinds[1] = None
    locale = next(filter(None, kinds), "")
    if locale in ("C", "POSIX"):
        return "ascii"
    charset = locale.partition("@")[0].partition(".")[2]
    return _name(charset) if charset else "utf-8"


def _name(encoding: str) -> str:
    try:
        return codecs.lookup(encoding).name
    except LookupError:
        return "ascii"


def _codec(name: str) -> codecs.CodecInfo | None:
    if not name.startswith(_PREFIX):
        return None
    base = codecs.lookup(name.removeprefix(_PREFIX))

    def encode(text: str, errors: str = "strict") -> tuple[bytes, int]:
        return plain(text, base.name).encode(base.name, "replace"), len(text)

    class Encoder(codecs.IncrementalEncoder):
        def encode(self, text: str, final: bool = False) -> bytes:
            return encode(text)[0]

    return codecs.CodecInfo(encode, base.decode, name=name, incrementalencoder=Encoder,
                            incrementaldecoder=base.incrementaldecoder)  # fmt: skip


codecs.register(_codec)
