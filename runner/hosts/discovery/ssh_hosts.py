"""Hosts that the ssh configuration names: `Host` lines without wildcards, `Include` followed."""

from __future__ import annotations

from pathlib import Path

from disttui.runner.hosts.discovery.candidate import Candidate, Discovered, gather
from disttui.runner.text import clean
from disttui.runner.transport.ssh_config_files import ConfigReader, Statement


def ssh_hosts(config_file: str | None = None) -> Discovered:
    """The names that can be given to ssh.

    Args:
        config_file: As ssh's -F; None: the user's and the system's configuration.
    """
    reader = _NameReader()
    reader.read_all(config_file)
    candidates = (
        Candidate(name, "ssh config", clean(note if note != name else "")) for name, note in reader.hosts.items()
    )
    return gather("ssh config", candidates, reader.problems)


class _NameReader(ConfigReader[list[str]]):
    """Collects names. A block is the list of names on its Host line; no block is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts: dict[str, str] = {}
        """Name → its address, as far as its own block gives one."""
        self.problems: list[str] = []

    def opens(self, keyword: str, words: list[str]) -> list[str]:
        if keyword == "match" or any(word.startswith("!") for word in words):
            return []
        names = [_readable(word) for word in words if not set(word) & set("*?")]
        for name in names:
            self.hosts.setdefault(name, "")
        return names

    def takes(self, block: list[str], keyword: str, words: list[str]) -> None:
        if keyword == "hostname" and words:
            for name in block:
                self.hosts[name] = self.hosts[name] or _readable(words[0])

    def wrong(self, statement: Statement, why: str) -> None:
        if statement.keyword in ("host", "include"):
            self.problems.append(f"{statement.place}: {why}")

    def unreadable(self, file: Path, why: str) -> None:
        self.problems.append(f"{clean(str(file))}: {why}")


def _readable(word: str) -> str:
    """The word with U+FFFD in place of bytes that are not UTF-8."""
    return word.encode(errors="surrogateescape").decode(errors="replace")
