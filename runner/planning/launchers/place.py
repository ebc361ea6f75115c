"""What a launcher makes a host's command of, and what every launcher can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from runner.profile import Profile
from runner.profile.sections import Target
from runner.protocol.files import LauncherPart


@dataclass(frozen=True)
class Place:
    """One host among all of a run, with what runs there and where the hosts meet."""

    profile: Profile
    counts: tuple[int, ...]
    """Processes of every host."""
    gpus: tuple[tuple[int, ...] | None, ...]
    """GPUs of every host; None: not known."""
    node_rank: int
    python: str
    target: Target
    """The job; of the built-in one `value` is its file."""
    backend: str
    master: str
    port: int
    exported: tuple[str, ...] = ()
    """Names of the host's variables, for a launcher that hands them to other hosts."""

    @property
    def first_rank(self) -> int:
        """The rank of this host's first process."""
        return sum(self.counts[: self.node_rank])

    @property
    def world_size(self) -> int:
        """How many processes there are on all hosts."""
        return sum(self.counts)

    @property
    def num_processes(self) -> int:
        """How many processes this host has."""
        return self.counts[self.node_rank]


class Reasoned(NamedTuple):
    """A variable's value, and why it is set."""

    value: str
    why: str


class Refusal(NamedTuple):
    """Why a launcher cannot start a run, and the cure."""

    what: str
    cure: str


class Launcher(Protocol):
    """A module of this package that turns places into commands."""

    PART: LauncherPart
    """The part of the node program that runs it."""

    def launcher_args(self, place: Place, /) -> tuple[str, ...]:
        """The options that are known before the start; the others come with the start line."""

    def variables(self, place: Place, /) -> Mapping[str, Reasoned]:
        """What it sets for every rank of the host."""

    def by_hand(self, place: Place, /) -> tuple[str, ...]:
        """The words of the command that does the same without disttui."""

    def refusal(self, profile: Profile, counts: Mapping[str, int], backend: str, /) -> Refusal | None:
        """Why it cannot start so many processes on each host by name; None: it can."""
