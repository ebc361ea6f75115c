"""The protocol behind which every way of reaching a host lives."""

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


class HostConnection(Connection, Protocol):
    """One that a person may use as well."""

    def attend(self, command: str) -> int | None:
        """Run `command` at this process's terminal, whose size it follows.

        Returns its exit status; None: a signal has ended it. Raises HostError or ConnectionError.
        """


class Connector(Protocol):
    """Opens connections; one per viewer. Shares jump hosts, limits simultaneous connects."""

    def connect(self, address: Address) -> HostConnection:
        """Reach a host. Blocking, thread-safe. Raises HostError with a cure where it cannot be reached."""

    def close(self) -> None:
        """Close every connection that is left."""


class NeedsSshError(HostError):
    """A host for which the built-in transport lacks something that the user's files say, or that the server needs."""

    def __init__(self, host: str, need: str) -> None:
        super().__init__(host, f"{need} needs the ssh program", "Install the OpenSSH client.")
        self.need = need


class Prompts(Protocol):
    """Asks the user while connecting. Called from worker threads, one question at a time."""

    def secret(self, host: str, question: str, said: str = "") -> str | None:
        """Ask for a password, a passphrase or the answer to a question of the host; None: give up.

        Args:
            question: In the words of disttui or of the user's own ssh, never of the host.
            said: What the host has said before, its question included: safe lines, each behind a bar.
        """

    def tell(self, host: str, said: str) -> None:
        """Show what the host says, as in `secret`, while it waits for something else than an answer."""

    def share_password(self, host: str, others: int) -> bool:
        """Ask whether the password that `host` has just accepted may be tried on other hosts.

        Args:
            others: How many hosts are being connected to besides.
        """

    def accept_host_key(self, host: str, key_type: str, fingerprint: str) -> bool:
        """Ask whether an unknown host key may be added to the known hosts."""


class RefusePrompts:
    """For commands without a person: answers every question with no."""

    def secret(self, host: str, question: str, said: str = "") -> str | None:
        """Give up."""
        return None

    def tell(self, host: str, said: str) -> None:
        """Show nothing."""

    def share_password(self, host: str, others: int) -> bool:
        """Refuse."""
        return False

    def accept_host_key(self, host: str, key_type: str, fingerprint: str) -> bool:
        """Refuse."""
        return False


PATIENCE = 3.0
"""Seconds after which a connect to a host that says nothing does not count: it costs nobody anything, and waits. So
does a login that goes no further."""
_LOOK = 1.0
"""Seconds after which those that wait check again: a question may have been answered, and its connect continues."""


class GateEntry:
    """One connect in progress."""

    def __init__(self) -> None:
        self.moved = time.monotonic()
        self.asks = False
        """Whether a person is asked: the servers that wait for answers end logins that take long."""

    def move(self) -> None:
        """Count it again from now on."""
        self.moved = time.monotonic()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Count it however long this takes."""
        self.asks = True
        try:
            yield
        finally:
            self.asks = False
            self.move()


class Gate:
    """Lets a number of connects through at a time; one whose host says nothing for `patience` keeps no other out."""

    def __init__(self, most: int, patience: float = PATIENCE) -> None:
        self._most = most
        self._patience = patience
        self._inside: list[GateEntry] = []
        self.others = -1
        """Connects inside or waiting, but for the one that asks."""
        self._changed = threading.Condition()

    @contextmanager
    def turn(self) -> Iterator[GateEntry]:
        """Wait for a turn, and have it."""
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
"""Questions that a host may ask during one login."""
PASSWORD = re.compile(r"(?:\((?P<by>[^()\s]+)\) )?(?:(?P<of>\S+)'s )?password(?: for \S+)?:?", re.IGNORECASE)
"""A prompt for the login's password, and never for a one-time code; ssh puts `(user@host)` before what a host asks."""
TOO_MANY = "Too many authentication failures"
"""What sshd says after MaxAuthTries, mostly to an agent with many keys."""
TOO_MANY_CURE = "Set IdentityFile and IdentitiesOnly yes for this host in your ssh configuration."
_ANSWERED = 30.0
"""Seconds that a host may take over an answer, such as to ask a phone, before the next one asks."""
_MOST_LINES = 24


class CountedPrompts:
    """Questions of one connect, which keeps its place at the gate while a person thinks."""

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
    """Passwords that have worked, in the memory of this process: each for its host and, if the user agrees, for others.

    A host is named by anything that tells it from others.
    """

    def __init__(self) -> None:
        self.asking = Gate(1, _ANSWERED)
        """Logins that have to ask: one at a time, since its answer may spare the others their question."""
        self._own: dict[Hashable, str] = {}
        self._shared: dict[str, str | None] = {}
        """By user name; None: the user declined."""
        self._tried: set[Hashable] = set()
        """Hosts that were given the shared password: a wrong one must not lock an account."""

    def has(self, host: Hashable, user: str, *, trusted: bool) -> bool:
        """Whether `take` would return a password."""
        return host in self._own or bool(trusted and host not in self._tried and self._shared.get(user))

    def take(self, host: Hashable, user: str, *, trusted: bool) -> str | None:
        """Return the password to try, once: the host's own or, if the user has confirmed its key, the shared one."""
        if host in self._own:
            return self._own.pop(host)
        if not self.has(host, user, trusted=trusted):
            return None
        self._tried.add(host)
        return self._shared[user]

    def keep(self, host: Hashable, user: str, password: str, name: str, others: int, prompts: Prompts) -> None:
        """Remember a password that worked, and ask, once for each user name, whether other hosts may get it too."""
        self._own[host] = password
        if others > 0 and user not in self._shared:
            self._shared[user] = password if prompts.share_password(name, others) else None


def words_of_host(*texts: str) -> str:
    """The last lines of what a host has said, without control characters, each behind a bar."""
    lines = [line for line in "\n".join(texts).replace("\r", "").split("\n") if line.strip()]
    shown = [f"│ {clean(line[:300], guesses=False).rstrip()}" for line in lines[-_MOST_LINES:]]
    return "\n".join(shown if len(lines) <= _MOST_LINES else ["│ …", *shown])
