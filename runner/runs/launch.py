"""Starts a run on all hosts at once; if one of them fails, those that have started are stopped."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from disttui.runner import __version__
from disttui.runner.errors import DisttuiError, LinkLostError
from disttui.runner.hosts.answers import Started, Submitted
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.survey import Surveyed, Tell
from disttui.runner.planning.plan import Plan
from disttui.runner.protocol.facts import Code
from disttui.runner.protocol.files import LeaderPlace, NotifyTarget, Queue, Secrets, Spec
from disttui.runner.protocol.leases import next_round
from disttui.runner.protocol.requests import Op, Run
from disttui.runner.protocol.slurm import Batch
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.remote import stream_all, together

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


def launch(  # noqa: PLR0913
    known: KnownRun,
    plan: Plan,
    hosts: Sequence[Surveyed],
    secret_env: Sequence[Mapping[str, str]],
    targets: Sequence[NotifyTarget],
    reopen: Callable[[int], Link],
    *,
    ignore_leases: bool = False,
    queued: bool = False,
    tree: str | None = None,
    tell: Tell,
) -> None:
    """Run the setup commands on all hosts, then start their supervisors.

    Args:
        secret_env: One per host: the variables with resolved references.
        targets: Where the hosts send notifications.
        reopen: Makes a new link to the host of a node rank if a link breaks; the request is repeated, which starts
            nothing twice. Raises DisttuiError.
        ignore_leases: Start even where others have reserved what the run uses.
        queued: Wait while others have reserved what the run uses.
        tree: The code tree of which the hosts have a copy for this run.
        tell: Takes the progress of the setup.

    Raises:
        DisttuiError: A host could not start; those that had started are stopped before this is raised.
    """
    key = secrets.token_hex(32)
    started = time.time()
    request = known.request()
    reached = [Reachable(host.link, partial(reopen, node)) for node, host in enumerate(hosts)]

    def spec_of(node: int) -> Spec:
        queue = _queue(plan, hosts, node, lasts=not (secret_env[node] or targets)) if queued else None
        return _spec(known, plan, node, started, tree, queue, ignore_leases=ignore_leases)

    def start(node: int) -> Started | DisttuiError:
        secret: Secrets = {"key": key, "env": dict(secret_env[node]), "notify": list(targets)}
        answer: Started | DisttuiError = reached[node].attempt(
            "start", START_PATIENCE, spec=spec_of(node), secrets=secret
        )
        return answer

    if commands := list(plan.profile.job.setup):
        setups = {
            node: {"spec": spec_of(node), "commands": commands, "secrets": dict(secret_env[node])}
            for node in range(len(hosts))
        }
        stream_all([host.link for host in hosts], "setup", setups, "setup", tell)
    try:
        if not ignore_leases and not queued:
            _claim(reached, hosts, plan, known.run, known.by)
        # All at once, so that every host imports torch while the others still start.
        with ThreadPoolExecutor(max_workers=len(hosts), thread_name_prefix="start") as pool:
            answers = list(pool.map(start, range(len(hosts))))
        errors = [answer for answer in answers if isinstance(answer, DisttuiError)]
        first = answers[0]
        if not errors and not isinstance(first, DisttuiError) and first["gang"]:
            errors = _lead(reached, request, first["gang"])
        if errors:
            _kill(reached, request)
            raise together(errors)
    finally:
        for before, after in zip(hosts, reached, strict=True):
            if after.link is not before.link:
                after.link.close()  # code that follows the run replaces broken links itself


def _spec(
    known: KnownRun, plan: Plan, node: int, started: float, tree: str | None,
    queue: Queue | None = None, *, ignore_leases: bool = False,
) -> Spec:  # fmt: skip
    return {
        **plan.spec(node, known.run), "by": known.by, "started": started, "version": __version__,
        "resume_from": known.resume_from, "ignore_leases": ignore_leases, "queue": queue, "tree": tree,
    }  # fmt: skip


def _turns(hosts: Sequence[Surveyed]) -> list[int]:
    """Node ranks, in the order in which every run takes these hosts."""
    return sorted(range(len(hosts)), key=lambda node: (hosts[node].facts.boot_id, hosts[node].facts.hostname, node))


def _queue(plan: Plan, hosts: Sequence[Surveyed], node: int, *, lasts: bool) -> Queue:
    """How a run waits. Its place is behind all others of its round, whatever the clocks of others say."""
    last = max((one["order"] for host in hosts for one in host.facts.leases if one["state"] == "waiting"), default=0.0)
    now = hosts[0].facts.time
    order = max(now, last + 0.001) if last < now + _LATEST else now
    code, kept = hosts[node].facts.code, None
    if code is not None:
        kept = Code(
            file=code.file, script=code.script, folder=code.folder, git=None, nccl_line=None, launcher_line=None
        )
    any_of = plan.hosts[node].any_of
    return {
        "round": next_round((host.facts.euid, host.facts.leases) for host in hosts), "order": order,
        "any_of": None if any_of is None else list(any_of), "lasts": lasts and len(hosts) == 1,
        "turns": _turns(hosts), "code": kept,
    }  # fmt: skip


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
    known: KnownRun,
    plan: Plan,
    batch: Batch,
    login: Reachable,
    secret_env: Mapping[str, str],
    targets: Sequence[NotifyTarget] = (),
    *,
    tree: str | None = None,
) -> str:
    """Submit a run as a job of Slurm from its login node; returns the job's id.

    Args:
        secret_env: The variables with resolved references, of all nodes.
        targets, tree: As of `launch`.

    Raises:
        DisttuiError: The login node or Slurm refuses it, or does not answer; what may have been submitted is cancelled.
    """
    spec = _spec(known, plan, 0, time.time(), tree)
    secret: Secrets = {"key": secrets.token_hex(32), "env": dict(secret_env), "notify": list(targets)}
    before = login.link
    try:
        args = [list(host.launcher_args) for host in plan.hosts]
        answer: Submitted = login.ask(
            "submit", SUBMIT_PATIENCE, spec=spec, launcher_args=args, secrets=secret, batch=batch
        )
    except DisttuiError:
        _kill([login], known.request())
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

    def ask(self, op: Op, patience: float, **arguments: Any) -> Any:
        """Send a request and wait for the answer. Raises DisttuiError."""
        try:
            return self.link.request(op, timeout=patience, **arguments)
        except LinkLostError:
            self.link = self._reopen()
            return self.link.request(op, timeout=patience, **arguments)

    def attempt(self, op: Op, patience: float, **arguments: Any) -> Any:
        """The answer to a request, or the DisttuiError that it ended with."""
        try:
            return self.ask(op, patience, **arguments)
        except DisttuiError as error:
            return error


def _lead(hosts: Sequence[Reachable], request: Run, leader: LeaderPlace) -> list[DisttuiError]:
    """Send the leader's address to the followers; returns the errors."""

    def lead(node: int) -> object:
        return hosts[node].attempt("lead", LEAD_PATIENCE, **request, node_rank=node, leader=leader)

    with ThreadPoolExecutor(max_workers=len(hosts), thread_name_prefix="lead") as pool:
        return [answer for answer in pool.map(lead, range(1, len(hosts))) if isinstance(answer, DisttuiError)]


def _kill(hosts: Sequence[Reachable], request: Run) -> None:
    """Stop what was started, and wait for the confirmation of every reachable host: its channel is closed next."""
    answers = [
        host.link.submit("stop", **request, node_rank=node, now=True, reason="failure")
        for node, host in enumerate(hosts)
    ]
    wait(answers, KILL_PATIENCE)
