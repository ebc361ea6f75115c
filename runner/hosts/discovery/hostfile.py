"""Hostfiles of MPI and DeepSpeed: `host slots=n`, or MPICH's form `host:n`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from runner.errors import InputError
from runner.hosts.discovery.candidate import Candidate, Discovered, gather, spread

_SLOTS = re.compile(r"(?:slots|max[_-]?slots|count|cpu)\s*=\s*(\d{1,6})", re.IGNORECASE)
_COUNTED = re.compile(r"([^\s:]+):(\d{1,6})")


class HostLine(NamedTuple):
    """One line of a hostfile that names a host."""

    number: int
    host: str
    """A name, or a range such as node[1-4]."""
    slots: int | None
    rest: tuple[str, ...]
    """What else stands there, word by word."""


def hostfile(text: str, name: str) -> Discovered:
    """The hosts of a hostfile, in its order."""
    problems: list[str] = []
    return gather(name, _hosts(text, name, problems), problems)


def host_lines(text: str) -> Iterator[HostLine]:
    """Every line that names a host, as it was written."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split(None, 1)
        if not words:
            continue
        host, rest = words[0], words[1] if len(words) > 1 else ""
        counted = _COUNTED.fullmatch(host)
        given = _SLOTS.search(rest)
        slots = int(given[1]) if given else int(counted[2]) if counted else None
        others = f"{rest[: given.start()]} {rest[given.end() :]}" if given else rest
        yield HostLine(number, counted[1] if counted else host, slots, tuple(others.split()))


def _hosts(text: str, name: str, problems: list[str]) -> Iterator[Candidate]:
    for line in host_lines(text):
        slots = line.slots
        try:
            for one in spread(line.host):
                yield Candidate(one, name, f"{slots} slots" if slots else "", slots)
        except InputError as error:
            problems.append(f"{name}:{line.number}: {error.sentence}")
