"""Makes a checked plan of a profile: connects to its hosts, probes, plans, checks, tests its notifications."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from disttui.runner.api.environments import with_environments
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.formatting import duration
from disttui.runner.hosts.facts import HostFacts, when_free, with_leases, without_leases
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.ship import train_parcel
from disttui.runner.hosts.survey import Tell, own_python, side_by_side, survey, together
from disttui.runner.planning.interpreter import has_environment
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Host, Notify
from disttui.runner.protocol.files import NotifyTarget
from disttui.runner.protocol.leases import Lease, Wish, in_the_way, person
from disttui.runner.runs.registry import whoami
from disttui.runner.text import clean
from disttui.runner.user.config import config_file, load_settings

if TYPE_CHECKING:
    from disttui.runner.api.carrying import RunCode
    from disttui.runner.planning.plan import HostPlan, Plan
    from disttui.runner.planning.preflight import Finding
    from disttui.runner.planning.recommend import Recommendation


@dataclass(frozen=True)
class Planned:
    """The recommendation, plan and findings for a profile and the facts of all its hosts."""

    profile: Profile
    facts: tuple[HostFacts, ...]
    recommendation: Recommendation
    plan: Plan
    findings: tuple[Finding, ...]
    ignore_leases: bool = False
    """Whether leases of others were ignored; the start ignores them as well."""
    queued: bool = False
    """Whether the run waits for leases of others."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that prevent the start."""
        return tuple(finding for finding in self.findings if finding.level == "error")


@dataclass(frozen=True)
class Prepared:
    """A plan, and an open link to every host. Closes the links at the end of its block."""

    planned: Planned
    links: tuple[Link, ...]

    def __enter__(self) -> Prepared:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the links; a started run continues."""
        for link in self.links:
            link.close()


class PreflightError(DisttuiError):
    """Checks before the launch failed; nothing was started."""

    exit_code = 3
    code = "check"

    def __init__(self, findings: Sequence[Finding]) -> None:
        parts = [DisttuiError(clean(one.what), clean(one.cure), host=one.host or "the profile") for one in findings]
        super().__init__(together(parts))
        self.parts = parts
        self.findings = tuple(findings)


def as_run(profile: Profile, *, sandbox: bool) -> Profile:
    """The profile as it is run from this machine.

    In a sandbox all traffic stays on the loopback. Elsewhere `local` uses disttui's own interpreter if the profile
    names none, it has torch, and the job runs in no container.
    """
    if sandbox and profile.slurm is not None:
        raise InputError("a sandbox has no Slurm", "Omit --sandbox, or remove the section slurm from the profile.")
    own = {} if profile.container else {"python": sys.executable}
    if sandbox:
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        same = {"interface": loopback, "address": None}
        changes = [{"python": host.python or own.get("python"), **same} for host in profile.hosts]
        launch = profile.launch.model_copy(update={"master": "127.0.0.1"})
    else:
        changes = [{**own_python(host)} if own else {} for host in profile.hosts]
        launch = profile.launch
    hosts = tuple(host.model_copy(update=change) for host, change in zip(profile.hosts, changes, strict=True))
    return profile.model_copy(update={"hosts": hosts, "launch": launch})


def resolve_secrets(viewer: Viewer, profile: Profile) -> list[dict[str, str]]:
    """The variables of each host with resolved references; commands run when first needed.

    Call it before any host is contacted: a missing variable must not leave half a gang. Raises InputError.
    """
    return [profile.split_env(node, viewer.secrets.value)[1] for node in range(len(profile.hosts))]


def notify_targets(viewer: Viewer, profile: Profile) -> list[NotifyTarget]:
    """Where the hosts of a run send notifications, by the profile and the user's config.

    Raises InputError.
    """
    written = dict(load_settings(viewer.environ).notifications)
    try:
        default = Notify.model_validate(written) if written else None
    except ValidationError as error:
        name = next((str(part) for part in error.errors()[0]["loc"]), "it")
        cure = "Its keys are those of notify: docs/profile.md."
        raise InputError(f"notifications: {name} is not valid", cure, place=f"{config_file(viewer.environ)}") from None
    return profile.resolved_notify(default, viewer.secrets.value)


def plan_run(
    profile: Profile,
    facts: Sequence[HostFacts],
    environ: Mapping[str, str],
    *,
    ignore_leases: bool = False,
    queued: bool = False,
) -> Planned:
    """Recommend, plan and check, from the facts of all hosts in order.

    For a job of Slurm, which leases its nodes itself, these are the login node's. The result has a host for each node
    of the job.

    Args:
        ignore_leases: Use GPUs and hosts also where others have leased them.
        queued: The run waits where others have leased what it uses; it takes what is free now where that is enough.
    """
    if profile.slurm is not None:
        return _plan(profile, facts, environ)
    if ignore_leases:
        return replace(_plan(profile, [without_leases(one) for one in facts], environ), ignore_leases=True)
    leased = [with_leases(one, whoami()) for one in facts]
    planned = _plan(profile, leased, environ)
    if queued:
        later = _plan(profile, [when_free(one) for one in leased], environ)
        enough = not planned.errors and planned.recommendation.backend == later.recommendation.backend
        planned = planned if enough else later
        any_of = [one.any_of for one in later.recommendation.hosts]
        hosts = map(_at_its_turn, planned.plan.hosts, any_of, planned.facts)
        planned = replace(planned, plan=replace(planned.plan, hosts=tuple(hosts)), queued=True)
    return planned


def _at_its_turn(host: HostPlan, any_of: tuple[int, ...] | None, facts: HostFacts) -> HostPlan:
    """The plan of a queued run for a host: any free GPUs at its turn, unless the profile lists them."""
    from disttui.runner.planning.processes import gpu_state

    if not any_of or not host.gpus:
        return host
    why = f"any {len(host.gpus)} of {len(any_of)} when its turn comes; now {gpu_state(facts)}"
    return replace(host, any_of=any_of, reasons={**host.reasons, "gpus": why, "CUDA_VISIBLE_DEVICES": why})


def ahead(planned: Planned) -> tuple[tuple[str, float, Lease], ...]:
    """The leases that a queued run waits for: host, its unix time, lease; on CPUs also those of other runs there."""
    if planned.plan.batch is not None:
        return ()
    found: list[tuple[str, float, Lease]] = []
    for host, facts in zip(planned.plan.hosts, planned.facts, strict=True):
        quota = planned.profile.hosts[host.node_rank].quota
        gpus, count = (host.any_of, len(host.gpus)) if host.any_of and host.gpus else (host.gpus or (), None)
        by = person(whoami())
        wish = Wish("run", "", list(gpus), not gpus, facts.euid, by, quota=quota, how_many=count)
        found += ((host.name, facts.time, lease) for lease in in_the_way(wish, facts.leases))
    return tuple(found)


def _plan(profile: Profile, facts: Sequence[HostFacts], environ: Mapping[str, str]) -> Planned:
    from disttui.runner.planning.plan import make_plan as plan_hosts
    from disttui.runner.planning.preflight import check
    from disttui.runner.planning.recommend import recommend
    from disttui.runner.planning.slurm import by_slurm, on_nodes
    from disttui.runner.runs.measured import Measurements

    written, slurm = profile, profile.slurm
    if slurm is not None:
        profile, facts = on_nodes(profile, slurm, facts[0])
    step = Measurements.load(environ).of_step(profile)
    measured = (
        (step.ranks, f"measured {duration(time.time() - step.t)} ago, {step.prediction.text()}") if step else None
    )
    recommendation = recommend(profile, facts, measured)
    plan = plan_hosts(profile, facts, recommendation, train_parcel().remote_path)
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
    code: RunCode | None = None,
) -> Prepared:
    """Reach all hosts of a profile, probe, plan and check. Starts nothing.

    Args:
        news: Takes the progress of each host: node rank, `connecting`, `probing`, `ready` or `failed`, a note. Called
            from several threads.
        ignore_leases: Use GPUs and hosts also where others have leased them.
        queued: Wait where others have leased what the run uses.
        code: Of the earlier run that is repeated.

    Raises:
        DisttuiError: Hosts cannot be used.
    """
    ready = as_run(profile, sandbox=viewer.sandbox is not None)
    hosts = survey(ready, viewer.connector(), news or (lambda node, kind, note: None))
    links = tuple(host.link for host in hosts)
    try:
        ready, facts = with_environments(viewer, ready, links, [host.facts for host in hosts], code=code)
        planned = plan_run(ready, facts, viewer.environ, ignore_leases=ignore_leases, queued=queued)
        return Prepared(planned, links)
    except BaseException:
        for link in links:
            link.close()
        raise


def built(
    viewer: Viewer, prepared: Prepared, reopen: Callable[[int], Link], tell: Tell, code: RunCode | None = None
) -> Prepared:
    """Build the environments that hosts lack, and plan with them. Raises DisttuiError."""
    planned = prepared.planned
    if all(has_environment(planned.profile, host) for host in planned.profile.hosts):
        return prepared
    profile, facts = with_environments(
        viewer, planned.profile, prepared.links, planned.facts, tell, reopen=reopen, code=code
    )  # fmt: skip
    later = plan_run(
        profile, facts, viewer.environ, ignore_leases=planned.ignore_leases, queued=planned.queued
    )  # fmt: skip
    return replace(prepared, planned=later)


def refuse(planned: Planned) -> None:
    """Raise PreflightError if a finding forbids the start."""
    if planned.errors:
        raise PreflightError(planned.errors)


_PATIENCE = 90.0
"""Seconds for notifying up to five places, 15 s each, and for connecting."""


class Tested(NamedTuple):
    """The result of a test from one host."""

    host: str
    problems: dict[str, str] | DisttuiError
    """Kind of place → why it did not arrive (empty: it did); or why the host cannot be asked."""

    @property
    def arrived(self) -> bool:
        """Whether every place accepted it."""
        return not isinstance(self.problems, DisttuiError) and not any(self.problems.values())


def try_notify(viewer: Viewer, profile: Profile) -> list[Tested]:
    """Send a notification from every host to every configured place.

    Raises:
        InputError: They name none, or a reference has no value.
    """
    targets = notify_targets(viewer, profile)
    if not targets:
        cure = "Add notify: {webhook: …} to the profile, or notifications: to your config."
        raise InputError(f"{profile.name} has no places to notify", cure)

    def one(host: Host) -> Tested:
        try:
            answer = viewer.ask(host, "notify", timeout=_PATIENCE, host=host.name, targets=targets)
            return Tested(host.name, answer["problems"])
        except DisttuiError as error:
            return Tested(host.name, error)

    return side_by_side(one, list(profile.hosts))
