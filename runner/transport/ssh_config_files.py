"""The files of an ssh configuration, statement by statement in ssh's order, and %-tokens and paths in its values.

Discovery lists the hosts that they name; where there is no ssh program to ask, connecting takes a host's settings from
them. paramiko's parser is not used: it knows no Include, keeps comments and quotes in values, and treats criteria of
Match that it does not know as fulfilled.
"""

from __future__ import annotations

import getpass
import os
import pwd
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from hashlib import sha1
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from disttui.runner.text import clean

_SYSTEM = Path("/etc/ssh")
_DEPTH = 16
_FILES = 256
_LARGEST = 1024 * 1024
"""Bytes of a file."""
_LINE = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.*)")
_COMMANDS = ("proxycommand", "localcommand", "remotecommand", "knownhostscommand")
"""Keywords whose value is the rest of the line as it stands."""

Block = TypeVar("Block")


class Statement(NamedTuple):
    """One line of a file."""

    file: Path
    line: int
    keyword: str
    """In lower case."""

    @property
    def place(self) -> str:
        """`file:line`, for messages."""
        return clean(f"{self.file}:{self.line}")


class ConfigReader(ABC, Generic[Block]):
    """Reads the files; a subclass says what a block means, and takes the settings that stand in it.

    A file begins in a block of its own. A block is what `opens` returns; None: nothing in it counts.
    """

    def __init__(self) -> None:
        self._files = 0

    @abstractmethod
    def opens(self, keyword: str, words: list[str]) -> Block | None:
        """Return the block that begins: with a file (`host *`), or with a Host or Match line. Raises ValueError."""

    @abstractmethod
    def takes(self, block: Block, keyword: str, words: list[str]) -> None:
        """Take a setting that stands in a block. Raises ValueError."""

    @abstractmethod
    def wrong(self, statement: Statement, why: str) -> None:
        """A statement cannot be used; the reader continues behind it."""

    @abstractmethod
    def unreadable(self, file: Path, why: str) -> None:
        """A file that is there cannot be read."""

    def read_all(self, config_file: str | None) -> None:
        """Read what ssh reads with this -F; None: the user's and the system's files."""
        self._files = 0
        home = ssh_home() / ".ssh"
        if config_file is not None:
            self._read(Path(config_file), home, 0, wanted=True)
        else:
            self._read(home / "config", home, 0)
            self._read(_SYSTEM / "ssh_config", _SYSTEM, 0)

    def _read(self, file: Path, folder: Path, depth: int, *, wanted: bool = False) -> None:
        """Read a file; `folder` is what its includes are relative to."""
        self._files += 1
        block = self.opens("host", ["*"])
        for statement, value in self._statements(file, wanted):
            keyword = statement.keyword
            try:
                words = [value] if keyword in _COMMANDS else split(value)
                if keyword in ("host", "match"):
                    block = self.opens(keyword, words)
                elif block is not None and keyword == "include":
                    for included in _included(words, folder):
                        if depth >= _DEPTH or self._files >= _FILES:
                            raise ValueError(f"more than {_FILES} files, or {_DEPTH} that include each other")
                        self._read(included, folder, depth + 1)
                elif block is not None:
                    self.takes(block, keyword, words)
            except ValueError as error:
                self.wrong(statement, str(error))

    def _statements(self, file: Path, wanted: bool) -> Iterator[tuple[Statement, str]]:
        """Yield every statement of a file with its value."""
        if not wanted and not file.is_file():
            return
        try:
            with file.open("rb") as opened:
                data = opened.read(_LARGEST + 1)
        except OSError as error:
            self.unreadable(file, error.strerror or "cannot be read")
            return
        if len(data) > _LARGEST:
            self.unreadable(file, "larger than 1 MiB")
            return
        for number, line in enumerate(data.decode(errors="surrogateescape").splitlines(), 1):
            match = _LINE.fullmatch(line.strip())
            if match:  # else the line is blank or a comment
                yield Statement(file, number, match[1].lower()), match[2]


def split(text: str) -> list[str]:
    """The words of a value as ssh parts it (misc.c, argv_split), unlike a shell.

    `CORP\\alice` keeps its backslash, and `gpu#1` is one word: a comment begins a word. Raises ValueError.
    """
    words: list[str] = []
    at = 0
    while at < len(text):
        if text[at] in " \t":
            at += 1
            continue
        if text[at] == "#":
            break
        word, quote = "", ""
        while at < len(text) and (quote or text[at] not in " \t"):
            char, after = text[at], text[at + 1 : at + 2]
            if char == "\\" and (after in ("'", '"', "\\") or (after == " " and not quote)):
                word += after
                at += 1
            elif char == quote:
                quote = ""
            elif not quote and char in "'\"":
                quote = char
            else:
                word += char
            at += 1
        if quote:
            raise ValueError("No closing quotation")
        words.append(word)
    return words


def _included(words: list[str], folder: Path) -> Iterator[Path]:
    for word in words:
        try:
            pattern = folder / in_home(word)
            yield from sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))
        except (RuntimeError, ValueError, OSError, NotImplementedError):
            continue  # a user or a pattern that does not exist


def ssh_home() -> Path:
    """The home folder as ssh takes it: of the account, whatever HOME says."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()  # a container's user without an account


def in_home(path: str) -> Path:
    """A path with its `~` replaced as ssh does. Raises RuntimeError for the home of an unknown user."""
    if path == "~" or path.startswith("~/"):
        return ssh_home() / path[2:]
    return Path(path).expanduser()


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Replace ssh_config's %-tokens; unknown ones stay."""
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), text)


def expand_path(text: str, tokens: Mapping[str, str]) -> str:
    """Replace `~`, ${VARIABLES} and %-tokens."""
    text = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], ""), text)
    return str(in_home(expand(text, tokens)))


def host_tokens(name: str, hostname: str, port: str, user: str, alias: str | None, jump: str) -> dict[str, str]:
    """The %-tokens of ssh_config(5) for one host."""
    local = socket.gethostname()
    return {
        "%": "%",
        "C": sha1(f"{local}{hostname}{port}{user}{jump}".encode(), usedforsecurity=False).hexdigest(),
        "d": str(ssh_home()),
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
