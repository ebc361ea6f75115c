"""Starts a run: the one sequence behind `disttui run`, sweeps, the wizard and scripts."""

from __future__ import annotations

import platform
import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from disttui.runner import __version__
from disttui.runner.api.carrying import HostStep, RunCode, carry, collect_code, keep_code, stage, stepwise
from disttui.runner.api.preparing import Planned, Prepared, built, notify_targets, prepare, refuse, resolve_secrets
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, HostError, LinkLostError
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.survey import Tell
from disttui.runner.ids import new_run_id, short
from disttui.runner.library.git import Repository
from disttui.runner.planning.interpreter import find_python
from disttui.runner.planning.plan import Plan
from disttui.runner.profile.consent import source_of
from disttui.runner.profile.leaks import hidden, without_tokens
from disttui.runner.profile.schema import Profile
from disttui.runner.protocol.facts import Code
from disttui.runner.protocol.files import LeaderPlace, NotifyTarget, Queue, Secrets, Spec
from disttui.runner.protocol.leases import next_round
from disttui.runner.protocol.requests import CodeState, Op, Run, Started, Submitted
from disttui.runner.protocol.slurm import Batch
from disttui.runner.runs.notes import CodeKept, HostVersions, Provenance
from disttui.runner.runs.registry import KnownRun, keep, run_names
from disttui.runner.runs.remote import stream_all, together

if TYPE_CHECKING:
    from disttui.runner.hosts.facts import HostFacts


START_PATIENCE = 60.0
"""Seconds for a host to start its supervisor."""
SUBMIT_PATIENCE = 180.0
"""Seconds for a login node to submit a job, and to cancel it on failure: four Slurm commands, 30 s each."""
LEAD_PATIENCE = 30.0
"""Seconds for followers to get the leader's address."""
_LATEST = 30 * 86400.0
"""Most seconds that another user's clock may be ahead without losing the order of the queue."""
KILL_PATIENCE = 10.0
"""Seconds for hosts to confirm the stop of a failed start."""


def _launch_all(
    known: KnownRun, planned: Planned, links: Sequence[Link], secret_env: Sequence[Mapping[str, str]],
    targets: Sequence[NotifyTarget], reopen: Callable[[int], Link], tree: str | None, tell: Tell,
) -> None:  # fmt: skip
    """Run the setup commands on all hosts, then start their supervisors.

    Raises:
        DisttuiError: A host could not start; those that had started have been stopped.
    """
    key = secrets.token_hex(32)
    started = time.time()
    request = known.request()
    plan, nodes = planned.plan, range(len(links))
    reached = [Reachable(link, partial(reopen, node)) for node, link in enumerate(links)]

    def spec_of(node: int) -> Spec:
        lasts = not (secret_env[node] or targets)
        queue = _queue(plan, planned.facts, node, lasts=lasts) if planned.queued else None
        return _spec(known, plan, node, started, tree, queue, ignore_leases=planned.ignore_leases)

    def start(node: int) -> Started | DisttuiError:
        secret: Secrets = {"key": key, "env": dict(secret_env[node]), "notify": list(targets)}
        answer: Started | DisttuiError = reached[node].attempt(
            "start", START_PATIENCE, spec=spec_of(node), secrets=secret
        )
        return answer

    if commands := list(plan.profile.job.setup):
        setups = {
            node: {
                "spec": spec_of(node), "commands": commands, "secrets": dict(secret_env[node]),
                "variables": plan.profile.host_env(node),
            }
            for node in nodes
        }  # fmt: skip
        stream_all(links, "setup", setups, "setup", tell)
    try:
        if not planned.ignore_leases and not planned.queued:
            _claim(reached, planned.facts, plan, known)
        # Concurrently, so that every host imports torch while the others still start.
        with ThreadPoolExecutor(max_workers=len(links), thread_name_prefix="start") as pool:
            answers = list(pool.map(start, nodes))
        errors = [answer for answer in answers if isinstance(answer, DisttuiError)]
        first = answers[0]
        if not errors and not isinstance(first, DisttuiError) and first["gang"]:
            errors = _lead(reached, request, first["gang"])
        if errors:
            raise _given_up(together(errors), known, leader_ended=_kill(reached, request))
    finally:
        for before, after in zip(links, reached, strict=True):
            if after.link is not before:
                after.link.close()  # code that follows the run replaces broken links itself


def _spec(
    known: KnownRun, plan: Plan, node: int, started: float, tree: str | None,
    queue: Queue | None = None, *, ignore_leases: bool = False,
) -> Spec:  # fmt: skip
    return {
        **plan.spec(node, known.run), "by": known.by, "started": started, "version": __version__,
        "resume_from": known.resume_from, "ignore_leases": ignore_leases, "queue": queue, "tree": tree,
    }  # fmt: skip


def _turns(facts: Sequence[HostFacts]) -> list[int]:
    """Node ranks in the order in which all runs take leases on these hosts, which avoids deadlocks."""
    return sorted(range(len(facts)), key=lambda node: (facts[node].boot_id, facts[node].hostname, node))


def _queue(plan: Plan, facts: Sequence[HostFacts], node: int, *, lasts: bool) -> Queue:
    """A run's place in the queue: the last of its round, even if clocks of other users are ahead."""
    last = max((one["order"] for host in facts for one in host.leases if one["state"] == "waiting"), default=0.0)
    now = facts[0].time
    order = max(now, last + 0.001) if last < now + _LATEST else now
    code, kept = facts[node].code, None
    if code is not None:
        kept = Code(
            file=code.file, script=code.script, folder=code.folder, git=None, nccl_line=None, launcher_line=None
        )
    any_of = plan.hosts[node].any_of
    return {
        "round": next_round((host.euid, host.leases) for host in facts), "order": order,
        "any_of": None if any_of is None else list(any_of), "lasts": lasts and len(facts) == 1,
        "turns": _turns(facts), "code": kept,
    }  # fmt: skip


def _claim(reached: Sequence[Reachable], facts: Sequence[HostFacts], plan: Plan, known: KnownRun) -> None:
    """Lease the GPUs of all hosts, or none. Raises DisttuiError.

    Hosts are leased one by one, in the same order by all users: of two starts, the one that gets the first common host
    also gets all others.
    """
    if len(facts) == 1 or not any(host.gpus for host in plan.hosts):
        return  # the start itself leases a single host, and runs without GPUs do not conflict
    done: list[int] = []
    try:
        for node in _turns(facts):
            done.append(node)
            gpus, quota = list(plan.hosts[node].gpus or ()), plan.profile.hosts[node].quota
            reached[node].ask(
                "lease", LEAD_PATIENCE, run=known.run, node_rank=node, gpus=gpus, by=known.by, quota=quota
            )
    except DisttuiError:
        wait([reached[node].link.submit("release", run=known.run) for node in done], KILL_PATIENCE)
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
    except DisttuiError as error:
        raise _given_up(error, known, leader_ended=_kill([login], known.request())) from None
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
        """The answer to a request, or its DisttuiError."""
        try:
            return self.ask(op, patience, **arguments)
        except DisttuiError as error:
            return error


def _lead(hosts: Sequence[Reachable], request: Run, leader: LeaderPlace) -> list[DisttuiError]:
    """Send the leader's address to the followers; return the errors."""

    def lead(node: int) -> object:
        return hosts[node].attempt("lead", LEAD_PATIENCE, **request, node_rank=node, leader=leader)

    with ThreadPoolExecutor(max_workers=len(hosts), thread_name_prefix="lead") as pool:
        return [answer for answer in pool.map(lead, range(1, len(hosts))) if isinstance(answer, DisttuiError)]


def _kill(hosts: Sequence[Reachable], request: Run) -> bool:
    """Stop a failed start on all hosts, and wait up to `KILL_PATIENCE`; returns whether the first has answered."""
    answers = [
        host.link.submit("stop", **request, node_rank=node, now=True, reason="failure")
        for node, host in enumerate(hosts)
    ]
    wait(answers, KILL_PATIENCE)
    return answers[0].done() and not isinstance(answers[0].exception(), LinkLostError)


class _MayRunError(LinkLostError):
    """The host that leads the run was lost during the start: it may have started it."""


def _given_up(error: DisttuiError, known: KnownRun, *, leader_ended: bool) -> DisttuiError:
    if leader_ended:
        return error
    cure = f"{known.hosts[0].name} may have started the run. Later: disttui ps, disttui stop {short(known.run)}"
    found = _MayRunError(error.host, error.what, f"{error.cure} {cure}".strip(), cause=error.cause)
    found.parts = error.parts
    return found


class Launched(NamedTuple):
    """A run that has been started on all its hosts."""

    run: KnownRun
    links: tuple[Link, ...]
    """The open links to its hosts, for `follow`."""


def start(  # noqa: PLR0913
    viewer: Viewer,
    profile: Profile | Prepared,
    *,
    source: str | None = None,
    resume_from: str | None = None,
    ssh_config: str | None = None,
    command: Sequence[str] = (),
    run: str | None = None,
    ignore_leases: bool = False,
    queued: bool = False,
    code: RunCode | None = None,
) -> Generator[HostStep | RunCode | Planned | Launched]:
    """Start a profile on all its hosts.

    Yields the progress of each host, then the plan once its checks have passed (nothing runs yet), the code that
    `job.sync` sends and the progress of that, then the started run. Closing or exhausting the generator closes the
    links; a started run continues.

    Args:
        profile: Or what was prepared already, with its links, which stay open.
        source: The profile's file, to be stored with the run.
        resume_from: The folder on the hosts with the checkpoints of another run, to continue from.
        ssh_config: The ssh configuration of that run.
        command: The words that started it, to be stored with it; what looks like a secret is masked.
        run: Its id, from `new_run_id`; None: a new one.
        ignore_leases: Use GPUs and hosts even where others have reserved them.
        queued: Wait in the queue while others have reserved what the run uses.
        code: What to send in place of the folder of `job.sync` as it is now.

    Raises:
        InputError: A secret of the profile cannot be resolved, or the folder of `job.sync` cannot be sent.
        PreflightError: Checks forbid the start.
        DisttuiError: A host cannot be used or could not start it; nothing runs.
    """
    given = isinstance(profile, Prepared)
    wanted = profile.planned.profile if isinstance(profile, Prepared) else profile
    if not wanted.job.sync:
        code = None
    elif not code:
        code = yield from stepwise(lambda tell: collect_code(wanted, viewer.environ, tell=partial(tell, 0, "sending")))
    if isinstance(profile, Prepared):
        prepared = profile
    else:
        resolve_secrets(viewer, profile)  # first, so that an unset variable is reported before any host is contacted
        notify_targets(viewer, profile)
        prepared = yield from stepwise(
            lambda tell: prepare(viewer, wanted, tell, ignore_leases=ignore_leases, queued=queued, code=code),
            Prepared.close,
        )
    try:
        if wanted.job.environment:
            before = prepared  # the checks need the built environments

            def reopen(node: int) -> Link:
                return viewer.open_link(before.planned.profile.hosts[node], ssh_config)

            prepared = yield from stepwise(lambda tell: built(viewer, before, reopen, tell, code))
        refuse(prepared.planned)
        yield prepared.planned
        if code:
            yield code
        known = yield from _launch(viewer, prepared, source, resume_from, ssh_config, command, run, code)
        yield Launched(known, prepared.links)
    finally:
        if not given:
            prepared.close()


def _launch(
    viewer: Viewer,
    prepared: Prepared,
    source: str | None,
    resume_from: str | None,
    ssh_config: str | None,
    command: Sequence[str],
    run: str | None,
    code: RunCode | None,
) -> Generator[HostStep, None, KnownRun]:
    """Store the record of a prepared run, so that it can be attached to later, then start it."""
    planned = prepared.planned
    profile, plan, environ = planned.profile, planned.plan, viewer.environ
    secret_env, targets = resolve_secrets(viewer, profile), notify_targets(viewer, profile)
    known = keep(
        profile,
        [host.num_processes for host in plan.hosts],
        run or new_run_id(profile.name, run_names(environ)),
        environ,
        source=source,
        sandbox=viewer.sandbox is not None,
        ssh_config=viewer.config(ssh_config),
        resume_from=resume_from,
    )
    keep_origin(known, plan, planned.facts, prepared.links[0], command, environ, code)

    given_up: list[bool] = []

    def reopen(node: int) -> Link:
        if given_up:
            raise HostError(profile.hosts[node].name, "the start was cancelled")
        return viewer.open_link(profile.hosts[node], ssh_config)

    tree = code.sha256 if code else None
    try:
        if code:
            yield from carry(known, profile, code, prepared.links, reopen, environ)
        if profile.data:
            yield from stepwise(lambda tell: stage(viewer, known, profile, prepared.links, reopen, tell))
        if plan.batch is not None:
            login = Reachable(prepared.links[0], lambda: reopen(0))
            submit(known, plan, plan.batch, login, secret_env[0], targets, tree=tree)
        else:
            yield from stepwise(
                lambda tell: _launch_all(known, planned, prepared.links, secret_env, targets, reopen, tree, tell)
            )
    except _MayRunError:
        raise  # the next list of runs asks its hosts
    except DisttuiError as error:
        known.failed(error.sentence)
        raise
    except GeneratorExit:
        given_up.append(True)
        known.failed("the start was cancelled")
        raise
    return known


def keep_origin(
    known: KnownRun,
    plan: Plan,
    facts: Sequence[HostFacts],
    first: Link,
    command: Sequence[str],
    environ: Mapping[str, str],
    code: RunCode | None = None,
) -> None:
    """Store the provenance of a run that is about to start; a failed write has no other effect.

    Args:
        facts: Of the hosts of the profile, in its order.
        first: The link to the first of them.
        command: The words that started the run.
        code: What is sent to the hosts as its code.
    """
    profile = plan.profile
    files = [*([known.source] if known.source else []), *(each.path for each in profile.read_from)]
    library = next(filter(None, (source_of(Path(file), environ) for file in files)), None)
    made = Provenance(
        version=__version__,
        python=platform.python_version(),
        command=tuple(map(hidden, command)),
        hosts=tuple(versions(plan, one, node) for node, one in enumerate(facts)),
        library=library.name if library else "",
        library_commit=(library and library.url and Repository(library.folder, environ).commit_of("HEAD")) or "",
    )
    with suppress(OSError):
        made.save(known.folder)
        if code is not None:
            made.with_code(keep_code(known, code)).save(known.folder)
    if code is not None:
        return
    # Nothing waits for the answer, which arrives while the ranks start.
    script = profile.job.target.value if profile.job.target.kind == "script" else None
    asked = first.submit("code", workdir=plan.hosts[0].workdir, script=script)
    asked.add_done_callback(lambda answer: _keep_code(answer, made, known, profile.hosts[0].name))


def _keep_code(answer: Future[CodeState], made: Provenance, known: KnownRun, host: str) -> None:
    if answer.cancelled() or answer.exception() is not None:
        return
    found = answer.result()
    diff = without_tokens(found["diff"])
    code = CodeKept(host, found["folder"], found["head"], diff, found["cut"], tuple(found["untracked"]))
    with suppress(OSError):
        made.with_code(code).save(known.folder)


def versions(plan: Plan, facts: HostFacts, node: int) -> HostVersions:
    """What will run on a host, and the host's facts."""
    host = plan.profile.hosts[node]
    _, found, _ = find_python(plan.profile, host, facts)
    return HostVersions(
        host.name, plan.hosts[node].python, found.version if found else "", (found.torch if found else "") or "", facts
    )
