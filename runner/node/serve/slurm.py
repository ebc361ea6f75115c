"""Runs that are Slurm jobs, as seen from their login node: submitted, queued, cancelled, ended.

Supervisors run on the job's nodes, and write to the same folders through a shared file system. So this host asks Slurm,
and does not look at its own processes, to learn whether a run is alive.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, cast

from ...protocol.events import Verdict
from ...protocol.regular import last_text
from ...protocol.slurm import LIVING, UNSEEN_FOLDER, WAITING, Queued, program, script, submission
from .. import journal, locks, parcel
from ..gang.membership import of_host
from ..journal import stamp
from ..problem import Problem
from ..supervise import control, slurm

if TYPE_CHECKING:
    from ...protocol import requests
    from ...protocol.cause import Cause
    from ...protocol.events import State
    from ...protocol.files import Exit, Given

PACE, _CALM = 2.0, 30.0
"""Seconds between two queries to Slurm about a job; the second value is for one that runs and is not about to end."""
_SETTLED = 5.0
"""Seconds after a job's end in which its nodes' last files may still arrive on a shared file system."""
_PATH = re.compile(r"[A-Za-z0-9_/.,:=@+-]+")
"""Paths that mean the same to Slurm (`%j`), to a shell and to us."""
_JOB = re.compile("[0-9]{1,20}")
_SCRIPT = "job.sbatch"


class JobWatch:
    """The job of one run. All threads of this process together query Slurm at most every `PACE` seconds."""

    def __init__(self, run_folder: str, job: str, python: str) -> None:
        self.run_folder = run_folder
        self.job = job
        self._python = python
        self._lock = threading.Lock()
        self._asked = float("-inf")
        self._known: Optional[Queued] = None
        self._end: Optional[float] = None
        """Unix time at which, according to Slurm, the job has ended or is due to end."""
        self._ended: Optional[float] = None
        self._cancel_after = float("inf")

    def now(self) -> Optional[Queued]:
        """The job's state in the queue; None if Slurm does not answer."""
        with self._lock:
            if time.monotonic() - self._asked >= self._pace():
                self._known, self._end = _look(self.job)
                self._asked = time.monotonic()
            return self._known

    def _pace(self) -> float:
        if self._known is None or self._known["state"] != "RUNNING":
            return PACE
        first = os.path.join(self.run_folder, "0")
        ends = any(os.path.exists(os.path.join(first, name)) for name in ("stop", "exit.json"))
        return PACE if ends else _CALM

    def alive(self, settle: bool = True) -> bool:
        """Whether the job waits or runs, as far as is known. With `settle`, writes the ends of its parts if not."""
        found = self.now()
        # Slurm cleans up on a node that is gone until it notices that, minutes after the run has ended without it.
        over = found is not None and found["state"] == "COMPLETING" and _end_of(self.run_folder, 0) is not None
        if found is None or (found["state"] in LIVING and not over):
            return True
        self._ended = self._ended or time.monotonic()
        late = time.monotonic() - self._ended > _SETTLED or self._is_long_over(found)
        if not settle:
            return not late
        _settle(self.run_folder, found, late)
        return any(not os.path.exists(os.path.join(one, "exit.json")) for one in _nodes(self.run_folder))

    def _is_long_over(self, found: Queued) -> bool:
        """Whether a process that has just started need not wait: Slurm forgets a job minutes after its end."""
        # The clock of Slurm's controller may differ from ours
        return not found["state"] or (self._end is not None and time.time() - self._end > 60.0)

    def waits(self) -> bool:
        """Whether the job waits in the queue."""
        found = self.now()
        return found is not None and found["state"] in WAITING

    def summary(self, ended: bool) -> Dict[str, object]:
        """The fields of a run's summary about its job."""
        found = None if ended else self.now()
        if found is None or found["state"] not in WAITING:
            return {"job": self.job}
        return {"job": self.job, "state": "queued", "waits": found["reason"], "start": found["start"]}

    def cancel(self) -> None:
        """Cancel the job. Raises Problem, also if it runs another script: the job may have written any number."""
        command = slurm.run("squeue", "-h", "-j", self.job, "-o", "%o").strip()
        if command.startswith("/") and not command.endswith(f"/{os.path.basename(self.run_folder)}/0/{_SCRIPT}"):
            what = f"{self.run_folder}/0/slurm.json names job {self.job}, which is not this run's"
            raise Problem(what, "find this run's job with squeue, and end it with scancel")
        slurm.run("scancel", self.job)
        with self._lock:
            self._asked = float("-inf")

    def on_nodes(self, part: str, words: Sequence[str], node: Optional[str] = None) -> str:
        """Run a part of the node program on the job's nodes, or on one, by name; returns its output. Raises Problem.

        The step shares the processors with the running one.
        """
        count = 1 if node else len(_nodes(self.run_folder))
        where = [f"--nodelist={node}"] if node else []
        steps = ["srun", f"--jobid={self.job}", "--overlap", f"--nodes={count}", f"--ntasks={count}", *where]
        # A shell on the node expands the interpreter's tilde, as in the batch script.
        line = f'exec {program(self._python, self.run_folder, part)} "$@"'
        return slurm.run(*steps, "sh", "-c", line, "sh", *words)

    def cancel_late(self, after: float) -> None:
        """Cancel the job after some seconds, unless it has ended."""
        with self._lock:
            if after >= self._cancel_after:
                return
            self._cancel_after = after

        def late() -> None:
            time.sleep(after)
            with contextlib.suppress(Problem):
                if self.alive():
                    self.cancel()

        threading.Thread(target=late, daemon=True).start()


_watches: Dict[str, JobWatch] = {}
_watching = threading.Lock()
_settling = threading.Lock()


def job_of(folder: str) -> Optional[JobWatch]:
    """The job of the run that a host's folder belongs to; None if it is not a Slurm job."""
    run_folder = os.path.dirname(folder)
    with _watching:
        if run_folder not in _watches:
            found = journal.read_object(os.path.join(run_folder, "0", "slurm.json"))
            job = found.get("job")
            if not isinstance(job, str) or not _JOB.fullmatch(job):
                return None
            _watches[run_folder] = JobWatch(run_folder, job, str(found.get("python")))
        return _watches[run_folder]


def submit(
    request: requests.SubmitRequest, folders: Sequence[str], node_zip: str, train_zip: Optional[str]
) -> requests.Submitted:
    """Submit a run as a job; a second submission of the same run changes nothing.

    Args:
        folders: The folders of all node ranks; they exist, and belong to this user only.
        node_zip: The node program.
        train_zip: The built-in job.

    Raises:
        Problem: Slurm refuses the job.
    """
    spec, first = request["spec"], folders[0]
    run_folder = os.path.dirname(first)
    if not _PATH.fullmatch(run_folder):
        raise Problem(
            f"{run_folder} contains a character that Slurm or a shell would interpret",
            "choose a launch.run_dir of letters, digits and / . , : = @ + - _",
        )
    with locks.hold("start", first):
        known = job_of(first)
        if known is not None:
            return {"job": known.job}
        again = os.path.exists(os.path.join(first, _SCRIPT))
        job = _job_named(spec["run"]) if again else ""
        try:
            job = job or _hand_in(request, folders, node_zip, train_zip)
            journal.write_json(os.path.join(first, "slurm.json"), {"job": job, "python": request["batch"]["python"]})
        except (Problem, OSError):
            # Leave neither an unknown job nor the secrets of one that was never submitted.
            with contextlib.suppress(Problem):
                if job := job or _job_named(spec["run"]):
                    slurm.run("scancel", job)
            shutil.rmtree(run_folder, ignore_errors=True)
            raise
    return {"job": job}


def _hand_in(request: requests.SubmitRequest, folders: Sequence[str], node_zip: str, train_zip: Optional[str]) -> str:
    """Write what the nodes need, and submit the job; returns its id. Raises Problem, or OSError."""
    spec, first = request["spec"], folders[0]
    _copy(node_zip, os.path.join(first, "node.zip"))
    given: Given = {"secrets": request["secrets"], "train_zip": None, "lease": None, "unleased": ""}
    if spec["target"]["kind"] == "builtin" and train_zip:
        shared = os.path.join(first, "train.zip")
        _copy(train_zip, shared)
        given["train_zip"] = shared
    for node, folder in enumerate(folders):
        own = {**spec, "node_rank": node, "launcher_args": request["launcher_args"][node]}
        journal.write_json(os.path.join(folder, "spec.json"), own)
        # Not among the files that viewers mirror or pull; the node removes it before it begins.
        journal.write_json(os.path.join(folder, "given"), given)
    path = os.path.join(first, _SCRIPT)
    text = script(request["batch"], spec["run"], len(folders), os.path.dirname(first))
    parcel.place(path, text.encode())
    said = slurm.run(*submission(path, request["batch"])).split()
    # Text of the site may come before it.
    job = said[-1].partition(";")[0] if said else ""
    if not _JOB.fullmatch(job):
        raise Problem("sbatch did not print the id of the job", "check squeue, and the site's sbatch")
    return job


def _copy(path: str, to: str) -> None:
    """Copy a zip to a place that the nodes can read. Raises OSError."""
    data = parcel.read(path)
    if data is None:
        raise Problem(f"{path} is gone", "start the run again")
    parcel.place(to, data)


def status(folder: str, watch: JobWatch, settle: bool) -> requests.Alive:
    """Whether a run's part is alive, according to its job, and its end. With `settle`, a missing end is written."""
    alive = watch.alive(settle)
    end = cast("Optional[Exit]", journal.read_object(os.path.join(folder, "exit.json")) or None)
    found = watch.now()
    # Slurm still cleans up after what the supervisors have ended and checked.
    over = end is not None and (found is None or found["state"] == "COMPLETING")
    return {"alive": alive and not over, "pid": None, "exit": end}


def request_stop(folder: str, watch: JobWatch, now: bool, reason: str) -> requests.Stopped:
    """Stop a run's part: a waiting job is cancelled, a running one stops like any run.

    Raises Problem if the job cannot be cancelled.
    """
    end = cast("Optional[Exit]", journal.read_object(os.path.join(folder, "exit.json")) or None)
    if not watch.alive():
        return {"stopped": False, "state": end.get("state") if end else None}
    control.write_stop(folder, reason[:200], now)
    if os.path.basename(folder) == "0":  # one request to Slurm for all nodes
        if watch.waits() or not os.path.exists(os.path.join(folder, "supervisor.json")):
            watch.cancel()
        else:
            spec = journal.read_object(os.path.join(folder, "spec.json"))
            grace = 0.0 if now else _grace(spec.get("launch"))
            # Seconds beyond twice the grace after which a job that was asked to stop is cancelled
            watch.cancel_late(2 * grace + 15.0)
            # Clients of a shared file system may see the file `stop` up to a minute later.
            words = ("now" if now else "", reason[:200])
            threading.Thread(target=_try_on_nodes, args=(watch, "slurm-stop", words), daemon=True).start()
    return {"stopped": True, "state": "stopping"}


def stacks(folder: str, watch: JobWatch) -> requests.StacksAnswer:
    """Query on its node where the ranks of a part are. Raises Problem."""
    node = os.path.basename(folder)
    spec = journal.read_object(os.path.join(folder, "spec.json"))
    hosts = spec.get("hosts")
    if "job" not in spec or not isinstance(hosts, list) or len(hosts) <= int(node) or not watch.alive(settle=False):
        return {"ranks": {}}
    said = watch.on_nodes("slurm-stacks", (node,), str(hosts[int(node)]))
    try:
        found: requests.StacksAnswer = json.loads(said.splitlines()[-1])  # text of the site may come before it
    except (ValueError, IndexError, RecursionError):
        raise Problem(
            f"node {node} of job {watch.job} did not report where its ranks are", "check the output of srun there"
        ) from None
    return found


def _grace(launch: object) -> float:
    """Seconds; 0 for anything but a number, as the job may have written anything into its spec."""
    grace = launch.get("grace") if isinstance(launch, dict) else None
    # Longest grace in seconds that is waited for; no spec of ours has more
    return min(max(0.0, grace), 86400.0) if isinstance(grace, (int, float)) else 0.0


def _try_on_nodes(watch: JobWatch, part: str, words: Sequence[str]) -> None:
    with contextlib.suppress(Problem):
        watch.on_nodes(part, words)


@contextlib.contextmanager
def queue_news(
    folder: str, watch: Optional[JobWatch], tell: Callable[[Dict[str, object]], None], settle: bool
) -> Iterator[None]:
    """While the block runs, report each change of the job's state in the queue; only node rank 0 does so.

    With `settle`, write the ends of parts that lack one.
    """
    if watch is None or os.path.basename(folder) != "0":
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_follow, args=(watch, tell, settle, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _follow(watch: JobWatch, tell: Callable[[Dict[str, object]], None], settle: bool, over: threading.Event) -> None:
    shown: Optional[Queued] = None
    while not over.is_set():
        found = watch.now()
        if found is not None and found != shown:
            shown = found
            tell({"queue": found})
        watch.alive(settle)
        over.wait(PACE)


def _nodes(run_folder: str) -> List[str]:
    names = [name for name in os.listdir(run_folder) if name.isdecimal()]
    return [os.path.join(run_folder, name) for name in sorted(names, key=int)]


def _settle(run_folder: str, found: Queued, late: bool) -> None:
    """Write the end of each part of a run that has not written it although the job has ended."""
    with _settling:  # a stop asks for every part of a run at the same time
        leader = _end_of(run_folder, 0)
        for node, folder in enumerate(_nodes(run_folder)):
            begun = os.path.exists(os.path.join(folder, "supervisor.json"))
            if os.path.exists(os.path.join(folder, "exit.json")) or (begun and not late):
                continue
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, "given"))
            attempt = next(iter(journal.attempts(folder)), 0)
            state, code, cause = leader or _end_by_slurm(run_folder, node, found, begun)
            verdict = Verdict(t=stamp(), e="verdict", state=state, code=code, attempt=attempt, cause=cause)
            journal.Journal(os.path.join(folder, "events.jsonl")).add(verdict)
            journal.write_exit(folder, {"state": state, "code": code, "cause": cause, "attempt": attempt, "left": []})


_End = Tuple["State", int, Optional["Cause"]]
"""State, exit code and cause."""


def _end_of(run_folder: str, node: int) -> Optional[_End]:
    found = journal.read_json(os.path.join(run_folder, str(node), "exit.json"))
    if not isinstance(found, dict):
        return None
    return found.get("state", "failed"), found.get("code", 1), found.get("cause")


def _end_by_slurm(run_folder: str, node: int, found: Queued, begun: bool) -> _End:
    if found["state"] == "CANCELLED":
        return "stopped", 130, None
    return "failed", 1, of_host(node, "slurm", _why(run_folder, found, begun))


def _why(run_folder: str, found: Queued, begun: bool) -> str:
    """The reason why the job has ended, for people."""
    job, state = found["job"], found["state"]
    if not state:
        return f"Slurm no longer knows job {job}, and its nodes did not record how it ended"
    try:
        shown = re.search(r"ExitCode=(\d{1,9}):(\d{1,9})", slurm.run("scontrol", "-o", "show", "job", job))
    except Problem:
        shown = None
    code, signal = (int(shown[1]), int(shown[2])) if shown else (0, 0)
    # The signal in a job's exit code if Slurm could not open its output file
    if not begun and (code == UNSEEN_FOLDER or signal == 53):
        return (
            f"the nodes of job {job} cannot see {run_folder}: set launch.run_dir to a folder shared with the login node"
        )
    words = f"Slurm ended job {job}: {state}"
    if state == "TIMEOUT":
        words += ", it has reached its time limit (slurm.time)"
    elif found["reason"] not in ("", "None", "NonZeroExitCode"):
        words += f" ({found['reason']})"
    if code:
        words += f", exit code {code}"
    said = last_text(os.path.join(run_folder, "0", "slurm.log"), 2000).strip().splitlines()[-10:]
    return "\n".join([words, *said])


def _look(job: str) -> Tuple[Optional[Queued], Optional[float]]:
    """A job's state, None if Slurm does not answer; and when it has ended or is due to end, as far as is known."""
    try:
        lines = slurm.run("squeue", "-h", "-j", job, "-t", "all", "-o", "%T|%S|%e|%N|%r").splitlines()
    except Problem as problem:
        if "Invalid job id" not in problem.what:
            return None, None
        lines = []
    if not lines:
        return {"job": job, "state": "", "reason": "", "start": "", "nodes": []}, None
    state, start, end, nodes, reason = [*lines[0].split("|", 4), "", "", "", ""][:5]
    queued: Queued = {
        "job": job,
        "state": state,
        "reason": "" if reason == "None" else reason,
        "start": "" if start == "N/A" else start,
        "nodes": slurm.hostnames(nodes),
    }
    try:
        return queued, time.mktime(time.strptime(end, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return queued, None


def _job_named(run: str) -> str:
    found = slurm.run("squeue", "-h", "-t", "all", "-n", run, "-u", str(os.getuid()), "-o", "%i").split()
    return next((job for job in found if _JOB.fullmatch(job)), "")
