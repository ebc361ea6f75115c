"""One host's settings in the shape of `ssh -G`: from ssh itself, or from the files where there is no ssh program.

Not built for the files: CanonicalizeHostname, and the Match criteria that only ssh itself can judge, which match
nothing.
"""

from __future__ import annotations

import fnmatch
import getpass
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from runner.address import Address
from runner.errors import HostError, InputError
from runner.text import clean
from runner.transport.ssh_config_files import ConfigReader, Statement
from runner.transport.ssh_tokens import expand, host_tokens

Settings = Mapping[str, Sequence[str]]
"""Keyword in lower case → its values, as `ssh -G` prints them."""

_LIMIT = 20.0
"""Seconds for `ssh -G`, and for a command of `Match exec`."""
_MANY = ("identityfile", "certificatefile")
_DEFAULTS = {
    "identityfile": ["~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519"],
    "userknownhostsfile": ["~/.ssh/known_hosts ~/.ssh/known_hosts2"],
    "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"],
}


def ask_ssh(address: Address, config_file: str | None, ssh: str) -> Settings:
    """Return what the ssh program says. Raises InputError for what it refuses, HostError where it gives no answer."""
    argv = [ssh]
    argv += ["-F", config_file] if config_file is not None else []
    argv += ["-l", address.user] if address.user else []
    argv += ["-p", str(address.port)] if address.port else []
    argv += ["-T", "-G", "--", address.host]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        what = f"'ssh -G' gave no answer in {_LIMIT:.0f} s"
        raise HostError(address.host, what, "Look for a slow 'Match exec' in the ssh configuration.") from None
    except OSError as error:
        raise HostError(address.host, f"{ssh} cannot be started: {error.strerror}") from None
    if done.returncode != 0:
        said = clean(done.stderr.decode(errors="replace").strip())
        raise InputError(
            f"ssh cannot use '{address.host}' as a host: {said}", "Correct the ssh configuration or the name."
        )
    settings: dict[str, list[str]] = {}
    for line in done.stdout.decode(errors="surrogateescape").splitlines():
        key, _, value = line.partition(" ")
        settings.setdefault(key, []).append(value)
    return settings


def read_settings(address: Address, config_file: str | None) -> Settings:
    """Return what the files say. Raises InputError with file and line."""
    reader = _HostReader(address)
    reader.read_all(config_file)
    if reader.wants_final:
        reader.final = True
        reader.read_all(config_file)
    return {**_DEFAULTS, **reader.settings, "hostname": [reader.hostname]}


class _HostReader(ConfigReader[Literal[True]]):
    """Collects the settings of one host: the first value of a keyword stays."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        self.settings: dict[str, list[str]] = {}
        self.final = False
        """Whether this is the second reading, for `Match final`."""
        self.wants_final = False
        self._name = address.host
        if address.user:
            self.settings["user"] = [address.user]
        if address.port:
            self.settings["port"] = [str(address.port)]

    @property
    def hostname(self) -> str:
        return expand(self._first("hostname", self._name), {"h": self._name, "%": "%"})

    def opens(self, keyword: str, words: list[str]) -> Literal[True] | None:
        fulfilled = _matches(words, self._name) if keyword == "host" else self._fulfilled(words)
        return True if fulfilled else None

    def takes(self, block: Literal[True], keyword: str, words: list[str]) -> None:
        if keyword in _MANY:
            known = self.settings.setdefault(keyword, [])
            known += [word for word in words if word not in known]
        else:
            self.settings.setdefault(keyword, [" ".join(words)])

    def wrong(self, statement: Statement, why: str) -> None:
        raise InputError(f"{statement.place}: {why}", "Correct the ssh configuration.")

    def unreadable(self, file: Path, why: str) -> None:
        """As ssh does, which reads the rest."""

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
                argv, stdin=null, stdout=null, stderr=null, timeout=_LIMIT, check=False
            ).returncode
        except (OSError, subprocess.TimeoutExpired):
            return False


def _matches(patterns: Iterable[str], text: str) -> bool:
    found = False
    for pattern in patterns:
        # ssh has no character classes.
        if fnmatch.fnmatchcase(text.lower(), pattern.lstrip("!").lower().replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            found = True
    return found
