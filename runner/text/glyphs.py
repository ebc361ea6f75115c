"""Replaces glyphs that a terminal cannot show by others of the same width.

This is decided once at the start, and happens where text is encoded. So it applies to everything that the app prints
or draws, and no character can make a write fail.
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
"""Bits of the dots in the upper and lower half of a braille character."""
_JOINED = re.compile("\u200d.|[\ufe0e\ufe0f]")
"""Characters that share the cell of the one before."""
_PREFIX = "disttui_"
_FULL = ("utf-8", "utf-16", "utf-32")


def encoding_of(environ: Mapping[str, str], encoding: str, *, utf8_mode: bool, terminal: bool) -> str | None:
    """Return the encoding to which glyphs must be reduced for a stream, or None if it can show all of them.

    Args:
        encoding: The encoding that Python has chosen for the stream.
        utf8_mode: Whether Python runs in its UTF-8 mode, which it also uses for a locale without an encoding.
        terminal: Whether the stream is a terminal; a file can contain every character of its encoding.
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
    """Whether `fit` found that a stream cannot show all glyphs."""
    return stream is not None and str(stream.encoding).startswith(_PREFIX)


def plain(text: str, base: str) -> str:
    """Replace characters that the encoding `base` lacks by others of the same width.

    UTF-8 as `base` means a terminal whose font has a few hundred characters: glyphs of the app beyond Latin-1 become
    ASCII, and letters of other scripts are kept.
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
    """Return a letter without its accents, or a question mark for each of its cells."""
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return ""
    bare = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    if len(bare) == 1:
        return bare
    return "??" if unicodedata.east_asian_width(letter) in "WF" else "?"


def _said(environ: Mapping[str, str]) -> str:
    """Return the encoding in the locale's name, or UTF-8 if it has none."""
    # Python itself sets LC_CTYPE to C.UTF-8 if the locale is C, so it is not the user's choice.
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
