"""A person's shell on this host, in the folder and environment of a rank; `main` runs at the terminal itself.

It does not belong to the run: without the run's tag, `stop` leaves it alone and it is not reported as left over. The
paths of the rank's own files are not set either, so that a script tried out here does not write to them.
"""

from __future__ import annotations

import base64
import json
import os
import pwd
import re
import sys
from typing import Dict, Tuple, cast

from ...protocol.files import Spec
from ...protocol.requests import ShellRequest
from .. import journal, procs
from ..host import HostPart
from ..problem import Problem
from ..rank.identity import adopt
from . import slurm
from .runs import own_folder

_ATTEMPT = re.compile(r"attempt-([0-9]{1,9})")
_KEPT = re.compile("DISTTUI_(RUN|NODE|ATTEMPT)|(?!DISTTUI_).*", re.DOTALL)
_LOGIN = ("TERM", "COLORTERM", "SHELL", "SSH_TTY", "SSH_CONNECTION", "SSH_CLIENT", "SSH_AUTH_SOCK", "DISPLAY", "TMUX")
"""Variables that belong to the person's terminal."""


def main(word: str) -> None:
    """Become the shell. `word`: a `ShellRequest` as base64-encoded JSON."""
    request: ShellRequest = json.loads(base64.urlsafe_b64decode(word))
    try:
        folder, activate = os.path.expanduser(request["workdir"] or "~"), request["activate"]
        environment = dict(os.environ)
        if request["run"]:
            folder, activate, environment = _rank(request)
        os.chdir(folder)
        shell = environment.get("SHELL") or _login_shell() or "/bin/sh"
        words = [shell, "-i"]
        if activate:
            words = ["bash", "-c", activate + '\nexec "$@"', "disttui", *words]
        os.execvpe(words[0], words, environment)  # noqa: S606
    except Problem as problem:
        sys.exit(f"disttui: {problem.what}" + (f": {problem.cure}" if problem.cure else ""))
    except OSError as error:
        sys.exit(f"disttui: {error.filename}: {error.strerror}")


def _login_shell() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:  # a container's uid without a passwd entry
        return ""


def _rank(request: ShellRequest) -> Tuple[str, str, Dict[str, str]]:
    folder = own_folder(request["run_dir"], request["run"], request["node_rank"])
    spec = journal.read_object(os.path.join(folder, "spec.json"))
    if not spec:
        raise Problem(f"no run found at {folder}", "find it with disttui ps")
    if slurm.job_of(folder):
        raise Problem("the ranks of a Slurm job run on its nodes", "srun --jobid JOB --overlap --pty bash")
    host = HostPart(cast(Spec, spec), folder, "", None, {"key": "", "env": {}}, 0)
    rank = request["rank"]
    if rank not in host.ranks:
        raise Problem(f"rank {rank} is not on this host", "see disttui attach")
    attempts = [int(found[1]) for found in map(_ATTEMPT.fullmatch, os.listdir(folder)) if found]
    environment = _living(host, max(attempts, default=1), rank)
    activate = ""
    if not environment:
        sys.stderr.write(f"disttui: rank {rank} is not running: its secrets and MASTER_ADDR are not set\n")
        local = rank - host.ranks[0]
        own = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": host.world_size, "LOCAL_WORLD_SIZE": len(host.ranks)}
        environment = {**os.environ, **host.spec["env"], **{name: str(value) for name, value in own.items()}}
        activate = host.spec["activate"]
    login = {name: os.environ[name] for name in _LOGIN if name in os.environ}
    if host.spec.get("container"):
        sys.stderr.write("disttui: this shell is outside of the run's container\n")
        login = dict(os.environ)  # paths of the image mean nothing here
    environment = {name: value for name, value in {**environment, **login}.items() if _KEPT.fullmatch(name)}
    return host.workdir, activate, environment


def _living(host: HostPart, attempt: int, rank: int) -> Dict[str, str]:
    """The environment of a rank, with torch's variables under every launcher; empty if the rank is not running."""
    lines = journal.Tail(os.path.join(host.attempt_folder(attempt), "ranks.jsonl")).records()
    for pid in [line.get("pid") for line in lines if line.get("e") == "start" and line.get("rank") == rank]:
        # The job itself writes this file: it may name any pid.
        tag = f"{host.run}/{host.node}/{attempt}"
        if isinstance(pid, int) and procs.owner(pid) == os.getuid() and procs.tag(pid) == tag:
            found = procs.environment(pid)
            adopt(found)
            return found
    return {}
