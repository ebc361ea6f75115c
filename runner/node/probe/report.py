"""The `probe` operation: everything about this host that a launch depends on (docs/formats.md, "Probe")."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List

from ...protocol.names import RUN_DIR
from .. import leases, ports, procs
from ..child import together
from ..system import system
from . import amd, cgroup, code, cpu, gpu, interpreters, nics, place

if TYPE_CHECKING:
    from ...protocol.facts import Facts, HostIdentity, Memory, Parts
    from ...protocol.leases import Lease
    from ...protocol.requests import ProbeRequest

_LIMIT = 20.0
_PORTS = (29500, 29599)


def probe(request: ProbeRequest, gpu_limit: float = 10.0) -> Facts:
    """Read all parts concurrently, and return the facts.

    A part that cannot be read in 20 s keeps an empty value and adds a sentence to `problems`: a probe always answers.

    Args:
        request: The operation's arguments; all are optional.
        gpu_limit: Seconds after which nvidia-smi is killed.
    """
    problems: List[str] = []
    first, last = request.get("ports") or _PORTS
    user = _user()
    folder = place.working_folder(request.get("workdir") or "~")
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
        "disk": partial(place.disk, run_dir, problems),
        "workdir": partial(place.workdir, folder, request.get("script")),
        "resolves": partial(place.resolves, problems),
        "free_port": partial(place.free_port, request.get("ports") or _PORTS),
        "kill_user_processes": partial(place.kills_user_processes, user),
        "linger": partial(place.lingers, user),
        "boot_id": procs.boot_id,
    }
    read: Dict[str, Any] = {}
    for name, result in together(tasks, _LIMIT).items():
        if isinstance(result, Exception):
            problems.append(f"the host's {name.replace('_', ' ')} cannot be read: {result}")
        elif name == "software":
            read.update(result)
        else:
            read[name] = result
    parts: Parts = {**_unread(folder, run_dir), **read}  # type: ignore[typeddict-item]  # each is of its part's kind
    facts: Facts = {**_identity(user), **parts, "resolves_to_loopback": False, "problems": list(problems)}
    facts["time"] = time.time()  # when the answer is sent: reading may have taken seconds
    if facts["free_port"] is None:
        facts["ports_held"] = ports.holders((first, last))
    facts["resolves_to_loopback"] = any(ip == "::1" or ip.startswith("127.") for ip in facts["resolves"])
    return facts


def _gpus(problems: List[str], limit: float) -> List[Any]:
    return [*(gpu.facts(problems, limit) or amd.facts(problems, limit))]


def _identity(user: str) -> HostIdentity:
    kernel = os.uname()
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
    }


def _unread(folder: str, run_dir: str) -> Parts:
    """Return the empty values of parts that gave no answer."""
    count = os.cpu_count() or 1
    return {
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
    except KeyError:  # a container's uid without an entry
        return os.environ.get("USER") or str(os.geteuid())
