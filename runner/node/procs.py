"""Processes of this host: identity, parents, and run tags."""

from __future__ import annotations

import functools
import os
import signal
import sys
from typing import Any, Container, Iterator, Mapping, NamedTuple, TypedDict

TAG = "DISTTUI_TAG"
_EXITING = 4  # PF_EXITING of linux/sched.h
_WORDS, _ENVIRONMENT, _LONGEST = 16 << 10, 8 << 20, 4096
"""Bytes to read of a process's arguments and environment, and of a variable's value: any user's process can claim
terabytes of both, and the kernel starts none with an environment of more than 6 MiB."""


class Proc(NamedTuple):
    """One row of the process table. `start` in clock ticks since boot, `status` as waitpid gives it."""

    pid: int
    ppid: int
    session: int
    state: str
    start: int
    status: int
    threads: int
    flags: int

    @property
    def dead(self) -> bool:
        """Whether it is a zombie whose threads have all ended."""
        # While other threads still end, memory and ports are held, and the parent gets no SIGCHLD.
        return self.state in "ZX" and self.threads < 2

    @property
    def dying(self) -> bool:
        """Whether it is dead, or the kernel is still releasing its resources: those of a GPU driver take time."""
        return self.state in "ZX" or bool(self.flags & _EXITING)


def exit_code(status: int) -> int:
    """The exit code in a status as waitpid gives it, negative for a signal."""
    return -(status & 0x7F) if status & 0x7F else status >> 8


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 35` for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read(pid: int) -> Proc | None:
    """Look up one process; None if it does not exist."""
    if not os.path.exists("/proc/self/stat"):
        return _ps().get(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything, further parentheses and spaces included.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) < 50:
        return None
    numbers = [int(fields[index]) for index in (1, 3, 19, 49, 17, 6)]
    return Proc(pid, numbers[0], numbers[1], fields[0].decode(), *numbers[2:])


def table() -> dict[int, Proc]:
    """Read the whole process table."""
    if not os.path.exists("/proc/self/stat"):
        return _ps()
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            proc = read(int(name))
            if proc:
                found[proc.pid] = proc
    return found


def newer(known: Container[int]) -> Iterator[Proc]:
    """Look up the processes that are not `known`, the newest first."""
    if os.path.exists("/proc/self/stat"):
        for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
            proc = None if pid in known else read(pid)
            if proc:
                yield proc


def descendants(procs: dict[int, Proc], root: int) -> set[int]:
    """The pids of all processes below `root` in the process tree."""
    children: dict[int, list[int]] = {}
    for proc in procs.values():
        children.setdefault(proc.ppid, []).append(proc.pid)
    found: set[int] = set()
    todo = [root]
    while todo:
        new = [pid for pid in children.get(todo.pop(), []) if pid not in found and pid != root]
        found.update(new)
        todo.extend(new)
    return found


def tag(pid: int) -> str:
    """The run tag in a process's environment; "" if it has none or may not be read."""
    return variables(pid, TAG)[0]


def variables(pid: int, *names: str) -> list[str]:
    """Variables of the environment that a process was started with; "" for each that is unset or may not be read."""
    data = b"\0%b\0" % _environment(pid)
    found = []
    for name in names:
        _, equals, rest = data.partition(b"\0%b=" % name.encode())
        end = rest.find(b"\0", 0, _LONGEST + 1) if equals else 0
        found.append(os.fsdecode(rest[: max(0, end)]))
    return found


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty if it may not be read."""
    pairs = (os.fsdecode(item).partition("=") for item in _environment(pid).split(b"\0") if item)
    return {name: value for name, _, value in pairs}


def _environment(pid: int) -> bytes:
    return _read(pid, "environ", _ENVIRONMENT)


def _read(pid: int, name: str, most: int) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(most)
    except OSError:
        return b""


def has_mapped(pid: int, name: bytes) -> bool:
    """Whether a process has mapped a file whose path contains `name`."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return any(name in line for line in file)
    except OSError:
        return False


def owner(pid: int) -> int | None:
    """The uid that a process runs as, None if it has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def owner_name(pid: int) -> str:
    """The login that a process runs as; `?` if it is not visible here, as in another PID namespace."""
    from .folders import user_name  # a warden does not need it

    uid = owner(pid)
    return "?" if uid is None else user_name(uid)


def tagged(procs: dict[int, Proc], run: str, node: int) -> set[int]:
    """This user's processes with the tag of this run and node, of any attempt: other users could forge tags."""
    prefix = f"{run}/{node}/"
    return {pid for pid in procs if owner(pid) == os.getuid() and tag(pid).startswith(prefix)}


def command(pid: int) -> str:
    """The command line of a process in readable form; "" if it has ended."""
    return " ".join(arguments(pid)).strip()[:4096].encode("utf-8", "replace").decode()


def arguments(pid: int) -> list[str]:
    """The arguments of a process as a list, since paths may contain spaces; [""] if it has ended."""
    return os.fsdecode(_read(pid, "cmdline", _WORDS)).rstrip("\0").split("\0")


@functools.lru_cache(maxsize=None)
def boot_id() -> str:
    """The id of this boot of this machine; "" if the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


@functools.lru_cache(maxsize=None)
def pid_namespace() -> str:
    """The id of our PID namespace; "" if the system has no namespaces."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


class ProcessIdentity(TypedDict):
    """Distinguishes a process from a later one with the same pid."""

    pid: int
    start_time: int | None
    boot_id: str
    pid_namespace: str


def identity(pid: int) -> ProcessIdentity:
    """Return what distinguishes this process from a later one with the same pid."""
    proc = read(pid)
    return {
        "pid": pid,
        "start_time": proc.start if proc else None,
        "boot_id": boot_id(),
        "pid_namespace": pid_namespace(),
    }


def alive(who: Any) -> bool:
    """Whether the process of an `identity` still runs on this host in this boot; False if the value is invalid."""
    if not isinstance(who, dict) or not isinstance(who.get("pid"), int):
        return False
    if (who.get("boot_id"), who.get("pid_namespace")) != (boot_id(), pid_namespace()):
        return False
    proc = read(who["pid"])
    return proc is not None and not proc.dead and proc.start == who.get("start_time")


def elsewhere(who: Mapping[str, object]) -> bool:
    """Whether an `identity` with a `hostname` is of another machine, or of another container of this one."""
    if who.get("boot_id") == boot_id():
        return bool(who.get("pid_namespace", pid_namespace()) != pid_namespace())
    here = os.uname().nodename
    return bool(who.get("hostname", here) != here)  # otherwise of an earlier boot


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal; False if that is unknown."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next((int(line.split()[1], 16) for line in file if line.startswith(b"SigCgt:")), 0)
    except OSError:
        return False
    return bool(caught >> (number - 1) & 1)


def pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when `pid` ends; None if the kernel has no pidfds or the process has ended."""
    try:
        if hasattr(os, "pidfd_open"):  # novm
            return int(os.pidfd_open(pid))  # novm
        if sys.platform == "linux":
            import ctypes

            fd = ctypes.CDLL(None).syscall(434, pid, 0)  # pidfd_open has this number on every architecture
            if fd >= 0:
                os.set_inheritable(fd, False)
                return int(fd)
    except OSError:
        pass
    return None


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _ps() -> dict[int, Proc]:
    """The process table without /proc (macOS): process groups serve as sessions, and start times are missing."""
    import subprocess

    text = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,pgid=,stat="], stdout=subprocess.PIPE, text=True, check=False
    ).stdout
    rows = [line.split() for line in text.splitlines()]
    return {int(r[0]): Proc(int(r[0]), int(r[1]), int(r[2]), r[3][0], 0, 0, 1, 0) for r in rows if len(r) == 4}
