"""What a caller may be asked: by an object of its own, never at a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runner.ids import short
from runner.profile import Profile
from runner.text import clean
from runner.transport import Prompts, RefusePrompts


@dataclass(frozen=True)
class Doubt:
    """A profile that may be the word of somebody other than the user: it runs commands with the user's login."""

    profile: Profile
    why: str
    path: Path | None = None
    """Its file; None: the profile of a run that was found on a host."""
    run: str = ""
    """The run's id then."""

    def __str__(self) -> str:
        """What is doubted, and why."""
        return clean(f"{self.path or short(self.run)}: {self.why}")


class Questions(Prompts, Protocol):
    """Passwords, unknown host keys, and whom to trust. Called from any thread; None stands for nobody to ask."""

    def trust_profile(self, doubt: Doubt) -> bool | None:
        """Ask whether a profile may be used."""

    def trust_hosts(self, asked: str, run: str, others: Sequence[str]) -> bool | None:
        """Ask whether to log in to the `others` that the host `asked` names as hosts of a run."""


class Unattended(RefusePrompts):
    """Nobody to ask: no password is given, no unknown key accepted, nothing trusted."""

    def trust_profile(self, doubt: Doubt) -> bool | None:
        """Nobody answers."""
        return None

    def trust_hosts(self, asked: str, run: str, others: Sequence[str]) -> bool | None:
        """Nobody answers."""
        return None
