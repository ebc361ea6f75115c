"""Runs torchrun, or `accelerate launch`, in this process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from .launcher import UnusableError, load, tell_end

if TYPE_CHECKING:
    from ...protocol.files import LauncherFailure

OLDEST_TORCH = (2, 0)


def prepare() -> Callable[[List[str], Optional[int]], None]:
    """Import torchrun; returns a function that runs it with arguments and a listening socket. Raises UnusableError."""
    torchrun = import_torchrun()

    def run(args: List[str], listener: Optional[int]) -> None:
        if listener is not None:
            _serve_at(listener)
        sys.argv = [torchrun.__file__, *args]
        report_end("torchrun", lambda: torchrun.main(args))

    return run


def _serve_at(number: int) -> None:
    """Make torchrun's store serve on an inherited listening socket, so that no other program can take its port.

    Otherwise (torch 2.0 does not support it, a wrapping command may have closed it) the store opens its own socket.
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


def import_torchrun() -> Any:
    """Import torch.distributed.run, with all that it imports later. Raises UnusableError."""
    version = getattr(load("torch"), "__version__", "of unknown version")
    try:
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
            raise UnusableError("torch %s in %s is too old: 2.0 or later is needed" % (version, sys.executable))
        from torch.distributed import run

        # torchrun itself imports these only after it has its start parameters.
        import torch.distributed.elastic.rendezvous.static_tcp_rendezvous  # noqa: F401  # isort: skip
    except (ValueError, ImportError, RuntimeError) as error:
        raise UnusableError("torch %s in %s has no torchrun: %s" % (version, sys.executable, error)) from None
    return run


def report_end(name: str, run: Callable[[], None]) -> None:
    """Run a launcher that uses torchrun's agent, and record how it ends. `name`: the launcher's name."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    failures = _note_failures()
    try:
        run()
    except ChildFailedError:
        tell_end(code=1, failures=failures)
        raise
    except SignalException as error:
        tell_end(code=1, signal=int(error.sigval), failures=failures)
        raise
    except SystemExit as error:
        # From argparse, which has already printed the reason to launcher.log.
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        tell_end(code=code, error="%s rejected its options" % name if code else None)
        raise
    except BaseException as error:
        tell_end(code=1, error="%s: %s" % (type(error).__name__, error), port_in_use=_port_in_use(error))
        raise
    tell_end(code=0)


def prepare_accelerate() -> Callable[[List[str], Optional[int]], None]:
    """Import `accelerate launch`: torchrun's agent runs several ranks, a single one is a plain child."""
    import_torchrun()
    launch = load("accelerate.commands.launch")

    def run(args: List[str], _listener: Optional[int]) -> None:
        sys.argv = [launch.__file__, *args]
        try:
            report_end("accelerate launch", lambda: _launch(launch, args))
        except subprocess.CalledProcessError as error:
            # Of a single process; failures of several ranks are recorded as torchrun finds them.
            failure: LauncherFailure = {"local_rank": 0, "pid": None, "code": error.returncode, "t": time.time()}
            tell_end(code=1, failures=[failure])
            raise SystemExit(1) from None

    return run


def _launch(launch: Any, args: List[str]) -> None:
    launch.launch_command(launch.launch_command_parser().parse_args(args))


def _note_failures() -> List[LauncherFailure]:
    """Write every failed rank to launcher.json as soon as torchrun finds it; returns the growing list of failures.

    torchrun itself reports only after it has ended its other ranks, up to 30 s later; if it is killed before that, its
    report is lost.
    """
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    failures: List[LauncherFailure] = []
    made = ProcessFailure.__post_init__

    def note(one: Any) -> None:
        made(one)
        failures.append({"local_rank": one.local_rank, "pid": one.pid, "code": one.exitcode, "t": time.time()})
        tell_end(code=1, failures=failures)

    ProcessFailure.__post_init__ = note
    return failures


def _port_in_use(error: Optional[BaseException]) -> bool:
    while error is not None:
        text = str(error)
        if "EADDRINUSE" in text or "address already in use" in text.lower():
            return True
        error = error.__cause__ or error.__context__
    return False
