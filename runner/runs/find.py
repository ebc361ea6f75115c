"""The runs of which this viewer has a folder: read back, and found by their ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.errors import InputError
from runner.ids import pick, short
from runner.paths import inside
from runner.protocol.names import FORMAT, RUN
from runner.runs.history import KnownHost, KnownRun, read_object
from runner.runs.store import mirrors_folder
from runner.text import clean

_KINDS: dict[str, Any] = {
    "run": str,
    "run_dir": str,
    "by": str,
    "started": int | float,
    "profile": dict,
    "problem": str,
    "source": str | None,
    "ssh_config": str | None,
    "sandbox": bool,
    "adopted": bool,
    "resume_from": str | None,
}


def known_runs(environ: Mapping[str, str]) -> tuple[list[KnownRun], list[str]]:
    """Every run that has a readable run.json here, newest first, and what is wrong with the others."""
    runs, problems = [], []
    for name in run_names(environ):
        try:
            runs.append(load_run(inside(mirrors_folder(environ), name)))
        except InputError as error:
            problems.append(f"{error.sentence}. Remove it: disttui forget --here {name}")
    return sorted(runs, key=lambda run: -run.started), problems


def run_names(environ: Mapping[str, str]) -> list[str]:
    """The ids of all runs that have a folder here."""
    try:
        folders = [path for path in mirrors_folder(environ).iterdir() if RUN.fullmatch(path.name)]
        found = [path.name for path in folders if (path / "run.json").exists()]
    except OSError:
        return []
    return sorted(found)


def load_run(folder: Path) -> KnownRun:
    """Read a run's run.json. Raises InputError when it is missing, broken or of a newer disttui."""
    path = folder / "run.json"
    data = read_object(path)
    if data is None:
        raise InputError("missing or damaged", _anew(folder.name), place=f"{path}")
    refuse_newer(data, f"{path}")
    try:
        hosts = tuple(KnownHost(**{key: host.get(key) for key in KnownHost.__match_args__}) for host in data["hosts"])
        for host in hosts:
            host.as_host()
        if any(name in data and not isinstance(data[name], kind) for name, kind in _KINDS.items()):
            raise TypeError
        if not all(isinstance(host.nproc, int) and isinstance(host.name, str) for host in hosts):
            raise TypeError
        hosts = tuple(replace(host, name=clean(host.name)) for host in hosts)
        names = [name for name in KnownRun.__match_args__ if name in data and name not in ("folder", "hosts")]
        run = KnownRun(folder=folder, hosts=hosts, **{name: data[name] for name in names})
    except (KeyError, TypeError, AttributeError, ValueError):
        raise InputError("this is no run.json", _anew(folder.name), place=f"{path}") from None
    if run.run != folder.name or not hosts:
        raise InputError(f"this is no run.json of {folder.name}", _anew(folder.name), place=f"{path}")
    return run


def _anew(run: str) -> str:
    return f"Take it up anew: disttui attach {short(run)} --host HOST; or remove it: disttui forget --here {short(run)}"


def refuse_newer(data: Mapping[str, object], where: str) -> None:
    """Raise InputError for what a newer disttui has written."""
    version = data.get("disttui")
    if isinstance(version, int) and version > FORMAT:
        raise InputError(
            f"{where}: written by a newer disttui (format {version}, this one reads {FORMAT})", "Upgrade disttui."
        )


def find_run(text: str, environ: Mapping[str, str]) -> KnownRun:
    """The run with this id, or the one whose id begins with it. Raises InputError that lists the near ones."""
    return load_run(folder_of(text, environ))


def folder_of(text: str, environ: Mapping[str, str]) -> Path:
    """The folder of the run with this id or beginning, whatever is in it. Raises InputError that lists near ones."""
    return inside(mirrors_folder(environ), pick(text, run_names(environ)))


def is_known(text: str, environ: Mapping[str, str]) -> bool:
    """Whether this is, or begins, the id of a run that has a folder here."""
    return any(name.startswith(text) for name in run_names(environ)) if text else False
