"""The commands of `job.setup` before a run, executed once per commands, variables, code and interpreter on a host.

While they run, the run's folder shows this process as the run's supervisor: `stop`, `ps` and `orphans` find it like a
run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tarfile
import time
from typing import TYPE_CHECKING, Callable, Dict, Mapping, NamedTuple, Sequence, Tuple

from ...protocol.events import Verdict
from ...protocol.objects import LIMIT
from ...protocol.regular import last_text, regular
from .. import journal, locks, procs
from ..disk import fullness
from ..gang.membership import of_host
from ..host import environment_of
from ..problem import Problem
from .steps import CommandError, EndedError, Steps, alone, touched

if TYPE_CHECKING:
    from ...protocol.cause import Cause
    from ...protocol.files import Exit, Spec
    from ...protocol.requests import SetUp, SetupOrder

LOG = "setup.log"
_INSTALLS = re.compile(r"\b(?:install|develop|sync)\b")
"""Commands that may write into the interpreter's own folder, such as `pip install .`"""
_EDITABLE = re.compile(r"\binstall\b[^;&|\n]*\s(?:-e|--editable)\b|\bsetup\.py\s+develop\b")
_MOST, _LARGEST, _OLD = 32, LIMIT, 30 * 86400.0
"""Limits for stored results: their number, their bytes, and the seconds after their last use."""

_GONE = "DISTTUI.gone"
"""File in a result with the paths that the commands removed."""

_Seen = Dict[str, Tuple[int, int, int, int]]


def set_up(request: SetupOrder, cache: str, tell: Callable[[str], None]) -> SetUp:
    """Run the commands of a run on this host unless they have run before for the same code.

    In that case, the run's copy of the code gets what they wrote then.

    Args:
        cache: This user's cache folder of disttui.
        tell: Called with the newest line of output from time to time.

    Raises:
        Problem: A command failed.
        EndedError: The run was stopped, or its viewer is gone.
        OSError: A folder cannot be written.
    """
    spec, commands, folder = request["spec"], request["commands"], request["folder"]
    run, node = spec["run"], spec["node_rank"]
    kept = os.path.join(cache, "setups")
    os.makedirs(kept, 0o700, exist_ok=True)
    workdir = os.path.abspath(os.path.expanduser(spec["workdir"] or "~"))
    python = [spec["python"], spec["activate"]]
    step = [commands, spec.get("tree") or workdir, *python, request["variables"], request["secrets"]]
    disk = _disk_of(spec["python"]) if _install(commands) else ""
    name, last = _name([*step, disk]), os.path.join(kept, f"last-{_name([*python, disk])}")
    result = _Result(os.path.join(kept, f"{name}.tar"), last, name, commands, f"{workdir}.setup")
    if result.restore(workdir):
        return {"ran": False}
    _show(folder, spec)
    steps = Steps(
        os.path.join(folder, LOG), run, node, _environment(request, folder), workdir, tell,
        lambda: os.path.exists(os.path.join(folder, "stop")),
    )  # fmt: skip
    try:
        with touched(os.path.join(folder, "supervisor.json")), alone(kept, _name(step), run, node, tell):
            if not result.is_in_place() and not result.restore(workdir):
                before = result.begin(workdir if spec.get("tree") else None)
                for command in commands:
                    _run(steps, command, spec)
                steps.close()
                if before is not None and not os.path.isdir(workdir):
                    raise Problem("job.setup: its commands have removed the folder that they run in", "correct them")
                with contextlib.suppress(OSError):  # the next start repeats it
                    result.keep(workdir, before)
                    _prune(kept)
            return {"ran": True}
    except EndedError:
        _end(folder, node, "stopped", None)
        raise
    except Problem as problem:
        _end(folder, node, "failed", of_host(node, "launch", problem.what))
        raise
    finally:
        steps.close()
        ended = os.path.exists(os.path.join(folder, "exit.json"))
        for file in ("supervisor.json",) if ended else ("supervisor.json", "spec.json"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, file))


class _Result(NamedTuple):
    """What commands write to a run's copy of the code, kept for other runs of the same code."""

    path: str
    last: str
    """The file with the name of the result whose commands have installed something last, for this interpreter."""
    name: str
    commands: Sequence[str]
    beside: str
    """A folder next to the run's copy of the code, with what has been done in it."""

    def is_in_place(self) -> bool:
        """Whether another host with the same disk has run the commands in this copy of the code."""
        return os.path.isdir(os.path.join(self.beside, self.name))

    def begin(self, workdir: str | None) -> _Seen | None:
        """Note that the commands may change what is installed, however far they come; returns the files of the copy."""
        if _install(self.commands):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.last)
        return None if workdir is None else _files(workdir)

    def restore(self, workdir: str) -> bool:
        """Write it to a run's copy; False if the commands have to run."""
        # What another version has installed since is not in the copy.
        current = not _install(self.commands) or last_text(self.last, 200) == self.name
        return current and _restore(self.path, workdir)

    def keep(self, workdir: str, before: _Seen | None) -> None:
        """Store it, as `_keep`."""
        if _install(self.commands):
            with open(regular(self.last, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w", encoding="ascii") as out:
                out.write(self.name)
        # An editable installation leads every run to the copy of this one. Another host's changes to it are not ours.
        others = before is not None and os.path.isdir(self.beside)
        if not others and not any(map(_EDITABLE.search, self.commands)):
            _keep(self.path, workdir, before)
        if before is not None:
            os.makedirs(os.path.join(self.beside, self.name), 0o700, exist_ok=True)


def _install(commands: Sequence[str]) -> bool:
    return any(map(_INSTALLS.search, commands))


def _run(steps: Steps, command: str, spec: Spec) -> None:
    line = f"{spec['activate']}\n{command}" if spec["activate"] else command
    try:
        steps.run(["bash", "-c", line], command)
    except CommandError as error:
        shown = "\n".join(filter(None, (f"job.setup: `{command}` {error.ended}", error.said)))
        full = fullness(os.path.expanduser(spec["workdir"] or "~"))
        raise Problem(f"{shown}\n{full}" if full else shown, "correct it, and start the run again") from None


def _disk_of(python: str) -> str:
    """The host on which an interpreter is installed; empty if hosts share it."""
    path = shutil.which(os.path.expanduser(python)) or python
    return "" if locks.is_remote(os.path.dirname(path)) else os.uname().nodename


def _show(folder: str, spec: Spec) -> None:
    """Make the run's folder show that the run begins, and in which process."""
    journal.write_json(os.path.join(folder, "spec.json"), spec)
    who = {**procs.identity(os.getpid()), "hostname": os.uname().nodename}
    journal.write_json(os.path.join(folder, "supervisor.json"), who)


def _end(folder: str, node: int, state: str, cause: Cause | None) -> None:
    code = 130 if state == "stopped" else 1
    end: Exit = {"state": state, "code": code, "cause": cause, "attempt": 0, "left": [], "processes": []}  # type: ignore[typeddict-item]
    story = journal.Journal(os.path.join(folder, "events.jsonl"))
    story.add(Verdict(t=journal.stamp(), e="verdict", state=end["state"], code=code, cause=cause, attempt=0))
    journal.write_exit(folder, end)


def _environment(request: SetupOrder, folder: str) -> Mapping[str, str]:
    spec = request["spec"]
    own = {
        "DISTTUI_RUN": spec["run"], "DISTTUI_NODE": str(spec["node_rank"]),
        "DISTTUI_DIR": os.path.join(folder, "attempt-0"),
    }  # fmt: skip
    python = os.path.expanduser(spec["python"])
    if os.sep in python:  # `python` and `pip` are the job's
        own["PATH"] = os.path.dirname(python) + os.pathsep + os.environ.get("PATH", os.defpath)
    return {**os.environ, **own, **environment_of(python), **spec["env"], **request["secrets"]}


def _files(top: str) -> _Seen:
    found: _Seen = {}
    for folder, folders, names in os.walk(top):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            seen = os.lstat(path)
            found[path] = (seen.st_ino, seen.st_mode, seen.st_size, 0 if name in folders else seen.st_mtime_ns)
    return found


def _keep(result: str, workdir: str, before: _Seen | None) -> None:
    """Store the changes that the commands made to the run's copy of the code, for other runs of it. Raises OSError.

    Args:
        before: The files in the copy before; None if the job runs in a folder of the host.
    """
    part = f"{result}.{os.getpid()}.part"
    try:
        after = {} if before is None else _files(workdir)  # otherwise it may be a whole home
        gone = [os.path.relpath(path, workdir) for path in sorted(before or ()) if path not in after]
        with tarfile.open(part, "w", pax_headers={_GONE: json.dumps(gone)} if gone else {}) as tar:
            if gone:
                tar.add(workdir, ".", recursive=False)  # an archive with only a header cannot be read
            for path, seen in sorted(after.items()):
                if before is not None and before.get(path) != seen:
                    if _names_its_place(path, workdir):
                        return  # it would lead another run to this one's copy: the next start repeats the commands
                    tar.add(path, os.path.relpath(path, workdir), recursive=False)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.rename(part, result)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def _names_its_place(path: str, workdir: str) -> bool:
    """Whether a link, a script of a virtual environment or a .pth file leads to the run's own copy of the code."""
    places = workdir, os.path.realpath(workdir)  # venv writes the real path
    if os.path.islink(path):
        return os.readlink(path).startswith(places)
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        begins = file.read(4096)
    return any(os.fsencode(place) in begins for place in places) and (begins.startswith(b"#!") or path.endswith(".pth"))


def _name(what: object) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


def _restore(result: str, workdir: str) -> bool:
    """Write to a run's copy of the code what the commands wrote to an earlier one; False if they have not run."""
    try:
        with tarfile.open(result) as tar:
            for path in json.loads(tar.pax_headers.get(_GONE, "[]")):
                _remove(os.path.join(workdir, path))
            for member in tar:
                path = os.path.join(workdir, member.name)
                if not member.isdir() or os.path.islink(path) or not os.path.isdir(path):
                    _remove(path)  # something of another type may be in its place
            tar.extraction_filter = lambda member, path: member  # we have written it
            tar.extractall(workdir)  # noqa: S202
        os.utime(result)
    except FileNotFoundError:
        return False
    except (tarfile.TarError, EOFError):
        os.unlink(result)
        return False
    return True


def _remove(path: str) -> None:
    """Remove a file, or a folder with its contents, if it exists."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _prune(kept: str) -> None:
    """Remove the least recently used results; the newest stays, however large it is."""
    found = [(entry.stat(), entry.path) for entry in os.scandir(kept) if entry.name.endswith((".tar", ".part"))]
    size = 0
    for number, (seen, path) in enumerate(sorted(found, key=lambda one: -one[0].st_mtime)):
        size += seen.st_size
        if number and (number >= _MOST or size > _LARGEST or time.time() - seen.st_mtime > _OLD):
            os.unlink(path)
