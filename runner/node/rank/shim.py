"""The program that every rank starts as: `python -u node.zip shim kind value args…`. It becomes the user's script.

Only `sys` and `os` are imported before the user's folders are removed from sys.path: the shim must not import a file
of the user that is named like a standard module.
"""

from __future__ import annotations

import os
import sys
from typing import List, NoReturn, Sequence


def main(argv: Sequence[str], first: Sequence[str] = ()) -> int:
    """Prepare this rank, then run its script as the main program or replace this process by its command.

    Args:
        first: Arguments that the launcher adds before the script's own.
    """
    kind, value, args = argv[0], argv[1], [*first, *argv[2:]]
    path = _hide_user_modules()
    from ..problem import Problem
    from ..procs import read
    from .identity import Reports, adopt
    from .parent import die_with_parent

    die_with_parent()
    try:
        place = adopt(os.environ)
    except Problem as problem:
        _give_up(2, "%s\n  → %s" % (problem.what, problem.cure))
    folder = os.environ["DISTTUI_DIR"]
    base = os.path.join(folder, "rank-%d" % place.rank)
    _redirect(base + ".log")
    _be_first_to_go()
    os.environ["DISTTUI_METRICS"] = base + ".metrics.jsonl"
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    reports = Reports(folder, place)
    process = read(os.getpid())
    start = {
        "world_size": place.world_size,
        "python": sys.executable,
        "start_time": process.start if process else None,
        "door": None,
        "signal": None,
    }
    if kind == "command" or os.environ.get("DISTTUI_INSTRUMENT") == "0":
        reports.say("start", **start)
        sys.path[:] = path
        _execute(kind, value, args)
    from .. import sockets
    from . import run_main, stack_server

    start["signal"] = stack_server.open_signal(base + ".stacks")
    door = stack_server.open_socket()
    if door is not None:
        start["door"] = sockets.address_of(door)
    reports.say("start", **start)
    if door is not None:
        stack_server.serve(door, reports)
    sys.path[:] = path
    run_main.become(kind, value, args, reports)
    return 0


def _hide_user_modules() -> List[str]:
    """Remove the zip from sys.path for good, and PYTHONPATH for now; returns the path to restore later."""
    path = sys.path[1:]
    theirs = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:] = [entry for entry in path if entry not in theirs]
    return path


def _redirect(log: str) -> None:
    """Redirect both output streams to the rank's log; if it cannot be opened they remain unchanged."""
    from ...protocol.regular import regular

    try:
        file = regular(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.set_blocking(file, True)  # as it would be without disttui
        if os.fstatvfs(file).f_bavail == 0:
            raise OSError("no space left on the disk")
    except OSError as error:
        sys.stderr.write("disttui: cannot write %s, so its output is here: %s\n" % (log, error))
        return
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _be_first_to_go() -> None:
    """Make the out-of-memory killer prefer this rank to the supervisor."""
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
            file.write(str(min(1000, int(file.read()) + 500)))
    except (OSError, ValueError):
        pass


def _execute(kind: str, value: str, args: List[str]) -> NoReturn:
    command = [value, *args]
    if kind != "command":
        command = [sys.executable, "-u", *(["-m"] if kind == "module" else []), *command]
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        code, why = 127 if isinstance(error, FileNotFoundError) else 126, error.strerror or ""
        if code == 126 and os.path.isfile(value) and os.statvfs(value).f_flag & getattr(os, "ST_NOEXEC", 0):
            why += " (its disk is mounted noexec)"
        _give_up(code, "%s: %s" % (command[0], why))


def _give_up(code: int, text: str) -> NoReturn:
    sys.stderr.write("disttui: %s\n" % text)
    os._exit(code)
