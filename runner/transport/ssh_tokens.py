"""The %-tokens, variables and paths in the values of an ssh configuration."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Mapping
from hashlib import sha1
from pathlib import Path


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Replace ssh_config's %-tokens; unknown ones stay."""
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def expand_path(text: str, tokens: Mapping[str, str]) -> str:
    """Replace `~`, ${VARIABLES} and %-tokens."""
    text = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], ""), text)
    return str(Path(expand(text, tokens)).expanduser())


def host_tokens(name: str, hostname: str, port: str, user: str, alias: str | None, jump: str) -> dict[str, str]:
    """The %-tokens of ssh_config(5) for one host."""
    local = socket.gethostname()
    return {
        "%": "%",
        "C": sha1(f"{local}{hostname}{port}{user}{jump}".encode(), usedforsecurity=False).hexdigest(),
        "d": str(Path.home()),
        "h": hostname,
        "i": str(os.getuid()),
        "j": jump,
        "k": alias or name,
        "L": local.partition(".")[0],
        "l": local,
        "n": name,
        "p": port,
        "r": user,
        "u": getpass.getuser(),
    }
