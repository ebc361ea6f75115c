"""What is wrong with a profile, and where: all of it at once, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

from disttui.runner.errors import InputError, near

_SHOWN = 50


Path = tuple[str | int, ...]
"""Keys and indices that lead to a value of the profile."""

Flaw = tuple[str, str, Path]
"""What is wrong, what was expected, and where in the profile."""


@dataclass(frozen=True)
class SourceLocation:
    """Where a value stands: line and column from 1; line 0 for what `--set` gave."""

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
        """A problem with the text at `place`."""
        return cls(place.line, place.column, what, expected, place.source)

    @property
    def reason(self) -> str:
        """What is wrong and what was expected, without the place."""
        return printable(f"{self.what}, {self.expected}" if self.expected else self.what)

    @property
    def place(self) -> str:
        """Where it is, `file:line:column`."""
        return printable(f"{self.source}:{self.line}:{self.column}" if self.line else self.source)

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class ProfileErrors(InputError):
    """A profile that cannot be used: every problem that was found, sorted by position."""

    code = "profile"

    def __init__(self, problems: Iterable[ProfileProblem]) -> None:
        self.problems = tuple(sorted(dict.fromkeys(problems), key=lambda p: (p.line, p.column)))
        lines = [str(problem) for problem in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            lines.append(f"… and {len(self.problems) - _SHOWN} more")
        super().__init__("\n".join(lines))

    def as_json(self) -> dict[str, object]:
        """The error for programs, each problem with its place."""
        problems = [{"what": problem.reason, "place": problem.place} for problem in self.problems]
        first = problems[0] if len(problems) == 1 else {"what": f"{len(problems)} problems", "place": ""}
        return {**super().as_json(), **first, "problems": problems}


def bad(what: str, expected: str = "") -> PydanticCustomError:
    """A problem with the value that is being checked."""
    return PydanticCustomError("profile", "{what}, {expected}", {"what": what, "expected": expected})


def conflicts(flaws: list[Flaw]) -> PydanticCustomError:
    """Problems between values, each with its own place."""
    return PydanticCustomError("conflicts", "these values contradict each other", {"flaws": flaws})


def quoted(text: str) -> str:
    """Quote what the user wrote for a message: one line, no control characters, at most 60 characters."""
    return repr(text if len(text) <= 60 else text[:59] + "…")


def printable(text: str) -> str:
    """Escape what could steer a terminal or cannot be encoded, such as a file name that is not UTF-8."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def near_of_few(word: str, known: Sequence[str], before: Sequence[ProfileProblem]) -> str | None:
    """The same while few problems were found before: others are not shown, and a stranger may make thousands."""
    return near(word, known) if len(before) < _SHOWN else None
