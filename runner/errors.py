"""The errors that end a command, with their parts as fields and an exit code each.

`str(error)` is the text for a terminal. Other front ends use the fields.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class DisttuiError(Exception):
    """An error that the user can correct.

    Args:
        what: What is wrong, as one sentence without the host and the place.
        cure: What to do about it, as an imperative; empty if there is no advice.
        host: The host's name in the profile; empty: none or all.
        place: `file`, `file:line` or `file:line:column`; empty: none.
        cause: The message of the system, a library or a host; empty: none.
    """

    exit_code = 1
    code = "failed"
    """A short name of the kind of error, for programs; docs/formats.md lists all."""
    parts: Sequence[DisttuiError] = ()
    """The single errors, if it reports several."""

    def __init__(self, what: str, cure: str = "", *, host: str = "", place: str = "", cause: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.cure = cure
        self.host = host
        self.place = place
        self.cause = cause

    @property
    def reason(self) -> str:
        """What is wrong and its cause, for views that show the host and the place separately."""
        return f"{self.what}: {self.cause}" if self.cause else self.what

    def as_json(self) -> dict[str, object]:
        """The error as data for JSON."""
        data = {"code": self.code, "what": self.reason, "cure": self.cure, "host": self.host, "place": self.place}
        return {**data, "problems": [part.as_json() for part in self.parts]} if self.parts else {**data}

    @property
    def sentence(self) -> str:
        """Place, host and reason in one line, without the cure."""
        return ": ".join(part for part in (self.place, self.host, self.reason) if part)

    def __str__(self) -> str:
        cure = self.cure.replace("\n", "\n    ")
        return f"{self.sentence}\n  → {cure}" if cure else self.sentence


class InputError(DisttuiError):
    """Bad input from the user: a profile, an option, a name. Exit code 2."""

    exit_code = 2
    code = "input"


class HostError(DisttuiError):
    """A host cannot be used, or a check before the launch failed. Exit code 3.

    Args:
        host: The host's name in the profile.
    """

    exit_code = 3
    code = "host"

    def __init__(self, host: str, what: str, cure: str = "", *, cause: str = "") -> None:
        super().__init__(what, cure, host=host, cause=cause)


class LinkLostError(HostError):
    """The link broke, so the host's answer is unknown; another attempt may succeed."""

    code = "link-lost"


def near(word: str, known: Sequence[str]) -> str | None:
    """The known word most similar to `word`, or None."""
    # difflib takes quadratic time, and a word of this length is not a typing error.
    if len(word) > 60:
        return None
    # A common folder or library must not count as a similarity.
    shared = word[: word.rfind("/") + 1]
    if not any(name.startswith(shared) for name in known):
        shared = ""
    rests = {name.removeprefix(shared): name for name in known if name.startswith(shared)}
    return next((rests[one] for one in difflib.get_close_matches(word.removeprefix(shared).lower(), rests, 1)), None)
