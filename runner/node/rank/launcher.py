"""Prepares a launcher early, starts it on one line on standard input, and writes its end to launcher.json.

Runs in the job's own interpreter as `python node.zip <launcher> <options> <node.zip> shim kind value args…`. Importing
torch takes a second or two; this happens while the hosts connect. See docs/formats.md, "The launcher".
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from typing import Sequence

from .ends import UnusableError, place, tell_end
from .parent import VARIABLE, die_with_parent

_MODULES = {
    "torchrun": "by_torchrun",
    "accelerate-launch": "by_accelerate",
    "mpirun": "by_mpirun",
    "mpirun-per-host": "by_mpirun",
    "deepspeed": "by_deepspeed",
}


def main(part: str, argv: Sequence[str]) -> None:
    """Prepare the launcher, wait for the start line, run it, write launcher.json."""
    die_with_parent()
    # A tenth of torch's import time is garbage collection among objects that live on.
    gc.disable()
    try:
        run = importlib.import_module("." + _MODULES[part], __package__).prepare()
    except UnusableError as problem:
        tell_end(code=1, error=str(problem))
        sys.stderr.write("disttui: %s\n" % problem)
        raise SystemExit(1) from None
    gc.enable()
    torch = sys.modules.get("torch")
    place("launcher.ready", {"t": time.time(), "torch": getattr(torch, "__version__", None)})
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return
    order = json.loads(line)
    # Ranks inherit this descriptor, and must not hold the supervisor's pipe open.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.environ.update(order.get("env", {}))
    os.environ[VARIABLE] = str(os.getpid())
    run([*order["args"], *argv], order.get("listener"))
