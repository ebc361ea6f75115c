"""The `probe` operation: everything about this host that a launch depends on (docs/formats.md, "Probe")."""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import shutil
import socket
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from ...protocol.limits import PORTS
from ...protocol.names import RUN_DIR
from .. import folders, leases, ports, procs
from ..child import together
from ..disk import fullness, read_text
from ..system import system
from . import amd, cgroup, code, cpu, gpu, interpreters, nics

if TYPE_CHECKING:
    from ...protocol.facts import Disk, Facts, Memory, Workdir
    from ...protocol.leases import Lease
    from ...protocol.requests import ProbeRequest

_LIMIT = 20.0


def probe(request: ProbeRequest, gpu_limit: float = 10.0) -> Facts:
    """Read all parts concurrently, and return the facts.

    A part that cannot be read in 20 s keeps an empty value and adds a sentence to `problems`: a probe always answers.

    Args:
        request: The operation's arguments; all are optional.
        gpu_limit: Seconds after which nvidia-smi is killed.
    """
    problems: List[str] = []
    first, last = request.get("ports") or PORTS
    user = _user()
    folder = working_folder(request.get("workdir") or "~")
    run_dir = request.get("run_dir") or RUN_DIR
    tasks = {
        "cpu": cpu.facts,
        "memory": _memory,
        "gpus": partial(_gpus, problems, gpu_limit) if request.get("gpus", True) else list,
        "leases": partial(_leases, problems),
        "nics": nics.facts,
        "software": partial(
            interpreters.software,
            request.get("python") or "",
            request.get("activate") or "",
            folder,
            problems,
            interpreters.Requirements(
                request.get("module") or "",
                tuple(request.get("programs") or ()),
                request.get("package") or "",
                request.get("version_of") or "",
            ),
        ),
        "code": partial(
            code.facts, folder, request.get("script"), request.get("module") or "", request.get("command") or ()
        ),
        "disk": partial(disk, run_dir, problems),
        "workdir": partial(workdir, folder, request.get("script")),
        "resolves": partial(resolves, problems),
        "free_port": partial(free_port, request.get("ports") or PORTS),
        "kill_user_processes": partial(kills_user_processes, user),
        "linger": partial(lingers, user),
        "boot_id": procs.boot_id,
    }
    facts = _unread(user, folder, run_dir)
    for name, result in together(tasks, _LIMIT).items():
        if isinstance(result, Exception):
            problems.append(f"the host's {name.replace('_', ' ')} cannot be read: {result}")
        else:
            part: Any = result if name == "software" else {name: result}
            facts.update(part)
    facts["problems"] = list(problems)
    facts["time"] = time.time()  # at sending: reading may have taken seconds
    if facts["free_port"] is None:
        facts["ports_held"] = ports.holders((first, last))
    facts["resolves_to_loopback"] = any(ip == "::1" or ip.startswith("127.") for ip in facts["resolves"])
    return facts


def _gpus(problems: List[str], limit: float) -> List[Any]:
    return [*(gpu.facts(problems, limit) or amd.facts(problems, limit))]


def _unread(user: str, folder: str, run_dir: str) -> Facts:
    """Return what is known immediately, with empty values for parts that may not answer."""
    kernel, count = os.uname(), os.cpu_count() or 1
    return {
        "hostname": socket.gethostname(),
        "user": user,
        "home": os.path.expanduser("~"),
        "kernel": kernel.release,
        "arch": kernel.machine,
        "time": time.time(),
        "python": sys.version.split()[0],
        "psutil": importlib.util.find_spec("psutil") is not None,
        "euid": os.geteuid(),
        "resolves_to_loopback": False,
        "problems": [],
        "boot_id": "",
        "resolves": [],
        "cpu": {
            "model": "", "physical": count, "logical": count, "affinity": count, "quota": None,
            "available": 1, "load": 0.0,
        },
        "memory": {"total": 0, "available": 0, "limit": None},
        "gpus": [],
        "leases": [],
        "nics": [],
        "interpreters": [],
        "activate_problem": "",
        "needs": {"module": None, "programs": [], "package": None, "version": None},
        "code": None,
        "disk": {"path": run_dir, "total": 0, "free": 0, "writable": False},
        "workdir": {"path": folder, "exists": False, "script": None, "script_exists": None},
        "free_port": None,
        "ports_held": "",
        "kill_user_processes": None,
        "linger": None,
    }  # fmt: skip


def _memory() -> Memory:
    memory = system().memory()
    limit = cgroup.memory_limit()
    return {
        "total": memory.total,
        "available": memory.available,
        "limit": limit if limit is not None and limit < memory.total else None,
    }


def _leases(problems: List[str]) -> List[Lease]:
    seen = leases.look()
    problems += [seen.problem] if seen.problem else []
    return seen.leases


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's uid without a passwd entry
        return os.environ.get("USER") or str(os.geteuid())


def disk(run_dir: str, problems: List[str]) -> Disk:
    """Return the probe's `disk`: the file system that `run_dir` is on, or would be created on."""
    path = os.path.abspath(os.path.expanduser(run_dir))
    parent = path
    while not os.path.exists(parent):
        parent = os.path.dirname(parent)
    usage = shutil.disk_usage(parent)
    try:
        weak = folders.weakness(parent)
    except OSError:
        weak = ""  # reported below
    if weak:
        problems.append(f"run_dir {path} will be refused: {weak}")
    writable = True
    try:
        # Only a write shows it: permissions do not reveal a read-only mount, a full disk or a used-up quota.
        trial = os.path.join(parent, f".disttui-{os.urandom(8).hex()}")
        with open(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            try:
                file.write(b"\0" * 4096)
                file.flush()
            finally:
                os.unlink(trial)
    except OSError as error:
        writable = False
        why = fullness(parent) or f"{parent} cannot be written: {error.strerror or error}"
        problems.append(f"run_dir {path}: {why}")
    return {"path": path, "total": usage.total, "free": usage.free, "writable": writable}


def working_folder(workdir: str) -> str:
    """Return the absolute path of the profile's `workdir`; a relative one is based on the home."""
    home = os.path.expanduser("~")
    return os.path.normpath(os.path.join(home, os.path.expanduser(workdir or "~")))


def workdir(path: str, script: Optional[str]) -> Workdir:
    """Return the probe's `workdir`; a relative script is based on it, and a folder means its `__main__.py`."""
    full = None if not script else os.path.normpath(os.path.join(path, os.path.expanduser(script)))
    if full is not None and os.path.isdir(full):
        full = os.path.join(full, "__main__.py")
    return {
        "path": path,
        "exists": os.path.isdir(path),
        "script": full,
        "script_exists": None if full is None else os.path.isfile(full),
    }


def free_port(within: Sequence[int]) -> Optional[int]:
    """Return the first port in `[first, last]` on which this host can listen now."""
    first, last = within
    for port in range(first, last + 1):
        try:
            ports.listen(port).close()
        except (OSError, OverflowError):
            continue
        return port
    return None


def resolves(problems: List[str], limit: float = 3.0) -> List[str]:
    """Return the addresses that this host's own name resolves to, within `limit` seconds."""
    name = socket.gethostname()
    raw = os.fsencode(name)  # as text it would be encoded as IDNA, whose tables take a while to load
    answer = together({"name": lambda: socket.getaddrinfo(raw, None, type=socket.SOCK_STREAM)}, limit)["name"]
    if isinstance(answer, Exception):
        problems.append(f"the host's own name does not resolve: {answer}")
        return []
    return list(dict.fromkeys(str(info[4][0]).split("%")[0] for info in answer))


def kills_user_processes(user: str, root: str = "/") -> Optional[bool]:
    """Whether systemd ends this user's processes at logout; None if unknown, or without systemd.

    The setting is read as in logind.conf(5): the main file, then drop-ins by name. A main file's commented lines show
    the compiled-in values.
    """
    if not os.path.exists(os.path.join(root, "run/systemd/system")):
        return None
    folders = [os.path.join(root, folder, "systemd") for folder in ("etc", "run", "usr/local/lib", "usr/lib")]
    main = next(filter(None, (read_text(os.path.join(folder, "logind.conf")) for folder in folders)), "")
    drop_ins: Dict[str, str] = {}
    for folder in reversed(folders):
        for path in glob.glob(os.path.join(glob.escape(folder), "logind.conf.d", "*.conf")):
            drop_ins[os.path.basename(path)] = read_text(path)
    settings = dict(re.findall(r"^#\s?(Kill\w+)[ \t]*=[ \t]*(.*?)\s*$", main, re.MULTILINE))
    for text in (main, *(drop_ins[name] for name in sorted(drop_ins))):
        settings.update(re.findall(r"^[ \t]*(Kill\w+)[ \t]*=[ \t]*(.*?)\s*$", text, re.MULTILINE))
    value = settings.get("KillUserProcesses", "").lower()
    if value not in ("yes", "true", "on", "1"):
        return False if value else None
    only = settings.get("KillOnlyUsers", "").split()
    return user not in settings.get("KillExcludeUsers", "root").split() and (not only or user in only)


def lingers(user: str, root: str = "/") -> Optional[bool]:
    """Whether `loginctl enable-linger` keeps this user's processes; None without systemd."""
    if not os.path.exists(os.path.join(root, "run/systemd/system")):
        return None
    return os.path.exists(os.path.join(root, "var/lib/systemd/linger", user))
