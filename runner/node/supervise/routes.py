"""The addresses and interfaces of this host that a gang can use."""

from __future__ import annotations

import ipaddress
import socket

from ..probe import nics


def reachable_addresses() -> list[str]:
    """This host's addresses that another host may reach, IPv4 first; without loopback and link-local ones."""
    found = [ipaddress.ip_address(text) for nic in nics.facts() if nic["up"] for text in nic["addresses"]]
    usable = [ip for ip in found if not (ip.is_loopback or ip.is_link_local or ip.is_unspecified)]
    return [str(ip) for ip in sorted(usable, key=lambda ip: ip.version)]


def interface_towards(address: str) -> str | None:
    """The outgoing interface for packets to an address; for an own address the interface that has it."""
    try:
        target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(target[0], socket.SOCK_DGRAM) as probe:
            probe.connect(target[4])
            source = ipaddress.ip_address(probe.getsockname()[0])
    except OSError:
        return None
    for nic in nics.facts():
        if any(ipaddress.ip_address(text) == source for text in nic["addresses"]):
            return str(nic["name"])
    return None
