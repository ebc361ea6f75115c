"""The ssh configuration without an ssh program: paramiko's parser, with what it lacks made good before it reads.

It knows no Include, keeps trailing comments and quotes in values, and takes Match criteria that it does not know for
fulfilled. Two things stay unlike ssh: a Host line in a file that is included inside a Host block is not limited to that
block, and %-tokens of `Match exec` are those that paramiko knows.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paramiko.config import SSHConfig
from paramiko.ssh_exception import ConfigParseError

from runner.errors import InputError
from runner.transport.base import Address

_SYSTEM = Path("/etc/ssh")
_DEPTH = 16
_LINE = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.*)")
_COMMANDS = ("proxycommand", "localcommand", "remotecommand", "knownhostscommand")
_BARE = ("all", "canonical", "final")
_CRITERIA = ("host", "originalhost", "user", "localuser", "exec")
_NEVER = "Host !*"
_DEFAULTS = {
    "identityfile": ["~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519"],
    "userknownhostsfile": ["~/.ssh/known_hosts ~/.ssh/known_hosts2"],
    "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"],
}


def read_settings(address: Address, config_file: str | None) -> dict[str, list[str]]:
    """Return the settings for one host in the shape of `ssh -G`. Raises InputError with file and line."""
    lines = [f"User {address.user}"] if address.user else []
    lines += [f"Port {address.port}"] if address.port else []
    home = Path.home() / ".ssh"
    if config_file is not None:
        lines += _plain(Path(config_file), home, "Host *", 0)
    else:
        lines += _plain(home / "config", home, "Host *", 0)
        lines += ["Host *", *_plain(_SYSTEM / "ssh_config", _SYSTEM, "Host *", 0)]
    try:
        found = SSHConfig.from_text("\n".join(lines) + "\n").lookup(address.host)
    except ConfigParseError as error:
        raise InputError(f"ssh configuration: {error}", "Mend the ssh configuration.") from None
    settings = {**_DEFAULTS}
    # ProxyCommand none is None, what may repeat is a list; the stubs know neither.
    value: Any
    for key, value in found.items():
        settings[key] = ["none"] if value is None else [value] if isinstance(value, str) else value
    return settings


def _plain(file: Path, folder: Path, block: str, depth: int) -> Iterator[str]:
    """Yield the lines of `file`, includes in place, in the only spelling that paramiko reads as ssh does."""
    try:
        text = file.read_text(errors="surrogateescape")
    except OSError:
        return
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line.strip())
        if not match:  # blank, or a comment
            continue
        key, value = match[1].lower(), match[2]
        if key in _COMMANDS:
            yield f"{key} {value}"
            continue
        try:
            words = shlex.split(value, comments=True)
        except ValueError as error:
            raise InputError(f"{file}:{number}: {error}", "Mend the ssh configuration.") from None
        if key == "include":
            if depth >= _DEPTH:
                raise InputError(f"{file}:{number}: more than {_DEPTH} files include each other")
            for included in _included(words, folder):
                yield from _plain(included, folder, block, depth + 1)
                yield block
        elif key in ("host", "match"):
            block = _block(key, words)
            yield block
        else:
            yield f"{key} {' '.join(words)}"


def _block(key: str, words: list[str]) -> str:
    if key == "host":
        return f"Host {shlex.join(words)}"
    rest = list(words)
    while rest:
        criterion = rest.pop(0).lstrip("!").lower()
        if criterion in _CRITERIA and rest:
            rest.pop(0)
        elif criterion not in _BARE:
            return _NEVER
    return f"Match {shlex.join(words)}"


def _included(words: list[str], folder: Path) -> Iterator[Path]:
    for word in words:
        pattern = Path(word).expanduser()
        base = pattern if pattern.is_absolute() else folder / pattern
        yield from sorted(Path(base.anchor).glob(str(base.relative_to(base.anchor))))
