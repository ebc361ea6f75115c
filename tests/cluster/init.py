"""PID 1 of a test host: makes its mounts, starts sshd, reaps, and ends when its standard input closes.

Started by host.py inside fresh namespaces with the path of a JSON file. It answers each line that it is sent:
first its pid as seen outside, then "up" once the network was plugged in and sshd listens, "sshd" after a restart.
The end of standard input ends this process, and with PID 1 the kernel ends every process of the host.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MS_BIND, MS_MOVE, MS_REC = 0x1000, 0x2000, 0x4000
_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


def _mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [None if word is None else word.encode() for word in (source, target, kind, data)]
    if libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]) != 0:
        raise OSError(ctypes.get_errno(), f"mount {source} on {target}")


def _private_folders(config: dict[str, Any]) -> None:
    """Hide the machine's folders that a host has for itself, but for the paths to keep (the interpreter's)."""
    kept = [(os.open(path, os.O_PATH), path) for path in config["keep"]]
    for folder, mode in (("/tmp", "1777"), ("/run", "755"), ("/dev/shm", "1777"), ("/home", "755")):
        _mount("tmpfs", folder, "tmpfs", data=f"mode={mode}")
    _mount(config["home"], "/root", flags=MS_BIND)
    _mount("proc", "/proc", "proc")
    for fd, path in kept:
        Path(path).mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{fd}", path, flags=MS_BIND | MS_REC)
        os.close(fd)
    Path("/run/sshd").mkdir()


def _own_sysfs() -> None:
    """Show this host's interfaces in /sys/class/net, and the machine's cgroups where they were."""
    spare = Path("/run/cgroup")
    spare.mkdir()
    _mount("/sys/fs/cgroup", str(spare), flags=MS_BIND | MS_REC)
    _mount("sysfs", "/sys", "sysfs")
    _mount(str(spare), "/sys/fs/cgroup", flags=MS_MOVE)
    spare.rmdir()


def _start_sshd(command: list[str]) -> int:
    pid = os.posix_spawn(command[0], command, _ENV, file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)])
    while not _listening(22):
        os.kill(pid, 0)
        time.sleep(0.005)
    return pid


def _listening(port: int) -> bool:
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    return any(line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}") for line in lines)


def _stop(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
        while True:
            os.kill(pid, 0)
            time.sleep(0.005)
    except ProcessLookupError:
        return


def _reap(*_: object) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main(config: dict[str, Any]) -> None:
    """Become the host's init."""
    outside = Path("/proc/self").readlink()
    socket.sethostname(config["name"])
    _private_folders(config)
    _own_sysfs()
    for source, target in config["binds"]:
        _mount(source, target, flags=MS_BIND)
    for user, home in config["homes"]:
        Path(home).mkdir()
        os.chown(home, user, user)
    print(outside, flush=True)

    sys.stdin.readline()
    subprocess.run(["ip", "-batch", "-"], input=config["link"], text=True, check=True, env=_ENV)
    signal.signal(signal.SIGCHLD, _reap)
    sshd = _start_sshd(config["sshd"])
    print("up", flush=True)
    while sys.stdin.readline():
        _stop(sshd)
        sshd = _start_sshd(config["sshd"])
        print("sshd", flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
