"""What a line must hold to be found: compiled once, tried on many lines at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, count

from runner.errors import InputError
from runner.text import clean
from tui.logs.ansi import safe_text
from tui.logs.index import LineIndex


@dataclass(frozen=True)
class Pattern:
    """What to look for in the text of lines as they are shown."""

    text: str
    regex: bool = False
    case: bool = False
    """Whether capitals matter."""
    inverse: bool = False
    """Look for the lines that do not have it."""
    hints: tuple[bytes, ...] = ()
    """One of these is in every line that has it: spares trying the rest."""

    def __str__(self) -> str:
        marks = [word for word, on in (("regex", self.regex), ("case", self.case), ("not", self.inverse)) if on]
        return f"“{clean(self.text)}”" + (f" ({', '.join(marks)})" if marks else "")

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """As a regular expression. Raises InputError where it is none."""
        try:
            return re.compile(self.text if self.regex else re.escape(self.text), 0 if self.case else re.IGNORECASE)
        except (re.error, OverflowError, RecursionError) as error:
            raise InputError(f"not a regular expression: {error}", "Mend it, or turn regex off (ctrl+r).") from None

    @cached_property
    def _bytes(self) -> re.Pattern[bytes] | None:
        """For lines of nothing but printable ASCII; None where bytes would mean something else."""
        if not self.text.isascii():
            return None
        try:
            return re.compile(self.expression.pattern.encode(), self.expression.flags & re.IGNORECASE)
        except re.error:
            return None

    def has(self, text: str) -> bool:
        """Whether a line of this text is one that is looked for."""
        return (self.expression.search(text) is not None) != self.inverse

    def has_raw(self, raw: bytes) -> bool:
        """The same for a line's bytes."""
        return self.has(safe_text(raw))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where in a line of text it stands, for marking it."""
        if self.inverse:
            return []
        return [match.span() for match in self.expression.finditer(text) if match.end() > match.start()]

    def lines(self, index: LineIndex, first: int, last: int, data: bytes) -> list[int]:
        """The numbers of those lines from `first` to `last` that are looked for; `data` is their chunk."""
        if self.hints and not any(hint in data for hint in self.hints):
            found = []
        elif self._bytes is None or not index.plain(first, last):
            texts = map(safe_text, index.split(data, first, last))
            found = list(compress(count(first), map(self.expression.search, texts)))
        elif self.regex:
            found = list(compress(count(first), map(self._bytes.search, index.split(data, first, last))))
        else:
            found = self._literal(index, first, last, data)
        if not self.inverse:
            return found
        return sorted(set(range(first, last)).difference(found))

    def _literal(self, index: LineIndex, first: int, last: int, data: bytes) -> list[int]:
        """Search the whole chunk at once; a line that has it is left at its end."""
        needle = self.text.encode() if self.case else self.text.lower().encode()
        if not self.case:
            data = data.lower()
        begin = index.starts[first]
        found = []
        at = data.find(needle)
        while at >= 0:
            line = index.line_at(begin + at)
            found.append(line)
            if line + 1 >= last:
                break
            at = data.find(needle, index.starts[line + 1] - begin)
        return found


ERROR = Pattern(
    r"Traceback \(most recent call last\)|\b\w*(?:Error|Exception)\b\s*(?::|$)|\b(?:ERROR|FATAL|CRITICAL)\b"
    r"|CUDA error|out of memory|[Ss]egmentation fault|Killed\b",
    regex=True,
    case=True,
    hints=(
        *(b"Traceback", b"Error", b"Exception", b"ERROR", b"FATAL", b"CRITICAL"),
        *(b"CUDA error", b"out of memory", b"egmentation fault", b"Killed"),
    ),
)
"""What the first line of an error looks like."""
