"""Two ways to read a rank's stacks while its code runs.

The first is a thread on a UNIX socket: it answers processes of the same user with the stacks of all threads
and the flight recorder. The second is faulthandler on a real-time signal, for a rank that holds the interpreter's lock.
"""

from __future__ import annotations

import _thread
import faulthandler
import fcntl
import json
import linecache
import os
import signal
import socket
import sys
import time
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional

from ...protocol.regular import regular
from .. import sockets
from .identity import Reports

if TYPE_CHECKING:
    from ...protocol.files import FlightRecorder, StackFrame, Thread

_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LOOK_EVERY = 0.5
"""Seconds between two checks whether the process group is up."""
_GROUPED: "List[Reports]" = []
"""Reports through which this process has announced its process group."""
_DESTROYED: "List[Reports]" = []
"""Reports through which it has announced a group that it destroyed before it was seen."""


def open_signal(path: str) -> Optional[int]:
    """Make a real-time signal print all stacks to our file; returns its number, None if that is not possible."""
    faulthandler.enable()
    if sys.platform != "linux":
        return None
    number = int(signal.SIGRTMIN) + 9
    try:
        file = regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        # A high descriptor: a script may expect low numbers for its own files, and close descriptors it does not know.
        high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 200)
        os.close(file)
        faulthandler.register(number, file=high, all_threads=True)
    except OSError:
        return None
    return number


def open_socket() -> Optional[socket.socket]:
    """Listen on a new socket; None if none can be created."""
    try:
        door = sockets.listen()
    except OSError:
        return None
    # A forked DataLoader worker would keep the name in use after this process has ended.
    os.register_at_fork(after_in_child=door.close)
    return door


def serve(door: socket.socket, reports: Reports) -> None:
    """Start the thread that answers requests, and reports once when the process group is up.

    It is started by `_thread`, not by threading, so that it does not appear in the script's `threading.enumerate()`.
    """
    _thread.start_new_thread(_serve, (door, reports))


def _serve(door: socket.socket, reports: Reports) -> None:
    door.settimeout(_LOOK_EVERY)
    while True:
        try:
            if tell_group(reports):
                door.settimeout(None)
            visitor, _ = door.accept()
            with visitor:
                visitor.settimeout(2)
                if sockets.same_user(visitor):
                    visitor.sendall(json.dumps({"threads": _threads(), "recorder": _recorder()}).encode())
        except socket.timeout:
            continue
        except Exception:
            # Print nothing to the script's output, and avoid a busy loop.
            time.sleep(_LOOK_EVERY)


def tell_group(reports: Reports) -> bool:
    """Check, without any import, whether torch.distributed is initialised; True once that has been reported."""
    if reports in _GROUPED:
        return True
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or getattr(getattr(distributed, "__spec__", None), "_initializing", False):
        return False
    if not distributed.is_available():
        return False
    if not distributed.is_initialized():
        # torch keeps this when a group is destroyed.
        core = sys.modules.get("torch.distributed.distributed_c10d")
        if getattr(core, "_default_pg_init_method", None) is not None and reports not in _DESTROYED:
            _DESTROYED.append(reports)
            reports.say("grouped")
        return False
    _GROUPED.append(reports)
    reports.say("group", world_size=distributed.get_world_size(), backend=str(distributed.get_backend()))
    return True


class _Place(NamedTuple):
    """The position of a frame, copied because the frame keeps running."""

    code: CodeType
    line: int
    module: Dict[str, object]
    """The frame's globals, through which linecache finds sources in archives."""


def _threads() -> list[Thread]:
    """The stacks of all Python threads except this one. Takes no lock of threading."""
    threading: Any = sys.modules.get("threading")
    known = dict(threading._active) if threading else {}
    main = threading.main_thread().ident if threading else None
    here = _thread.get_ident()
    # Copy all stacks first: while files are read for source lines, the threads continue, and a frame that has ended
    # no longer has a caller.
    stacks = [(ident, _walk(frame)) for ident, frame in sys._current_frames().items() if ident != here]
    threads: list[Thread] = []
    for ident, places in stacks:
        thread = known.get(ident)
        name = thread.name if thread else "MainThread" if len(known) == 0 else "thread %d" % ident
        threads.append({"name": name, "main": ident == main or main is None, "frames": list(map(_frame, places))})
    return threads


def _walk(frame: Optional[FrameType]) -> list[_Place]:
    """The innermost frames, innermost last, without the shim's own outermost ones."""
    places: list[_Place] = []
    while frame is not None and len(places) < 100 and not frame.f_code.co_filename.startswith(_OURS):
        places.append(_Place(frame.f_code, frame.f_lineno, frame.f_globals))
        frame = frame.f_back
    return places[::-1]


def _frame(place: _Place) -> StackFrame:
    file = place.code.co_filename
    text = linecache.getline(file, place.line, place.module).strip()
    return {"file": file, "line": place.line, "function": place.code.co_name, "text": text[:200]}


def _recorder() -> Dict[str, FlightRecorder]:
    """The content of torch's flight recorder by backend: the state of every process group and the last collectives."""
    bindings = sys.modules.get("torch._C._distributed_c10d")
    found: Dict[str, FlightRecorder] = {}
    for backend, function in (("gloo", "_dump_fr_trace_json"), ("nccl", "_dump_nccl_trace_json")):
        dump = getattr(bindings, function, None)
        if dump is None:
            continue
        trace = json.loads(dump())
        if trace.get("entries") or trace.get("pg_status"):
            every = trace.get("entries", [])
            # The newest of each process group names it, also where only others were used lately.
            newest = {one.get("pg_id"): one for one in every[:-32]}
            entries = [*list(newest.values())[-32:], *every[-32:]]
            found[backend] = {"pg_status": trace.get("pg_status", {}), "entries": entries}
    return found
