"""Turns remote bytes into safe text: text from a host must not control the terminal that shows it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from disttui.runner.text.masking import masked

LINE_LIMIT = 64 * 1024
"""Bytes after which a line is cut; the remainder becomes a line of its own."""

SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[PX\]^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)?"
    r"|\x1b[ -/]*[0-~]?"
)
"""An escape sequence: CSI with its parameters, a string sequence (OSC, DCS, SOS, PM, APC) up to its end or the end of
the text, or two characters. Many terminals also accept the 8-bit forms (C1)."""
_HIDDEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
"""Characters that reorder or hide text: bidi marks, line separators, and those that Unicode calls default ignorable,
whose invisibility makes two names look alike. `UNSAFE` handles the joiner and the variation selectors of emoji."""
_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u27bf\u2900-\u297f\u2b00-\u2bff\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001faff"
)
UNSAFE = re.compile(
    f"[\x00-\x08\x0a-\x1f\x7f-\x9f{_HIDDEN}]"
    f"|(?<![{_EMOJI}\ufe0f])\u200d|\u200d(?![{_EMOJI}])"  # the joiner is safe only between two emoji
    f"|(?<![{_EMOJI}])[\ufe0e\ufe0f](?!\u20e3)"  # variation selectors are safe after an emoji, and in a keycap
)
"""Control characters except the tab, C1, and characters that reorder or hide text."""
_UNSAFE_BYTES = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
_SUSPECT = re.compile(f"[\x7f-\x9f\u200d\ufe0e\ufe0f{_HIDDEN}]")
"""Characters to check further: covers every match of `UNSAFE` that `_UNSAFE_BYTES` misses."""
_COLOUR = re.compile(r"(?:\x1b\[|\x9b)([0-9;:]{0,80})m")
_ONE = (
    r"(?:(?:38|48|58)(?:;5;\d{1,3}|;2(?:;\d{1,3}){3}|:5:\d{1,3}|:2(?::\d{0,3}){3,4})|4:[0-5]"
    r"|(?!0*(?:5|6|8|38|48|58)(?!\d))\d{0,6})"
)
_COLOURS = re.compile(f"{_ONE}(?:;{_ONE})*")


def clean(text: str, *, guesses: bool = True) -> str:
    """Return `text` as one line without escape sequences, control, bidi or invisible characters.

    Line breaks become spaces, so that a host name or an error can never forge a second line.

    Args:
        guesses: See `masked`.
    """
    return masked(_safe(text), guesses=guesses)


def is_clean(text: str) -> bool:
    """Whether `clean` would change nothing but secrets."""
    return _safe(text) == text


def _safe(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    text = SEQUENCE.sub("", text.replace("\r\n", " ").replace("\n", " "))
    return UNSAFE.sub("", text).encode("utf-8", "replace").decode("utf-8")


def clean_lines(text: str, *, guesses: bool = True) -> str:
    """Like `clean`, but keeps line breaks: for tracebacks and multi-line messages."""
    # splitlines would also split at a dozen other characters.
    return "\n".join(clean(line, guesses=guesses) for line in text.removesuffix("\n").split("\n"))


def set_apart(text: str) -> list[str]:
    """Return lines of a rank or a host, each after a bar, so that none can be mistaken for a line of disttui."""
    return [f"│ {line}" for line in clean_lines(text).split("\n")]


class LineMaker:
    """Turns the bytes of one log, in chunks of any size, into safe lines of text.

    Buffers an unfinished last line, applies carriage returns as a terminal does, decodes UTF-8 with replacement and
    cuts lines at `LINE_LIMIT` bytes.

    Args:
        colours: Keep colours and styles (SGR), for a terminal; they are reset at the end of each line.
    """

    def __init__(self, *, colours: bool = False) -> None:
        self._partial = b""
        self._line = _coloured_line if colours else _safe_line

    def feed(self, data: bytes) -> list[str]:
        """Add more bytes; return the lines that they complete."""
        if self._partial:
            data = self._partial + data
        body, newline, self._partial = data.rpartition(b"\n")
        lines = _decode(body, self._line) if newline else []
        if whole := max(0, len(self._partial) - 1) // LINE_LIMIT * LINE_LIMIT:
            lines += _pieces(self._partial[:whole], self._line)
            self._partial = self._partial[whole:]
        return lines

    def flush(self) -> list[str]:
        """Return the unfinished last line, if any, at the end of the log."""
        rest, self._partial = self._partial, b""
        return [self._line(rest)] if rest else []

    def progress(self) -> str | None:
        """Return an unfinished line as a terminal shows it now if it has carriage returns, as a progress bar has."""
        return _safe_line(self._partial) if b"\r" in self._partial else None


def without_colours(line: str) -> str:
    """Remove the colours that a `LineMaker` has kept in a line."""
    return SEQUENCE.sub("", line) if "\x1b" in line else line


def _decode(body: bytes, safe: Callable[[bytes], str]) -> list[str]:
    # Nearly all output is clean: a single scan of the whole chunk keeps a flood of lines cheap.
    if not _UNSAFE_BYTES.search(body):
        text = body.decode("utf-8", "replace")
        if text.isascii() or not _SUSPECT.search(text):
            lines = masked(text).split("\n")
            # The limit is in bytes, of which a character has at most four.
            if len(body) <= LINE_LIMIT or max(map(len, lines)) <= LINE_LIMIT // 4:
                return lines
    return [piece for line in body.split(b"\n") for piece in _pieces(line, safe)]


def _pieces(line: bytes, safe: Callable[[bytes], str]) -> list[str]:
    if len(line) <= LINE_LIMIT:
        return [safe(line)]
    return [safe(line[start : start + LINE_LIMIT]) for start in range(0, len(line), LINE_LIMIT)]


def _safe_line(line: bytes) -> str:
    text = SEQUENCE.sub("", line.decode("utf-8", "replace"))
    if "\r" in text:
        shown = ""
        for part in text.split("\r"):
            shown = part + shown[len(part) :]
        text = shown
    return masked(UNSAFE.sub("", text))


def _coloured_line(line: bytes) -> str:
    if b"\r" in line:
        return _safe_line(line)  # a carriage return overwrites columns, which colour codes do not occupy
    text = line.decode("utf-8", "replace")
    shown, at = "", 0
    for colour in _COLOUR.finditer(text):
        shown += _without_codes(text[at : colour.start()]) + _usable(colour)
        at = colour.end()
    shown = masked(shown + _without_codes(text[at:]))
    return shown + "\x1b[0m" if "\x1b" in shown else shown


def _without_codes(text: str) -> str:
    return UNSAFE.sub("", SEQUENCE.sub("", text))


def _usable(colour: re.Match[str]) -> str:
    """Return the sequence, or "" if it makes text blink or hides it, or terminals interpret it differently."""
    return f"\x1b[{colour.group(1)}m" if _COLOURS.fullmatch(colour.group(1)) else ""


def quote(text: str) -> str:
    """Return a word for a POSIX shell that evaluates to `text` byte for byte, without control characters."""
    if is_clean(text):
        return shlex.quote(text)
    # A line break needs only quotes; control characters are written as octal numbers.
    return "".join(_piece(piece) for piece in re.split(r"(\n)", text))


def _piece(text: str) -> str:
    if not text or text == "\n" or is_clean(text):
        return shlex.quote(text) if text else ""
    octal = "".join(f"\\{byte:03o}" for byte in text.encode("utf-8", "surrogatepass"))
    return f"\"$(printf '{octal}')\""
