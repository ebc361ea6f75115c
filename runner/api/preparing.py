"""From a profile to a run: connects to its hosts, plans, checks, starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING

from runner.api.viewer import Viewer
from runner.errors import DisttuiError, InputError
from runner.hosts.facts import HostFacts, when_free, with_leases, without_leases
from runner.hosts.link import Link
from runner.hosts.ship import train_parcel
from runner.hosts.survey import Surveyed, Tell, survey
from runner.ids import new_run_id
from runner.profile import Profile
from runner.protocol.leases import Lease, Wish, in_the_way, person
from runner.runs.launch import How, Reachable, submit
from runner.runs.launch import launch as start
from runner.runs.registry import KnownRun, keep, run_names, whoami
from runner.text import clean

if TYPE_CHECKING:
    from runner.planning.plan import Plan
    from runner.planning.preflight import Finding
    from runner.planning.recommend import Recommendation


@dataclass(frozen=True)
class Planned:
    """The recommendation, plan and findings for a profile and the facts of all its hosts."""

    profile: Profile
    facts: tuple[HostFacts, ...]
    recommendation: Recommendation
    plan: Plan
    findings: tuple[Finding, ...]
    ignore_leases: bool = False
    """Whether leases of others were left out of account; the start then does so too."""
    queued: bool = False
    """Whether the run waits where others have leased what it uses."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that keep the run from being started."""
        return tuple(finding for finding in self.findings if finding.level == "error")


@dataclass(frozen=True)
class Prepared:
    """A plan, and an open link to every host. Closes the links at the end of its block."""

    planned: Planned
    links: tuple[Link, ...]

    def __enter__(self) -> Prepared:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the links; a started run goes on."""
        for link in self.links:
            link.close()


class PreflightError(DisttuiError):
    """Checks before the launch failed; nothing was started."""

    exit_code = 3

    def __init__(self, findings: Sequence[Finding]) -> None:
        errors = (DisttuiError(clean(one.what), clean(one.cure), host=one.host or "the profile") for one in findings)
        super().__init__("\n".join(map(str, errors)))
        self.findings = tuple(findings)


def as_run(profile: Profile, *, sandbox: bool) -> Profile:
    """The profile as it is run from this machine.

    In a sandbox all traffic stays on the loopback. Elsewhere `local` uses disttui's own interpreter if the profile
    names none and it has torch.
    """
    if sandbox and profile.slurm is not None:
        raise InputError("a sandbox has no Slurm", "Leave out --sandbox, or take the section slurm out of the profile.")
    if sandbox:
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        changes = [
            {"python": host.python or sys.executable, "interface": loopback, "address": None} for host in profile.hosts
        ]
        launch = profile.launch.model_copy(update={"master": "127.0.0.1"})
    else:
        own = {"python": sys.executable} if find_spec("torch") is not None else {}
        changes = [
            dict(own) if host.endpoint.is_local and not (host.python or host.activate) else {} for host in profile.hosts
        ]
        launch = profile.launch
    hosts = tuple(host.model_copy(update=change) for host, change in zip(profile.hosts, changes, strict=True))
    return profile.model_copy(update={"hosts": hosts, "launch": launch})


def resolve_secrets(viewer: Viewer, profile: Profile) -> list[dict[str, str]]:
    """The variables of each host whose references are resolved; commands run when they are first needed.

    Call it before any host is contacted: a missing variable must not leave half a gang. Raises InputError.
    """
    return [profile.split_env(node, viewer.secrets.value)[1] for node in range(len(profile.hosts))]


def weigh(
    profile: Profile,
    facts: Sequence[HostFacts],
    environ: Mapping[str, str],
    *,
    ignore_leases: bool = False,
    queued: bool = False,
) -> Planned:
    """Recommend, plan and check, from the facts of all hosts in the profile's order.

    For a job of Slurm, which leases its nodes itself, these are the login node's. The result has a host for each node
    of the job.

    Args:
        ignore_leases: Use GPUs and hosts also where others have leased them.
        queued: The run waits where others have leased what it uses; it takes what is free now where that is enough.
    """
    if profile.slurm is not None:
        return _weigh(profile, facts, environ)
    if ignore_leases:
        return replace(_weigh(profile, [without_leases(one) for one in facts], environ), ignore_leases=True)
    leased = [with_leases(one, whoami()) for one in facts]
    planned = _weigh(profile, leased, environ)
    if queued:
        later = _weigh(profile, [when_free(one) for one in leased], environ)
        enough = not planned.errors and planned.recommendation.backend == later.recommendation.backend
        planned = replace(planned if enough else later, queued=True)
    return planned


def ahead(planned: Planned) -> tuple[tuple[str, float, Lease], ...]:
    """The leases that a queued run waits for: host, its unix time, lease; on CPUs those of other runs there, too."""
    if planned.plan.batch is not None:
        return ()
    found: list[tuple[str, float, Lease]] = []
    for host, facts in zip(planned.plan.hosts, planned.facts, strict=True):
        quota = planned.profile.hosts[host.node_rank].quota
        wish = Wish("run", "", list(host.gpus or ()), not host.gpus, facts.euid, person(whoami()), quota=quota)
        found += ((host.name, facts.time, lease) for lease in in_the_way(wish, facts.leases))
    return tuple(found)


def _weigh(profile: Profile, facts: Sequence[HostFacts], environ: Mapping[str, str]) -> Planned:
    from runner.planning.plan import make_plan
    from runner.planning.preflight import check
    from runner.planning.recommend import recommend
    from runner.planning.slurm import by_slurm, on_nodes

    written, slurm = profile, profile.slurm
    if slurm is not None:
        profile, facts = on_nodes(profile, slurm, facts[0])
    recommendation = recommend(profile, facts)
    plan = make_plan(profile, facts, recommendation, train_parcel().remote_path)
    if slurm is not None:
        recommendation, plan = by_slurm(written, slurm, recommendation, plan)
    return Planned(profile, tuple(facts), recommendation, plan, check(profile, facts, plan, environ))


def prepare(
    viewer: Viewer,
    profile: Profile,
    news: Tell | None = None,
    *,
    ignore_leases: bool = False,
    queued: bool = False,
) -> Prepared:
    """Reach all hosts of a profile, probe them, plan and check. Starts nothing.

    Args:
        news: Takes the progress of each host: node rank, `connecting`, `probing`, `ready` or `failed`, a note. Called
            from several threads.
        ignore_leases: Use GPUs and hosts also where others have leased them.
        queued: Wait where others have leased what the run uses.

    Raises:
        DisttuiError: Hosts cannot be used.
    """
    ready = as_run(profile, sandbox=viewer.sandbox is not None)
    hosts = survey(ready, viewer.connector(), news or _quiet)
    links = tuple(host.link for host in hosts)
    try:
        facts = [host.facts for host in hosts]
        planned = weigh(ready, facts, viewer.environ, ignore_leases=ignore_leases, queued=queued)
        return Prepared(planned, links)
    except BaseException:
        for link in links:
            link.close()
        raise


def refuse(planned: Planned) -> None:
    """Raise PreflightError where a finding forbids the start."""
    if planned.errors:
        raise PreflightError(planned.errors)


def launch(
    viewer: Viewer,
    prepared: Prepared,
    *,
    source: str | None = None,
    resume_from: str | None = None,
    ssh_config: str | None = None,
    command: Sequence[str] = (),
    priority: int = 0,
    run: str | None = None,
) -> KnownRun:
    """Start a prepared run on all its hosts; first its record is written, so that it can be attached to later.

    Args:
        source: The profile's file, to be stored with the run.
        resume_from: The folder on the hosts with the checkpoints of another run, to continue from.
        ssh_config: Of that run.
        command: The words that started it, to be kept with it; what looks like a secret is masked.
        priority: Of a queued run, -100 to 100: it goes before those with a lower one.
        run: Its id, of `new_run_id`; None: a new one.

    Raises:
        PreflightError: Checks forbid the start.
        DisttuiError: A host could not start it; nothing runs.
    """
    planned = prepared.planned
    refuse(planned)
    from runner.api.origins import keep_origin

    profile, plan, environ = planned.profile, planned.plan, viewer.environ
    # References are resolved before the run's record is written.
    secret_env = resolve_secrets(viewer, profile)
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
    keep_origin(known, plan, planned.facts, prepared.links[0], command, environ)
    try:
        if plan.batch is not None:
            submit(
                plan=plan,
                batch=plan.batch,
                login=Reachable(prepared.links[0], lambda: viewer.open_link(profile.hosts[0], ssh_config)),
                run=known.run,
                secret_env=secret_env[0],
                by=known.by,
                resume_from=resume_from,
            )
            return known
        hosts = [
            Surveyed(host, link, facts)
            for host, link, facts in zip(profile.hosts, prepared.links, planned.facts, strict=True)
        ]
        start(
            profile=profile,
            plan=plan,
            hosts=hosts,
            run=known.run,
            secret_env=secret_env,
            tell=_quiet,
            reopen=lambda node: viewer.open_link(profile.hosts[node], ssh_config),
            how=How(known.by, resume_from, planned.ignore_leases, priority if planned.queued else None),
        )
    except DisttuiError as error:
        known.failed(error.sentence)
        raise
    return known


def _quiet(node: int, kind: str, note: str) -> None:
    """Discard the progress."""
