"""Sources of hosts: each gives named candidates and reports what it could not read. No host is contacted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from disttui.runner.errors import InputError
from disttui.runner.hosts.discovery.ansible import inventory
from disttui.runner.hosts.discovery.candidate import (
    Candidate,
    Discovered,
    gather,
    hostfile,
    read_text,
    spread,
    words_of,
)
from disttui.runner.hosts.discovery.ssh_hosts import ssh_hosts
from disttui.runner.text import clean

__all__ = ["Candidate", "Discovered", "find_all", "read_file", "ssh_hosts", "typed_hosts", "usual_files"]


_HERE = ("hostfile", "hosts.txt", "inventory", "inventory.ini", "inventory.yaml", "inventory.yml", "hosts.ini",
         "hosts.yaml", "hosts.yml")  # fmt: skip
_INI = re.compile(r"^\s*\[[A-Za-z_][^\]]*\]\s*(?:[#;].*)?$|\bansible_\w+\s*=", re.MULTILINE)


def find_all(config_file: str | None, environ: Mapping[str, str], folder: Path) -> list[Discovered]:
    """The results of all sources with hosts or problems. Reads files, so it belongs in a thread.

    Args:
        config_file: As ssh's -F.
        folder: The folder in which files such as `hostfile` and `inventory.ini` are searched.
    """
    found = [ssh_hosts(config_file)]
    for path in usual_files(environ, folder):
        try:
            found.append(read_file(path, ask=False))
        except InputError as error:
            found.append(Discovered(clean(path.name), problems=(error.sentence,)))
    return [one for one in found if one.candidates or one.problems]


def usual_files(environ: Mapping[str, str], folder: Path) -> list[Path]:
    """Existing files with the usual names of such files."""
    named = [Path(part).expanduser() for part in environ.get("ANSIBLE_INVENTORY", "").split(",") if "/" in part]
    paths = [*(folder / name for name in _HERE), Path("/job/hostfile"), Path("/etc/ansible/hosts"), *named]
    return [path for path in dict.fromkeys(paths) if path.is_file()]


def read_file(path: Path, *, ask: bool) -> Discovered:
    """The hosts of one file, whichever of the forms it has. Raises InputError when it cannot be read.

    Args:
        ask: The user has named it, so that a program may read it too: `ansible-inventory`.
    """
    text = read_text(path)
    name = clean(path.name)
    if path.suffix in (".yaml", ".yml", ".json") or _INI.search(text) or text.startswith("#!"):
        return inventory(path, text, name, ask=ask)
    return hostfile(text, name)


SOURCE = "typed"


def typed_hosts(text: str) -> Discovered:
    """Every host of a line of text."""
    problems: list[str] = []
    return gather(SOURCE, _hosts(text, problems), problems)


def _hosts(text: str, problems: list[str]) -> Iterator[Candidate]:
    for word in words_of(text):
        try:
            yield from (Candidate(one, SOURCE) for one in spread(word))
        except InputError as error:
            problems.append(error.sentence)
