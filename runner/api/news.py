"""Progress notes of long calls."""

from __future__ import annotations

from typing import NamedTuple

from runner.errors import DisttuiError


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
