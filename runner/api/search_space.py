"""What a search tries and what it wants: `job.args.lr=log:1e-5..1e-2`, `min:loss`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runner.errors import InputError

_RANGE = re.compile(r"(log:)?(.+?)\.\.(.+)")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_GOAL = re.compile(r"(min|max):(\S{1,200})")
_FORMS = "Give --search job.args.lr=log:1e-5..1e-2, job.args.depth=2..8 or job.args.act=relu,gelu."


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, both among them."""

    low: float
    high: float
    whole: bool
    """Whole numbers alone."""
    log: bool
    """As many from 1 to 10 as from 10 to 100."""

    def text(self, value: float) -> str:
        """A value of it as the job gets it."""
        return f"{value:.0f}" if self.whole else repr(value)

    def ends(self) -> tuple[str, ...]:
        """The lowest and the highest as the job gets them."""
        return self.text(self.low), self.text(self.high)


@dataclass(frozen=True)
class OneOf:
    """Some texts."""

    values: tuple[str, ...]


Space = Mapping[str, Range | OneOf]
"""Key of the profile → the values that it may have."""


class Goal(NamedTuple):
    """The metric that a search makes small or large."""

    direction: str
    """min or max."""
    metric: str


@dataclass(frozen=True)
class Search:
    """A search as its user has written it."""

    profile: str
    """The file."""
    settings: tuple[str, ...]
    """`KEY=VALUE`, of all its runs."""
    space: tuple[str, ...]
    """`KEY=VALUES`, for `parse_space`."""
    goal: str
    """For `parse_goal`."""
    best: bool
    """A run counts by its best value, not by its last."""
    trials: int
    parallel: int
    """The most runs at a time, queued or running."""
    digest: str
    """Of the profile with `settings`: all trials are of the same one."""


def parse_space(words: Sequence[str]) -> Space:
    """Read `KEY=LOW..HIGH`, `KEY=log:LOW..HIGH` and `KEY=A,B,C`. Raises InputError."""
    found: dict[str, Range | OneOf] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals or not value:
            raise InputError(f"--search {word!r} is no KEY=VALUES", _FORMS)
        if key in found:
            raise InputError(f"--search has {key} twice", "Give all its values at once.")
        match = _RANGE.fullmatch(value)
        found[key] = _range(word, *match.groups()) if match and "," not in value else _choice(word, value)
    return found


def parse_goal(word: str) -> Goal:
    """Read `min:loss` or `max:accuracy`. Raises InputError."""
    match = _GOAL.fullmatch(word)
    if match is None:
        raise InputError(f"--goal {word!r} is neither min:METRIC nor max:METRIC", "Give --goal min:loss.")
    return Goal(match[1], match[2])


def _range(word: str, log: str | None, first: str, last: str) -> Range:
    try:
        low, high = float(first), float(last)
    except ValueError:
        raise InputError(f"--search {word!r} has no two numbers beside its '..'", _FORMS) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"--search {word!r}: {first} is not below {last}", "Give the lower number first.")
    if log and low <= 0:
        raise InputError(f"--search {word!r}: a logarithmic range begins above 0", "Leave out 'log:', or raise it.")
    return Range(low, high, bool(_WHOLE.fullmatch(first) and _WHOLE.fullmatch(last)), bool(log))


def _choice(word: str, value: str) -> OneOf:
    values = tuple(one.strip() for one in value.split(","))
    if "" in values or len(set(values)) < len(values) or len(values) < 2:
        raise InputError(f"--search {word!r} has no two or more different values", _FORMS)
    return OneOf(values)
