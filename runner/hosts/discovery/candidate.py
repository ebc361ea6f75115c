"""The result of a source of hosts, the limits for all sources, and hostfiles of MPI and DeepSpeed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

from pydantic_core import PydanticCustomError

from disttui.runner.errors import InputError
from disttui.runner.profile.fields import split_host
from disttui.runner.text import clean

MOST = 1000
"""The most hosts of one source."""
MAX_SIZE = 1024 * 1024
"""Bytes of a file that are read."""
_LONGEST = 255
"""Characters of a pattern of several hosts."""
_RANGE = re.compile(r"\[(\d{1,9})[:-](\d{1,9})\]")


@dataclass(frozen=True)
class Candidate:
    """A host that a source names."""

    host: str
    """As the profile writes it: an ssh alias, `user@host:port` or `local`."""
    source: str
    """A short name of the source."""
    note: str = ""
    """Details from the source, such as its address or its groups."""
    slots: int | None = None
    """The number of processes from the source."""


@dataclass(frozen=True)
class Discovered:
    """The hosts of one source, and its problems: one line each, with its place."""

    source: str
    candidates: tuple[Candidate, ...] = ()
    problems: tuple[str, ...] = ()


def gather(source: str, candidates: Iterable[Candidate], problems: list[str]) -> Discovered:
    """The usable ones, each host once, at most `MOST`; `problems` gains a line for every other."""
    kept: dict[str, Candidate] = {}
    for one in candidates:
        if flaw := flaw_of(one.host):
            problems.append(f"{source}: {flaw}")
        elif len(kept) < MOST:
            kept.setdefault(one.host, one)
        elif one.host not in kept:
            problems.append(f"{source}: more than {MOST:,} hosts; the rest is left out")
            break
    shown = [*islice(map(clean, problems), 20), *([f"… and {len(problems) - 20} more"] if len(problems) > 20 else ())]
    return Discovered(source, tuple(kept.values()), tuple(shown))


def flaw_of(host: str) -> str:
    """Why a text is not a valid host of a profile; empty for a valid one."""
    try:
        split_host(host)
    except PydanticCustomError as error:
        return clean(error.message())
    return ""


def read_text(path: Path) -> str:
    """The text of a file. Raises InputError."""
    name = clean(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SIZE + 1)
    except OSError as error:
        raise InputError(f"{error.strerror}", "Give a hostfile or an Ansible inventory.", place=name) from None
    if len(data) > MAX_SIZE:
        raise InputError("larger than 1 MiB", "Give a file with hosts only.", place=name)
    return data.decode("utf-8", "replace")


def spread(pattern: str) -> list[str]:
    """`node[1-3]`, `node[01:16]` → each name, zeros kept. Raises InputError for more than `MOST`."""
    parts, begin, total = [], 0, 1
    for found in _RANGE.finditer(pattern):
        first, last = found.groups()
        if not int(first) <= int(last) < int(first) + MOST:
            what = f"{clean(pattern[:_LONGEST])!r} is not a range of at most {MOST:,} hosts"
            raise InputError(what, "Write it like node[1-4].")
        width = len(first) if first.startswith("0") else 0
        numbers = [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]
        total *= len(numbers)
        if total > MOST or len(pattern) > _LONGEST:
            what = f"{clean(pattern[:_LONGEST])!r} is more than {MOST:,} hosts, or too long for one"
            raise InputError(what, "Write it in parts.")
        parts += [[pattern[begin : found.start()]], numbers]
        begin = found.end()
    return ["".join(words) for words in product(*parts, [pattern[begin:]])]


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
