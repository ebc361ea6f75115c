"""Which /24 a cluster uses: a lock file per subnet, so that test sessions beside each other do not collide."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

# Not under /tmp, which every host has for itself: the SSH configuration must be readable inside the hosts, too.
_ROOT = Path("/var/tmp/disttui-cluster")


class Slot:
    """The subnet 10.77.`number`.0/24 and the folder of one cluster, held until closed or until this process ends."""

    def __init__(self, number: int, lock: int) -> None:
        self.number = number
        self.folder = _folder(number)
        self._lock = lock

    def close(self) -> None:
        """Remove the folder and let go of the subnet."""
        _sweep(self.number)
        _lock_file(self.number).unlink(missing_ok=True)
        os.close(self._lock)


def take() -> Slot:
    """Take a free subnet, and clear away what test sessions that died have left in any."""
    _ROOT.mkdir(mode=0o755, exist_ok=True)
    for leftover in _ROOT.glob("*.lock"):
        _clear(int(leftover.stem))
    start = os.getpid() % 250
    for step in range(250):
        number = 1 + (start + step) % 250
        lock = _try_lock(number)
        if lock is not None:
            _sweep(number)
            _folder(number).mkdir(mode=0o755)
            return Slot(number, lock)
    raise RuntimeError(f"all 250 test subnets are taken: see {_ROOT}")


def viewer_link(number: int) -> str:
    """Return the name of the machine's own interface into the cluster."""
    return f"dtui{number}"


def _clear(number: int) -> None:
    lock = _try_lock(number)
    if lock is not None:
        Slot(number, lock).close()


def _folder(number: int) -> Path:
    return _ROOT / str(number)


def _lock_file(number: int) -> Path:
    return _ROOT / f"{number}.lock"


def _try_lock(number: int) -> int | None:
    path = _lock_file(number)
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its last owner may have removed the file between the two calls: then somebody else can hold the new one.
        if path.exists() and os.fstat(lock).st_ino == path.stat().st_ino:
            return lock
    except BlockingIOError:
        pass
    os.close(lock)
    return None


def _sweep(number: int) -> None:
    # A cluster's processes and mounts end with its owner by themselves; only the folder is left, and for an
    # instant the interface, while the kernel takes the namespaces apart.
    if Path(f"/sys/class/net/{viewer_link(number)}").exists():
        subprocess.run(["ip", "link", "del", viewer_link(number)], check=False, capture_output=True)
    shutil.rmtree(_folder(number), ignore_errors=True)
