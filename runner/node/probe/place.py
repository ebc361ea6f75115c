"""The place of a run on this host: folders, script, port, host name, and whether it survives a logout."""

from __future__ import annotations

import glob
import os
import re
import shutil
import socket
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence

from .. import folders
from ..child import together
from ..disk import fullness, read_text

if TYPE_CHECKING:
    from ...protocol.facts import Disk, Workdir

_CONFIG_FOLDERS = ("etc", "run", "usr/local/lib", "usr/lib")


def disk(run_dir: str, problems: List[str]) -> Disk:
    """Return the probe's `disk`: the file system that `run_dir` is on, or would be made on."""
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
    """Return the absolute path of the profile's `workdir`; a relative one starts at the home."""
    home = os.path.expanduser("~")
    return os.path.normpath(os.path.join(home, os.path.expanduser(workdir or "~")))


def workdir(path: str, script: Optional[str]) -> Workdir:
    """Return the probe's `workdir`; a relative script starts there, and of a folder it is the `__main__.py`."""
    full = None if not script else os.path.normpath(os.path.join(path, os.path.expanduser(script)))
    if full is not None and os.path.isdir(full):
        full = os.path.join(full, "__main__.py")
    return {
        "path": path,
        "exists": os.path.isdir(path),
        "script": full,
        "script_exists": None if full is None else os.path.isfile(full),
    }


def free_port(ports: Sequence[int]) -> Optional[int]:
    """Return the first port of the range `[first, last]` on which a listener can be opened now."""
    first, last = ports
    return next((port for port in range(first, last + 1) if _can_listen(port)), None)


def _can_listen(port: int) -> bool:
    """Listen on all addresses of both families for a moment, with SO_REUSEADDR, as torch does."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=both).close()
    except (OSError, OverflowError):
        return False
    return True


def resolves(problems: List[str], limit: float = 3.0) -> List[str]:
    """Return the addresses that this host's own name resolves to, within `limit` seconds."""
    name = socket.gethostname()
    raw = os.fsencode(name)  # as text it would be encoded as IDNA, whose tables take a while to load
    answer = together({"name": lambda: socket.getaddrinfo(raw, None, type=socket.SOCK_STREAM)}, limit)["name"]
    if isinstance(answer, Exception):
        problems.append(f"the host's own name {name} does not resolve: {answer}")
        return []
    return list(dict.fromkeys(str(info[4][0]).split("%")[0] for info in answer))


def kills_user_processes(user: str, root: str = "/") -> Optional[bool]:
    """Whether systemd ends this user's processes at logout; None when unknown, or without systemd.

    The setting as logind.conf(5) reads it: the main file, then drop-ins by name. A main file's commented lines show
    what it was compiled with.
    """
    if not os.path.exists(os.path.join(root, "run/systemd/system")):
        return None
    folders = [os.path.join(root, folder, "systemd") for folder in _CONFIG_FOLDERS]
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
