"""What the hosts of a gang say to each other (docs/formats.md, "The gang"); `gang/messages.py` has the bounds."""

from __future__ import annotations

from typing import Literal, TypedDict, Union

from .cause import Cause, FailureReport
from .events import State


class Progress(TypedDict):
    """How far an attempt has come on a host."""

    begun: bool
    saved: bool
    step: int | None


class _OfAttempt(TypedDict):
    attempt: int


class Reached(TypedDict):
    k: Literal["reached"]
    addresses: list[str]
    pending: bool


class Listening(_OfAttempt):
    """Never on the wire: node 0's own launcher listens at the master port."""

    k: Literal["listening"]


class Failed(_OfAttempt):
    k: Literal["failed"]
    cause: FailureReport | None
    port_in_use: bool


class Done(_OfAttempt, Progress):
    k: Literal["done"]
    left: list[int]


class Ended(_OfAttempt, Progress):
    k: Literal["ended"]
    left: list[int]


class SignsOfLife(TypedDict, total=False):
    """By rank: seconds since the last sign of life, usual step time, and the first metrics of an attempt."""

    silent: dict[str, float]
    times: dict[str, float]
    shows: list[str]
    first_steps: dict[str, float]
    first_epochs: dict[str, float]


class Signs(_OfAttempt, SignsOfLife):
    k: Literal["signs"]


class Stop(TypedDict):
    k: Literal["stop"]
    reason: str
    now: bool


Report = Union[Reached, Listening, Failed, Done, Ended, Signs, Stop]
"""From a host to the leader."""


class Over(TypedDict):
    k: Literal["over"]


class Warm(_OfAttempt):
    k: Literal["warm"]


class Go(_OfAttempt):
    k: Literal["go"]
    master: str
    port: int


class End(_OfAttempt):
    k: Literal["end"]
    reason: str
    now: bool


class AskStacks(_OfAttempt):
    k: Literal["stacks"]
    number: int


class Verdict(_OfAttempt):
    k: Literal["verdict"]
    state: State
    code: int
    cause: Cause | None


Order = Union[Over, Warm, Go, End, Stop, AskStacks, Verdict]
"""From the leader to a host."""


class Rest(TypedDict):
    """Which attempt a host is in, and whether nothing of it is left to run or to be told."""

    attempt: int
    idle: bool


def attempt_of(message: Union[Order, Report], otherwise: int) -> int:
    """The attempt that a message is about, `otherwise` where it is about none."""
    if message["k"] == "reached" or message["k"] == "stop" or message["k"] == "over":
        return otherwise
    return message["attempt"]
