"""The warden: waits for the supervisor, and ends the run on this host if the supervisor is killed."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from .. import procs

# This process keeps its imports in memory for as long as the run lasts, so the others are imported where they are used.
if TYPE_CHECKING:
    from typing import Sequence

    from ...protocol.files import Given


def main(folder: str, node_zip: str) -> None:
    """Become a daemon, then `watch`.

    Reads `Given` as JSON from standard input; standard output gets the supervisor's status line.
    """
    if os.fork():
        os._exit(0)
    umask = os.umask(0o077)  # the job gets the login's umask
    watch(folder, node_zip, json.loads(sys.stdin.buffer.read()), umask)


def watch(folder: str, node_zip: str, given: Given, umask: int) -> None:
    """Start the supervisor of a run directory, and wait for it to end."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    procs.adopt_orphans()
    own = procs.identity(os.getpid())  # a child whose warden has ended would find another parent
    gc.freeze()  # a collection in either process would write to the pages that they share
    supervisor = os.fork()
    if supervisor == 0:
        _supervise(folder, node_zip, given, umask, own)
    lease, targets = given["lease"], given["secrets"].get("notify")
    del given
    os.dup2(null, 1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.kill(supervisor, signal.SIGTERM))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    while True:
        pid, status = os.wait()
        if pid == supervisor:
            break
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    lost = status and not os.path.isfile(os.path.join(folder, "exit.json"))
    held = None
    if lease and (lost or os.path.lexists(lease["path"])):  # otherwise the supervisor has released it
        from ..leases import HeldLease

        held = HeldLease(**lease)
    how = f"killed by signal {status & 0x7F}" if status & 0x7F else f"ended with exit code {status >> 8}"
    if lost:
        if held:
            with suppress(OSError):
                held.adopt()
        conclude(folder, f"the supervisor was {how}", os.getpid())
    if held:
        held.release()
    if targets:
        from .. import notify

        notify.continue_after(folder, targets, f"the supervisor was {how}" if lost else "")


def _supervise(folder: str, node_zip: str, given: Given, umask: int, own: procs.ProcessIdentity) -> None:
    code = 70
    try:
        # This process adopts the orphans, not the warden, so that they are found as our descendants.
        procs.adopt_orphans()
        from .. import journal
        from ..host import HostPart
        from ..leases import HeldLease
        from . import supervisor

        spec = journal.read_json(os.path.join(folder, "spec.json"))
        part = HostPart(spec, folder, node_zip, given["train_zip"], given["secrets"], umask)
        lease = HeldLease(**given["lease"]) if given["lease"] else None
        supervisor.run(part, own, 1, lease, given["unleased"])
        code = 0
    except Exception:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def conclude(folder: str, why: str, root: int | None, guards: Sequence[object] = ()) -> None:
    """End the processes of a lost supervisor, and write the end of its part. Raises OSError if the disk is full.

    Args:
        folder: The run directory.
        why: What became of the supervisor.
        root: The pid that has adopted its children, None if it is not one of our processes.
        guards: Identities of a supervisor and a warden that do not respond; they are killed last.
    """
    from ...protocol.events import Left, State, Verdict
    from ...protocol.files import Exit
    from ...protocol.limits import MOST_DESCRIBED
    from .. import journal
    from ..gang.membership import of_host
    from ..journal import note, stamp
    from ..rank import mpi_world
    from ..telemetry.sampling import noted
    from . import stop

    # Taken from the folder's name: the job may have written another run's id into the spec.
    run, node = os.path.basename(os.path.dirname(folder)), int(os.path.basename(folder))
    last = _last_word(folder)
    left = stop.sweep(
        lambda: stop.attempt_processes(run, node, root, everything=True) | noted(folder),
        lambda found: procs.tagged(found, run, node),
    )
    left += stop.sweep(lambda: {one["pid"] for one in guards if isinstance(one, dict) and procs.alive(one)})
    spec = journal.read_object(os.path.join(folder, "spec.json"))
    if removal := stop.remove_container(spec.get("container"), run, node):
        removal.wait()
    if os.path.isfile(os.path.join(folder, "exit.json")):
        return  # the supervisor had finished
    stopped = os.path.exists(os.path.join(folder, "stop"))
    state: State = "stopped" if stopped else "failed"
    code = 130 if stopped else 1
    blamed = None if stopped else of_host(node, "supervisor lost", why, last)
    attempt = next(iter(journal.attempts(folder)), 0)
    mpi_world.remove_session(os.path.join(folder, f"attempt-{attempt}"))
    pids = [one["pid"] for one in left]
    end: Exit = {
        "state": state, "code": code, "cause": blamed, "attempt": attempt, "left": pids,
        "processes": left[:MOST_DESCRIBED],
    }  # fmt: skip
    story = journal.Journal(os.path.join(folder, "events.jsonl"))
    story.add(note(f"supervisor lost: {why}", "error"))
    if left:
        story.add(Left(t=stamp(), e="left", processes=left))
    story.add(Verdict(t=stamp(), e="verdict", state=state, code=code, cause=blamed, attempt=attempt))
    journal.write_exit(folder, end)


def _last_word(folder: str) -> float | None:
    """Unix time of the supervisor's last write."""
    found = []
    for name in ("events.jsonl", "telemetry.jsonl"):
        try:
            found.append(os.stat(os.path.join(folder, name)).st_mtime)
        except OSError:
            pass
    return max(found, default=None)
