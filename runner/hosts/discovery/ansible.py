"""Ansible inventories: by `ansible-inventory` where it is installed, else the ini and YAML forms read here."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from disttui.runner.errors import InputError
from disttui.runner.hosts.discovery.candidate import MAX_SIZE, Candidate, Discovered, gather, spread
from disttui.runner.profile.load import plain
from disttui.runner.profile.nodes import compose
from disttui.runner.profile.problems import ProfileErrors

_SECTION = re.compile(r"\[\s*([^\]:]+?)\s*(?::\s*(\w+)\s*)?\]\s*(?:[#;].*)?")
_ASKED = {
    "ANSIBLE_CONFIG": os.devnull,
    "ANSIBLE_INVENTORY_ENABLED": "ini,yaml",
    "ANSIBLE_VARS_ENABLED": "host_group_vars",
}
"""Variables of `ansible-inventory`: files are parsed, and none is run or names a plugin."""


def inventory(path: Path, text: str, name: str, *, ask: bool) -> Discovered:
    """The hosts of an inventory.

    Args:
        ask: Ask `ansible-inventory`, which knows group_vars too, where it is installed.
    """
    problems: list[str] = []
    listed = _ask(path) if ask else None
    if listed is not None:
        return gather(name, _from_json(listed, name), problems)
    if path.suffix in (".yaml", ".yml", ".json"):
        return gather(name, _from_yaml(text, name, problems), problems)
    return gather(name, _from_ini(text, name, problems), problems)


def _ask(path: Path) -> Mapping[str, Any] | None:
    program = shutil.which("ansible-inventory")
    if program is None:
        return None
    command = [program, "-i", str(path.absolute()), "--list"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20.0, check=True,
            # Not here: this folder may be a stranger's, with plugins and collections in it.
            cwd="/", env={**os.environ, **_ASKED},
        )  # fmt: skip
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
        root = compose(text, source, [])
    except ProfileErrors as errors:
        problems += [str(problem) for problem in errors.problems]
        return
    data = plain(root) if root else None
    if isinstance(data, dict) and "_meta" in data:
        yield from _from_json(data, source)
        return
    found: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for group, host, given in _listed(data):
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


def _listed(groups: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every host of every group, with its variables."""
    for group, content in groups.items() if isinstance(groups, dict) else ():
        if not isinstance(content, dict):
            continue
        hosts = content.get("hosts")
        for host, given in hosts.items() if isinstance(hosts, dict) else ():
            yield group, host, given if isinstance(given, dict) else {}
        yield from _listed(content.get("children"))


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
