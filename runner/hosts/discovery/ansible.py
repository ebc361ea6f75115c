"""Ansible inventories: by `ansible-inventory` where it is installed, else the ini and YAML forms read here."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from disttui.runner.errors import InputError
from disttui.runner.hosts.discovery.candidate import MAX_SIZE, Candidate, Discovered, gather, spread

_SECTION = re.compile(r"\[\s*([^\]:]+?)\s*(?::\s*(\w+)\s*)?\]\s*(?:[#;].*)?")
_MOST = 100_000
"""The most groups and hosts of a YAML inventory: YAML aliases can multiply those of a small file without bound."""


class _Loader(yaml.SafeLoader):
    """Keeps each key of merged mappings (`<<`) once before they are merged again: otherwise they multiply."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        last: dict[object, int] = {}
        for at, (key, _) in enumerate(node.value):
            last[key.value if isinstance(key, yaml.ScalarNode) else id(key)] = at
        node.value = [node.value[at] for at in sorted(last.values())]


def inventory(path: Path, text: str, name: str) -> Discovered:
    """The hosts of an inventory. Variables from group_vars and plugins are known to `ansible-inventory` only."""
    problems: list[str] = []
    listed = _ask(path)
    if listed is not None:
        return gather(name, _from_json(listed, name), problems)
    if path.suffix in (".yaml", ".yml", ".json"):
        return gather(name, _from_yaml(text, name, problems), problems)
    return gather(name, _from_ini(text, name, problems), problems)


def _ask(path: Path) -> Mapping[str, Any] | None:
    program = shutil.which("ansible-inventory")
    if program is None:
        return None
    command = [program, "-i", str(path), "--list"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20.0, check=True)
        data = json.loads(done.stdout[: 16 * MAX_SIZE])
    except (OSError, ValueError, RecursionError, subprocess.SubprocessError):
        return None  # the file is then read here
    return data if isinstance(data, dict) else None


def _from_json(data: Mapping[str, Any], source: str) -> Iterator[Candidate]:
    meta = data.get("_meta")
    known = meta.get("hostvars") if isinstance(meta, dict) else None
    variables = known if isinstance(known, dict) else {}
    groups: dict[str, list[str]] = {}
    for group, content in data.items():
        hosts = content.get("hosts") if isinstance(content, dict) else None
        for host in hosts if isinstance(hosts, list) else ():
            groups.setdefault(str(host), []).append(group)
    for host in dict.fromkeys([*groups, *map(str, variables)]):
        yield _candidate(host, variables.get(host), groups.get(host, []), source)


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
        data = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        problems.append(f"{source}{f':{mark.line + 1}' if mark else ''}: not valid YAML")
        return
    if isinstance(data, dict) and "_meta" in data:
        yield from _from_json(data, source)
        return
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for count, (group, host, given) in enumerate(_listed(data, 0)):
        if count == _MOST:
            problems.append(f"{source}: more than {_MOST:,} entries, aliases included; the rest is left out")
            break
        if host is not None:
            variables, groups = found.setdefault(host, ({}, []))
            variables.update(given)
            groups.append(group)
    if not found:
        problems.append(f"{source}: no hosts: expected groups with `hosts:`")
    for host, (given, groups) in found.items():
        try:
            for one in spread(host):
                yield _candidate(one, given, groups, source)
        except InputError as error:
            problems.append(f"{source}: {error.sentence}")


def _listed(groups: Any, depth: int) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """Every group, with None, and every host of it, with its variables; once for each alias of the group."""
    for group, content in groups.items() if isinstance(groups, dict) and depth <= 32 else ():
        yield str(group), None, {}
        if not isinstance(content, dict):
            continue
        hosts = content.get("hosts")
        for host, given in hosts.items() if isinstance(hosts, dict) else ():
            yield str(group), str(host), given if isinstance(given, dict) else {}
        yield from _listed(content.get("children"), depth + 1)


def _candidate(name: str, given: Any, groups: list[str], source: str) -> Candidate:
    """The inventory's name stays where it gives no address: it may be an ssh alias."""
    said = given if isinstance(given, dict) else {}
    address = str(said.get("ansible_host") or name)
    user, port = said.get("ansible_user"), said.get("ansible_port")
    if said.get("ansible_connection") == "local":
        address, user, port = "local", None, None
    bracketed = f"[{address}]" if port and address.count(":") > 1 else address
    host = (f"{user}@" if user else "") + bracketed + (f":{port}" if port else "")
    alias = [name] if name != address else []
    shown = [group for group in groups if group not in ("all", "ungrouped")]
    return Candidate(host, source, " · ".join([*alias, *dict.fromkeys(shown)])[:80])
