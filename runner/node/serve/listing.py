"""Summaries of the runs under a run_dir."""

from __future__ import annotations

import os
import time
from typing import Any

from ...protocol.names import RUN
from ...protocol.summary import ends, load, summarize
from .. import procs
from ..folders import user_name
from ..problem import Problem
from . import slurm

_SENTENCE = 500
_FRESH = 15.0
"""Seconds without telemetry after which a supervisor on another host of a shared disk counts as dead."""


def list_runs(run_dir: str, run: str | None) -> list[dict[str, object]]:
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
    return sorted(found, key=lambda summary: -_started(summary))


def _started(summary: dict[str, object]) -> float:
    started = summary.get("started")
    return float(started) if isinstance(started, (int, float)) else 0.0


def _nodes(folder: str, run: str) -> list[dict[str, object]]:
    found = []
    try:
        owner = os.lstat(folder).st_uid
        if owner != os.getuid():
            # No file in it is opened: another user could have put a FIFO there that blocks a reader.
            return [{"run": run, "problem": f"{folder} belongs to {user_name(owner)}", "cure": _ask_owner(folder)}]
        names = [name for name in os.listdir(folder) if name.isdecimal()]
        for name in sorted(names, key=int):
            path = os.path.join(folder, name)
            watch = slurm.job_of(path)
            summary = summarize(path, lambda path=path, watch=watch: watch.alive() if watch else _lives(path))  # type: ignore[misc]
            if summary:
                job = watch.summary(bool(summary["ended"])) if watch else {}
                waited = summary["dropped"] is not None and not os.path.exists(os.path.join(path, "stop"))
                if summary["state"] == "lost" and waited:
                    summary["dropped"] = lost_by(load(os.path.join(path, "supervisor.json")))
                found.append({**summary, **job, "run": run, "node_rank": int(name)})
    except OSError as error:
        return [{"run": run, "problem": "%s: %s" % (folder, error.strerror), "cure": _ask_owner(folder)}]
    return found


def _lives(folder: str) -> bool:
    up = load(os.path.join(folder, "supervisor.json"))
    if not isinstance(up, dict):
        return False
    if up.get("boot_id") == procs.boot_id():
        return procs.alive(up) or procs.alive(up.get("warden") or {})
    # Of an earlier boot, or of another host that shares this disk.
    try:
        return time.time() - os.stat(os.path.join(folder, "telemetry.jsonl")).st_mtime < _FRESH
    except OSError:
        return False


def lost_by(up: Any) -> str:
    """What became of a dead supervisor, by its supervisor.json, that had no time to write the run's end."""
    boot = up.get("boot_id") if isinstance(up, dict) else None
    if not boot:
        return "its supervisor left no word"
    return "the supervisor and warden were killed" if boot == procs.boot_id() else "the host was started anew"


def stop_waits(folder: str) -> str | None:
    """What the stop of a run waits for, as the supervisor wrote it; None: nothing."""
    said = [line for line in ends(os.path.join(folder, "events.jsonl")) if line.get("e") == "note" and line.get("stop")]
    return str(said[-1].get("text"))[:_SENTENCE] if said else None


def _ask_owner(path: str) -> str:
    import pwd

    try:
        uid = os.stat(path).st_uid
        owner = pwd.getpwuid(uid).pw_name if uid != os.getuid() else ""
    except (OSError, KeyError):
        owner = ""
    return "it belongs to %s: log in as them, or ask them" % owner if owner else ""
