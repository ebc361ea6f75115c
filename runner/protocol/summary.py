"""A summary of a run, from the beginnings and ends of one host's files (docs/formats.md, "A run's summary").

A viewer's mirror has the same files, so the same code summarizes it.
"""

from __future__ import annotations

import json
import math
import os
import time
from operator import sub
from typing import Any, Callable, Collection

from .events import queued_for
from .leases import is_whole
from .metrics import NOT_FINITE, is_silent, updated
from .regular import open_regular, read_regular, records

LOADING = 5.0
"""Seconds after which a rank counts as running without a step or a process group."""
_END = 64 * 1024
_BEGINNING = 4096


def summarize(folder: str, alive: Callable[[], bool | None]) -> dict[str, object] | None:
    """Summarize one host's folder of a run; None if there is no run in it.

    Args:
        alive: Whether its supervisor is alive; None if that is unknown.
    """
    spec_path = os.path.join(folder, "spec.json")
    spec = load(spec_path)
    if not isinstance(spec, dict):
        return None
    attempt = 0  # the newest that was started; the folder exists earlier, when the launcher is warmed up
    going = ""  # what the newest attempt does, other than start or run
    up: dict[str, float] = {}  # its ranks → when they began, at the latest when they joined their process group
    for line in ends(os.path.join(folder, "events.jsonl")):
        if line.get("e") == "stall" and (not line.get("over") or going == "stalled"):
            going = "" if line.get("over") else "stalled"
        elif line.get("e") in ("stopping", "failed"):
            going = "stopping" if line["e"] == "stopping" else "restarting"
        elif line.get("e") in ("attempt", "launch", "verdict"):
            going = "" if line["e"] == "attempt" else going
            number: Any = line.get("attempt")
            if is_whole(number, 1 << 31) and number > attempt:
                attempt, up = number, {}
        elif line.get("e") in ("rank", "group") and line.get("attempt") == attempt:
            rank = str(line.get("rank"))
            up[rank] = -math.inf if line["e"] == "group" else up.get(rank, _figure(line.get("t")) or 0.0)
    end = _end(folder)
    lives = False if end else alive()
    # A run that has ended normally since then is not lost.
    end = end or (None if lives else _end(folder))
    metrics = newest_metrics(os.path.join(folder, "attempt-%d" % attempt)) if attempt else {}
    profile, started = spec.get("profile"), spec.get("started")
    waits = "" if attempt else _waits(folder)
    if attempt and not going:
        going = "running" if metrics or _all_up(folder, spec, up) else "starting"
    state = _state(folder, end, lives, going or ("queued" if waits else "joining"))
    sane = isinstance(started, (int, float)) and abs(started) < 1e12
    return {
        "run": spec.get("run"),
        "node_rank": spec.get("node_rank"),
        "name": profile.get("name") if isinstance(profile, dict) else None,
        "hosts": spec.get("hosts"),
        "nproc": spec.get("nproc"),
        "state": state,
        "alive": bool(lives),
        "started": started if sane else os.stat(spec_path).st_mtime,
        "began": _began(folder, bool(spec.get("queue"))),
        "ended": end.get("t") if end else None,
        "cause": _cause(end) if end else None,
        "attempt": attempt,
        "by": spec.get("by"),
        "size": _size(folder),
        "disttui": spec.get("disttui"),
        "waits": waits if state == "queued" else "",
        "dropped": _dropped(end) if spec.get("queue") and not attempt else None,
        **{name: _figure(metrics.get(name)) for name in ("step", "steps")},
        "loss": _loss(metrics.get("loss")),
        "silent": _silent(os.path.join(folder, "attempt-%d" % attempt)) if lives and attempt else None,
    }


def _all_up(folder: str, spec: dict[str, object], up: dict[str, float]) -> bool:
    """Whether the ranks of a host are up; also true if its events are too many to be read."""
    if os.stat(os.path.join(folder, "events.jsonl")).st_size > _BEGINNING + _END:
        return True
    node: Any = spec.get("node_rank")
    nproc = spec.get("nproc")
    known = isinstance(nproc, list) and is_whole(node, len(nproc)) and is_whole(nproc[node], len(up) + 1)
    newest = ends(os.path.join(folder, "telemetry.jsonl"))[-1:]
    now = (_figure(newest[0].get("t")) or 0.0) if newest else 0.0
    return known and all(now - t > LOADING for t in up.values())


def _figure(value: Any) -> int | float | None:
    """A finite number of a script's metrics; None for any other value."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _loss(value: Any) -> int | float | str | None:
    """A loss; if it is not finite, its text, since JSON has no number for it."""
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)
    return value if value in NOT_FINITE else _figure(value)


def _silent(folder: str) -> float | None:
    """Seconds for which the lowest rank with metrics has been suspiciously silent; None if it is not."""
    # A gap in what is read would count as the longest pause.
    times = [t for record in _records(folder, 0) if isinstance(t := record.get("t"), float)]
    if len(times) < 2:
        return None
    seconds = time.time() - times[-1]
    pause = max(map(sub, times[1:], times))
    return round(seconds, 1) if is_silent(seconds, pause, times[-1] - times[0]) else None


def _end(folder: str) -> dict[str, object] | None:
    end = load(os.path.join(folder, "exit.json"))
    return end if isinstance(end, dict) else None


def _cause(end: dict[str, object]) -> dict[str, object] | None:
    cause = end.get("cause")
    # Characters of a cause's message
    return {**cause, "message": str(cause.get("message") or "")[:500]} if isinstance(cause, dict) else None


def _state(folder: str, end: dict[str, object] | None, lives: bool | None, going: str) -> str:
    if end:
        return str(end.get("state"))
    if lives is False:
        return "lost"
    if os.path.exists(os.path.join(folder, "stop")):
        return "stopping"
    return going


def _began(folder: str, queued: bool) -> float | None:
    """When it began: with its first event, or with its first attempt if it was queued before."""
    try:
        # Bytes of events in which a queued run is expected to begin
        lines = read_regular(os.path.join(folder, "events.jsonl"), 1 << 20 if queued else _BEGINNING).split(b"\n")
    except OSError:
        return None
    first, waits = None, False
    for event in records(lines):
        t = _figure(event.get("t"))
        if event.get("e") == "attempt" and waits:
            return t
        first = t if first is None else first
        waits = waits or queued_for(event.get("text")) is not None
    return None if waits else first


def _waits(folder: str) -> str:
    """What a queued run waits for, according to its leader's last note; "" if there is no note here."""
    lines = reversed(ends(os.path.join(folder, "events.jsonl")))
    waits = (queued_for(line.get("text")) for line in lines if line.get("e") == "note")
    return next((words for words in waits if words is not None), "")


def _dropped(end: dict[str, object] | None) -> str:
    """Why a queued run ended before its turn; "" if it did not, was stopped, or nothing is known."""
    cause = end.get("cause") if end and end.get("state") != "stopped" else None
    return str(cause.get("message") or cause.get("kind")) if isinstance(cause, dict) else ""


def newest_metrics(folder: str) -> dict[str, object]:
    """The newest value of every metric of an attempt's folder, from the lowest rank that has metrics."""
    merged: dict[str, object] = {}
    for record in _records(folder):
        merged = updated(merged, record)
    return merged


def _records(folder: str, beginning: int = _BEGINNING) -> list[dict[str, object]]:
    """The first and last records of the lowest rank that has metrics, as `ends`."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".metrics.jsonl")]
    except OSError:
        return []
    return ends(os.path.join(folder, min(names, key=lambda name: (len(name), name))), beginning) if names else []


def ends(path: str, beginning: int = _BEGINNING) -> list[dict[str, object]]:
    """The records in the first `beginning` bytes and at the end of a JSON-lines file, without malformed ones."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(beginning)
            if size > len(data):
                end = file.seek(max(len(data), size - _END))
                data += (b"\n" if end > len(data) else b"") + file.read(_END)
    except OSError:
        return []
    return records(data.split(b"\n"))


def load(path: str) -> Any:
    """The JSON value of a file, or None. Raises PermissionError."""
    try:
        return json.loads(read_regular(path, 4 << 20))
    except PermissionError:
        raise
    except (OSError, ValueError, RecursionError):
        return None


def disk_use(folder: str, without: Collection[str] = ()) -> int:
    """Bytes on the disk, as counted by `du`: without holes, and files with several names once.

    Args:
        without: Names in the folder that are not counted.
    """
    total = 0
    seen: set[tuple[int, int]] = set()
    for path, folders, names in os.walk(folder):
        if path == folder:
            folders[:] = [name for name in folders if name not in without]
        for name in ("", *names):
            try:
                found = os.lstat(os.path.join(path, name))
            except OSError:
                continue
            if (found.st_dev, found.st_ino) not in seen:
                total += found.st_blocks * 512
            if found.st_nlink > 1:
                seen.add((found.st_dev, found.st_ino))
    return total


def _size(folder: str) -> int:
    """Bytes of a host's part of a run; the first part on a disk includes what they share, such as the checkpoints."""
    run, node = os.path.split(folder)
    nodes = [name for name in os.listdir(run) if name.isdecimal()]
    shared = disk_use(run, nodes) if node == min(nodes, key=int, default="") else 0
    return disk_use(folder) + shared
