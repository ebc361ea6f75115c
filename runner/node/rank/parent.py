"""Processes between a supervisor and its ranks: they end with their parent, and apply the profile's variables."""

from __future__ import annotations

import json
import os
import signal
import sys

VARIABLE = "DISTTUI_PARENT"
"""The pid of the parent, set for a child that must die with it. The child removes it from its environment."""

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel for a SIGTERM when the parent ends; exit immediately if it already has.

    The kernel watches the parent's thread that forked, so that must be a thread that stays alive: the main thread.
    """
    expected = os.environ.pop(VARIABLE, "")
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if expected and expected != str(os.getppid()):
        os._exit(128 + signal.SIGTERM)


PRELOAD = "DISTTUI_PRELOAD"
"""Modules that torchrun's launcher imports before it forks the ranks, separated by spaces; unset: it does not fork."""

WATCHED = "DISTTUI_WATCHED"
"""The pid of the supervisor, for a launcher that has another parent in its container."""


def die_with_supervisor() -> None:
    """Kill this process when the supervisor has ended; its ranks then get the kernel's SIGTERM."""
    pid = os.environ.pop(WATCHED, "")
    if not pid:
        return
    import threading
    import time

    try:
        seen = os.open("/proc/" + pid, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return  # `options` give the container its own process ids

    def watch() -> None:
        try:
            while True:
                os.stat("stat", dir_fd=seen)
                time.sleep(0.5)
        except OSError:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


OVERLAY = "DISTTUI_OVERLAY"
"""Environment variable that carries the profile's variables (JSON) past the activation line."""


def execute(command: list[str]) -> None:
    """Replace this process by `command`; exit with code 127 if it cannot be started.

    The profile's variables override those that the activation line has set.
    """
    environment = dict(os.environb)
    for name, value in json.loads(environment.pop(OVERLAY.encode(), b"{}")).items():
        environment[name.encode()] = value.encode("utf-8", "surrogateescape")
    try:
        os.execvpe(os.fsencode(command[0]), [os.fsencode(word) for word in command], environment)  # noqa: S606
    except OSError as error:
        print(f"disttui: cannot start {command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        sys.exit(127)
