"""Discovers hosts in files. Each source yields candidates and reports what it could not read. No host is contacted.

Sources are ssh's configuration (`Host` lines without wildcards, following `Include`), hostfiles of MPI and DeepSpeed,
and Ansible inventories: by `ansible-inventory` if it is installed, or else the ini and YAML forms parsed here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pydantic_core import PydanticCustomError

from disttui.runner.errors import InputError
from disttui.runner.paths import expanded
from disttui.runner.profile.fields import split_host
from disttui.runner.profile.load import plain
from disttui.runner.profile.nodes import compose
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.text import clean
from disttui.runner.transport.ssh_config import NamedHosts
from disttui.runner.untrusted.records import mapping

MOST = 1000
"""Largest number of hosts of a source."""
MAX_SIZE = 1024 * 1024
"""Bytes of the largest file."""
_LONGEST = 255
"""Characters of the longest word that names several hosts."""
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_ITEM = re.compile(r"(\d{1,9})(?:[:-](\d{1,9})(?:[/:]([1-9]\d{0,3}))?)?")
_LETTERS = re.compile(r"([a-z]):([a-z])|([A-Z]):([A-Z])")
_WORDS = re.compile(r"(?:[^\s,;\[]|\[[^\]]*\]?)+")


@dataclass(frozen=True)
class Candidate:
    """A host named by a source."""

    host: str
    """The host as written in a profile: an ssh alias, `user@host:port` or `local`."""
    source: str
    """A short name of the source."""
    note: str = ""
    """Details from the source, such as the host's address or groups."""
    slots: int | None = None
    """The number of processes in the source, if any."""


@dataclass(frozen=True)
class Discovered:
    """The hosts of a source, and its problems: one line each, with file and line."""

    source: str
    candidates: tuple[Candidate, ...] = ()
    problems: tuple[str, ...] = ()


def gather(source: str, candidates: Iterable[Candidate], problems: list[str]) -> Discovered:
    """Collect valid candidates, each host once, at most `MOST`; add a line to `problems` for each invalid one."""
    kept: dict[str, Candidate] = {}
    for one in candidates:
        if flaw := flaw_of(one.host):
            problems.append(f"{source}: {flaw}")
        elif len(kept) < MOST:
            kept.setdefault(one.host, one)
        elif one.host not in kept:
            problems.append(f"{source}: more than {MOST:,} hosts; the rest is ignored")
            break
    shown = [*islice(map(clean, problems), 20), *([f"… and {len(problems) - 20} more"] if len(problems) > 20 else ())]
    return Discovered(source, tuple(kept.values()), tuple(shown))


def flaw_of(host: str) -> str:
    """Return why a text is not a valid host of a profile, or ""."""
    try:
        split_host(host)
    except PydanticCustomError as error:
        return clean(error.message())
    return ""


def read_text(path: Path) -> str:
    """Return the text of a file of at most MAX_SIZE bytes. Raises InputError."""
    name = clean(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SIZE + 1)
    except OSError as error:
        raise InputError(f"{error.strerror}", "Give a hostfile or an Ansible inventory.", place=name) from None
    if len(data) > MAX_SIZE:
        raise InputError("larger than 1 MiB", "Give a file that contains only hosts.", place=name)
    return data.decode("utf-8", "replace")


def words_of(text: str) -> list[str]:
    """Split a list of hosts at commas, semicolons and blanks outside brackets."""
    return _WORDS.findall(text)


def spread(pattern: str) -> list[str]:
    """Expand a node list of Slurm, ClusterShell or Ansible, keeping leading zeros.

    Examples: `n[01-03,7],m1`, `c[1,3]-[1,2]`, `n[0-8/2]`, `n[1:3]`, `n[0:8:2]`.
    Raises InputError for an invalid list and for more than `MOST` names.
    """
    names = [name for word in words_of(pattern) for name in _spread(word, pattern)]
    if len(names) > MOST:
        raise _too_many(pattern)
    return names


def _spread(word: str, pattern: str) -> list[str]:
    found = _BRACKETS.search(word)
    if found is None and word.count(":") > 1:
        return [word]  # an IPv6 address, perhaps without its closing bracket
    if (found is None and ("[" in word or "]" in word)) or (
        found and re.search("[!^&]", word)
    ):  # operators of ClusterShell's sets
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
    return InputError(f"{shown!r} has more than {MOST:,} hosts, or is too long", "Split it.")


def _items(item: str, pattern: str) -> list[str]:
    """Expand a range: `01-03` → 01, 02, 03."""
    if letters := _LETTERS.fullmatch(item):
        if item[0] > item[-1]:
            raise InputError(f"{clean(pattern)!r} has a range that runs backwards", "Write it like node[a:c].")
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
_COUNTED = re.compile(r"([^\s:]+|(?:[^\s:@]+@)?\[[\da-fA-F:.]+(?:%\w+)?\]):(\d{1,6})")  # n1:4, [fd00::1]:4
# Grid Engine's host file: n1 8 all.q@n1 <NULL>
PE_HOST = re.compile(r"\s*(\S+)\s+(\d{1,6})\s+[\w.-]+@\S+\s+\S+\s*")
_NAMES = re.compile(r"[^\s:,\[\]]+(?::\d{1,6})?(?:,[^\s:,\[\]]+(?::\d{1,6})?)+")
"""A list as for mpirun -H: n1:4,n2."""


class HostLine(NamedTuple):
    """One line of a hostfile that names a host."""

    number: int
    host: str
    """A name, or a range such as node[1-4]."""
    slots: int | None
    rest: tuple[str, ...]
    """The remaining words of the line."""


def hostfile(text: str, name: str) -> Discovered:
    """Return the hosts of a hostfile, in its order."""
    problems: list[str] = []
    return gather(name, _hosts(text, name, problems), problems)


def host_lines(text: str) -> Iterator[HostLine]:
    """Yield each line that names a host; a list such as `n1:4,n2` yields one for each."""
    for number, line in enumerate(text.splitlines(), 1):
        if of_queue := PE_HOST.fullmatch(line):
            yield HostLine(number, of_queue[1], int(of_queue[2]), ())
            continue
        words = line.partition("#")[0].split(None, 1)
        if not words:
            continue
        host, rest = words[0], re.sub(r"\s*=\s*", "=", words[1]) if len(words) > 1 else ""
        given = _SLOTS.search(rest) or _MOST_SLOTS.search(rest)
        if not given and not rest and _NAMES.fullmatch(host):
            pairs = (part.partition(":") for part in host.split(","))
            yield from (HostLine(number, name, int(slots) if slots else None, ()) for name, _, slots in pairs)
            continue
        counted = None if given else _COUNTED.fullmatch(host)  # with slots=, the number is a port
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


_SECTION = re.compile(r"\[\s*([^\]:]+?)\s*(?::\s*(\w+)\s*)?\]\s*(?:[#;].*)?")
_ASKED = {
    "ANSIBLE_CONFIG": os.devnull,
    "ANSIBLE_INVENTORY_ENABLED": "ini,yaml",
    "ANSIBLE_VARS_ENABLED": "host_group_vars",
}
"""Variables for `ansible-inventory`: it must only parse files, not run them or load plugins that they name."""


def _inventory(path: Path, text: str, name: str, *, ask: bool) -> Discovered:
    """Return the hosts of an inventory.

    Args:
        ask: Use `ansible-inventory` if it is installed, which also reads group_vars.
    """
    problems: list[str] = []
    listed = _ask(path) if ask else None
    if listed is not None:
        return gather(name, _from_json(listed, name), problems)
    if path.suffix in (".yaml", ".yml", ".json"):
        return gather(name, _from_yaml(text, name, problems), problems)
    return gather(name, _from_ini(text, name, problems), problems)


def _ask(path: Path) -> Mapping[str, object] | None:
    program = shutil.which("ansible-inventory")
    if program is None:
        return None
    command = [program, "-i", str(path.absolute()), "--list"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20.0, check=True,
            # The current folder is untrusted: it may contain plugins and collections.
            cwd="/", env={**os.environ, **_ASKED},
        )  # fmt: skip
        data = json.loads(done.stdout[: 16 * MAX_SIZE])
    except (OSError, ValueError, RecursionError, subprocess.SubprocessError):
        return None  # the caller then parses the file itself
    return data if isinstance(data, dict) else None


def _from_json(data: Mapping[str, object], source: str) -> Iterator[Candidate]:
    variables = mapping(mapping(data.get("_meta")).get("hostvars"))
    groups: dict[str, list[str]] = {}
    for group, content in data.items():
        hosts = mapping(content).get("hosts")
        for host in hosts if isinstance(hosts, list) else ():
            groups.setdefault(str(host), []).append(group)
    for host in dict.fromkeys([*groups, *map(str, variables)]):
        yield _candidate(host, mapping(variables.get(host)), groups.get(host, []), source)


def _from_ini(text: str, source: str, problems: list[str]) -> Iterator[Candidate]:
    group, kind = "", "hosts"
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        if section := _SECTION.fullmatch(stripped):
            group, kind = section[1], section[2] or "hosts"
            continue
        if kind != "hosts":
            continue
        try:
            host, *rest = shlex.split(stripped, comments=True) or [""]
            given = dict(word.split("=", 1) for word in rest if "=" in word)
            for one in spread(host):
                yield _candidate(one, given, [group] if group else [], source)
        except (ValueError, InputError) as error:
            problems.append(f"{source}:{number}: {getattr(error, 'what', error)}")


def _from_yaml(text: str, source: str, problems: list[str]) -> Iterator[Candidate]:
    try:
        root = compose(text, source, [])
    except ProfileErrors as errors:
        problems += [str(problem) for problem in errors.problems]
        return
    data = mapping(plain(root) if root else None)
    if "_meta" in data:
        yield from _from_json(data, source)
        return
    found: dict[str, tuple[dict[str, object], list[str]]] = {}
    for group, host, given in _listed(data):
        variables, groups = found.setdefault(host, ({}, []))
        variables.update(given)
        groups.append(group)
    if not found:
        problems.append(f"{source}: no hosts found; expected groups with `hosts:`")
    for host, (given, groups) in found.items():
        try:
            for one in spread(host):
                yield _candidate(one, given, groups, source)
        except InputError as error:
            problems.append(f"{source}: {error.sentence}")


def _listed(groups: object) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    """Yield group, host and variables for each host of each group."""
    for group, content in mapping(groups).items():
        for host, given in mapping(mapping(content).get("hosts")).items():
            yield group, host, mapping(given)
        yield from _listed(mapping(content).get("children"))


def _candidate(name: str, given: Mapping[str, object], groups: list[str], source: str) -> Candidate:
    """Make a candidate; without an address its name is used, which may be an ssh alias."""
    address = str(given.get("ansible_host") or name)
    user, port = given.get("ansible_user"), given.get("ansible_port")
    if given.get("ansible_connection") == "local":
        address, user, port = "local", None, None
    bracketed = f"[{address}]" if port and address.count(":") > 1 else address
    host = (f"{user}@" if user else "") + bracketed + (f":{port}" if port else "")
    alias = [name] if name != address else []
    shown = [group for group in groups if group not in ("all", "ungrouped")]
    return Candidate(host, source, " · ".join([*alias, *dict.fromkeys(shown)])[:80])


_HERE = ("hostfile", "hosts.txt", "inventory", "inventory.ini", "inventory.yaml", "inventory.yml", "hosts.ini",
         "hosts.yaml", "hosts.yml")  # fmt: skip
_INI = re.compile(r"^\s*\[[A-Za-z_][^\]]*\]\s*(?:[#;].*)?$|\bansible_\w+\s*=", re.MULTILINE)


def find_all(config_file: str | None, environ: Mapping[str, str], folder: Path) -> list[Discovered]:
    """Return the results of all sources that have hosts or problems. Reads files, so call it in a thread.

    Args:
        config_file: See `ssh_hosts`.
        folder: The folder in which to look for files such as `hostfile` and `inventory.ini`.
    """
    found = [ssh_hosts(config_file)]
    for path in usual_files(environ, folder):
        try:
            found.append(read_file(path, ask=False))
        except InputError as error:
            found.append(Discovered(clean(path.name), problems=(error.sentence,)))
    return [one for one in found if one.candidates or one.problems]


def usual_files(environ: Mapping[str, str], folder: Path) -> list[Path]:
    """Return existing files with usual names of hostfiles and inventories."""
    named = [expanded(part) for part in environ.get("ANSIBLE_INVENTORY", "").split(",") if "/" in part]
    paths = [*(folder / name for name in _HERE), Path("/job/hostfile"), Path("/etc/ansible/hosts"), *named]
    return [path for path in dict.fromkeys(paths) if os.path.isfile(path)]  # noqa: PTH113 - never raises


def read_file(path: Path, *, ask: bool) -> Discovered:
    """Return the hosts of a hostfile or an inventory. Raises InputError if it cannot be read.

    Args:
        ask: Whether `ansible-inventory` may read the file, since the user named it explicitly.
    """
    text = read_text(path)
    name = clean(path.name)
    if path.suffix in (".yaml", ".yml", ".json") or _INI.search(text) or text.startswith("#!"):
        return _inventory(path, text, name, ask=ask)
    return hostfile(text, name)


SOURCE = "typed"


def typed_hosts(text: str) -> Discovered:
    """Return the hosts in a text that the user typed."""
    problems: list[str] = []
    return gather(SOURCE, _typed(text, problems), problems)


def _typed(text: str, problems: list[str]) -> Iterator[Candidate]:
    for word in words_of(text):
        try:
            yield from (Candidate(one, SOURCE) for one in spread(word))
        except InputError as error:
            problems.append(error.sentence)


def ssh_hosts(config_file: str | None = None) -> Discovered:
    """Return the host aliases in ssh's configuration.

    Args:
        config_file: The file, as for ssh -F; None for the user's and the system's configuration.
    """
    found = NamedHosts(config_file)
    candidates = (
        Candidate(name, "ssh config", clean(note if note != name else "")) for name, note in found.hosts.items()
    )
    return gather("ssh config", candidates, found.problems)
