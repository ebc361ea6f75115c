"""What long calls tell while they go on."""

from __future__ import annotations

from typing import NamedTuple

from runner.errors import DisttuiError


class HostNotice(NamedTuple):
    """Something that the user should know of a host."""

    host: str
    text: str
    """Without the host's name."""


def problem_of(host: str, error: DisttuiError, more: str = "") -> HostNotice:
    """What is wrong with a host."""
    return HostNotice(host, error.reason + more)


def ignore(news: object) -> None:
    """Nobody listens."""
