"""Prepares a launcher early, starts it on a line from standard input, and writes its end to launcher.json.

Runs in the job's own interpreter as `python node.zip <launcher> <options> <node.zip> shim kind value args…`. Importing
torch takes a second or two; this happens while the hosts connect. See docs/formats.md, "The launcher".
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

from .parent import PRELOAD, VARIABLE, die_with_parent, die_with_supervisor

if TYPE_CHECKING:
    from ...protocol.files import LauncherFailure

_MODULES = {
    "torchrun": ("by_torchrun", "prepare"),
    "accelerate-launch": ("by_torchrun", "prepare_accelerate"),
    "mpirun": ("by_mpirun", "prepare"),
    "mpirun-per-host": ("by_mpirun", "prepare"),
    "deepspeed": ("by_deepspeed", "prepare"),
}


def main(part: str, argv: Sequence[str]) -> None:
    """Prepare the launcher, wait for the start line, run it, write launcher.json."""
    die_with_parent()
    die_with_supervisor()
    # A tenth of torch's import time is garbage collection among long-lived objects.
    gc.disable()
    try:
        preload = os.environ.pop(PRELOAD, "").split()
        if preload and sys.platform == "linux":
            from . import forked, shim

            rank = forked.prepare(preload, argv)
            if rank:
                gc.enable()
                shim.main(rank)
                return
        module, prepare = _MODULES[part]
        run = getattr(importlib.import_module("." + module, __package__), prepare)()
    except UnusableError as problem:
        tell_end(code=1, error=str(problem))
        sys.stderr.write("disttui: %s\n" % problem)
        raise SystemExit(1) from None
    gc.enable()
    torch = sys.modules.get("torch")
    place("launcher.ready", {"t": time.time(), "pid": os.getpid(), "torch": getattr(torch, "__version__", None)})
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        raise SystemExit("disttui: no start line arrived")
    order = json.loads(line)
    # Ranks inherit this descriptor, and must not hold the supervisor's pipe open.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.environ.update(order.get("env", {}))
    os.environ[VARIABLE] = str(os.getpid())
    run([*order["args"], *argv], order.get("listener"))


class UnusableError(Exception):
    """This host or this interpreter cannot run the launcher."""


def load(module: str) -> Any:
    """Import a launcher's module. Raises UnusableError."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise UnusableError("no %s in %s" % (package, sys.executable)) from None
        raise UnusableError("%s in %s cannot be imported: %s" % (package, sys.executable, error)) from None


def tell_end(
    code: int,
    error: Optional[str] = None,
    signal: Optional[int] = None,
    port_in_use: bool = False,
    failures: Sequence[LauncherFailure] = (),
) -> None:
    """Write launcher.json: `code` with the failed ranks, `error` if no rank is to blame, `signal` that ended it."""
    place(
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


def place(name: str, record: Mapping[str, object]) -> None:
    """Write a file of the attempt's folder by an atomic rename."""
    path = os.path.join(os.environ["DISTTUI_DIR"], name)
    part = "%s.%d" % (path, os.getpid())
    try:
        # The job may have put a pipe there, and opening it would block forever.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.rename(part, path)
    except OSError as error:
        remove_parts(os.environ["DISTTUI_DIR"], name)
        # A full disk must not take the exit code with it.
        sys.stderr.write("disttui: cannot write %s: %s\n" % (path, error))


def remove_parts(folder: str, name: str) -> None:
    """Remove what `place` has left if its process was killed, or the disk was full."""
    try:
        for entry in os.listdir(folder):
            if entry.startswith(name + ".") and entry[len(name) + 1 :].isdigit():
                os.unlink(os.path.join(folder, entry))
    except OSError:
        pass  # it is removed with the run's folder
