"""The errors that end a command with one clear line, and the exit code each means."""

from __future__ import annotations


class DisttuiError(Exception):
    """Something the user can correct: what is wrong, and the cure.

    Args:
        what: One sentence naming the thing (host, file:line) and what is wrong with it.
        cure: What to do about it, as an imperative; empty where nothing sensible can be said.
    """

    exit_code = 1

    def __init__(self, what: str, cure: str = "") -> None:
        super().__init__(what if not cure else f"{what}\n  → {cure}")
        self.what = what
        self.cure = cure


class InputError(DisttuiError):
    """Bad input from the user: a profile, an option, a name. Exit code 2."""

    exit_code = 2


class HostError(DisttuiError):
    """A host cannot be used, or a check before the launch failed. Exit code 3.

    Args:
        host: The host's name as the profile gives it.
    """

    exit_code = 3

    def __init__(self, host: str, what: str, cure: str = "") -> None:
        super().__init__(f"{host}: {what}", cure)
        self.host = host


class LinkLostError(HostError):
    """The link broke: what the host would have answered is not known, and another try may find out."""
