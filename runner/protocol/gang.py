"""The messages between the hosts of a gang (docs/formats.md, "The gang"); `gang/messages.py` has the bounds."""

from __future__ import annotations

from typing import Literal, TypedDict, Union

from .cause import Cause, FailureReport
from .events import State
from .watch import WatchFinding


class AttemptProgress(TypedDict):
    """The progress of an attempt on a host."""

    begun: bool
    saved: bool
    step: int | None


class _AboutAttempt(TypedDict):
    attempt: int


class ReachedMessage(TypedDict):
    k: Literal["reached"]
    addresses: list[str]
    pending: bool


class MpiPlace(TypedDict):
    """Where mpirun of node 0 waits for the daemons of the other hosts, in the terms of Open MPI 4."""

    version: str
    """The version that `mpirun --version` prints."""
    job: str
    """The number of the job."""
    nodes: str
    """The names of all its hosts, shortened."""
    uri: str


class _Meeting(TypedDict, total=False):
    mpi: MpiPlace
    """Set only if one mpirun starts the ranks of all hosts."""


class ListeningMessage(_AboutAttempt, _Meeting):
    """Never sent over the network: node 0's own launcher is ready for those of the other hosts."""

    k: Literal["listening"]


class RoomMessage(TypedDict):
    k: Literal["room"]
    room: bool
    why: str


class TookMessage(TypedDict):
    k: Literal["took"]
    done: bool


class FailedMessage(_AboutAttempt):
    k: Literal["failed"]
    cause: FailureReport | None
    port_in_use: bool


class DoneMessage(_AboutAttempt, AttemptProgress):
    k: Literal["done"]
    left: list[int]


class EndedMessage(_AboutAttempt, AttemptProgress):
    k: Literal["ended"]
    left: list[int]


class SignsOfLife(TypedDict, total=False):
    """Per rank: seconds since the last sign of life and the last step, usual step time, first metrics of an attempt."""

    silent: dict[str, float]
    stepped: dict[str, float]
    times: dict[str, float]
    shows: list[str]
    first_steps: dict[str, float]
    first_epochs: dict[str, float]


class SignsMessage(_AboutAttempt, SignsOfLife):
    k: Literal["signs"]


class FoundMessage(_AboutAttempt, WatchFinding):
    """A rule of the profile's `watch` has fired; the leader looks up its action."""

    k: Literal["found"]


class StopMessage(TypedDict):
    k: Literal["stop"]
    reason: str
    now: bool


Report = Union[
    ReachedMessage, RoomMessage, TookMessage, ListeningMessage,
    FailedMessage, DoneMessage, EndedMessage, SignsMessage, FoundMessage, StopMessage,
]  # fmt: skip
"""From a host to the leader."""


class OverMessage(TypedDict):
    k: Literal["over"]


class TakeMessage(TypedDict):
    """Take this host's lease, or put it back into the queue."""

    k: Literal["take"]
    take: bool


class PlaceMessage(TypedDict):
    """Move to another place in the queue."""

    k: Literal["place"]
    round: int
    order: float


class _Rollback(TypedDict, total=False):
    before: int
    """Checkpoints of this step and later ones are set aside first."""


class WarmMessage(_AboutAttempt, _Rollback):
    k: Literal["warm"]


class GoMessage(_AboutAttempt, _Meeting):
    k: Literal["go"]
    master: str
    port: int


class EndMessage(_AboutAttempt):
    k: Literal["end"]
    reason: str
    now: bool


class AskStacksMessage(_AboutAttempt):
    k: Literal["stacks"]
    number: int


class SnapshotMessage(_AboutAttempt):
    """Ask the ranks for a checkpoint."""

    k: Literal["snapshot"]


class VerdictMessage(_AboutAttempt):
    k: Literal["verdict"]
    state: State
    code: int
    cause: Cause | None


Order = Union[
    OverMessage, TakeMessage, PlaceMessage, WarmMessage, GoMessage,
    EndMessage, StopMessage, AskStacksMessage, SnapshotMessage, VerdictMessage,
]  # fmt: skip
"""From the leader to a host."""


class RestMessage(TypedDict):
    """A host's attempt, and whether nothing of it remains to be run or reported."""

    attempt: int
    idle: bool


def attempt_of(message: Union[Order, Report], otherwise: int) -> int:
    """The attempt that a message concerns, `otherwise` if it concerns none."""
    if message["k"] == "reached" or message["k"] == "stop" or message["k"] == "over":
        return otherwise
    if message["k"] == "room" or message["k"] == "took" or message["k"] == "take" or message["k"] == "place":
        return otherwise
    return message["attempt"]
