"""A viewer's operations on the runs of this host: start, stop, status, forget."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Mapping, TypedDict, cast

from ...protocol.leases import LATEST, MOST_ROUNDS
from ...protocol.names import RUN, RUN_DIR
from ...protocol.regular import regular
from .. import folders, journal, leases, locks, procs
from ..problem import Problem
from ..supervise import control, warden
from . import listing, slurm, spare, syncing
from .leasing import Claims

if TYPE_CHECKING:
    from ...protocol import requests
    from ...protocol.files import Exit, Given, LeaderPlace, Secrets, Spec

_UP = 30.0
_LOOK = 0.2
"""Seconds between two checks of all leases of the host."""
_ANSWER = 5.0
"""Seconds that a supervisor may take to read a request, and a warden to end a run."""
_FROZEN = {
    "T": "is frozen by a signal (state T)",
    "t": "is frozen by a debugger (state t)",
    "D": "hangs in the kernel (state D), perhaps on an unresponsive file server",
}
_MOMENT = 2.0
"""Seconds to wait for one of our processes that may hang."""


def run_folder(run_dir: str, run: str, node_rank: int) -> str:
    """The absolute run directory of one host. Raises Problem for an invalid run id."""
    if not RUN.fullmatch(run):
        raise Problem(f"{run!r} is not a run id", "use letters, digits, '.', '_' and '-'")
    base = os.path.abspath(os.path.expanduser(run_dir or RUN_DIR))
    return os.path.join(base, run, str(int(node_rank)))


def own_folder(run_dir: str, run: str, node_rank: int) -> str:
    """The run directory of a run that may exist. Raises Problem if the folder belongs to another user."""
    folder = run_folder(run_dir, run, node_rank)
    for path in (os.path.dirname(folder), folder):
        try:
            owner = os.lstat(path).st_uid
        except OSError:
            break
        if owner != os.getuid():
            raise Problem(
                f"{path} cannot be used: it belongs to {folders.user_name(owner)}", "ask them, or name another run_dir"
            )
    return folder


def start(
    request: requests.StartRequest, node_zip: str, train_zip: str | None, claims: Claims | None = None
) -> requests.Started:
    """Start a run's supervisor on this host; a second start of the same run changes nothing.

    Args:
        request: `spec` and `secrets` of docs/formats.md.
        node_zip: The node program that the supervisor runs.
        train_zip: The built-in job, if the run needs it.
        claims: Leases that were taken for runs earlier.

    Raises:
        Taken: Others have leased what the run uses.
        Problem: The folder cannot be written, the id belongs to another spec, or the supervisor does not start.
    """
    spec = request["spec"]
    folder = folder_for(spec)
    try:
        with locks.hold("start", folder):
            known = journal.read_json(os.path.join(folder, "spec.json"))
            earlier = control.read_up(folder)
            if known is not None and not (isinstance(known, dict) and _content(known) == _content(spec)):
                raise Problem(f"{folder} is another run's", "choose another run id")
            if known is not None and earlier:
                _settle(folder)
                found = cast("Up", earlier)
                return {"dir": folder, "pid": found["pid"], "already": True, "gang": found.get("gang")}
            if os.path.exists(os.path.join(folder, "exit.json")):
                os.unlink(os.path.join(folder, "exit.json"))  # from a supervisor that could not begin
            up = _begin(folder, spec, request["secrets"], node_zip, train_zip, claims or Claims())
    except OSError as error:
        raise _unwritable(folder, error) from None
    return {"dir": folder, "pid": up["pid"], "already": False, "gang": up["gang"]}


def _unwritable(folder: str, error: OSError) -> Problem:
    what = f"{folder} cannot be written: {error.strerror or error}"
    return Problem(what, "choose another launch.run_dir, or free space there")


def folder_for(spec: Spec) -> str:
    """The folder of a run that begins here, created if it is missing. Raises Problem."""
    folder = run_folder(spec["run_dir"], spec["run"], spec["node_rank"])
    try:
        _make_folder(folder)
    except OSError as error:
        raise _unwritable(folder, error) from None
    syncing.require(spec)
    return folder


def queue_again(run_dir: str, run: str, node_zip: str, train_zip: str | None) -> bool:
    """Restart the supervisor of a queued run in its place after a reboot; False if it needs its viewer.

    The gang of a single host needs no shared key.
    """
    folder = run_folder(run_dir, run, 0)
    spec = cast("Spec", journal.read_object(os.path.join(folder, "spec.json")))
    queue = spec.get("queue")
    if not queue or not queue.get("lasts") or (spec["target"]["kind"] == "builtin" and not train_zip):
        return False
    try:
        _check_ours(folder)
        with locks.hold("start", folder, _MOMENT):
            found = _look(folder)
            if procs.elsewhere(control.read_up(folder)):
                return found["alive"]  # its place in the queue is on another machine that shares this disk
            over = any(os.path.exists(os.path.join(folder, name)) for name in ("stop", "attempt-1"))
            if found["alive"] or found["exit"] or over:
                return found["alive"]
            secrets: Secrets = {"key": os.urandom(32).hex(), "env": {}}
            _begin(folder, spec, secrets, node_zip, train_zip, Claims())
    except (Problem, OSError, locks.LockHeld):
        return False  # the list shows that it has left the queue
    return True


def _begin(folder: str, spec: Spec, secrets: Secrets, node_zip: str, train_zip: str | None, claims: Claims) -> Up:
    """Start a supervisor with its lease. Raises Problem, or OSError."""
    held, unleased = claims.for_start(spec)
    try:
        journal.write_json(os.path.join(folder, "spec.json"), spec)
        given: Given = {
            "secrets": secrets, "train_zip": train_zip, "unleased": unleased,
            "lease": {"fd": held.fd, "path": held.path, "text": held.text} if held else None,
        }  # fmt: skip
        up = _spawn(folder, node_zip, given)
    except BaseException:
        if held:
            held.release()
        raise
    if held:
        held.close()
    return up


def submit(request: requests.SubmitRequest, node_zip: str, train_zip: str | None) -> requests.Submitted:
    """Submit a run as a job of Slurm from this host, its login node; a second submission changes nothing.

    Raises:
        Problem: A folder cannot be written, or Slurm refuses the job.
    """
    spec = request["spec"]
    folders = [run_folder(spec["run_dir"], spec["run"], node) for node in range(len(spec["hosts"]))]
    try:
        for folder in folders:
            _make_folder(folder)
        syncing.require(spec)
        return slurm.submit(request, folders, node_zip, train_zip)
    except OSError as error:
        raise _unwritable(folders[0], error) from None


def lead(folder: str, leader: LeaderPlace) -> requests.Nothing:
    """Send the leader's address to a follower's supervisor. Raises Problem if the supervisor does not answer."""
    _check_ours(folder)
    if not control.ask(folder, {"op": "lead", "leader": leader}):
        raise Problem(f"the supervisor of {folder} does not answer", "see supervisor.log there")
    return {}


def request_stop(folder: str, now: bool, reason: str) -> requests.Stopped:
    """Stop a run on this host, which forwards the stop to the others; `now` kills without grace.

    Returns `stopped` (whether there was anything to stop) and `state`. Raises Problem if the run does not exist.
    """
    if watch := slurm.job_of(folder):
        _require(folder)
        return slurm.request_stop(folder, watch, now, reason)
    found = status(folder)
    if found["exit"] is None and not found["alive"] and found["pid"] is not None:
        found = _settle(folder)  # another process that has begun to settle it may hang
    if not found["alive"] and (found["exit"] or found["pid"] is not None):
        return {"stopped": False, "state": found["exit"].get("state") if found["exit"] else None}
    reason, written = reason[:200], True
    try:
        control.write_stop(folder, reason, now)  # a supervisor that is still starting reads it
    except OSError:
        written = False
    deadline = time.monotonic() + _ANSWER
    if found["alive"] and not control.ask(folder, {"op": "stop", "reason": reason, "now": now}, _ANSWER):
        while time.monotonic() < deadline and _look(folder)["alive"]:
            time.sleep(_LOOK)  # it has ended just now, and its warden ends the run
        _stop_the_silent(folder, now, written)
    return {"stopped": True, "state": "stopping"}


def _stop_the_silent(folder: str, now: bool, written: bool) -> None:
    """Stop a run whose supervisor does not accept requests. Raises Problem if that needs `now`."""
    up = control.read_up(folder)
    silent = [one for one in (up, up.get("warden")) if procs.alive(one)]
    if not silent or not _look(folder)["alive"]:
        return
    first = cast("procs.ProcessIdentity", silent[0])
    who = f"its {'supervisor' if first is up else 'warden'} (pid {first['pid']})"
    why = _FROZEN.get(_lasting_state(first["pid"]))
    if now:
        for one in silent:  # it may be slow instead of frozen, and must not act while its processes are killed
            with suppress(ProcessLookupError):
                os.kill(cast("procs.ProcessIdentity", one)["pid"], signal.SIGSTOP)
        warden.conclude(folder, f"{who} {why or 'does not respond'}, and was killed", first["pid"], silent)
    elif not written:
        raise Problem(f"{folder}/stop cannot be written, and {who} does not respond", "free space on the disk")
    elif why:  # otherwise it is busy, and reads the stop file later
        run = os.path.basename(os.path.dirname(folder))
        raise Problem(f"{who} {why}: the stop waits for it", f"kill the run: disttui stop {run} --now")


def _lasting_state(pid: int) -> str:
    """The state of a process, "D" only if it stays in it: a process that reads a disk is in that state for moments."""
    deadline = time.monotonic() + _MOMENT
    while (proc := procs.read(pid)) and proc.state == "D":
        if time.monotonic() > deadline:
            return "D"
        time.sleep(_LOOK)
    return proc.state if proc else ""


def move(folder: str, round_number: int, order: float) -> requests.Nothing:
    """Move a queued run to another place; its leader tells its other hosts. Raises Problem if it is not queued."""
    _require(folder)
    if not 0 <= round_number < MOST_ROUNDS or not 0 <= order < LATEST:
        raise Problem("invalid queue position", "see disttui lease queue")
    asked, deadline = False, time.monotonic() + _UP
    while (place := _place(folder)) != (round_number, order):
        if place is None:
            raise Problem("the run is not queued on this host", "see disttui lease queue, and disttui ps")
        asked = asked or control.ask(folder, {"op": "move", "round": round_number, "order": order})
        if not asked or time.monotonic() > deadline:
            raise Problem("its supervisor does not answer", f"see supervisor.log in {folder}")
        time.sleep(_LOOK)
    return {}


def _place(folder: str) -> tuple[int, float] | None:
    """Round and order of a run that is queued on this host; None after its first attempt has begun.

    While it takes its turn on several hosts, its lease here may already be held.
    """
    spec = journal.read_object(os.path.join(folder, "spec.json"))
    if not spec.get("queue") or os.path.exists(os.path.join(folder, "attempt-1")):
        return None
    for lease in leases.look().leases:
        if lease["uid"] == os.getuid() and (lease["run"], lease["node_rank"]) == (
            spec.get("run"),
            spec.get("node_rank"),
        ):
            return lease["round"], lease["order"]
    return None


def status(folder: str, settle: bool = True) -> requests.Alive:
    """Whether a run is alive on this host, its supervisor's pid, and its end. Raises Problem if it does not exist.

    With `settle`, a run whose supervisor and warden were both killed is ended here. Never waits long for a lock: a run
    that is still being started counts as alive.
    """
    _require(folder)
    if watch := slurm.job_of(folder):
        found = slurm.status(folder, watch, settle)
        return {**found, "waits": listing.stop_waits(folder)} if found["alive"] else found
    found = _look(folder)
    if found["alive"] or found["exit"]:
        return {**found, "waits": listing.stop_waits(folder)} if found["alive"] else found
    try:
        with locks.hold("start", folder, _MOMENT):
            return _settle(folder) if settle else _look(folder)
    except locks.LockHeld:
        return {**found, "alive": found["pid"] is None}


def forget(folder: str) -> requests.Nothing:
    """Remove a run directory. Raises Problem if the run is alive or does not exist."""
    import shutil

    _require(folder)
    with locks.hold("start", folder, _MOMENT):
        watch = slurm.job_of(folder)
        found = slurm.status(folder, watch, settle=True) if watch else _settle(folder)
        if found["alive"]:
            raise Problem(f"the run at {folder} is still active", "stop it first")
        try:
            spec = cast("Spec", journal.read_object(os.path.join(folder, "spec.json")))
            locks.forget(folder)
            shutil.rmtree(folder)
        except OSError as error:
            raise Problem(f"{folder} cannot be removed: {error}") from None
    run = os.path.dirname(folder)
    if not any(name.isdecimal() for name in os.listdir(run)):
        # The last of the hosts that share this disk also removes the checkpoints and the code.
        syncing.remove(spec, os.path.basename(run))
        shutil.rmtree(run, ignore_errors=True)
        spare.leave(os.path.dirname(run))
    return {}


def _require(folder: str) -> None:
    if not os.path.exists(os.path.join(folder, "spec.json")):
        raise Problem(f"no run found at {folder}", "find it with disttui ps")
    _check_ours(folder)


def _look(folder: str) -> requests.Alive:
    up, alive = control.read_up(folder), listing.lives(folder)
    # Read last: a supervisor that ends normally between the two checks has written it before.
    end = cast("Exit | None", journal.read_object(os.path.join(folder, "exit.json")) or None)
    return {"alive": alive and end is None, "pid": cast("int | None", up.get("pid")), "exit": end}


def _settle(folder: str) -> requests.Alive:
    found = _look(folder)
    up = control.read_up(folder)
    spec = os.path.join(folder, "spec.json")
    if found["exit"] is None and not found["alive"] and (up or time.time() - os.stat(spec).st_mtime > 2 * _UP):
        try:
            warden.conclude(folder, listing.lost_by(up), None)
        except OSError as error:
            raise Problem(f"{folder} cannot be written: {error.strerror}", "free space on the disk") from None
        return _look(folder)
    return found


def _make_folder(folder: str) -> None:
    """Create a run's folder where no other user can create or replace it. Raises Problem, or OSError."""
    weak = folders.weakness(folder, make=True)
    if weak:
        cure = "choose a launch.run_dir that only you can write, or have it made sticky (chmod +t)"
        raise Problem(f"{folder} would not be safe from other users: {weak}", cure)
    _check_ours(folder)


def _check_ours(folder: str) -> None:
    """Raise Problem if a run's folder, or its parent, which the run's hosts share, is not private to this user."""
    for path in (os.path.dirname(folder), folder):
        try:
            foreign = folders.foreign(path)
        except FileNotFoundError:
            raise Problem(f"no run found at {folder}", "find it with disttui ps") from None
        if foreign:
            raise Problem(f"{folder} cannot be used: {foreign}", "it must be yours, with mode 0700")


def _content(spec: Mapping[str, object]) -> str:
    """What makes two specs the same run: everything except the leader's address."""
    return json.dumps({**spec, "leader": None}, sort_keys=True)


class Up(TypedDict):
    """The status that a supervisor reports once it is up."""

    pid: int
    gang: LeaderPlace | None


def _spawn(folder: str, node_zip: str, given: Given) -> Up:
    # Neither the user's PYTHONPATH nor a locale may change what runs here.
    command = [sys.executable, "-I", "-X", "utf8", node_zip, "warden", folder]
    path = os.path.join(folder, "supervisor.log")
    with open(regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            start_new_session=True,
            pass_fds=(given["lease"]["fd"],) if given["lease"] else (),
        )
    assert child.stdin and child.stdout
    try:
        child.stdin.write(json.dumps(given).encode())
        child.stdin.close()
        line = b""
        if select.select([child.stdout], [], [], _UP)[0]:
            line = child.stdout.readline()
    except BrokenPipeError:
        line = b""
    child.wait()
    child.stdout.close()
    if not line:
        raise Problem(f"the supervisor did not start: see {folder}/supervisor.log")
    found = json.loads(line)
    if "error" in found:
        raise Problem(found["error"], found["cure"])
    up: Up = found
    return up
