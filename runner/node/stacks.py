"""Where every rank of this host is right now: asked at its doors (doors.py), all at once, two seconds each."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List

from .doors import same_user
from .procs import read

_LIMIT = 2.0
_LONGEST_ANSWER = 4 << 20
_LONGEST_TEXT = 65536


def collect(folder: str) -> Dict[str, Any]:
    """Ask every rank of the newest attempt under a run's folder; the answers by rank, see docs/formats.md."""
    attempt = _newest_attempt(folder)
    ranks = _started(attempt) if attempt else []
    if not ranks:
        return {}
    with ThreadPoolExecutor(min(64, len(ranks))) as pool:
        answers = {str(rank["rank"]): pool.submit(_ask, attempt, rank) for rank in ranks}
    return {rank: answer.result() for rank, answer in answers.items()}


def _newest_attempt(folder: str) -> str:
    """The newest that has ranks: the next one's folder is there before its ranks are."""
    numbers = [int(m.group(1)) for m in map(re.compile(r"attempt-(\d+)$").match, os.listdir(folder)) if m]
    for number in sorted(numbers, reverse=True):
        attempt = os.path.join(folder, "attempt-%d" % number)
        if os.path.exists(os.path.join(attempt, "ranks.jsonl")):
            return attempt
    return ""


def _started(attempt: str) -> List[Dict[str, Any]]:
    ranks: Dict[int, Dict[str, Any]] = {}
    try:
        with open(os.path.join(attempt, "ranks.jsonl"), encoding="utf-8") as file:
            for line in file:
                record = json.loads(line) if line.endswith("\n") else {}
                if record.get("e") == "start":
                    ranks[record["rank"]] = record
    except FileNotFoundError:
        pass
    return [ranks[number] for number in sorted(ranks)]


def _ask(attempt: str, rank: Dict[str, Any]) -> Dict[str, Any]:
    process = read(rank["pid"])
    if process is None or process.dead or process.start != rank["start_time"]:
        return {"note": "the process has ended"}
    if rank["door"]:
        try:
            return _knock(rank["door"])
        except (OSError, ValueError):
            pass
    return _signal(os.path.join(attempt, "rank-%d.log" % rank["rank"]), rank)


def _knock(door: str) -> Dict[str, Any]:
    deadline = time.monotonic() + _LIMIT
    data = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        visitor.settimeout(_LIMIT)
        visitor.connect(door if door.startswith("/") else "\0" + door)
        if not same_user(visitor):
            raise OSError("another user sits on the rank's door")
        while len(data) < _LONGEST_ANSWER:
            visitor.settimeout(max(0.01, deadline - time.monotonic()))
            part = visitor.recv(65536)
            if not part:
                break
            data += part
    answer: Dict[str, Any] = json.loads(data)
    return answer


def _signal(log: str, rank: Dict[str, Any]) -> Dict[str, Any]:
    """Have faulthandler print the stacks into the rank's log, if it still listens, and read them there."""
    number = rank["signal"]
    if not number:
        return {"note": "this rank is not instrumented: it has no door to ask at"}
    if not _catches(rank["pid"], number):
        return {"note": "the rank does not answer, and its program has taken the signal that would print its stack"}
    try:
        before = os.stat(log).st_size
        os.kill(rank["pid"], number)
        text = _grown(log, before)
    except OSError as error:
        return {"note": "the rank does not answer: %s" % error}
    if not text:
        return {"note": "the rank answers neither its door nor a signal: it may be stopped, or in the kernel"}
    note = "the rank holds the interpreter's lock in native code; this was printed by a signal into its own log"
    return {"text": text, "note": note}


def _catches(pid: int, number: int) -> bool:
    try:
        with open("/proc/%d/status" % pid, encoding="ascii", errors="replace") as file:
            mask = next(line.split()[1] for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(mask, 16) >> (number - 1) & 1)


def _grown(path: str, before: int) -> str:
    """What is appended to a file, until it rests for a moment or two seconds are over."""
    deadline = time.monotonic() + _LIMIT
    size = before
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = os.stat(path).st_size
        if now == size > before:
            break
        size = now
    with open(path, "rb") as file:
        file.seek(before)
        return file.read(_LONGEST_TEXT).decode("utf-8", "replace")
