"""TCP connections for SSH."""

from __future__ import annotations

import errno
import random
import socket
import time
from typing import Any

from disttui.runner.errors import HostError
from disttui.runner.transport.ssh_config import SshTarget

CONNECT_LIMIT = 10.0
"""Seconds for one address, unless ConnectTimeout is set."""
_NO_NEIGHBOUR = (errno.EHOSTUNREACH, errno.EHOSTDOWN)
"""The kernel's errors for a host that has not answered for some seconds but may return before the limit."""
_AGAIN = 2.0
"""Seconds after which a new socket is tried: the kernel repeats unanswered requests at growing intervals, which would
delay the connect after a link recovers."""
BUSY_TRIES = 8
"""Attempts at a server that is busy with other logins: beyond MaxStartups, sshd refuses connections at random."""
_FAMILIES = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}
_PAUSE = 0.5
"""Seconds until a host with one of the `_NO_NEIGHBOUR` errors is tried again."""
_USER_TIMEOUT = 8_000
"""Milliseconds that sent bytes may stay unacknowledged before the kernel closes the connection (TCP_USER_TIMEOUT).
About the limit for a silent link, since others wait for a jump host's connection."""


def dial(target: SshTarget) -> socket.socket:
    """Open a TCP connection to the target. Raises HostError."""
    limit = target.connect_timeout or CONNECT_LIMIT
    try:
        found = socket.getaddrinfo(target.hostname, target.port, target.family, socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        again = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
        raise unresolved(target, target.hostname, again) from None
    problem: OSError = TimeoutError()
    deadline = time.monotonic() + limit
    while True:
        for family, kind, protocol, _, address in found:
            try:
                return _connect(target, (family, kind, protocol), address, limit)
            except OSError as error:
                problem = error
        if problem.errno not in _NO_NEIGHBOUR or time.monotonic() + _PAUSE > deadline:
            raise unreachable(target.name, f"{target.hostname}:{target.port}", problem, limit)
        time.sleep(_PAUSE)


def wait_out() -> None:
    """Wait 0.3 to 1.5 s before trying a busy server again; the time is random so that clients do not retry together."""
    time.sleep(random.uniform(0.3, 1.5))


def link_broke(error: BaseException | None) -> bool:
    """Whether an error comes from the kernel, as after a broken link, and not from the server or our own limits."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error is not None and error.errno is not None


def _connect(target: SshTarget, how: tuple[int, int, int], address: Any, limit: float) -> socket.socket:
    deadline = time.monotonic() + limit
    while True:
        connection = socket.socket(*how)
        try:
            connection.settimeout(max(0.05, min(_AGAIN, deadline - time.monotonic())))
            if target.bind_address:
                connection.bind((target.bind_address, 0))
            connection.connect(address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT)
        except OSError as error:
            connection.close()
            if not isinstance(error, TimeoutError) or time.monotonic() >= deadline:
                raise
        else:
            return connection


def unresolved(target: SshTarget, hostname: str, again: bool) -> HostError:
    """Return the error for a host name that does not resolve.

    Args:
        hostname: Host name of the target or of a jump host.
        again: Whether the resolver reports a temporary failure.
    """
    family = _FAMILIES.get(target.family) if hostname == target.hostname else None
    if family and _resolves(hostname):
        what = f"'{hostname}' has no {family} address"
        return HostError(target.name, what, "Change AddressFamily for it in your ssh configuration.")
    what = f"the name '{hostname}' does not resolve"
    if again:
        cure = "Check the network, a VPN, and the spelling."
        return HostError(target.name, f"{what}: temporary failure in name resolution", cure)
    return HostError(target.name, what, "Check the spelling, or add HostName to your ssh configuration.")


def _resolves(hostname: str) -> bool:
    try:
        return bool(socket.getaddrinfo(hostname, None))
    except (socket.gaierror, UnicodeError):
        return False


def unreachable(name: str, place: str, error: OSError, limit: float) -> HostError:
    """Return the error for a host that no connection can be made to; `limit` is the timeout in seconds."""
    if isinstance(error, TimeoutError):
        what, cure = f"no answer from {place} in {limit:.0f} s", "Check that it is on, and that no firewall blocks you."
    elif isinstance(error, ConnectionRefusedError):
        what, cure = f"{place} refuses the connection", "Check that an SSH server runs there, and the port."
    else:
        what, cure = (
            f"cannot connect to {place}: {error.strerror or error}",
            "Check the network, a VPN, or the address.",
        )
    return HostError(name, what, cure)


def unforwarded(name: str, place: str, why: str) -> HostError:
    """Return the error for a host that its jump host does not connect to; `why` is the jump host's reason."""
    cure = "Check the address as seen from the jump host."
    if "prohibited" in why.lower():
        cure = "Check AllowTcpForwarding and PermitOpen in the sshd_config of the jump host."
    return HostError(name, f"the jump host cannot reach {place}: {why}", cure)
