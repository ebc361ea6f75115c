"""The runs under a run_dir in a few words each, from the ends of their files (docs/formats.md, "A run's summary").

A viewer's mirror has the same files, so that it is summed up by the same code.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from typing import Any, Callable

from .. import procs
from ..folders import user_name
from ..journal import records
from ..problem import Problem

RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
FORMAT = 1
"""The version of a run folder's format that this code writes."""
_END = 64 * 1024
_BEGINNING = 4096
_SENTENCE = 500
_FRESH = 15.0
"""Seconds after which a supervisor that lives elsewhere, on a shared disk, counts as dead without telemetry."""


def list_runs(run_dir: str, run: str | None) -> list[dict[str, Any]]:
    """The summaries of all runs under a folder or of one, newest first. Raises Problem when it may not be read."""
    base = os.path.abspath(os.path.expanduser(run_dir))
    found = []
    try:
        names = [run] if run else os.listdir(base)
        for name in names:
            if RUN.fullmatch(name) and os.path.isdir(os.path.join(base, name)):
                found += _nodes(os.path.join(base, name), name)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Problem("%s cannot be read: %s" % (base, error.strerror), _ask_owner(base)) from None
    return sorted(found, key=lambda summary: -float(summary.get("started") or 0.0))


def summarize(folder: str, alive: Callable[[], bool | None]) -> dict[str, Any] | None:
    """Sum up one host's folder of a run, None when there is no run in it.

    Args:
        alive: Whether its supervisor lives; None where that cannot be known.
    """
    spec_path = os.path.join(folder, "spec.json")
    spec = _load(spec_path)
    if not isinstance(spec, dict):
        return None
    attempt = _newest_attempt(folder)
    end = _end(folder)
    lives = False if end else alive()
    # A run that has ended in good order since then is not lost.
    end = end or (None if lives else _end(folder))
    metrics = _metrics(os.path.join(folder, "attempt-%d" % attempt)) if attempt else {}
    profile, started = spec.get("profile"), spec.get("started")
    sane = isinstance(started, (int, float)) and abs(started) < 1e12
    return {
        "run": spec.get("run"),
        "node_rank": spec.get("node_rank"),
        "name": profile.get("name") if isinstance(profile, dict) else None,
        "hosts": spec.get("hosts"),
        "nproc": spec.get("nproc"),
        "state": _state(folder, end, lives, attempt),
        "alive": bool(lives),
        "started": started if sane else os.stat(spec_path).st_mtime,
        "ended": end.get("t") if end else None,
        "attempt": attempt,
        "by": spec.get("by"),
        "size": disk_use(folder),
        "disttui": spec.get("disttui"),
        **{name: _figure(metrics.get(name)) for name in ("step", "steps", "loss")},
    }


def _figure(value: Any) -> int | float | None:
    """A script writes what it likes into its metrics: only a number is told."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _count(value: Any) -> int | None:
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
    return value if usable else None


def _end(folder: str) -> dict[str, Any] | None:
    end = _load(os.path.join(folder, "exit.json"))
    return end if isinstance(end, dict) else None


def _nodes(folder: str, run: str) -> list[dict[str, Any]]:
    found = []
    try:
        owner = os.lstat(folder).st_uid
        if owner != os.getuid():
            # Nothing in it is opened: a file there may be made so that a reader hangs.
            return [{"run": run, "problem": f"{folder} belongs to {user_name(owner)}", "cure": _ask_owner(folder)}]
        names = [name for name in os.listdir(folder) if name.isdigit()]
        for name in sorted(names, key=int):
            path = os.path.join(folder, name)
            summary = summarize(path, lambda path=path: _lives(path))  # type: ignore[misc]
            if summary:
                found.append({**summary, "run": run, "node_rank": int(name)})
    except OSError as error:
        return [{"run": run, "problem": "%s: %s" % (folder, error.strerror), "cure": _ask_owner(folder)}]
    return found


def _lives(folder: str) -> bool:
    up = _load(os.path.join(folder, "supervisor.json"))
    if not isinstance(up, dict):
        return False
    if up.get("boot_id") == procs.boot_id():
        return procs.alive(up) or procs.alive(up.get("warden") or {})
    # Of an earlier boot, or of another host that shares this disk.
    try:
        return time.time() - os.stat(os.path.join(folder, "telemetry.jsonl")).st_mtime < _FRESH
    except OSError:
        return False


def _state(folder: str, end: dict[str, Any] | None, lives: bool | None, attempt: int) -> str:
    if end:
        return str(end.get("state"))
    if lives is False:
        return "lost"
    if os.path.exists(os.path.join(folder, "stop")):
        return "stopping"
    return "running" if attempt else "joining"


def _newest_attempt(folder: str) -> int:
    """The newest attempt that was given the word: its folder is made before, to warm the launcher up."""
    newest = 0
    for line in _ends(os.path.join(folder, "events.jsonl")):
        if line.get("e") in ("attempt", "launch", "verdict"):
            newest = max(newest, _count(line.get("attempt")) or 0)
    return newest


def stop_waits(folder: str) -> str | None:
    """What the stop of a run waits for, in the supervisor's words; None: nothing."""
    said = [
        line for line in _ends(os.path.join(folder, "events.jsonl")) if line.get("e") == "note" and line.get("stop")
    ]
    return str(said[-1].get("text"))[:_SENTENCE] if said else None


def _metrics(folder: str) -> dict[str, Any]:
    """The newest value of every metric, from the lowest rank that has some."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".metrics.jsonl")]
    except OSError:
        return {}
    merged: dict[str, Any] = {}
    for name in sorted(names, key=lambda name: (len(name), name))[:1]:
        for record in _ends(os.path.join(folder, name)):
            merged.update(record)
    return merged


def _ends(path: str) -> list[dict[str, Any]]:
    """The records at the beginning and at the end of a JSON-lines file, broken ones left out."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(_BEGINNING)
            if size > len(data):
                file.seek(max(len(data), size - _END))
                data += b"\n" + file.read(_END)
    except OSError:
        return []
    return records(data.split(b"\n"))


def _load(path: str) -> Any:
    try:
        with open(path, "rb") as file:
            return json.loads(file.read(4 << 20))
    except PermissionError:
        raise
    except (OSError, ValueError, RecursionError):
        return None


def disk_use(folder: str) -> int:
    """Bytes on the disk, holes not counted."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                seen = os.lstat(os.path.join(path, name))
            except OSError:
                continue
            total += seen.st_blocks * 512 if stat.S_ISREG(seen.st_mode) else 0
    return total


def _ask_owner(path: str) -> str:
    import pwd

    try:
        uid = os.stat(path).st_uid
        owner = pwd.getpwuid(uid).pw_name if uid != os.getuid() else ""
    except (OSError, KeyError):
        owner = ""
    return "it belongs to %s: log in as them, or ask them" % owner if owner else ""
