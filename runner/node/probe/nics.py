"""Network interfaces and their addresses, read from the kernel by rtnetlink: needs no child process and no iproute2.

Interfaces and flags come from netlink too, since /sys shows those of the namespace it was mounted in.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import struct
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Tuple

from ..child import ask
from ..disk import read_text

if TYPE_CHECKING:
    from ...protocol.facts import Nic

# linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h
_GET_LINK, _GET_ADDRESS = 18, 22
_ROOT_DUMP_REQUEST = 0x301
_ERROR, _DONE = 2, 3
_LINK_NAME, _ADDRESS, _LOCAL = 3, 1, 2
_UNUSABLE = 0x08 | 0x40  # IFA_F_DADFAILED, IFA_F_TENTATIVE
_IF_UP, _IF_LOOPBACK, _IF_RUNNING = 0x1, 0x8, 0x40


def facts(sys: str = "/sys") -> List[Nic]:
    """Return the probe's `nics`. IPv6 link-local addresses are skipped: they mean nothing without a scope."""
    if not hasattr(socket, "AF_NETLINK"):
        return _ifconfig()
    addresses: Dict[int, List[str]] = {}
    for body in _dump(_GET_ADDRESS):
        family, _, flags, _, index = struct.unpack_from("=BBBBI", body)
        fields = dict(_attributes(body[8:]))
        raw = fields.get(_LOCAL) or fields.get(_ADDRESS)
        if raw and family in (socket.AF_INET, socket.AF_INET6) and not flags & _UNUSABLE:
            address = socket.inet_ntop(family, raw)
            if not address.startswith("fe80:"):
                addresses.setdefault(index, []).append(address)
    nics: List[Nic] = []
    for body in _dump(_GET_LINK):
        index, flags = struct.unpack_from("=iI", body, 4)
        name = dict(_attributes(body[16:])).get(_LINK_NAME, b"").rstrip(b"\0").decode("utf-8", "replace")
        folder = os.path.join(sys, "class/net", name)
        nics.append(
            {
                "name": name,
                "addresses": addresses.get(index, []),
                "speed": _speed(folder),
                "up": bool(flags & _IF_UP and flags & _IF_RUNNING),
                "loopback": bool(flags & _IF_LOOPBACK),
                "virtual": not os.path.exists(os.path.join(folder, "device")),
            }
        )
    return nics


def reachable_addresses() -> List[str]:
    """This host's addresses that another host may reach, IPv4 first; without loopback and link-local addresses."""
    found = [ipaddress.ip_address(text) for nic in facts() if nic["up"] for text in nic["addresses"]]
    usable = [ip for ip in found if not (ip.is_loopback or ip.is_link_local or ip.is_unspecified)]
    return [str(ip) for ip in sorted(usable, key=lambda ip: ip.version)]


def _speed(folder: str) -> Optional[int]:
    text = read_text(os.path.join(folder, "speed")).strip()  # unreadable while the interface is down
    speed = int(text) if text.isdigit() else 0
    return speed if 0 < speed < 0xFFFFFFFF else None


def _dump(kind: int) -> Iterator[bytes]:
    """Yield the body of every message of one dump."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.settimeout(2)
        link.bind((0, 0))
        link.send(struct.pack("=IHHIIB3x", 20, kind, _ROOT_DUMP_REQUEST, 1, 0, 0))
        while True:
            data = link.recv(1 << 17)
            at = 0
            while at + 16 <= len(data):
                length, answer = struct.unpack_from("=IH", data, at)
                if answer in (_ERROR, _DONE) or length < 16:
                    return
                yield data[at + 16 : at + length]
                at += (length + 3) & ~3


def _attributes(data: bytes) -> Iterator[Tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            return
        yield kind & 0x3FFF, data[at + 4 : at + length]
        at += (length + 3) & ~3


def _ifconfig() -> List[Nic]:
    """The interfaces from BSD's ifconfig, for viewers on macOS that use `local`."""
    try:
        text = ask(["/sbin/ifconfig", "-a"], 3).out
    except OSError:
        return []
    nics: List[Nic] = []
    for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        head = re.match(r"([^\s:]+): flags=\w+<([^>]*)>", block)
        if head:
            flags = head.group(2).split(",")
            found = re.findall(r"^\s+inet6? ([0-9a-fA-F.:]+)(?![\w%.:])", block, re.MULTILINE)
            nics.append(
                {
                    "name": head.group(1),
                    "addresses": found,
                    "speed": None,
                    "up": "UP" in flags and "RUNNING" in flags,
                    "loopback": "LOOPBACK" in flags,
                    "virtual": "ether " not in block,
                }
            )
    return nics
