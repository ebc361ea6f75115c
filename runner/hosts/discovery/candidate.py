"""The result of a source of hosts, the limits for all sources, and hostfiles of MPI and DeepSpeed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
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
"""Characters of a word that stands for several hosts."""
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_ITEM = re.compile(r"(\d{1,9})(?:[:-](\d{1,9})(?:/([1-9]\d{0,3}))?)?")
_LETTERS = re.compile(r"([a-z]):([a-z])|([A-Z]):([A-Z])")
_WORDS = re.compile(r"(?:[^\s,;\[]|\[[^\]]*\]?)+")


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


def words_of(text: str) -> list[str]:
    """The words of a list of hosts; commas and blanks inside brackets part none."""
    return _WORDS.findall(text)


def spread(pattern: str) -> list[str]:
    """The names that a node list of Slurm, ClusterShell or Ansible stands for, zeros kept.

    `n[01-03,7],m1`, `c[1,3]-[1,2]`, `n[0-8/2]`, `n[1:3]`. Raises InputError for more than `MOST`, and for what is none.
    """
    names = [name for word in words_of(pattern) for name in _spread(word, pattern)]
    if len(names) > MOST:
        raise _too_many(pattern)
    return names


def _spread(word: str, pattern: str) -> list[str]:
    found = _BRACKETS.search(word)
    if (found is None and ("[" in word or "]" in word)) or (found and "!" in word):  # ClusterShell's difference
        raise InputError(f"{clean(pattern)!r} is not a list of hosts", "Write it like node[1-4,7].")
    if found is None or (found[1].count(":") > 1 and (not found.start() or word[found.start() - 1] == "@")):
        return [word]  # a name, or an IPv6 address
    if len(word) > _LONGEST:
        raise _too_many(word)
    before, after = word[: found.start()], word[found.end() :]
    numbers = [number for item in found[1].split(",") for number in _items(item.strip(), pattern)]
    rests = _spread(after, pattern) if after else [""]
    names = [f"{before}{number}{rest}" for number in numbers for rest in rests]
    if len(names) > MOST:
        raise _too_many(pattern)
    return names


def _too_many(pattern: str) -> InputError:
    shown = clean(pattern[:_LONGEST])
    return InputError(f"{shown!r} is more than {MOST:,} hosts, or too long for one", "Write it in parts.")


def _items(item: str, pattern: str) -> list[str]:
    """`01-03` → 01, 02, 03."""
    if letters := _LETTERS.fullmatch(item):
        return [chr(one) for one in range(*map(ord, filter(None, letters.groups())))] + [item[-1]]
    found = _ITEM.fullmatch(item)
    if found is None:
        raise InputError(f"{clean(pattern)!r} is not a list of hosts", "Write it like node[1-4,7].")
    first, last, step = found[1], found[2] or found[1], int(found[3] or 1)
    if not int(first) <= int(last) < int(first) + MOST * step:
        raise InputError(f"{clean(pattern)!r} is not a range of at most {MOST:,} hosts", "Write it like node[1-4].")
    width = len(first) if first.startswith("0") else 0
    return [f"{number:0{width}}" for number in range(int(first), int(last) + 1, step)]


_SLOTS = re.compile(r"(?<![\w-])(?:slots|count|cpu)\s*=\s*(\d{1,6})(?!\S)", re.IGNORECASE)
_MOST_SLOTS = re.compile(r"(?<![\w-])max[_-]?slots\s*=\s*(\d{1,6})(?!\S)", re.IGNORECASE)
_LOGIN = re.compile(r"(?<!\S)(?:user(?:name)?|login)\s*=\s*(\S+)", re.IGNORECASE)
_PORT = re.compile(r"(?<!\S)port\s*=\s*(\d{1,5})(?!\S)", re.IGNORECASE)
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
        given = _SLOTS.search(rest) or _MOST_SLOTS.search(rest)
        counted = None if given else _COUNTED.fullmatch(host)  # else it is a port
        login, port = _LOGIN.search(rest), _PORT.search(rest)
        slots = int(given[1]) if given else int(counted[2]) if counted else None
        for taken in sorted(filter(None, (given, login, port)), key=re.Match.start, reverse=True):
            rest = f"{rest[: taken.start()]} {rest[taken.end() :]}"
        name = counted[1] if counted else host
        name = f"{login[1]}@{name}" if login and "@" not in name else name
        yield HostLine(number, f"{name}:{port[1]}" if port else name, slots, tuple(rest.split()))


def _hosts(text: str, name: str, problems: list[str]) -> Iterator[Candidate]:
    for line in host_lines(text):
        slots = line.slots
        try:
            for one in spread(line.host):
                yield Candidate(one, name, f"{slots} slots" if slots else "", slots)
        except InputError as error:
            problems.append(f"{name}:{line.number}: {error.sentence}")
