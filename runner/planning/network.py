"""Addresses at which other hosts may reach a host, best first. No I/O."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from disttui.runner.hosts.facts import HostFacts, Nic

LOOPBACK = "127.0.0.1"

# Bridges and taps of containers and virtual machines: their addresses are only valid inside this machine.
_INNER = re.compile(r"(docker|br-[0-9a-f]{12}$|virbr|veth|vnet|lxc|lxd|cni|flannel|cali|podman|kube)")
_TUNNEL = re.compile(r"(tun|tap|wg|tailscale|zt|ppp|utun|nordlynx)")


def candidates(facts: HostFacts) -> tuple[str, ...]:
    """Return addresses to dial: cards before tunnels, IPv4 before IPv6; no loopback, link-local or container bridge."""
    found = [(bool(_TUNNEL.match(nic.name)), *each) for nic in facts.nics for each in _usable(nic)]
    return tuple(text for *_, text in sorted(found, key=lambda item: item[:2]))


def owner(facts: HostFacts, address: str) -> str | None:
    """Return the name of the host's interface that has `address`, or None."""
    return next((nic.name for nic in facts.nics if address in nic.addresses), None)


def speed(facts: HostFacts, interface: str | None) -> int | None:
    """Return the Mbit/s of `interface`, by default the one of the host's best address; None if unknown."""
    name = interface or next((owner(facts, address) for address in candidates(facts)), None)
    return next((nic.speed for nic in facts.nics if nic.name == name), None)


def _usable(nic: Nic) -> Iterator[tuple[int, str]]:
    if not nic.up or nic.loopback or _INNER.match(nic.name):
        return
    for text in nic.addresses:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:  # a remote host may report any text
            continue
        if not (address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast):
            yield address.version, text
