"""The protocol behind which every way of reaching a host lives."""

from __future__ import annotations

from typing import Protocol

from runner.address import Address


class Stream(Protocol):
    """The standard input and output of one remote command: bytes, both ways. Thread-safe for one reader
    beside one writer."""

    def read(self, size: int, timeout: float | None = None) -> bytes:
        """Return up to `size` bytes, b"" at the end of the stream.

        Raises:
            TimeoutError: Nothing came within `timeout` seconds.
            ConnectionError: The link broke.
        """

    def write(self, data: bytes) -> None:
        """Send all of `data`. Raises ConnectionError when the link broke."""

    def errors(self) -> str:
        """What the command has written to standard error so far (the last 64 KiB), unsanitised."""

    def exit_status(self) -> int | None:
        """The command's exit status, or None while it runs or when it is unknown."""

    def kill(self, word: str) -> None:
        """End the command, whose command line holds the plain word `word`, and its group by SIGKILL. Never raises."""

    def close(self) -> None:
        """Close both directions. Never raises, may be called twice."""


class Connection(Protocol):
    """An authenticated way to one host."""

    @property
    def name(self) -> str:
        """The host's name as the profile gives it."""

    def run(self, command: str) -> Stream:
        """Start `command` under the login shell. Raises HostError or ConnectionError."""

    def close(self) -> None:
        """Close the connection and its streams. Never raises, may be called twice."""


class Connector(Protocol):
    """Opens connections; one per viewer. Shares jump hosts, limits simultaneous connects."""

    def connect(self, address: Address) -> Connection:
        """Reach a host. Blocking, thread-safe. Raises HostError with a cure where it cannot be reached."""

    def close(self) -> None:
        """Close every connection that is left."""


class Prompts(Protocol):
    """Asks the user while connecting. Called from worker threads, one question at a time."""

    def secret(self, host: str, question: str) -> str | None:
        """Ask for a password, a passphrase or the answer to a keyboard-interactive question; None: give up."""

    def accept_host_key(self, host: str, key_type: str, fingerprint: str) -> bool:
        """Ask whether an unknown host key may be added to the known hosts."""


class RefusePrompts:
    """For commands without a person: answers every question with no."""

    def secret(self, host: str, question: str) -> str | None:
        """Give up."""
        return None

    def accept_host_key(self, host: str, key_type: str, fingerprint: str) -> bool:
        """Refuse."""
        return False
