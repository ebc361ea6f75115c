"""Processes of runs that have ended or lost their supervisors: found by tag, never by name, and killed on request.

Only processes of this machine are judged. A run folder shows nothing about processes elsewhere: it may be on a disk
that many hosts share, or belong to a container whose processes are not visible here.
"""

from __future__ import annotations

import glob
import json
import os
import re
import stat
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ...protocol.limits import MOST_ORPHANS
from ...protocol.names import RUN
from .. import ports, procs
from ..disk import read_text
from ..folders import foreign
from ..probe.gpu import has_device
from ..problem import Problem
from ..supervise import stop
from ..system import system
from ..telemetry.sampling import UNTAGGED, noted

if TYPE_CHECKING:
    from ...protocol.requests import Orphan

_NUMBER = re.compile(r"[0-9]{1,9}")
_SMALL = 64 * 1024
_COMMAND, _PORTS = 200, 50
"""Limits per process: characters of its command, and number of its ports."""


class _Member(NamedTuple):
    """The run of a process: the parts of its tag, and the run's folder on this host."""

    run: str
    node: int
    attempt: int
    folder: str
    uid: int
    """The owner's uid: the tag is valid only for processes and folders of that user."""


def orphans(end: bool = False, run: str = "", run_dirs: Sequence[str] = ()) -> List[Orphan]:
    """Return the `found` of the op `orphans` (docs/formats.md), for all users whose processes we may examine.

    Args:
        end: Kill them; `ended` of a row says whether the process is gone.
        run: Only runs whose id begins with this.
        run_dirs: Folders of runs whose processes may have cleared their environment.
    """
    table = {pid: proc for pid, proc in procs.table().items() if not proc.dead and pid != os.getpid()}
    own = _member(1)
    found: Dict[int, Tuple[_Member, str]] = {}
    members = {pid: member for pid, member in ((pid, _member(pid)) for pid in table) if member is not None}
    kept = _kept(table, {os.getuid(), *(member.uid for member in members.values())})
    for pid, member in members.items():
        if (member.uid, member.folder) in kept or not member.run.startswith(run):
            continue
        if own is None or own[:2] != member[:2]:  # otherwise we run in the job's own container
            why = _why(pid, member)
            if why:
                found[pid] = (member, why)
    for pid, member in _untagged(run_dirs).items():
        why = _why(pid, member) if pid in table and member.run.startswith(run) else ""
        if why and (member.uid, member.folder) not in kept:
            found.setdefault(pid, (member, why))
    memory = _gpu_memory() if found and has_device() else {}
    listeners = _Listeners()
    listed = sorted(found, key=lambda pid: found[pid][0].uid != os.getuid())[:MOST_ORPHANS]
    rows = [_row(table[pid], *found[pid], memory.get(pid), listeners) for pid in listed]
    if end:
        _end({member._replace(attempt=0) for member, _ in found.values()})
        for row in rows:
            now = procs.read(row["pid"])
            row["ended"] = now is None or now.dead or now.start != table[row["pid"]].start
    return sorted(rows, key=lambda row: (row["run"], row["node_rank"], row["pid"]))


def _member(pid: int) -> Optional[_Member]:
    """The run of a process, None if it has no tag or an unreadable environment."""
    tag, folder = procs.variables(pid, procs.TAG, "DISTTUI_DIR")
    run, _, rest = tag.partition("/")
    node, _, attempt = rest.partition("/")
    whole = RUN.fullmatch(run) and _NUMBER.fullmatch(node) and _NUMBER.fullmatch(attempt) and folder.startswith("/")
    uid = procs.owner(pid) if whole else None
    return None if uid is None else _Member(run, int(node), int(attempt), os.path.dirname(folder), uid)


def _untagged(run_dirs: Sequence[str]) -> Dict[int, _Member]:
    """Processes without a tag that this user's runs have recorded as theirs."""
    found = {}
    for base in run_dirs:
        folders = os.path.join(glob.escape(os.path.abspath(os.path.expanduser(base))), "*", "*")
        for path in glob.glob(os.path.join(folders, UNTAGGED)):
            folder = os.path.dirname(path)
            run, node = os.path.basename(os.path.dirname(folder)), os.path.basename(folder)
            try:
                ours = _NUMBER.fullmatch(node) and not foreign(folder)
            except OSError:
                continue
            if ours:
                member = _Member(run, int(node), 0, folder, os.getuid())
                found.update(dict.fromkeys(noted(folder), member))
    return found


def _kept(table: Dict[int, procs.Proc], users: Set[int]) -> Set[Tuple[int, str]]:
    """Owner and folder of runs with a visible live warden or supervisor: the folder is the last argument of both."""
    kept = set()
    for pid in table:
        uid = procs.owner(pid)
        if uid in users:
            words = procs.arguments(pid)
            if words[-2:-1] == ["warden"]:
                kept.add((uid, words[-1]))
    return kept


def _why(pid: int, member: _Member) -> str:
    """Why a process without a visible live supervisor is an orphan; "" if that is not certain."""
    # Resolved in the process's own root: a container may have other disks.
    folder = "/proc/%d/root%s" % (pid, member.folder)
    try:
        seen = os.lstat(folder)
    except FileNotFoundError:
        return "its run folder was removed" if os.path.isdir("/proc/%d/root/" % pid) else ""
    except OSError:
        return ""
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != member.uid:
        return ""  # the tag names another user's folder, so it is not valid
    if os.path.lexists(folder + "/exit.json"):
        return "its run has ended"
    up = _read(folder + "/supervisor.json", member.uid)
    if up.get("boot_id") != procs.boot_id():
        return ""
    if up.get("pid_namespace") not in (procs.pid_namespace(), _namespace(pid)):
        return ""  # its supervisor would not be visible here
    if procs.alive(up) or procs.alive(up.get("warden") or {}):
        return ""
    return "its supervisor and warden are dead"


def _row(proc: procs.Proc, member: _Member, why: str, gpu_memory: Optional[int], listeners: "_Listeners") -> Orphan:
    used = system().process(proc.pid)
    return {
        "run": member.run,
        "node_rank": member.node,
        "attempt": member.attempt,
        "pid": proc.pid,
        "user": procs.owner_name(proc.pid),
        "command": procs.command(proc.pid)[:_COMMAND],
        "why": why,
        "age": _age(proc),
        "rss": used.rss if used else 0,
        "ports": listeners.ports(proc.pid),
        "gpu_memory": gpu_memory,
        "ended": False,
    }


def _end(whose: Set[_Member]) -> None:
    """Kill what remains of these runs, all together: a user can tag each process with another run."""
    own = {one.folder for one in whose if one.uid == os.getuid()}

    def members() -> Set[int]:
        found = ((pid, _member(pid)) for pid, proc in procs.table().items() if not proc.dead and pid != os.getpid())
        tagged = {pid for pid, member in found if member and member._replace(attempt=0) in whose}
        return tagged.union(*map(noted, own))

    stop.sweep(members)
    for folder in own:  # the owner could not read a file that we write in another user's folder
        try:
            from .runs import status

            status(folder)
        except (OSError, Problem):
            pass


def _read(path: str, uid: int) -> Dict[str, object]:
    """A small JSON object from a file of user `uid`, otherwise empty: the path comes from another process."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            seen = os.fstat(file.fileno())
            if not stat.S_ISREG(seen.st_mode) or seen.st_uid != uid or seen.st_size > _SMALL:
                return {}
            found = json.loads(file.read(_SMALL))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _age(proc: procs.Proc) -> float:
    """Seconds since a process began."""
    up = float((read_text("/proc/uptime").split() or ["0"])[0])
    return round(max(0.0, up - proc.start / os.sysconf("SC_CLK_TCK")), 1)


class _Listeners:
    """TCP ports on which processes listen; the tables of each network namespace are read once."""

    def __init__(self) -> None:
        self._tables: Dict[str, Dict[str, int]] = {}

    def ports(self, pid: int) -> List[int]:
        """The ports that a process listens on."""
        inodes = ports.sockets_of(pid)
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/net") if inodes else ""
        except OSError:
            return []
        if inodes and namespace not in self._tables:
            self._tables[namespace] = {row.inode: row.port for row in ports.listening(str(pid))}
        table = self._tables.get(namespace, {})
        return sorted({table[inode] for inode in inodes & table.keys()})[:_PORTS]


def _gpu_memory() -> Dict[int, int]:
    """Bytes used by each process on all GPUs together; empty if no driver answers in time."""
    from ..child import together
    from ..telemetry.gpu_nvml import memory_by_process

    # Seconds that the driver may take to list the processes on its GPUs
    answered = together({"gpus": memory_by_process}, 5.0)["gpus"]
    return answered if isinstance(answered, dict) else {}
