"""Search patterns: compiled once, tried on many lines at a time. A slow pattern must not block the app.

Python's `re` cannot be interrupted in a thread, and blocks the interpreter while it matches. So a child process with
limited CPU time matches lines; in the main thread, where a signal can interrupt matching, a timer limits it.
"""

from __future__ import annotations

import marshal
import re
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, count, repeat
from operator import contains
from pathlib import Path
from typing import AnyStr

from disttui.runner.errors import InputError
from disttui.runner.text import clean
from disttui.tui.log.ansi import safe_text
from disttui.tui.log.index import LineIndex

_PROGRAM = Path(__file__).with_name("trial.py")


class SearchFailed(Exception):
    """The matching lines could not be found; the message gives the reason."""


class Trials:
    """The child process that matches lines, started when it is first needed. Thread-safe."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def matching(self, expression: re.Pattern[AnyStr], text: AnyStr) -> list[int]:
        """The numbers (from 0) of the lines of a text that match. Raises SearchFailed."""
        with self._lock:
            try:
                return self._ask((expression.pattern, int(expression.flags & re.IGNORECASE), text))
            except OSError as error:
                raise SearchFailed(f"cannot be tried: {error.strerror}") from None

    def close(self) -> None:
        """End the child, until it is needed again."""
        with self._lock:
            self._end()

    def _ask(self, question: tuple[str | bytes, int, str | bytes]) -> list[int]:
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_PROGRAM)], start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        to, back = self._child.stdin, self._child.stdout
        assert to and back
        with suppress(BrokenPipeError, EOFError):  # the child has ended, so its answer is incomplete or missing
            marshal.dump(question, to)
            to.flush()
            return array("I", marshal.load(back)).tolist()  # noqa: S302 the child runs our own program
        raise SearchFailed("takes too long" if self._end() == -signal.SIGPROF else "could not be tried")

    def _end(self) -> int:
        child, self._child = self._child, None
        if child is None:
            return 0
        child.terminate()
        for pipe in (child.stdin, child.stdout):
            with suppress(OSError):  # closing flushes the remainder of a request
                assert pipe
                pipe.close()
        return child.wait()


TRIALS = Trials()


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError in the block after `seconds` of CPU time, only in the main thread; None means no limit."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    within = True

    def interrupt(number: int, frame: object) -> None:
        if within:
            raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        within = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


MANY = 200
"""Number of hits after which it is clear whether most lines match; if so, trying each line separately is faster."""
_FOLDED = b"iks"
"""Letters that also match non-ASCII characters when case is ignored: İ, K (Kelvin sign), ſ."""


class Literal:
    """A literal text to search for.

    Args:
        case: Whether case matters.
    """

    def __init__(self, text: str, *, case: bool) -> None:
        self._case = case
        self._needle = (text if case else text.lower()).encode()
        letters = [letter for letter in dict.fromkeys(self._needle) if case or letter not in _FOLDED]
        self._letters = [{bytes([letter])} | (set() if case else {bytes([letter]).upper()}) for letter in letters]

    def absent(self, data: bytes) -> bool:
        """Quick test: True if `data` lacks one of the text's letters, so that no line can match.

        Searching for one byte is more than ten times as fast as searching for a text.
        """
        for place, forms in enumerate(self._letters):
            if not any(form in data for form in forms):
                # The next data probably lacks the same letter.
                self._letters.insert(0, self._letters.pop(place))
                return True
        return False

    def within(self, data: bytes) -> bool:
        return not self.absent(data) and self._needle in (data if self._case else data.lower())

    def lines(self, index: LineIndex, first: int, last: int, data: bytes) -> list[int]:
        """The lines in range(first, last) that contain the text; `data` is their chunk, only printable ASCII."""
        if not self._case:
            data = data.lower()
        needle, starts = self._needle, index.starts
        begin = starts[first]
        found: list[int] = []
        at = data.find(needle)
        while at >= 0:
            line = index.line_at(begin + at)
            found.append(line)
            if line + 1 >= last:
                break
            if len(found) == MANY and line - first < 4 * MANY:
                rest = index.split(data[starts[line + 1] - begin :], line + 1, last)
                found += compress(count(line + 1), map(contains, rest, repeat(needle)))
                break
            at = data.find(needle, starts[line + 1] - begin)
        return found


@dataclass(frozen=True)
class Pattern:
    """A pattern to search for in the text of lines as it is shown."""

    text: str
    regex: bool = False
    case: bool = False
    """Whether case matters."""
    inverse: bool = False
    """Whether to find the lines that do not match."""
    hints: tuple[str, ...] = ()
    """Every matching line contains one of these texts; other lines are skipped. Only for patterns known to be fast."""

    def __str__(self) -> str:
        marks = [word for word, on in (("regex", self.regex), ("case", self.case), ("not", self.inverse)) if on]
        return f"“{clean(self.text)}”" + (f" ({', '.join(marks)})" if marks else "")

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """The pattern as a regular expression. Raises InputError if it is invalid."""
        try:
            return re.compile(self.text if self.regex else re.escape(self.text), 0 if self.case else re.IGNORECASE)
        except (re.error, OverflowError, RecursionError) as error:
            raise InputError(f"not a regular expression: {error}", "Correct it, or turn regex off (ctrl+r).") from None

    @cached_property
    def _bytes(self) -> re.Pattern[bytes] | None:
        """The expression for bytes of printable ASCII lines; None if it would match differently there."""
        if not self.text.isascii():
            return None
        try:
            return re.compile(self.expression.pattern.encode(), self.expression.flags & re.IGNORECASE)
        except re.error:
            return None

    @cached_property
    def _literal(self) -> Literal | None:
        return Literal(self.text, case=self.case) if self.text.isascii() and not self.regex else None

    @cached_property
    def _hints(self) -> list[Literal]:
        return [Literal(hint, case=True) for hint in self.hints]

    @property
    def unknown(self) -> bool:
        """Whether matching a single line may take very long."""
        return self.regex and not self.hints

    def has_raw(self, raw: bytes) -> bool:
        """Whether a line with these bytes is a hit. Raises SearchFailed."""
        return bool(self._trying([raw], plain=False)) != self.inverse

    def spans(self, text: str, seconds: float) -> list[tuple[int, int]]:
        """The (begin, end) of each match in a line, for marking. Raises TimeoutError, in the main thread only."""
        if self.inverse:
            return []
        with limited(seconds if self.unknown else None):
            return [match.span() for match in self.expression.finditer(text) if match.end() > match.start()]

    def lines(self, index: LineIndex, first: int, last: int, data: bytes) -> list[int]:
        """The numbers of the hits in range(first, last); `data` is the chunk of these lines. Raises SearchFailed."""
        found = self._found(index, first, last, data)
        return sorted(set(range(first, last)).difference(found)) if self.inverse else found

    def _found(self, index: LineIndex, first: int, last: int, data: bytes) -> list[int]:
        if self._absent(data):
            return []
        plain = self._bytes is not None and index.plain(first, last)
        if plain and self._literal:
            return self._literal.lines(index, first, last, data)
        if plain and self._bytes and self.unknown and data.count(b"\n") == last - first:
            return [first + at for at in TRIALS.matching(self._bytes, data[:-1])]  # saves splitting and joining
        return [first + at for at in self._trying(index.split(data, first, last), plain=plain)]

    def _absent(self, data: bytes) -> bool:
        if self._hints:
            return not any(hint.within(data) for hint in self._hints)
        return self._literal is not None and self._literal.absent(data)

    def _trying(self, lines: list[bytes], *, plain: bool) -> list[int]:
        """The indices of the lines that match; if `plain`, their bytes are the text shown."""
        if plain and self._bytes:
            return self._matching(self._bytes, lines, b"\n")
        return self._matching(self.expression, [safe_text(line) for line in lines], "\n")

    def _matching(self, expression: re.Pattern[AnyStr], lines: list[AnyStr], end: AnyStr) -> list[int]:
        if self.unknown:
            return TRIALS.matching(expression, end.join(lines)) if lines else []
        return list(compress(count(), map(expression.search, lines)))


ERROR = Pattern(
    r"Traceback \(most recent call last\)|\b\w*(?:Error|Exception)\b\s*(?::|$)|\b(?:ERROR|FATAL|CRITICAL)\b"
    r"|CUDA error|out of memory|[Ss]egmentation fault|Killed\b",
    regex=True,
    case=True,
    hints=(
        *("Traceback", "Error", "Exception", "ERROR", "FATAL", "CRITICAL"),
        *("CUDA error", "out of memory", "egmentation fault", "Killed"),
    ),
)
"""Matches the first line of an error."""
