"""The ssh configuration where there is no ssh program to ask: Host, Match and Include as ssh_config(5) has them.

Not built: CanonicalizeHostname, and the Match criteria that only ssh itself can judge; these match nothing.
paramiko's parser is not used: it knows no Include, keeps comments and quotes in values, and takes unknown criteria for
fulfilled.
"""

from __future__ import annotations

import fnmatch
import getpass
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.errors import InputError
from runner.transport.base import Address
from runner.transport.ssh_config import expand, host_tokens

_SYSTEM = Path("/etc/ssh")
_DEPTH = 16
_EXEC_LIMIT = 20.0
_LINE = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.*)")
_COMMANDS = ("proxycommand", "localcommand", "remotecommand", "knownhostscommand")
_MANY = ("identityfile", "certificatefile")
_DEFAULTS = {
    "identityfile": ["~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519"],
    "userknownhostsfile": ["~/.ssh/known_hosts ~/.ssh/known_hosts2"],
    "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"],
}


def read_settings(address: Address, config_file: str | None) -> dict[str, list[str]]:
    """Return the settings for one host in the shape of `ssh -G`. Raises InputError with file and line."""
    home = Path.home() / ".ssh"
    user_file = Path(config_file) if config_file is not None else home / "config"
    reader = _Reader(address)
    for final in (False, True):
        reader.final = final
        reader.read(user_file, home, 0)
        if config_file is None:
            reader.read(_SYSTEM / "ssh_config", _SYSTEM, 0)
        if not reader.wants_final:
            break
    settings = reader.settings
    settings["hostname"] = [reader.hostname]
    return {**_DEFAULTS, **settings}


class _Reader:
    """Collects settings: the first value of a keyword stays."""

    def __init__(self, address: Address) -> None:
        self.settings: dict[str, list[str]] = {}
        self.final = False
        self.wants_final = False
        self._name = address.host
        if address.user:
            self.settings["user"] = [address.user]
        if address.port:
            self.settings["port"] = [str(address.port)]

    @property
    def hostname(self) -> str:
        return expand(self._first("hostname", self._name), {"h": self._name, "%": "%"})

    def read(self, file: Path, folder: Path, depth: int) -> None:
        """Take what holds for the host from `file`; includes are relative to `folder`."""
        active = True
        for number, key, value in _lines(file):
            try:
                words = [value] if key in _COMMANDS else shlex.split(value, comments=True)
                if key == "host":
                    active = _matches(words, self._name)
                elif key == "match":
                    active = self._fulfilled(words)
                elif active and key == "include":
                    if depth >= _DEPTH:
                        raise ValueError(f"more than {_DEPTH} files include each other")
                    for included in _included(words, folder):
                        self.read(included, folder, depth + 1)
                elif active and key in _MANY:
                    known = self.settings.setdefault(key, [])
                    known += [word for word in words if word not in known]
                elif active:
                    self.settings.setdefault(key, [" ".join(words)])
            except ValueError as error:
                raise InputError(f"{file}:{number}: {error}", "Correct the ssh configuration.") from None

    def _first(self, key: str, default: str) -> str:
        return self.settings.get(key, [default])[0]

    def _fulfilled(self, words: list[str]) -> bool:
        """Whether all criteria of a Match line hold."""
        rest = iter(words)
        return all(self._criterion(word.lower(), rest) for word in rest)

    def _criterion(self, word: str, arguments: Iterator[str]) -> bool:
        wanted, word = not word.startswith("!"), word.lstrip("!")
        if word == "all":
            return wanted
        if word == "canonical":
            return not wanted
        if word == "final":
            self.wants_final = True
            return self.final == wanted
        argument = next(arguments, "")
        if word == "exec":
            return self._succeeds(argument) == wanted
        subjects = {
            "host": self.hostname,
            "originalhost": self._name,
            "user": self._first("user", getpass.getuser()),
            "localuser": getpass.getuser(),
        }
        return word in subjects and _matches(argument.split(","), subjects[word]) == wanted

    def _succeeds(self, command: str) -> bool:
        user = self._first("user", getpass.getuser())
        alias = self.settings.get("hostkeyalias", [None])[0]
        tokens = host_tokens(self._name, self.hostname, self._first("port", "22"), user, alias, "")
        argv = [os.environ.get("SHELL", "/bin/sh"), "-c", expand(command, tokens)]
        null = subprocess.DEVNULL
        try:
            return not subprocess.run(
                argv, stdin=null, stdout=null, stderr=null, timeout=_EXEC_LIMIT, check=False
            ).returncode
        except (OSError, subprocess.TimeoutExpired):
            return False


def _lines(file: Path) -> Iterator[tuple[int, str, str]]:
    try:
        text = file.read_text(errors="surrogateescape")
    except OSError:
        return
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line.strip())
        if match:  # else blank, or a comment
            yield number, match[1].lower(), match[2]


def _matches(patterns: Iterable[str], text: str) -> bool:
    found = False
    for pattern in patterns:
        # ssh has no character classes.
        if fnmatch.fnmatchcase(text.lower(), pattern.lstrip("!").lower().replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _included(words: list[str], folder: Path) -> Iterator[Path]:
    for word in words:
        pattern = folder / Path(word).expanduser()
        yield from sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))
