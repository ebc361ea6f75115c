"""Which addresses of a host others may reach it by, best first. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from disttui.runner.hosts.facts import HostFacts, Nic

LOOPBACK = "127.0.0.1"

# Bridges and taps of containers and virtual machines: their addresses mean nothing outside this machine.
_INNER = re.compile(r"(docker|br-|virbr|veth|vnet|lxc|lxd|cni|flannel|cali|podman|kube)")
_TUNNEL = re.compile(r"(tun|tap|wg|tailscale|zt|ppp|utun|nordlynx)")


def candidates(facts: HostFacts) -> tuple[str, ...]:
    """Addresses for others to dial: cards before tunnels, IPv4 before IPv6; no loopback, link-local or inner bridge."""
    found = [(bool(_TUNNEL.match(nic.name)), *each) for nic in facts.nics for each in _usable(nic)]
    return tuple(text for *_, text in sorted(found, key=lambda item: item[:2]))


def owner(facts: HostFacts, address: str) -> str | None:
    """The interface that has `address`, None where no interface of this host does."""
    return next((nic.name for nic in facts.nics if address in nic.addresses), None)


def speed(facts: HostFacts, interface: str | None) -> int | None:
    """Mbit/s of the interface that others reach this host by, None where that is not known."""
    name = interface or next((owner(facts, address) for address in candidates(facts)), None)
    return next((nic.speed for nic in facts.nics if nic.name == name), None)


def _usable(nic: Nic) -> Iterator[tuple[int, str]]:
    if not nic.up or nic.loopback or _INNER.match(nic.name):
        return
    for text in nic.addresses:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:  # said by a remote host
            continue
        if not (address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast):
            yield address.version, text
