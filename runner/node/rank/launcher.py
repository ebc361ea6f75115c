"""Imports torchrun early, starts it on one line on standard input, and writes its end to launcher.json.

Runs in the job's own interpreter as `python node.zip torchrun <options> <node.zip> shim kind value args…`. Importing
torch takes a second or two; this happens while the hosts connect. See docs/formats.md, "The launcher".
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
from typing import Any, Dict, List, Optional, Sequence

from .parent import VARIABLE, die_with_parent

OLDEST_TORCH = (2, 0)


def main(argv: Sequence[str]) -> int:
    """Import torchrun, wait for the start line, run torchrun, write launcher.json. Returns torchrun's exit code."""
    die_with_parent()
    # A tenth of torch's import time is garbage collection among objects that live on.
    gc.disable()
    try:
        run = _import_torchrun()
    except _UnusableError as problem:
        _tell_end(code=1, error=str(problem))
        sys.stderr.write("disttui: %s\n" % problem)
        raise SystemExit(1) from None
    gc.enable()
    _place("launcher.ready", {"t": time.time(), "torch": sys.modules["torch"].__version__})
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0
    order = json.loads(line)
    # Ranks inherit this descriptor, and must not hold the supervisor's pipe open.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.environ.update(order.get("env", {}))
    os.environ[VARIABLE] = str(os.getpid())
    if "listener" in order:
        _serve_at(order["listener"])
    _be_torchrun(run, [*order["args"], *argv])
    return 0


def _serve_at(number: int) -> None:
    """Have torchrun's store serve on an inherited listening socket, so that no other program can take its port.

    Without it (torch 2.0 has no support, a wrapping command may have closed it) the store listens by itself.
    """
    import array

    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

    make = static_tcp_rendezvous.TCPStore
    try:
        with socket.socket(fileno=number) as way:
            if "master_listen_fd" not in (make.__init__.__doc__ or ""):
                return
            flags = socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
            numbers = array.array("i")
            _, [(_, _, data)], _, _ = way.recvmsg(1, socket.CMSG_SPACE(numbers.itemsize), flags)
            numbers.frombytes(data[: numbers.itemsize])
    except (OSError, ValueError):
        return
    os.set_inheritable(numbers[0], False)

    def make_at(host: str, port: int, world_size: int, is_master: bool, *rest: Any, **more: Any) -> Any:
        if is_master and numbers:
            more["master_listen_fd"] = numbers.pop()
        try:
            return make(host, port, world_size, is_master, *rest, **more)
        except NotImplementedError:
            # The libuv server of torch 2.4 and some later versions.
            return make(host, port, world_size, is_master, *rest, use_libuv=False, **more)

    static_tcp_rendezvous.TCPStore = make_at


class _UnusableError(Exception):
    """This interpreter cannot run torchrun."""


def _import_torchrun() -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise _UnusableError("no torch in %s" % sys.executable) from None
        raise _UnusableError("torch in %s cannot be imported: %s" % (sys.executable, error)) from None
    except Exception as error:
        raise _UnusableError("torch in %s cannot be imported: %s" % (sys.executable, error)) from None
    version = getattr(torch, "__version__", "of unknown version")
    try:
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
            raise _UnusableError("torch %s in %s is too old: 2.0 or later is needed" % (version, sys.executable))
        from torch.distributed import run

        # torchrun itself imports these only after it has its start parameters.
        import torch.distributed.elastic.rendezvous.static_tcp_rendezvous  # isort: skip
    except (ValueError, ImportError, RuntimeError) as error:
        raise _UnusableError("torch %s in %s has no torchrun: %s" % (version, sys.executable, error)) from None
    return run


def _be_torchrun(run: Any, args: List[str]) -> None:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    sys.argv = [run.__file__, *args]
    failures = _note_failures()
    try:
        run.main(args)
    except ChildFailedError:
        _tell_end(code=1, failures=failures)
        raise
    except SignalException as error:
        _tell_end(code=1, signal=int(error.sigval), failures=failures)
        raise
    except SystemExit as error:
        # argparse's: it has already said why, in launcher.log.
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        _tell_end(code=code, error="torchrun refused its options" if code else None)
        raise
    except BaseException as error:
        _tell_end(code=1, error="%s: %s" % (type(error).__name__, error), port_in_use=_port_in_use(error))
        raise
    _tell_end(code=0)


def _note_failures() -> List[Dict[str, Any]]:
    """Write every failed rank to launcher.json as soon as torchrun finds it; returns the growing list of failures.

    torchrun itself reports only after it has ended its other ranks, up to 30 s later; if it is killed meanwhile, its
    report is lost.
    """
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    failures: List[Dict[str, Any]] = []
    made = ProcessFailure.__post_init__

    def note(one: Any) -> None:
        made(one)
        failures.append({"local_rank": one.local_rank, "pid": one.pid, "code": one.exitcode, "t": time.time()})
        _tell_end(code=1, failures=failures)

    ProcessFailure.__post_init__ = note
    return failures


def _port_in_use(error: Optional[BaseException]) -> bool:
    while error is not None:
        text = str(error)
        if "EADDRINUSE" in text or "address already in use" in text.lower():
            return True
        error = error.__cause__ or error.__context__
    return False


def _tell_end(
    code: int,
    error: Optional[str] = None,
    signal: Optional[int] = None,
    port_in_use: bool = False,
    failures: Sequence[Dict[str, Any]] = (),
) -> None:
    _place(
        "launcher.json",
        {
            "t": time.time(),
            "code": code,
            "error": error,
            "signal": signal,
            "port_in_use": port_in_use,
            "failures": failures,
        },
    )


def _place(name: str, record: Dict[str, Any]) -> None:
    """Write a file of the attempt's folder, by an atomic rename."""
    path = os.path.join(os.environ["DISTTUI_DIR"], name)
    part = "%s.%d" % (path, os.getpid())
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.rename(part, path)
    except OSError as error:
        # A full disk must not take the exit code with it.
        sys.stderr.write("disttui: cannot write %s: %s\n" % (path, error))
