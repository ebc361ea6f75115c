"""Hosts that the ssh configuration names: `Host` lines without wildcards, `Include` followed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from runner.errors import InputError
from runner.hosts.discovery.candidate import Candidate, Found, gather, read_text
from runner.text import clean

_LINE = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*?)\s*")
_SYSTEM = Path("/etc/ssh")
_DEPTH = 16
_FILES = 256


def ssh_hosts(config_file: str | None = None) -> Found:
    """The names that can be given to ssh.

    Args:
        config_file: As ssh's -F; None: the user's and the system's configuration.
    """
    home = Path.home() / ".ssh"
    reader = _Reader()
    if config_file is not None:
        reader.read(Path(config_file), home, 0, wanted=True)
    else:
        reader.read(home / "config", home, 0)
        reader.read(_SYSTEM / "ssh_config", _SYSTEM, 0)
    candidates = (
        Candidate(name, "ssh config", clean(note if note != name else "")) for name, note in reader.hosts.items()
    )
    return gather("ssh config", candidates, reader.problems)


class _Reader:
    def __init__(self) -> None:
        self.hosts: dict[str, str] = {}
        """Name → where it leads, as far as its own block says."""
        self.problems: list[str] = []
        self._files = 0

    def read(self, file: Path, folder: Path, depth: int, *, wanted: bool = False) -> None:
        """Take the names in `file`; includes are relative to `folder`."""
        self._files += 1
        if self._files > _FILES or not (wanted or file.is_file()):
            return
        try:
            text = read_text(file)
        except InputError as error:
            self.problems.append(error.what)
            return
        names: list[str] = []
        for number, line in enumerate(text.splitlines(), 1):
            match = _LINE.fullmatch(line)
            if not match:
                continue
            key, value = match[1].lower(), match[2]
            try:
                words = shlex.split(value, comments=True)
            except ValueError as error:
                if key in ("host", "include"):
                    self.problems.append(f"{file}:{number}: {error}")
                continue
            if key == "host":
                names = [] if any(word.startswith("!") for word in words) else [w for w in words if _plain(w)]
                for name in names:
                    self.hosts.setdefault(name, "")
            elif key == "match":
                names = []
            elif key == "hostname" and words:
                for name in names:
                    self.hosts[name] = self.hosts[name] or words[0]
            elif key == "include" and depth < _DEPTH:
                for path in _included(words, folder):
                    self.read(path, folder, depth + 1)


def _plain(word: str) -> bool:
    return not set(word) & set("*?")


def _included(words: list[str], folder: Path) -> Iterator[Path]:
    for word in words:
        try:
            pattern = folder / Path(word).expanduser()
            yield from sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))
        except (RuntimeError, ValueError, OSError, NotImplementedError):
            continue
