"""Summaries of the runs under a run_dir, and completion of paths that a user types."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from ...protocol.frames import LIMIT
from ...protocol.names import RUN
from ...protocol.summary import ends, load, summarize
from .. import procs
from ..folders import user_name
from ..problem import Problem
from . import slurm

if TYPE_CHECKING:
    from ...protocol.requests import Completed

REBOOTED = "the host was rebooted"
"""The reason why a run left the queue."""


def list_runs(run_dir: str, run: str | None) -> list[dict[str, object]]:
    """The summaries of one or all runs under a folder, newest first. Raises Problem if it may not be read."""
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
    return sorted(found, key=lambda summary: cast("float", summary.get("started", 0.0)), reverse=True)


def fitting(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The first rows, as many as one answer can hold."""
    left = LIMIT // 2
    for number, row in enumerate(rows):
        left -= len(json.dumps(row)) + 2
        if left < 0:
            return rows[:number]
    return rows


def _nodes(folder: str, run: str) -> list[dict[str, object]]:
    found = []
    try:
        owner = os.lstat(folder).st_uid
        if owner != os.getuid():
            # Open no file in it: another user could have put a FIFO there that blocks a reader.
            return [{"run": run, "problem": f"{folder} belongs to {user_name(owner)}", "cure": _ask_owner(folder)}]
        names = [name for name in os.listdir(folder) if name.isdecimal()]
        for name in sorted(names, key=int):
            path = os.path.join(folder, name)
            watch = slurm.job_of(path)
            summary = summarize(path, lambda path=path, watch=watch: watch.alive() if watch else lives(path))  # type: ignore[misc]
            if summary:
                job = watch.summary(bool(summary["ended"])) if watch else {}
                waited = summary["dropped"] is not None and not os.path.exists(os.path.join(path, "stop"))
                if summary["state"] == "lost" and waited:
                    summary["dropped"] = lost_by(load(os.path.join(path, "supervisor.json")))
                found.append({**summary, **job, "run": run, "node_rank": int(name)})
    except OSError as error:
        return [{"run": run, "problem": "%s: %s" % (folder, error.strerror), "cure": _ask_owner(folder)}]
    return found


def lives(folder: str) -> bool:
    """Whether a run's supervisor or warden lives, here or on another machine that shares the run's folder."""
    up = load(os.path.join(folder, "supervisor.json"))
    if not isinstance(up, dict):
        return False
    if procs.alive(up) or procs.alive(up.get("warden") or {}):
        return True
    elsewhere = procs.elsewhere(up)
    if not elsewhere and (up.get("boot_id") == procs.boot_id() or "hostname" in up):
        return False
    beats = [0.0]
    for name in ("telemetry.jsonl", "supervisor.json") if elsewhere else ("telemetry.jsonl",):
        with suppress(OSError):
            beats.append(os.stat(os.path.join(folder, name)).st_mtime)
    # NFS may show a file as it was a minute ago. Earlier versions have not written the hostname.
    return time.time() - max(beats) < (90.0 if elsewhere else 15.0)


def lost_by(up: Any) -> str:
    """What became of a supervisor that died before it wrote the run's end, according to its supervisor.json."""
    boot = up.get("boot_id") if isinstance(up, dict) else None
    if not boot:
        return "its supervisor never started"
    return "the supervisor and warden were killed" if boot == procs.boot_id() else REBOOTED


def stop_waits(folder: str) -> str | None:
    """What the stop of a run waits for, as the supervisor wrote it; None if it waits for nothing."""
    said = [line for line in ends(os.path.join(folder, "events.jsonl")) if line.get("e") == "note" and line.get("stop")]
    return str(said[-1].get("text"))[:500] if said else None


def _ask_owner(path: str) -> str:
    try:
        uid = os.stat(path).st_uid
    except OSError:
        return ""
    return "" if uid == os.getuid() else "it belongs to %s; log in as that user, or ask them" % user_name(uid)


MOST = 100
"""Most names in one answer."""


def complete(path: str, workdir: str) -> Completed:
    """Return the paths that begin with `path`, folders with a slash at their end. Raises OSError.

    Args:
        path: The path as typed; a relative one is based on `workdir`, whose `~` is this login's home.
    """
    typed_folder, name = os.path.split(path)
    folder = os.path.join(os.path.expanduser(workdir), os.path.expanduser(typed_folder))
    found = []
    with os.scandir(os.path.join(os.path.expanduser("~"), folder)) as entries:
        for entry in islice(entries, 5000):
            if entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith(".")):
                shown = os.path.join(typed_folder, entry.name)
                found.append((not entry.is_file(), shown + "/" if entry.is_dir() else shown))
    # Scripts first, then folders, then the rest: the path is that of a script.
    found.sort(key=lambda one: (not one[1].endswith(".py"), one[0], one[1]))
    names = [name.encode("utf-8", "replace").decode() for _, name in found]
    return {"names": names[:MOST], "more": len(names) > MOST}
