"""Search patterns: compiled once, tried on many lines at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, count
from typing import AnyStr

from runner.errors import InputError
from runner.text import clean
from tui.log.ansi import safe_text
from tui.log.index import LineIndex
from tui.log.literal import Literal
from tui.log.regexes import TRIALS, limited


@dataclass(frozen=True)
class Pattern:
    """A pattern to search in the text of lines as they are shown."""

    text: str
    regex: bool = False
    case: bool = False
    """Whether case matters."""
    inverse: bool = False
    """Find the lines that do not match."""
    hints: tuple[str, ...] = ()
    """Every matching line contains one of these texts: other lines need no try. Only for patterns known to be fast."""

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
        """Whether matching one line may take very long."""
        return self.regex and not self.hints

    def has_raw(self, raw: bytes) -> bool:
        """Whether a line of these bytes is a hit. Raises SearchFailed."""
        return bool(self._trying([raw], plain=False)) != self.inverse

    def spans(self, text: str, seconds: float) -> list[tuple[int, int]]:
        """The matches in a line of text, for marking. Raises TimeoutError, in the main thread only."""
        if self.inverse:
            return []
        with limited(seconds if self.unknown else None):
            return [match.span() for match in self.expression.finditer(text) if match.end() > match.start()]

    def lines(self, index: LineIndex, first: int, last: int, chunk: Callable[[], bytes]) -> list[int]:
        """The numbers of the hits among lines `first` to `last`; `chunk` reads their bytes.

        Raises SearchFailed.
        """
        plain = self._bytes is not None and index.plain(first, last)
        found = self._found_apart(index, first, last) if plain else None
        if found is None:
            found = self._found_here(index, first, last, chunk(), plain=plain)
        if not self.inverse:
            return found
        return sorted(set(range(first, last)).difference(found))

    def _found_apart(self, index: LineIndex, first: int, last: int) -> list[int] | None:
        """The same by the child process, for expressions that may never end; None if it cannot be done there."""
        if self._bytes is None or not self.unknown:
            return None
        begin, end = index.starts[first], index.starts[last]
        found = TRIALS.matching_in(self._bytes, index.path, begin, end - begin, last - first)
        return None if found is None else [first + at for at in found]

    def _found_here(self, index: LineIndex, first: int, last: int, data: bytes, *, plain: bool) -> list[int]:
        if self._absent(data):
            return []
        if plain and self._literal:
            return self._literal.lines(index, first, last, data)
        return [first + at for at in self._trying(index.split(data, first, last), plain=plain)]

    def _absent(self, data: bytes) -> bool:
        if self._hints:
            return not any(hint.within(data) for hint in self._hints)
        return self._literal is not None and self._literal.absent(data)

    def _trying(self, lines: list[bytes], *, plain: bool) -> list[int]:
        """The indices of the lines that match; `plain`: their bytes are their text."""
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
