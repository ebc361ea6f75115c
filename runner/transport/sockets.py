"""The TCP connection below SSH."""

from __future__ import annotations

import errno
import random
import socket
import time
from typing import Any

from disttui.runner.errors import HostError
from disttui.runner.transport.ssh_config import SshTarget

CONNECT_LIMIT = 10.0
"""Seconds for one address, unless ConnectTimeout says otherwise."""
_NO_NEIGHBOUR = (errno.EHOSTUNREACH, errno.EHOSTDOWN)
"""What the kernel says of a host that has not answered for some seconds: it may be back before the limit."""
_AGAIN = 2.0
"""Seconds after which another socket is tried: the kernel repeats an unanswered request ever more slowly, and a link
that works again must be found immediately."""
BUSY_TRIES = 8
"""Attempts at a server that is busy with other logins (MaxStartups): it lets in as many as it can, by chance."""
_FAMILIES = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}
_PAUSE = 0.5
"""Seconds until such a host is tried again."""
_USER_TIMEOUT = 8_000
"""Milliseconds that sent bytes may stay unacknowledged before the kernel gives the connection up. About what a silent
link is given: a jump host's, which others wait for, must not outlive it by long."""


def dial(target: SshTarget) -> socket.socket:
    """Connect to the target's address. Raises HostError."""
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
    """Wait until a busy server may be tried again; others, who wait as well, try at other times."""
    time.sleep(random.uniform(0.3, 1.5))


def link_broke(error: BaseException | None) -> bool:
    """Whether the kernel has given the connection up, as after a cut, rather than the server, or a limit of ours."""
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
    """The error for a host name that does not resolve.

    Args:
        hostname: The target's, or a jump host's.
        again: The resolver says that it may resolve later.
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
    """The error for a host that nothing can be sent to."""
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
