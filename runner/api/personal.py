"""What the profiles of a library leave to each person, and personal.yaml, in which it stands."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.paths import inside
from disttui.runner.profile import Host, parse, read
from disttui.runner.profile.composition import PERSONAL
from disttui.runner.profile.edit import as_data, edit
from disttui.runner.profile.library import library_named, profiles_in
from disttui.runner.profile.save import save
from disttui.runner.transport.ssh_config import resolve
from disttui.runner.user.folders import user_folder


class Undecided(NamedTuple):
    """Names of hosts for which something is not decided."""

    login: tuple[str, ...]
    """ssh would use the login of this machine."""
    python: tuple[str, ...]
    """The first Python with torch would be used."""
    key: tuple[str, ...]
    """There is neither a key file nor an agent: as ssh knows these hosts."""
    me: str
    """The login of this machine."""


def left_to_you(library: str, environ: Mapping[str, str] = os.environ) -> Undecided:
    """What the profiles of a library leave open. Raises InputError for an unknown library."""
    hosts: dict[str, Host] = {}
    for entry in profiles_in(library_named(library, environ)):
        with suppress(InputError):  # `library validate` lists errors
            for host in parse(read(entry.path).text, entry.path).hosts:
                if host.name not in hosts or host.user:
                    hosts[host.name] = host
    login, key = [], []
    me = pwd.getpwuid(os.getuid()).pw_name
    for host in (host for host in hosts.values() if host.host != "local"):
        with suppress(DisttuiError):
            target = resolve(host.endpoint, environ.get("DISTTUI_SSH_CONFIG"), shutil.which("ssh"))
            if not host.user and target.user == me:
                login.append(host.name)
            if not target.identity_agent and not any(map(os.path.exists, target.identity_files)):
                key.append(host.host)
    python = [host.name for host in hosts.values() if not host.python and not host.activate]
    return Undecided(tuple(login), tuple(python), tuple(dict.fromkeys(key)), me)


def personal_file(environ: Mapping[str, str] = os.environ) -> Path:
    """The file with the user's own settings, which go over every profile."""
    return inside(user_folder("config", environ), PERSONAL)


def keep_personal(hosts: Sequence[str], user: str, python: str, environ: Mapping[str, str] = os.environ) -> None:
    """Write a login name for some hosts, and a Python for all, into personal.yaml; empty: as it is.

    Raises:
        InputError: One of them cannot be used, or the file cannot be read or written.
    """
    given = {key: value for key, value in (("user", user), ("python", python)) if value}
    job = {"disttui": 1, "hosts": [{"host": "x", **given}], "job": {"command": ["true"]}}
    parse(json.dumps(job), "your answer")
    path = personal_file(environ)
    before = read(path).text if path.exists() else ""
    data = as_data(before) if before.strip() else {}
    known = (data or {}).get("hosts", {})
    if data is None or not isinstance(known, dict):
        raise InputError("this cannot be changed", f"Correct it yourself: {given}", place=str(path))
    if user:
        named = {name: {**(known.get(name) or {}), "user": user} for name in hosts}
        data = {**data, "hosts": {**known, **named}}
    if python:
        data = {**data, "python": python}
    save(edit(before, data), path, replace=True, mode=0o600)


def keep_key(hosts: Sequence[str], key: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Name a key file for some hosts in the ssh configuration; returns that. Raises InputError."""
    if '"' in key or not key.isprintable() or not Path(key).expanduser().is_file():
        raise InputError(f"{key!r}: key file not found", "Give the path of a private key.")
    path = Path(environ.get("DISTTUI_SSH_CONFIG") or Path.home() / ".ssh/config")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f'\nHost {" ".join(hosts)}\n    IdentityFile "{key}"\n')
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", place=str(path)) from None
    return path
