"""Ports, reservations and routes."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from disttui.runner.node import ports
from disttui.runner.node.probe import nics
from disttui.runner.node.problem import Problem
from disttui.runner.node.supervise import attempt

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")


def test_reserved_ports_are_not_given_twice() -> None:
    first = ports.reserve((41000, 41100))
    second = ports.reserve((41000, 41100))
    assert first.port != second.port
    first.server.close()
    third = ports.reserve((first.port, first.port))
    assert third.port == first.port
    with pytest.raises(Problem, match=f"no free port .*: you holds? port {third.port} .pid {os.getpid()}: "):
        ports.reserve((third.port, third.port))
    second.server.close()
    third.server.close()


def test_the_next_port_wraps_around() -> None:
    # Ports that the system gives to nobody by itself.
    found = ports.reserve((31200, 31202), after=31201)
    assert found.port == 31202
    again = ports.reserve((31200, 31202), after=31202)
    assert again.port == 31200
    third = ports.reserve((31200, 31203), after=31200, without={31201, 31202})
    assert third.port == 31203
    for one in (found, again, third):
        one.server.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_taken_port_is_not_given(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip("no IPv6 here")
    port = server.getsockname()[1]
    with pytest.raises(Problem):
        ports.reserve((port, port))
    server.close()


def test_a_port_reserved_for_this_machine_is_not_open_to_others() -> None:
    port, server = ports.reserve((31210, 31220), only="127.0.0.1")
    assert server.getsockname()[:2] == ("127.0.0.1", port)
    server.close()


def test_listening_is_asked_of_the_right_process() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    assert ports.is_listening(port, lambda: [os.getpid()])
    assert not ports.is_listening(port, lambda: [1 if os.getpid() != 1 else 2])
    server.close()
    assert not ports.is_listening(port, lambda: [os.getpid()])


def test_listen_takes_both_families() -> None:
    server = ports.listen(0)
    port = server.getsockname()[1]
    socket.create_connection(("127.0.0.1", port), 5).close()
    if server.family == socket.AF_INET6:
        try:
            socket.create_connection(("::1", port), 5).close()
        except OSError as error:
            assert "assign" in str(error) or "unreachable" in str(error)
    server.close()


def test_interface_of_an_address() -> None:
    assert attempt.interface_towards("127.0.0.1") == "lo"
    assert attempt.interface_towards("not an address") is None
    for address in nics.reachable_addresses():
        assert attempt.interface_towards(address) not in (None, "lo")
