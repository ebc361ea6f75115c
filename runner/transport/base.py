"""The protocols that all transports implement, and what they share: prompts, passwords and connect limits."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol

from disttui.runner.address import Address
from disttui.runner.errors import HostError
from disttui.runner.text import clean


class Stream(Protocol):
    """Standard input and output of one remote command, as bytes. Thread-safe for one reader
    and one writer."""

    def read(self, size: int, timeout: float | None = None) -> bytes:
        """Return up to `size` bytes, b"" at the end of the stream.

        Raises:
            TimeoutError: No data arrived within `timeout` seconds.
            ConnectionError: The link broke.
        """

    def write(self, data: bytes) -> None:
        """Send all of `data`. Raises ConnectionError if the link is broken."""

    def errors(self) -> str:
        """The last 64 KiB that the command has written to standard error so far, unsanitised."""

    def exit_status(self) -> int | None:
        """The command's exit status, or None while it runs or when it is unknown."""

    def kill(self, word: str) -> None:
        """Kill the command, whose command line contains `word`, and its process group. Never raises."""

    def close(self) -> None:
        """Close both directions. Never raises; may be called twice."""


class Connection(Protocol):
    """An authenticated connection to one host."""

    @property
    def name(self) -> str:
        """The host's name as in the profile."""

    def run(self, command: str) -> Stream:
        """Start `command` under the login shell. Raises HostError or ConnectionError."""

    def close(self) -> None:
        """Close the connection and its streams. Never raises; may be called twice."""


class HostConnection(Connection, Protocol):
    """A connection that can also run interactive commands."""

    def attend(self, command: str) -> int | None:
        """Run `command` interactively at this process's terminal; it follows changes of the terminal's size.

        Returns its exit status, or None if a signal ended it. Raises HostError or ConnectionError.
        """


class Connector(Protocol):
    """Opens the connections of one viewer. Shares jump hosts and limits simultaneous connects."""

    def connect(self, address: Address) -> HostConnection:
        """Connect to a host. Blocking, thread-safe. Raises HostError with a cure if that fails."""

    def close(self) -> None:
        """Close all open connections."""


class NeedsSshError(HostError):
    """The built-in transport lacks a feature that the user's ssh configuration or the server requires."""

    def __init__(self, host: str, need: str) -> None:
        super().__init__(host, f"{need} needs the ssh program", "Install the OpenSSH client.")
        self.need = need


class Prompts(Protocol):
    """Asks the user questions while connecting. Called from worker threads, one question at a time.

    Each answers with no unless it is overridden.
    """

    def secret(self, host: str, question: str, said: str = "") -> str | None:
        """Ask for a password, a passphrase or the answer to a question of the host; None if the user gives up.

        Args:
            question: Text of disttui or the user's ssh program, never of the host.
            said: Preceding text from the host, including its question: sanitised lines, each behind a bar.
        """
        return None

    def tell(self, host: str, said: str) -> None:
        """Show text from the host, sanitised as in `secret`, that needs no answer."""
        return

    def share_password(self, host: str, others: int) -> bool:
        """Ask whether the password that `host` has just accepted may be tried on other hosts.

        Args:
            others: Number of other hosts that are being connected to.
        """
        return False

    def accept_host_key(self, host: str, key_type: str, fingerprint: str) -> bool:
        """Ask whether to add an unknown host key to the known hosts."""
        return False


class RefusePrompts(Prompts):
    """Answers every question with no, for commands without a user."""


PATIENCE = 3.0
"""Seconds without progress after which a connect or login no longer counts: a silent host uses no resources, so
others need not wait for it."""
_LOOK = 1.0
"""Seconds after which waiting connects check again, since answering a question changes which ones count."""


class GateEntry:
    """One connect in progress."""

    def __init__(self) -> None:
        self.moved = time.monotonic()
        self.asks = False
        """Whether the user is being asked. Such connects always count, since servers end logins that take long."""

    def move(self) -> None:
        """Record progress, so that it counts as active from now on."""
        self.moved = time.monotonic()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Count it as active while the user is being asked."""
        self.asks = True
        try:
            yield
        finally:
            self.asks = False
            self.move()


class Gate:
    """Limits simultaneous connects to `most`; one without progress for `patience` seconds no longer counts."""

    def __init__(self, most: int, patience: float = PATIENCE) -> None:
        self._most = most
        self._patience = patience
        self._inside: list[GateEntry] = []
        self.others = -1
        """Connects inside or waiting, less one for the caller."""
        self._changed = threading.Condition()

    @contextmanager
    def turn(self) -> Iterator[GateEntry]:
        """Wait for a free place and hold it inside the context."""
        with self._changed:
            self.others += 1
            while len(counted := self._counted()) >= self._most:
                soonest = (
                    min(math.inf if turn.asks else turn.moved for turn in counted) + self._patience - time.monotonic()
                )
                self._changed.wait(max(0.01, min(soonest, _LOOK)))
            mine = GateEntry()
            self._inside.append(mine)
        try:
            yield mine
        finally:
            with self._changed:
                self.others -= 1
                self._inside.remove(mine)
                self._changed.notify()

    def _counted(self) -> list[GateEntry]:
        now = time.monotonic()
        return [turn for turn in self._inside if turn.asks or now - turn.moved < self._patience]


MOST_QUESTIONS = 20
"""Most questions that a host may ask during one login."""
PASSWORD = re.compile(r"(?:\((?P<by>[^()\s]+)\) )?(?:(?P<of>\S+)'s )?password(?: for \S+)?:?", re.IGNORECASE)
"""A prompt for the login's password, never for a one-time code; ssh puts `(user@host)` before a host's questions."""
TOO_MANY = "Too many authentication failures"
"""sshd's message after MaxAuthTries, mostly because an agent has many keys."""
TOO_MANY_CURE = "Set IdentityFile and IdentitiesOnly yes for this host in your ssh configuration."
_ANSWERED = 30.0
"""Seconds that a host may take to check an answer, such as by phone, before the next login may ask."""
_MOST_LINES = 24


class CountedPrompts:
    """Prompts of one connect, which keeps its place at the gate while the user answers."""

    def __init__(self, prompts: Prompts, turn: GateEntry) -> None:
        self._prompts = prompts
        self._turn = turn

    def secret(self, host: str, question: str, said: str = "") -> str | None:
        with self._turn.asking():
            return self._prompts.secret(host, question, said)

    def tell(self, host: str, said: str) -> None:
        self._prompts.tell(host, said)

    def share_password(self, host: str, others: int) -> bool:
        with self._turn.asking():
            return self._prompts.share_password(host, others)

    def accept_host_key(self, host: str, key_type: str, fingerprint: str) -> bool:
        with self._turn.asking():
            return self._prompts.accept_host_key(host, key_type, fingerprint)


class Passwords:
    """Passwords that worked, kept in memory: each for its own host and, if the user agrees, for other hosts.

    Any hashable value that identifies a host can be its key.
    """

    def __init__(self) -> None:
        self.asking = Gate(1, _ANSWERED)
        """Gate for logins that have to ask: one at a time, since its answer may spare the others the question."""
        self._own: dict[Hashable, str] = {}
        self._shared: dict[str, str | None] = {}
        """User name → shared password; None: the user declined to share it."""
        self._tried: set[Hashable] = set()
        """Hosts that got the shared password; they get it only once, so that a wrong one cannot lock an account."""

    def has(self, host: Hashable, user: str, *, trusted: bool) -> bool:
        """Whether `take` would return a password."""
        return host in self._own or bool(trusted and host not in self._tried and self._shared.get(user))

    def take(self, host: Hashable, user: str, *, trusted: bool) -> str | None:
        """Return a password to try, each once: the host's own or, if its key is `trusted`, the shared one, or None."""
        if host in self._own:
            return self._own.pop(host)
        if not self.has(host, user, trusted=trusted):
            return None
        self._tried.add(host)
        return self._shared[user]

    def keep(self, host: Hashable, user: str, password: str, name: str, others: int, prompts: Prompts) -> None:
        """Store a password that worked, and ask, once per user name, whether other hosts may get it."""
        self._own[host] = password
        if others > 0 and user not in self._shared:
            self._shared[user] = password if prompts.share_password(name, others) else None


def words_of_host(*texts: str) -> str:
    """The last 24 non-blank lines of texts from a host, without control characters, each behind a bar."""
    lines = [line for line in "\n".join(texts).replace("\r", "").split("\n") if line.strip()]
    shown = [f"│ {clean(line[:300], guesses=False).rstrip()}" for line in lines[-_MOST_LINES:]]
    return "\n".join(shown if len(lines) <= _MOST_LINES else ["│ …", *shown])
