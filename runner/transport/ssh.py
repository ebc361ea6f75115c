"""SSH connections with paramiko, and streams of remote commands over SSH channels."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from paramiko.channel import Channel
from paramiko.ssh_exception import ChannelException, IncompatiblePeer, SSHException

from disttui.runner.address import Address
from disttui.runner.errors import HostError, LinkLostError
from disttui.runner.text import clean
from disttui.runner.transport.algorithms import SHA1
from disttui.runner.transport.auth import Credentials, Login
from disttui.runner.transport.base import CountedPrompts, Gate, GateEntry, NeedsSshError, Prompts
from disttui.runner.transport.guarded import GuardedTransport
from disttui.runner.transport.known_hosts import HostKeyCheck, require_built_in
from disttui.runner.transport.local import ERRORS_LIMIT
from disttui.runner.transport.sockets import BUSY_TRIES, dial, link_broke, unforwarded, wait_out
from disttui.runner.transport.ssh_config import SshTarget, hop_address, resolve
from disttui.runner.transport.terminal import connect_terminal

_SLICE = 0.25
"""Seconds after which a waiting reader drains standard error."""
_CLOSE_LIMIT = 2.0
_KILL = (
    "exec sh -c 'ps -o pid=,args= --ppid $PPID | while read -r pid words; do"
    ' case "$words" in *{pattern}*) kill -9 -$pid;; esac; done\''
)
"""Kills the sibling processes that match; the pattern contains a bracket so that it does not match itself."""


class SshStream:
    """A `Stream` over a paramiko channel.

    Both output streams share one flow-control window: once unread standard error fills it, standard output
    would stop forever. So a reader that waits for output reads standard error as well.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._closed = False
        self._errors = bytearray()
        self._drain_lock = threading.Lock()
        self._write_lock = threading.Lock()

    def read(self, size: int, timeout: float | None = None) -> bytes:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._drain()
            remaining = _SLICE if deadline is None else deadline - time.monotonic()
            # Writers share this setting and retry after a timeout, so it must not be 0.
            self._channel.settimeout(max(0.001, min(_SLICE, remaining)))
            try:
                data = self._channel.recv(size)
            except TimeoutError:
                if remaining <= 0:
                    raise TimeoutError(f"no output in {timeout:g} s") from None
                continue
            except (SSHException, EOFError, OSError) as error:
                raise ConnectionError(str(error) or "the connection was closed") from None
            if not data and not self._ended():
                raise ConnectionError("the connection has ended")
            return data

    def write(self, data: bytes) -> None:
        with self._write_lock, memoryview(data) as view:
            sent = 0
            while sent < len(view):
                try:
                    step = self._channel.send(bytes(view[sent : sent + (32 * 1024)]))
                except TimeoutError:
                    continue
                except (SSHException, EOFError, OSError) as error:
                    raise ConnectionError(str(error) or "the connection was closed") from None
                if step == 0:
                    raise ConnectionError("the command no longer reads input")
                sent += step

    def errors(self) -> str:
        self._drain()
        return bytes(self._errors).decode(errors="replace")

    def exit_status(self) -> int | None:
        # -1: the command was ended by a signal, or the link broke.
        status = self._channel.exit_status
        return status if self._channel.exit_status_ready() and status >= 0 else None

    def kill(self, word: str) -> None:
        transport = self._channel.transport
        if transport is None or not transport.is_active():
            return

        def end() -> None:
            # OpenSSH does not forward signals for root, so a second command kills the first one.
            with transport.open_session(timeout=_CLOSE_LIMIT) as channel:
                channel.exec_command(_KILL.format(pattern=f"{word[:-1]}[{word[-1]}]"))
                channel.recv_exit_status()

        in_time(end)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            in_time(self._channel.close)

    def _ended(self) -> bool:
        """Whether the output ended because of the command or our close(), not a broken link."""
        return self._closed or bool(self._channel.eof_received) or self._channel.exit_status >= 0

    def _drain(self) -> None:
        with self._drain_lock:
            # One read at a time, so that a flood of errors does not keep a reader from the output.
            if self._channel.recv_stderr_ready():
                with suppress(SSHException, EOFError, OSError):
                    self._errors += self._channel.recv_stderr(2 * 1024 * 1024)
            del self._errors[:-ERRORS_LIMIT]


def in_time(close: Callable[[], None]) -> None:
    """Run `close`, which notifies the peer, in a thread, and wait at most 2 s for it.

    A peer that accepts no more bytes would block it for as long as the link is up. Does nothing while a script that
    uses `disttui.runner.api` exits: that closes all sockets anyway, and Python up to 3.11 crashes on new threads then.
    """
    if not threading.main_thread().is_alive():
        return

    def run() -> None:
        with suppress(Exception):
            close()

    thread = threading.Thread(target=run, name="good-bye", daemon=True)
    thread.start()
    thread.join(_CLOSE_LIMIT)


_BUSY = "the server began with 'Exceeded MaxStartups"
_GREETING_LIMIT = 15.0
_CHANNEL_LIMIT = 30.0
_COMMAND_LIMIT = 40.0
"""Seconds to open a session and get the reply to its command."""

# Without this, Python prints paramiko's warnings to the terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class SshConnection:
    """An authenticated connection; each command has its own channel."""

    def __init__(self, name: str, link: GuardedTransport) -> None:
        self._name = name
        self._link = link
        self.closed = False

    @property
    def name(self) -> str:
        return self._name

    def run(self, command: str) -> SshStream:
        transport = self._link
        # paramiko waits without a limit for the reply to a command.
        impatient = threading.Timer(_COMMAND_LIMIT, transport.close)
        impatient.daemon = True
        impatient.start()
        try:
            channel = transport.open_session(timeout=_CHANNEL_LIMIT)
            channel.exec_command(command)
        except ChannelException as error:
            what = f"the server opens no session: {clean(error.text)}"
            raise HostError(self._name, what, "Check MaxSessions in its sshd_config.") from None
        except Exception as error:
            raise ConnectionError(clean(str(error)) or "the connection was closed") from None
        finally:
            impatient.cancel()
        return SshStream(channel)

    def attend(self, command: str) -> int | None:
        size = shutil.get_terminal_size()
        try:
            channel = self._link.open_session(timeout=_CHANNEL_LIMIT)
            channel.get_pty(os.environ.get("TERM", "vt100"), size.columns, size.lines)
            channel.exec_command(command)
        except Exception as error:
            what = f"the server gives no terminal: {clean(str(error)) or 'the session was closed'}"
            raise HostError(self._name, what, "Check PermitTTY and MaxSessions in its sshd_config.") from None
        connect_terminal(channel, size)
        return channel.exit_status if channel.exit_status >= 0 else None

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            in_time(self._link.close)


class SshConnector:
    """Opens SSH connections by the user's ssh configuration, with shared jump hosts.

    `connect` raises NeedsSshError if only the ssh program supports all settings or the server's algorithms.

    Args:
        config_file: As ssh's -F; None: the user's and the system's configuration.
        prompts: Asks for passphrases, passwords and unknown host keys.
        accept_new: Trust unknown host keys without asking (never changed ones).
        limit: Most simultaneous connects, as counted by `Gate`: servers and networks refuse larger numbers.
    """

    def __init__(self, config_file: str | None, prompts: Prompts, accept_new: bool = False, limit: int = 16) -> None:
        self._config_file = config_file
        self._prompts = prompts
        self._accept_new = accept_new
        self._gate = Gate(limit)
        self._secrets = Credentials()
        self._lock = threading.Lock()
        self._targets: dict[Address, SshTarget] = {}
        self._jumps: dict[tuple[SshTarget, ...], Future[GuardedTransport]] = {}
        self._open: list[SshConnection] = []

    def connect(self, address: Address) -> SshConnection:
        with self._gate.turn() as turn:
            route = self._route(self._resolve(address))
            for each in route:
                require_built_in(each)
            connection = SshConnection(address.host, self._reach(route, turn))
        with self._lock:
            self._open = [*(each for each in self._open if not each.closed), connection]
        return connection

    def close(self) -> None:
        with self._lock:
            connections, self._open = self._open, []
            jumps, self._jumps = list(self._jumps.values()), {}
        for connection in connections:
            connection.close()
        for jump in reversed(jumps):
            if jump.done() and not jump.exception():
                in_time(jump.result().close)

    def _resolve(self, address: Address) -> SshTarget:
        with self._lock:
            known = self._targets.get(address)
        if known is None:
            known = resolve(address, self._config_file)
            with self._lock:
                self._targets[address] = known
        return known

    def _route(self, target: SshTarget, below: tuple[SshTarget, ...] = ()) -> tuple[SshTarget, ...]:
        """The hosts on the way, from the one that is dialled to the target itself. Raises HostError for a cycle."""
        if target in below:
            chain = " → ".join(each.name for each in (*below, target))
            raise HostError(below[0].name, f"its ProxyJump is circular: {chain}", "Correct the ssh configuration.")
        if not target.proxy_jump:
            return (target,)
        # As in ssh, only the first hop's own ProxyJump counts; the list determines the rest of the route.
        hops = [self._resolve(hop_address(hop)) for hop in target.proxy_jump]
        return (*self._route(hops[0], (*below, target)), *hops[1:], target)

    def _reach(self, route: tuple[SshTarget, ...], turn: GateEntry) -> GuardedTransport:
        *before, target = route
        for tries in range(1, BUSY_TRIES + 1):
            way = self._tunnel(self._jump(tuple(before), target, turn), target) if before else dial(target)
            try:
                return self._link(way, target, turn)
            except HostError as error:
                if _BUSY not in error.what or tries == BUSY_TRIES:
                    raise
            wait_out()
        raise AssertionError

    def _jump(self, route: tuple[SshTarget, ...], target: SshTarget, turn: GateEntry) -> GuardedTransport:
        """The shared link along `route`: the first thread that needs it opens it, the others wait. Raises HostError."""
        with self._lock:
            future = self._jumps.get(route)
            mine = future is None or _spent(future)
            if future is None or mine:
                future = self._jumps[route] = Future()
        if mine:
            try:
                future.set_result(self._reach(route, turn))
            except BaseException as error:
                future.set_exception(error)
        try:
            return future.result()
        except NeedsSshError as error:
            raise NeedsSshError(target.name, f"jump host {error.host}: {error.need}") from None
        except HostError as error:
            raise HostError(target.name, f"jump host {error.sentence}", error.cure) from None

    def _tunnel(self, jump: GuardedTransport, target: SshTarget) -> Channel:
        try:
            return jump.open_channel(
                "direct-tcpip", (target.hostname, target.port), ("127.0.0.1", 0), timeout=_GREETING_LIMIT
            )
        except Exception as error:
            said = error.text if isinstance(error, ChannelException) else error
            raise unforwarded(target.name, f"{target.hostname}:{target.port}", clean(str(said))) from None

    def _link(self, connection: socket.socket | Channel, target: SshTarget, turn: GateEntry) -> GuardedTransport:
        try:
            transport = GuardedTransport(connection, target)
        except BaseException:
            connection.close()
            raise
        try:
            address = connection.getpeername()[0] if isinstance(connection, socket.socket) else None
            prompts = CountedPrompts(self._prompts, turn)
            check = HostKeyCheck(target, prompts, self._accept_new, address)
            key_type, blob = self._shake_hands(transport, target, check)
            turn.move()
            check.verify(key_type, blob)
            Login(transport, target, prompts, self._secrets, check.confirmed, self._gate).run()
            turn.move()
        except BaseException:
            in_time(transport.close)
            connection.close()
            raise
        return transport

    def _shake_hands(self, transport: GuardedTransport, target: SshTarget, check: HostKeyCheck) -> tuple[str, bytes]:
        """Run the key exchange; return the host key's type and blob. Raises HostError, NeedsSshError."""
        transport.prefer_keys(check.order(transport.preferred_keys))
        transport.banner_timeout = target.connect_timeout or _GREETING_LIMIT
        transport.handshake_timeout = max(_GREETING_LIMIT, transport.banner_timeout)
        transport.channel_timeout = _CHANNEL_LIMIT
        transport.packetizer.give(transport.banner_timeout + transport.handshake_timeout)
        try:
            transport.start_client()
            transport.packetizer.give(None)
            key = transport.get_remote_server_key()
            return key.get_name(), key.asbytes()
        except IncompatiblePeer as error:
            refused = _no_greeting(target, error, transport.packetizer.first)
            # Not left to ssh if its settings allow SHA-1 signatures, which it would accept.
            if SHA1 in target.host_key_algorithms or "no acceptable" not in str(error):
                raise refused from None
            raise NeedsSshError(target.name, f"{refused.what}: that server") from None
        except Exception as error:
            raise _no_greeting(target, error, transport.packetizer.first) from None


def _spent(future: Future[GuardedTransport]) -> bool:
    """Whether an earlier attempt to connect to a jump host failed, or its link has broken since."""
    return future.done() and (future.exception() is not None or not future.result().is_active())


def _no_greeting(target: SshTarget, error: Exception, first: bytes) -> HostError:
    place = f"{target.hostname}:{target.port}"
    # paramiko's "Error reading SSH protocol banner" runs into the text of the error that it wraps.
    cause = error.__context__ if str(error).startswith("Error reading SSH protocol banner") else error
    silent = f"no greeting in {target.connect_timeout or _GREETING_LIMIT:.0f} s"
    said = str(cause or "") or (silent if isinstance(cause, TimeoutError) else "connection closed")
    what = f"no SSH handshake with {place}: {clean(said)[:300]}"
    if first and not first.startswith(b"SSH-"):
        what += f"; the server began with '{clean(first.decode(errors='replace')).strip()}'"
    kind = LinkLostError if link_broke(error) else HostError
    return kind(target.name, what, f"Try `{target.command}`; check that this is an SSH server, and not overloaded.")
