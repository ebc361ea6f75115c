"""How hosts are written: `user@host:port`, `[v6]:port`, an ssh alias, an IP address."""

from __future__ import annotations

import ipaddress
import re
import unicodedata

from pydantic_core import PydanticCustomError

from runner.profile.numbers import port_number
from runner.profile.problems import bad, quoted

# Leaves out what OpenSSH refuses in names, since a ProxyCommand hands them to a shell, and what splits an address.
_UNFIT = re.compile(r"[^\w.:%+=~^-]")
_ALIKE = ("ARMENIAN ", "CHEROKEE ", "CYRILLIC ", "FULLWIDTH ", "GREEK ", "MATHEMATICAL ")
"""How Unicode's names of letters begin that look like those of ASCII."""
_HOST_EXPECTED = "expected an ssh alias, user@host:port or local"


def host_part(text: str) -> str:
    """Check a host's or user's name: nothing in it may mean anything to ssh or to a shell."""
    if not text:
        raise bad("an empty name", _HOST_EXPECTED)
    if text.startswith("-"):
        raise bad(f"{quoted(text)} begins with '-', which ssh takes for an option", _HOST_EXPECTED)
    if not text.strip("."):
        raise bad(f"{quoted(text)} is no name", _HOST_EXPECTED)  # but a folder
    if found := _UNFIT.search(text):
        raise bad(f"{quoted(text)} holds {quoted(found[0])}", _HOST_EXPECTED)
    if (at := _foreign_letter(text)) is not None:
        raise bad(
            f"character {at + 1} of {quoted(text)} is {unicodedata.name(text[at])}, among letters of ASCII",
            "expected letters of one script, since many look alike",
        )
    if len(text) > 255:
        raise bad(f"{quoted(text)} is longer than 255 characters", _HOST_EXPECTED)
    return text


def _foreign_letter(text: str) -> int | None:
    """Where a letter stands that looks like one of ASCII, in a name that has such; None: nowhere."""
    if text.isascii() or not re.search("[a-zA-Z]", text):
        return None
    names = (unicodedata.name(letter, "") for letter in text)
    return next((at for at, name in enumerate(names) if name.startswith(_ALIKE)), None)


def user_part(text: str) -> str:
    """Check a login name, which may hold an @ (user@domain)."""
    host_part(text.replace("@", "."))
    return text


def split_host(text: str) -> tuple[str | None, str, int | None]:
    """Take `user@host:port`, `user@[v6]:port`, an alias or a bare IPv6 address apart: user, host, port."""
    user, at, rest = text.rpartition("@")
    port: str | None = None
    if rest.startswith("["):
        host, bracket, after = rest[1:].partition("]")
        if not bracket or not _is_v6(host) or not (after == "" or after.startswith(":")):
            raise bad(f"{quoted(text)} is no address", "expected [IPv6 address]:port")
        port = after[1:] if after else None
    elif rest.count(":") > 1:
        host = rest
        if not _is_v6(host):
            raise bad(f"{quoted(text)} has too many colons", "expected host:port, or [IPv6 address]:port")
    else:
        host, colon, after = rest.partition(":")
        port = after if colon else None
    return user_part(user) if at else None, host_part(host), None if port is None else port_number(port, 1)


def whole_host(text: str) -> str:
    """Check what `split_host` takes apart."""
    split_host(text)
    return text


def is_ip(text: str) -> bool:
    """Whether `text` is an IP address of one machine."""
    try:
        return bool(ip(text))
    except PydanticCustomError:
        return False


def _is_v6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def ip(value: str) -> str:
    """Check an IP address of one machine."""
    host_part(value)
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        raise bad(quoted(value), "expected an IP address") from None
    if address.is_unspecified or address.is_multicast:
        raise bad(f"{value} is not the address of one machine", "expected an IP address")
    return value
