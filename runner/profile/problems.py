"""The problems of a profile with their places: all are reported together, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

from disttui.runner.errors import InputError, near

_SHOWN = 50


Path = tuple[str | int, ...]
"""Keys and indices that lead to a value of the profile."""

Flaw = tuple[str, str, Path]
"""(what is wrong, what was expected, path in the profile)"""


@dataclass(frozen=True)
class SourceLocation:
    """Position of a value in a source: line and column from 1; line 0 for values of `--set`."""

    source: str
    line: int = 0
    column: int = 0


@dataclass(frozen=True)
class ProfileProblem:
    """One thing to correct; `expected` is a clause such as "expected a whole number", or empty."""

    line: int
    column: int
    what: str
    expected: str
    source: str

    @classmethod
    def at(cls, place: SourceLocation, what: str, expected: str = "") -> ProfileProblem:
        """Create a problem with the text at `place`."""
        return cls(place.line, place.column, what, expected, place.source)

    @property
    def reason(self) -> str:
        """The problem and what was expected, without the place."""
        return printable(f"{self.what}, {self.expected}" if self.expected else self.what)

    @property
    def place(self) -> str:
        """The position as `file:line:column`, or just the source."""
        return printable(f"{self.source}:{self.line}:{self.column}" if self.line else self.source)

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class ProfileErrors(InputError):
    """Every problem of a profile that is not valid, sorted by position."""

    code = "profile"

    def __init__(self, problems: Iterable[ProfileProblem]) -> None:
        self.problems = tuple(sorted(dict.fromkeys(problems), key=lambda p: (p.line, p.column)))
        lines = [str(problem) for problem in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            lines.append(f"… and {len(self.problems) - _SHOWN} more")
        super().__init__("\n".join(lines))

    def as_json(self) -> dict[str, object]:
        """The error as JSON data, each problem with its place."""
        problems = [{"what": problem.reason, "place": problem.place} for problem in self.problems]
        first = problems[0] if len(problems) == 1 else {"what": f"{len(problems)} problems", "place": ""}
        return {**super().as_json(), **first, "problems": problems}


def bad(what: str, expected: str = "") -> PydanticCustomError:
    """Return an error about the value being validated."""
    return PydanticCustomError("profile", "{what}, {expected}", {"what": what, "expected": expected})


def conflicts(flaws: list[Flaw]) -> PydanticCustomError:
    """Return an error about contradictions between values, each flaw with its own path."""
    return PydanticCustomError("conflicts", "these values contradict each other", {"flaws": flaws})


def quoted(text: str) -> str:
    """Quote a value for a message: on one line, cut to 60 characters, control characters escaped."""
    return repr(text if len(text) <= 60 else text[:59] + "…")


def printable(text: str) -> str:
    """Escape characters that could control a terminal or cannot be encoded, as in file names that are not UTF-8."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def near_of_few(word: str, known: Sequence[str], before: Sequence[ProfileProblem]) -> str | None:
    """Like `near`, or None after 50 problems: further ones are not shown, and a hostile file may have thousands."""
    return near(word, known) if len(before) < _SHOWN else None
