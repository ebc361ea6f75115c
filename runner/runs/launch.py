"""Starts a run on all hosts at once; if one of them fails, those that have started are stopped."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any, NamedTuple

from runner import __version__
from runner.errors import DisttuiError, LinkLostError
from runner.hosts.answers import Started, Submitted
from runner.hosts.link import Link
from runner.hosts.survey import HostsError, Surveyed, Tell
from runner.planning.plan import Plan
from runner.profile import Profile
from runner.protocol.facts import Code
from runner.protocol.files import LeaderPlace, Queue, Secrets, Spec
from runner.protocol.requests import Run
from runner.protocol.slurm import Batch

START_PATIENCE = 60.0
"""Seconds for a host to start its supervisor."""
SUBMIT_PATIENCE = 180.0
"""Seconds for a login node to submit a job, and to cancel it where that fails: four commands of Slurm, 30 s each."""
LEAD_PATIENCE = 30.0
"""Seconds for followers to get the leader's address."""
_LATEST = 30 * 86400.0
"""Seconds that another's clock may be ahead for those who come later to be behind him."""
KILL_PATIENCE = 10.0
"""Seconds for hosts to confirm that they stop what was started."""


class How(NamedTuple):
    """What a start needs besides its plan."""

    by: str
    """The user who starts it, `alice@laptop`."""
    resume_from: str | None = None
    """The folder on the hosts with the checkpoints of another run, to continue from."""
    ignore_leases: bool = False
    """Start although others have leased what the run uses."""
    priority: int | None = None
    """Wait where others have leased what the run uses, before those of a lower priority; None: do not wait."""


def launch(
    *,
    profile: Profile,
    plan: Plan,
    hosts: Sequence[Surveyed],
    run: str,
    secret_env: Sequence[Mapping[str, str]],
    tell: Tell,
    reopen: Callable[[int], Link],
    how: How,
) -> None:
    """Start the supervisors of all hosts.

    Args:
        reopen: Makes a new link to the host of a node rank where a link breaks meanwhile: the request is repeated,
            which starts nothing twice. Raises DisttuiError.
        secret_env: One per host: the variables with resolved references.

    Raises:
        DisttuiError: A host could not start; those that had started are stopped before this is raised.
    """
    key = secrets.token_hex(32)
    started = time.time()
    request: Run = {"run": run, "run_dir": profile.launch.run_dir}
    reached = [Reachable(host.link, partial(reopen, node)) for node, host in enumerate(hosts)]

    def start(node: int) -> Started | DisttuiError:
        tell(node, "starting", "")
        spec: Spec = {
            **plan.spec(node, run),
            "by": how.by,
            "started": started,
            "version": __version__,
            "resume_from": how.resume_from,
            "ignore_leases": how.ignore_leases,
            "queue": _queue(how, hosts, node),
        }
        secret: Secrets = {"key": key, "env": dict(secret_env[node])}
        try:
            answer: Started = reached[node].ask("start", START_PATIENCE, spec=spec, secrets=secret)
        except DisttuiError as error:
            tell(node, "failed", error.sentence)
            return error
        tell(node, "started", "")
        return answer

    try:
        if not how.ignore_leases and how.priority is None:
            _claim(reached, hosts, plan, run, how.by)
        # All at once, so that every host imports torch while the others still start.
        with ThreadPoolExecutor(max_workers=len(hosts), thread_name_prefix="start") as pool:
            answers = list(pool.map(start, range(len(hosts))))
        errors = [answer for answer in answers if isinstance(answer, DisttuiError)]
        first = answers[0]
        if not errors and not isinstance(first, DisttuiError) and first["gang"]:
            errors = _lead(reached, request, first["gang"])
        if errors:
            _kill(reached, request)
            raise errors[0] if len(errors) == 1 else HostsError(errors)
    finally:
        for before, after in zip(hosts, reached, strict=True):
            if after.link is not before.link:
                after.link.close()  # code that follows the run replaces broken links itself


def _turns(hosts: Sequence[Surveyed]) -> list[int]:
    """Node ranks, in the order in which every run takes these hosts."""
    return sorted(range(len(hosts)), key=lambda node: (hosts[node].facts.boot_id, hosts[node].facts.hostname, node))


def _queue(how: How, hosts: Sequence[Surveyed], node: int) -> Queue | None:
    """How a run waits. Its place is behind all that wait on its hosts already, whatever the clocks of others say."""
    if how.priority is None:
        return None
    last = max((one["order"] for host in hosts for one in host.facts.leases if one["state"] == "waiting"), default=0.0)
    now = hosts[0].facts.time
    order = max(now, last + 0.001) if last < now + _LATEST else now
    code = hosts[node].facts.code
    kept: Code | None = None
    if code is not None:
        kept = {"script": code.script, "folder": code.folder, "git": None, "nccl_line": None}
    return {"priority": how.priority, "order": order, "turns": _turns(hosts), "code": kept}


def _claim(reached: Sequence[Reachable], hosts: Sequence[Surveyed], plan: Plan, run: str, by: str) -> None:
    """Lease the GPUs of all hosts, or none. Raises DisttuiError.

    One host after the other, in an order that is the same for everybody: of two starts, the one that gets the first
    host that both need gets all others that both need.
    """
    if len(hosts) == 1 or not any(host.gpus for host in plan.hosts):
        return  # the start itself takes it, or there is nothing that one run could take from another
    done: list[int] = []
    try:
        for node in _turns(hosts):
            done.append(node)
            gpus, quota = list(plan.hosts[node].gpus or ()), plan.profile.hosts[node].quota
            reached[node].ask("lease", LEAD_PATIENCE, run=run, node_rank=node, gpus=gpus, by=by, quota=quota)
    except DisttuiError:
        wait([reached[node].link.submit("release", run=run) for node in done], KILL_PATIENCE)
        raise


def submit(
    *,
    plan: Plan,
    batch: Batch,
    login: Reachable,
    run: str,
    secret_env: Mapping[str, str],
    by: str = "",
    resume_from: str | None = None,
) -> str:
    """Submit a run as a job of Slurm from its login node; returns the job's id. Further arguments as of `launch`.

    Args:
        secret_env: The variables with resolved references, of all nodes.

    Raises:
        DisttuiError: The login node or Slurm refuses it, or does not answer; what may have been submitted is cancelled.
    """
    spec: Spec = {
        **plan.spec(0, run), "by": by, "started": time.time(), "version": __version__, "resume_from": resume_from,
        "ignore_leases": False,
        "queue": None,
    }  # fmt: skip
    secret: Secrets = {"key": secrets.token_hex(32), "env": dict(secret_env)}
    before = login.link
    try:
        args = [list(host.launcher_args) for host in plan.hosts]
        answer: Submitted = login.ask(
            "submit", SUBMIT_PATIENCE, spec=spec, launcher_args=args, secrets=secret, batch=batch
        )
    except DisttuiError:
        _kill([login], {"run": run, "run_dir": spec["run_dir"]})
        raise
    finally:
        if login.link is not before:
            login.link.close()  # code that follows the run replaces broken links itself
    return answer["job"]


class Reachable:
    """A host whose request is repeated after a broken link; requests of a start are idempotent.

    Args:
        reopen: Makes a new link. Raises DisttuiError.
    """

    def __init__(self, link: Link, reopen: Callable[[], Link]) -> None:
        self.link = link
        self._reopen = reopen

    def ask(self, op: str, patience: float, **arguments: Any) -> Any:
        """Send a request and wait for the answer. Raises DisttuiError."""
        try:
            return self.link.request(op, timeout=patience, **arguments)
        except LinkLostError:
            self.link = self._reopen()
            return self.link.request(op, timeout=patience, **arguments)


def _lead(hosts: Sequence[Reachable], request: Run, leader: LeaderPlace) -> list[DisttuiError]:
    """Send the leader's address to the followers; returns the errors."""

    def lead(node: int) -> DisttuiError | None:
        try:
            hosts[node].ask("lead", LEAD_PATIENCE, **request, node_rank=node, leader=leader)
        except DisttuiError as error:
            return error
        return None

    with ThreadPoolExecutor(max_workers=len(hosts), thread_name_prefix="lead") as pool:
        return [error for error in pool.map(lead, range(1, len(hosts))) if error]


def _kill(hosts: Sequence[Reachable], request: Run) -> None:
    """Stop what was started, and wait for the confirmation of every reachable host: its channel is closed next."""
    answers = [
        host.link.submit("stop", **request, node_rank=node, now=True, reason="failure")
        for node, host in enumerate(hosts)
    ]
    wait(answers, KILL_PATIENCE)
