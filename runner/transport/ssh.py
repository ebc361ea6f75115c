"""Hosts reached by SSH."""

from __future__ import annotations

import logging
import shutil
import socket
import threading
from concurrent.futures import Future

from paramiko.channel import Channel
from paramiko.ssh_exception import ChannelException

from runner.address import Address
from runner.errors import HostError, LinkLostError
from runner.text import clean
from runner.transport.auth import Credentials, Login
from runner.transport.base import Prompts
from runner.transport.gate import Gate, GateEntry
from runner.transport.guarded import GuardedTransport
from runner.transport.host_keys import HostKeyCheck
from runner.transport.sockets import ProxyProcess, dial, link_broke
from runner.transport.ssh_config import SshTarget, hop_address, resolve
from runner.transport.ssh_stream import SshStream, in_time

_GREETING_LIMIT = 15.0
_CHANNEL_LIMIT = 30.0
_COMMAND_LIMIT = 40.0
"""Seconds for a session and the answer to its command."""

# Without this, Python prints paramiko's warnings to the terminal.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class SshConnection:
    """A logged-in connection; its commands each have a channel of their own."""

    def __init__(self, name: str, link: _Link) -> None:
        self._name = name
        self._link = link
        self.closed = False

    @property
    def name(self) -> str:
        return self._name

    def run(self, command: str) -> SshStream:
        transport = self._link.transport
        # paramiko waits for the answer to a command without end.
        impatient = threading.Timer(_COMMAND_LIMIT, transport.close)
        impatient.daemon = True
        impatient.start()
        try:
            channel = transport.open_session(timeout=_CHANNEL_LIMIT)
            channel.exec_command(command)
        except ChannelException as error:
            what = f"the server opens no session: {clean(error.text)}"
            raise HostError(self._name, what, "Look at MaxSessions in its sshd_config.") from None
        except Exception as error:
            raise ConnectionError(clean(str(error)) or "it has been closed") from None
        finally:
            impatient.cancel()
        return SshStream(channel)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._link.close()


class _Link:
    """A transport and what it runs over."""

    def __init__(self, transport: GuardedTransport, proxy: ProxyProcess | None) -> None:
        self.transport = transport
        self._proxy = proxy

    def close(self) -> None:
        in_time(self.transport.close)
        if self._proxy is not None:
            self._proxy.close()


class SshConnector:
    """Opens SSH connections as the user's ssh configuration says, jump hosts shared.

    Args:
        config_file: As ssh's -F, None: the user's and the system's configuration.
        prompts: Asks for passphrases, passwords and unknown host keys.
        accept_new: Trust unknown host keys without asking (never changed ones).
        limit: Most connects at the same time, as `Gate` counts: more make servers and the network refuse.
    """

    def __init__(self, config_file: str | None, prompts: Prompts, accept_new: bool = False, limit: int = 16) -> None:
        self._config_file = config_file
        self._prompts = prompts
        self._accept_new = accept_new
        self._gate = Gate(limit)
        self._ssh = shutil.which("ssh")
        self._secrets = Credentials()
        self._lock = threading.Lock()
        self._targets: dict[Address, SshTarget] = {}
        self._jumps: dict[tuple[SshTarget, ...], Future[_Link]] = {}
        self._open: list[SshConnection] = []

    def connect(self, address: Address) -> SshConnection:
        with self._gate.turn() as turn:
            connection = SshConnection(address.host, self._reach(self._route(self._resolve(address)), turn))
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
                jump.result().close()

    def _resolve(self, address: Address) -> SshTarget:
        with self._lock:
            known = self._targets.get(address)
        if known is None:
            known = resolve(address, self._config_file, self._ssh)
            with self._lock:
                self._targets[address] = known
        return known

    def _route(self, target: SshTarget, below: tuple[SshTarget, ...] = ()) -> tuple[SshTarget, ...]:
        """The hosts on the way: first the one that is dialled, last the target itself."""
        if target in below:
            chain = " → ".join(each.name for each in (*below, target))
            raise HostError(below[0].name, f"its ProxyJump goes in a circle: {chain}", "Correct the ssh configuration.")
        if not target.proxy_jump:
            return (target,)
        # As in ssh, only the first hop's own configuration may put hosts before it: the list says the rest.
        hops = [self._resolve(hop_address(hop)) for hop in target.proxy_jump]
        return (*self._route(hops[0], (*below, target)), *hops[1:], target)

    def _reach(self, route: tuple[SshTarget, ...], turn: GateEntry) -> _Link:
        *before, target = route
        if before:
            return self._link(self._tunnel(self._jump(tuple(before), target, turn), target), target, turn)
        if target.proxy_command:
            proxy = ProxyProcess(target)
            return self._link(proxy.socket, target, turn, proxy)
        return self._link(dial(target), target, turn)

    def _jump(self, route: tuple[SshTarget, ...], target: SshTarget, turn: GateEntry) -> _Link:
        """The one link along `route`: the first thread that asks for it opens it, the others wait."""
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
        except HostError as error:
            raise HostError(target.name, f"jump host {error.sentence}", error.cure) from None

    def _tunnel(self, jump: _Link, target: SshTarget) -> Channel:
        try:
            return jump.transport.open_channel(
                "direct-tcpip", (target.hostname, target.port), ("127.0.0.1", 0), timeout=_GREETING_LIMIT
            )
        except Exception as error:
            said = error.text if isinstance(error, ChannelException) else error
            what = f"the jump host cannot reach {target.hostname}:{target.port}: {clean(str(said))}"
            raise HostError(target.name, what, "Check the address as seen from the jump host.") from None

    def _link(
        self, connection: socket.socket | Channel, target: SshTarget, turn: GateEntry, proxy: ProxyProcess | None = None
    ) -> _Link:
        try:
            transport = GuardedTransport(connection, target)
        except BaseException:
            connection.close()
            if proxy is not None:
                proxy.close()
            raise
        link = _Link(transport, proxy)
        try:
            address = connection.getpeername()[0] if isinstance(connection, socket.socket) and not proxy else None
            prompts = _CountedPrompts(self._prompts, turn)
            check = HostKeyCheck(target, prompts, self._accept_new, address)
            key_type, blob = self._shake_hands(transport, target, proxy, check)
            turn.move()
            check.verify(key_type, blob, transport.shown_key)
            Login(transport, target, prompts, self._secrets).run()
            turn.move()
        except BaseException:
            link.close()
            connection.close()
            raise
        return link

    def _shake_hands(
        self, transport: GuardedTransport, target: SshTarget, proxy: ProxyProcess | None, check: HostKeyCheck
    ) -> tuple[str, bytes]:
        """The type of the host's key, and the key."""
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
        except Exception as error:
            raise _no_greeting(target, error, proxy, transport.packetizer.first) from None


class _CountedPrompts:
    """Questions of one connect, which keeps its place at the gate while a person thinks."""

    def __init__(self, prompts: Prompts, turn: GateEntry) -> None:
        self._prompts = prompts
        self._turn = turn

    def secret(self, host: str, question: str) -> str | None:
        with self._turn.asking():
            return self._prompts.secret(host, question)

    def accept_host_key(self, host: str, key_type: str, fingerprint: str) -> bool:
        with self._turn.asking():
            return self._prompts.accept_host_key(host, key_type, fingerprint)


def _spent(future: Future[_Link]) -> bool:
    """Whether an earlier attempt to reach a jump host has failed, or its link has broken."""
    return future.done() and (future.exception() is not None or not future.result().transport.is_active())


def _no_greeting(target: SshTarget, error: Exception, proxy: ProxyProcess | None, first: bytes) -> HostError:
    if proxy is not None and (said := proxy.said()):
        return HostError(target.name, f"ProxyCommand failed: {said}", "Correct the ssh configuration.")
    place = f"{target.hostname}:{target.port}"
    what = f"no SSH handshake with {place}: {clean(str(error))[:300] or 'it hung up'}"
    if first and not first.startswith(b"SSH-"):
        what += f"; it began with '{clean(first.decode(errors='replace'))}'"
    kind = LinkLostError if link_broke(error) else HostError
    return kind(target.name, what, f"Try `ssh {target.name}`; is this an SSH server, and is it overloaded?")
