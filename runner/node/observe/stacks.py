"""Finds where each rank of this host is: asks their stack servers (stack_server.py) concurrently, two seconds each.

A rank that makes no progress may wait for a process that it has started, such as a DataLoader worker: these are checked
as well. A forked one has the rank's signal handler and file, so it prints its stack as the rank would; one that runs
another program can only be examined from outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ...protocol.regular import open_regular, records
from ...protocol.summary import ends
from .. import sockets
from ..disk import read_text
from ..journal import Tail, attempts, write_json
from ..procs import Proc, catches, command, descendants, read, table
from .reports import report

if TYPE_CHECKING:
    from ...protocol.events import Report
    from ...protocol.files import ChildStack, RankStacks, Stacks

_LIMIT = 2.0
_PAUSE = 0.4
"""Seconds between the two samples that distinguish a rank that makes progress from one that stands still."""
_CHILDREN = 8
"""Child processes that are examined per rank."""
_TRACKER = "from multiprocessing.resource_tracker import"
"""Part of the command of a process that Python starts for itself, which waits as long as its parent lives."""


def collect(folder: str) -> Dict[str, RankStacks]:
    """Ask every rank of the newest attempt under a run's folder; the answers by rank, see docs/formats.md."""
    attempt = _newest_attempt(folder)
    ranks = _started(attempt) if attempt else []
    if not ranks:
        return {}
    from concurrent.futures import ThreadPoolExecutor  # a tenth of what a supervisor imports at its start

    with ThreadPoolExecutor(min(64, len(ranks))) as pool:
        answers = list(pool.map(lambda rank: _look(attempt, rank), ranks))
        if any(map(_may_wait_for_children, answers)):
            processes = table()
            list(pool.map(lambda rank, answer: _add_children(attempt, rank, answer, processes), ranks, answers))
    return {str(rank["rank"]): answer for rank, answer in zip(ranks, answers)}  # noqa: B905


def keep(folder: str, attempt: int, number: int) -> None:
    """Write the stacks of all ranks to stacks-<number>.json of the run's folder, in a thread: it takes seconds."""

    def work() -> None:
        try:
            found: Stacks = {"t": time.time(), "attempt": attempt, "ranks": collect(folder)}
            write_json(os.path.join(folder, "stacks-%d.json" % number), found)
        except OSError:
            pass  # the disk is full, which is reported elsewhere

    with contextlib.suppress(RuntimeError):  # this account has no thread left
        threading.Thread(target=work, daemon=True).start()


def _look(attempt: str, rank: Report) -> RankStacks:
    asked, silent = time.time(), _silent(attempt, rank)
    answer = _ask(attempt, rank)
    answer.update({"t": asked, "pid": rank["pid"] or 0, "silent": silent})
    answer.update(_at_step(attempt, rank, asked))
    if "threads" in answer or answer.get("text"):
        # A rank that answers late may hold the interpreter's lock, or run on an overloaded machine.
        time.sleep(_PAUSE)
        later = _ask(attempt, rank) if "threads" in answer else _signal(_printed(attempt, rank), rank)
        answer["moved"] = _moved(answer, later)
    return answer


def _silent(attempt: str, rank: Report) -> float:
    """Seconds since the rank last logged or wrote a metric."""
    last = float(rank["t"])
    for name in ("rank-%d.log", "rank-%d.metrics.jsonl"):
        try:
            last = max(last, os.stat(os.path.join(attempt, name % rank["rank"])).st_mtime)
        except OSError:
            continue
    return round(max(0.0, time.time() - last), 2)


def _at_step(attempt: str, rank: Report, now: float) -> RankStacks:
    """A rank's newest step, and since when it is there; empty if it has shown none."""
    path = os.path.join(attempt, "rank-%d.metrics.jsonl" % rank["rank"])
    marks = [(record.get("t"), record["step"]) for record in ends(path) if "step" in record]
    since = None
    for t, step in reversed(marks):
        if step != marks[-1][1] or not isinstance(t, (int, float)):
            break
        since = t
    newest = marks[-1][1] if marks else None
    if since is None or not isinstance(newest, (int, float)):
        return {}
    return {"step": newest, "stepped": round(max(0.0, now - since), 2)}


def _where(answer: RankStacks) -> List[Any]:
    """The functions of the main thread's stack, without line numbers: a waiting loop may change its line."""
    frames = [frame for thread in answer["threads"] if thread["main"] for frame in thread["frames"]]
    return [(frame["file"], frame["function"]) for frame in frames]


def _moved(first: RankStacks, later: RankStacks) -> bool:
    """Whether two samples of a rank differ; False if the second has no stack, as of a rank that has ended."""
    if "threads" in first and "threads" in later:
        return (_where(later), _entered(later)) != (_where(first), _entered(first))
    one, other = _innermost_first(first), _innermost_first(later)
    both = min(len(one), len(other))  # faulthandler also prints the frames below the script
    return one[:both] != other[:both]


def _innermost_first(answer: RankStacks) -> List[Any]:
    """The functions of the main thread's stack. faulthandler prints that thread last."""
    if "threads" in answer:
        return _where(answer)[::-1]
    return re.findall(
        r'File "([^"]*)", line [\d?]* in (.*)', (answer.get("text") or "").rpartition("Current thread")[2]
    )


def _entered(answer: RankStacks) -> Dict[str, object]:
    """How many collectives the rank has entered and left, by backend and process group."""
    return {backend: trace.get("pg_status") for backend, trace in answer["recorder"].items()}


def _newest_attempt(folder: str) -> str:
    """The newest attempt that has ranks: an attempt's folder exists before its ranks."""
    for number in attempts(folder):
        attempt = os.path.join(folder, "attempt-%d" % number)
        if os.path.exists(os.path.join(attempt, "ranks.jsonl")):
            return attempt
    return ""


def _started(attempt: str) -> List[Report]:
    ranks: Dict[int, Report] = {}
    tail = Tail(os.path.join(attempt, "ranks.jsonl"))
    while lines := tail.lines():
        for record in map(report, records(lines)):
            if record and record["e"] == "start":
                ranks[record["rank"]] = record
    return [ranks[number] for number in sorted(ranks)]


def _ask(attempt: str, rank: Report) -> RankStacks:
    process = read(rank["pid"] or 0)
    if process is None or process.dead or process.start != rank["start_time"]:
        return {"note": "the process has ended", "state": "ended"}
    if process.state in "Tt":
        return {"note": "the process is stopped by a signal (SIGSTOP) or a debugger", "state": "stopped"}
    if rank["door"]:
        try:
            return _query_stack_server(rank["door"])
        except (OSError, ValueError):
            pass
    return _signal(_printed(attempt, rank), rank)


def _printed(attempt: str, rank: Report) -> str:
    """The file to which faulthandler prints a rank's stacks."""
    return os.path.join(attempt, "rank-%d.stacks" % rank["rank"])


def _query_stack_server(address: str) -> RankStacks:
    deadline = time.monotonic() + _LIMIT
    data = b""
    with sockets.connect(address, _LIMIT) as visitor:
        while len(data) < (4 << 20):
            left = deadline - time.monotonic()
            if left <= 0:  # a script that listens there may send one byte at a time
                raise socket.timeout
            visitor.settimeout(left)
            part = visitor.recv(65536)
            if not part:
                break
            data += part
    try:
        answer: RankStacks = json.loads(data)
        _where(answer)
        _entered(answer)
    except (TypeError, KeyError, AttributeError, RecursionError):
        # Any script can listen and report its address as a rank's: a bad answer affects this rank only.
        raise ValueError("not an answer of a rank") from None
    return answer


def _signal(path: str, rank: Report) -> RankStacks:
    """Have faulthandler print the stacks to the rank's file, if its handler is still installed, and read them."""
    number, pid = rank["signal"], rank["pid"]
    if not number or not pid or number < signal.SIGRTMIN:  # the job may report any process, and a deadly signal
        return {"note": "this rank is not instrumented"}
    if not catches(pid, number):
        process = read(pid)
        if process is None or process.dead:
            return {"note": "the process has ended", "state": "ended"}
        why = "its program is ending, or handles the signal that prints stacks"
        return {"note": f"the rank does not answer: {why}"}
    try:
        before = os.stat(path).st_size
        os.kill(pid, number)
        text = _grown(path, before)
    except OSError as error:
        return {"note": "the rank does not answer: %s" % error}
    if not text:
        process = read(pid)
        if process is not None and process.state == "D":
            return {"note": "the rank is inside the kernel, waiting for a disk or a file server", "state": "kernel"}
        return {"note": "the rank answers neither its socket nor a signal: it may be stopped, or in the kernel"}
    note = (
        "the rank did not answer, perhaps since native code holds the interpreter's lock; this was printed by a signal"
    )
    return {"text": text, "note": note}


def _may_wait_for_children(answer: RankStacks) -> bool:
    """Whether a rank is stuck, but not in a collective, where it waits for other ranks."""
    inside = any("torch/distributed" in str(frame) for frame in _innermost_first(answer))
    return "state" not in answer and not answer.get("moved") and not inside


def _add_children(attempt: str, rank: Report, answer: RankStacks, processes: Dict[int, Proc]) -> None:
    if not rank["pid"] or not _may_wait_for_children(answer):
        return
    below = [(pid, command(pid)) for pid in sorted(descendants(processes, rank["pid"])) if not processes[pid].dead]
    chosen = [(pid, words) for pid, words in below if words and _TRACKER not in words][:_CHILDREN]
    deadline = time.monotonic() + 2 * _LIMIT
    found = [_look_at_child(_printed(attempt, rank), rank["signal"], *one, deadline) for one in chosen]
    if found:
        answer["children"] = found


def _look_at_child(path: str, number: Optional[int], pid: int, words: str, deadline: float) -> ChildStack:
    """The kernel's state of a child, and its stack if it was forked."""
    process = read(pid)
    waits_in = read_text("/proc/%d/wchan" % pid)
    states = {"R": "running", "D": "in the kernel, waiting for a device", "T": "stopped", "t": "stopped"}
    state = states.get(process.state, "asleep") if process else "ended"
    if state == "asleep" and waits_in not in ("", "0"):
        state += " in " + waits_in[:60]
    found: ChildStack = {"pid": pid, "command": words[:160], "note": state}
    if number and time.monotonic() < deadline and _writes_to(pid, path) and catches(pid, number):
        try:
            before = os.stat(path).st_size
            os.kill(pid, number)
            _, current, stack = _grown(path, before).rpartition("Current thread")
        except OSError:
            current = stack = ""
        if current:
            found["text"] = current + stack[:8192]
    return found


def _writes_to(pid: int, path: str) -> bool:
    """Whether a process still has the rank's stack file open: it was forked and runs no other program."""
    try:
        folder = "/proc/%d/fd" % pid
        return any(os.readlink(os.path.join(folder, fd)) == os.path.realpath(path) for fd in os.listdir(folder))
    except OSError:
        return False


def _grown(path: str, before: int) -> str:
    """Return what is appended to a file until it stops growing or two seconds have passed."""
    deadline = time.monotonic() + _LIMIT
    size = before
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = os.stat(path).st_size
        if now == size > before:
            break
        size = now
    with open_regular(path) as file:
        file.seek(before)
        return file.read(65536).decode("utf-8", "replace")
