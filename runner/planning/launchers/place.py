"""What a launcher makes a host's command of, and what every launcher can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from disttui.runner.profile import Profile
from disttui.runner.profile.sections import Target
from disttui.runner.protocol.containers import ContainerSpec, start_words
from disttui.runner.protocol.files import LauncherPart

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


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
    workdir: str = "~"
    """The job's folder, for a container."""

    @property
    def container(self) -> ContainerSpec | None:
        """What this host's launcher runs in."""
        box = self.profile.container
        return box.spec(bool(self.gpus[self.node_rank])) if box else None

    @property
    def around(self) -> tuple[str, ...]:
        """The words before the launcher, as they are typed by hand: its container and `job.wrap`."""
        names = (*(self.exported or self.profile.host_env(self.node_rank)), *INTERFACES)
        mounts = (self.workdir,)
        box = start_words(self.container, self.workdir, mounts=mounts, variables=names) if self.container else ()
        return (*box, *self.profile.job.wrap)

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


class Launcher:
    """Turns places into commands."""

    PART: ClassVar[LauncherPart]
    """The part of the node program that runs it."""

    def launcher_args(self, place: Place) -> tuple[str, ...]:
        """The options that are known before the start; the others come with the start line."""
        raise NotImplementedError

    def variables(self, _place: Place) -> Mapping[str, Reasoned]:
        """What it sets for every rank of the host, before the hosts have met."""
        return {}

    def by_hand(self, place: Place) -> tuple[str, ...]:
        """The words of the command that does the same without disttui."""
        raise NotImplementedError

    def refusal(self, _profile: Profile, _counts: Mapping[str, int], _backend: str) -> Refusal | None:
        """Why it cannot start so many processes on each host by name; None: it can."""
        return None
