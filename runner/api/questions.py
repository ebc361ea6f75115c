"""Questions to the caller, answered by the caller's own object, and notes about hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from disttui.runner.errors import DisttuiError
from disttui.runner.ids import short
from disttui.runner.profile.schema import Profile
from disttui.runner.text import clean
from disttui.runner.transport import Prompts


@dataclass(frozen=True)
class Doubt:
    """A profile that another user may have written: it runs commands with the user's login."""

    profile: Profile
    why: str
    path: Path | None = None
    """Its file; None: the profile of a run found on a host."""
    run: str = ""
    """Id of that run."""
    changes: tuple[str, ...] = ()
    """For a profile of a team library: changes since the user's consent, as safe lines."""

    def __str__(self) -> str:
        """The profile, and why it is not trusted."""
        return clean(f"{self.path or short(self.run)}: {self.why}", guesses=False)


class Questions(Prompts, Protocol):
    """Passwords, unknown host keys, and trust. Called from any thread; None: nobody can be asked."""

    def trust_profile(self, doubt: Doubt) -> bool | None:
        """Ask whether a profile may be used."""
        return None

    def trust_hosts(self, asked: str, run: str, others: Sequence[str]) -> bool | None:
        """Ask whether to log in to `others`, which the host `asked` names as hosts of a run."""
        return None


class Unattended(Questions):
    """Nobody to ask: gives no password, accepts no unknown key, trusts nothing."""

    def close(self) -> None:
        """Nothing: no question has changed the terminal."""


class HostNotice(NamedTuple):
    """A note about a host for the user."""

    host: str
    text: str
    """Without the host's name."""


def problem_of(host: str, error: DisttuiError, more: str = "") -> HostNotice:
    """The note for an error of a host."""
    return HostNotice(host, error.reason + more)


def ignore(news: object) -> None:
    """Discard a note."""
