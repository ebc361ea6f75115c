"""Addresses and interfaces of this host, as far as a gang needs them."""

from __future__ import annotations

import ipaddress
import socket

from ..probe import nics


def reachable_addresses() -> list[str]:
    """This host's addresses that another host might reach, IPv4 first; no loopback, no link-local ones."""
    found = [ipaddress.ip_address(text) for nic in nics.facts() if nic["up"] for text in nic["addresses"]]
    usable = [ip for ip in found if not (ip.is_loopback or ip.is_link_local or ip.is_unspecified)]
    return [str(ip) for ip in sorted(usable, key=lambda ip: ip.version)]


def interface_towards(address: str) -> str | None:
    """The interface that packets to an address leave by; of an own address the one that has it."""
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
