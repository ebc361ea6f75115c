"""Checks hosts, and the network between them, before a run: real measurements, each with a time limit.

`check --train` starts the plan's ranks with a measurement in place of the job, and judges what they report.
"""

from __future__ import annotations

import hmac
import json
import queue
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from disttui.runner.api.carrying import collect_code
from disttui.runner.api.ending import forget, stop
from disttui.runner.api.environments import with_environments
from disttui.runner.api.following import follow
from disttui.runner.api.preparing import as_run, plan_run
from disttui.runner.api.probing import hosts_of
from disttui.runner.api.starting import Launched, start
from disttui.runner.api.viewer import Viewer
from disttui.runner.diagnose.cause import find
from disttui.runner.errors import DisttuiError, HostError
from disttui.runner.formatting import amount
from disttui.runner.hosts.facts import HostFacts, facts_of
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.survey import CONNECTS, probe_request, side_by_side
from disttui.runner.ids import new_run_id, short
from disttui.runner.planning import checks, network, tournament
from disttui.runner.planning.checks import Check, CheckReport, HostFigures, Way
from disttui.runner.planning.interpreter import find_python
from disttui.runner.planning.tournament import Placed, RankReport
from disttui.runner.profile.load import parse
from disttui.runner.profile.schema import NOTIFY_KINDS, Profile
from disttui.runner.profile.sections import Host, Metrics, Notify, OnEnd, Parallel, Watch
from disttui.runner.protocol.checks import Dialled, Inspected, Listening
from disttui.runner.protocol.limits import PORTS
from disttui.runner.protocol.requests import ProbeRequest
from disttui.runner.runs.contents import MetricsLine
from disttui.runner.runs.follow import RecordRead
from disttui.runner.runs.following import Following, RunControl
from disttui.runner.runs.measured import Measurements
from disttui.runner.runs.registry import find_run, is_known, run_names
from disttui.runner.untrusted.decode import build
from disttui.runner.untrusted.records import whole

_ADDRESSES = 8
"""Most addresses of one host that others dial."""
_DIAL = 3.0
"""Timeout of one connection, in seconds."""
_INSPECT = 30.0
_DIALS = 60.0


@dataclass
class _Host:
    name: str
    link: Link
    facts: HostFacts
    found: Inspected
    gpus: Sequence[int] | None
    """Those that the profile uses; None: any."""


def check(
    viewer: Viewer,
    asked: Profile | Sequence[str],
    tell: Callable[[Check], None] = lambda check: None,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    train: bool = False,
    parameters: float | None = None,
) -> CheckReport:
    """Check the hosts of a profile, or hosts by name: each alone, then all pairs.

    Args:
        asked: A profile also has everything checked that `profile plan` checks.
        tell: Takes each conclusion as soon as it is known.
        only: Ids of `disttui.runner.planning.checks.IDS`, or their first words.
        skip: The same, to leave out.
        train: Where nothing stops a run, also start the ranks of one and measure them; else nothing is started.
        parameters: Of a model, for which the measurement answers whether one host is faster; None: the built-in job.

    Raises:
        InputError: A name is not a host.
    """
    report = _free(viewer, asked, tell, only, skip)
    if not train or not report.passed:
        return report

    found: list[Check] = []

    def conclude(one: Check) -> None:
        if checks.selected(one.id, only, skip):
            found.append(one)
            tell(one)

    measured = measure(viewer, asked if isinstance(asked, Profile) else of_hosts(asked), conclude, parameters)
    return replace(report, checks=(*report.checks, *found), figures=measured.figures, advice=measured.advice)


def _free(
    viewer: Viewer, asked: Profile | Sequence[str], tell: Callable[[Check], None], only: Sequence[str],
    skip: Sequence[str],
) -> CheckReport:  # fmt: skip
    profile = as_run(asked, sandbox=viewer.sandbox is not None) if isinstance(asked, Profile) else None
    hosts = list(profile.hosts) if profile else hosts_of(asked)  # type: ignore[arg-type]
    names = tuple(host.name for host in hosts)
    found: list[Check] = []

    def conclude(new: Iterable[Check]) -> None:
        for one in new:
            if checks.selected(one.id, only, skip):
                found.append(one)
                tell(one)

    reached: list[_Host] = []
    try:
        for one in side_by_side(lambda item: _reach(viewer, profile, *item), enumerate(hosts)):
            if isinstance(one, _Host):
                reached.append(one)
                about = checks.of_host(one.name, one.facts, one.found, 0, alone=not profile, gpus=one.gpus)
                conclude([*about, *_leftovers(one)])
            else:
                at, why = (one.host,) if one.host else (), "a run needs all of its hosts"
                conclude([Check("host.reach", "error", at, one.what, why, one.cure)])
        if not reached:
            return CheckReport(names, tuple(found), skipped=tuple(skip))
        own = [host.name for host in reached]
        if profile and len(reached) == len(hosts):
            links, facts = [host.link for host in reached], [host.facts for host in reached]
            profile, facts = with_environments(viewer, profile, links, facts)
            for host, found_there in zip(reached, facts, strict=True):
                host.facts = found_there
        conclude(checks.clocks(own, [host.facts for host in reached]))
        different = tuple(_differences(profile, hosts, reached)) if checks.selected("across", only, skip) else ()
        conclude(
            Check("across.versions", one.level, (), f"{one.name} differs: " + ", ".join(
                f"{value or 'none'} on {name}" for name, value in zip(own, one.values, strict=True)), one.why)
            for one in different if one.level == "error"
        )  # fmt: skip
        ways: list[Way] = []
        if len(reached) > 1 and checks.selected("network", only, skip):
            ports = profile.launch.ports if profile else PORTS
            ways, listening = _connect(reached, profile, list(ports))
            conclude(checks.of_network(own, {host.name: host.facts for host in reached}, ways, listening))
        if profile and len(reached) == len(hosts) and checks.selected("plan", only, skip):
            conclude(_code(profile, viewer))
            planned = plan_run(profile, [host.facts for host in reached], viewer.environ)
            conclude(
                Check("plan", each.level, (each.host,) if each.host else (), each.what, "", each.cure)
                for each in planned.findings
            )
        return CheckReport(names, tuple(found), different, tuple(ways), tuple(skip))
    finally:
        for host in reached:
            host.link.close()


def _code(profile: Profile, viewer: Viewer) -> list[Check]:
    """Report a folder of `job.sync` that could not be sent."""
    try:
        collect_code(profile, viewer.environ)
    except DisttuiError as error:
        return [Check("plan", "error", (), error.sentence, "a run needs its code", error.cure)]
    return []


def _reach(viewer: Viewer, profile: Profile | None, node: int, host: Host) -> _Host | DisttuiError:
    link = None
    try:
        link = viewer.open_link(host)
        request = probe_request(profile, node) if profile else ProbeRequest(python=host.python)
        folders = [profile.launch.run_dir, profile.workdir(node)] if profile else ["~/.disttui/runs"]
        inspecting = link.submit("inspect", folders=folders, gpus=True)
        facts = facts_of(host.name, link.request("probe", **request))
        try:
            return _Host(host.name, link, facts, inspecting.result(_INSPECT), host.gpus)
        except FutureTimeout:
            what, cure = f"its checks took more than {_INSPECT:g} s", "Find out what keeps the host busy."
            raise HostError(host.name, what, cure) from None
    except DisttuiError as error:
        if link:
            link.close()
        return error


def _leftovers(host: _Host) -> list[Check]:
    try:
        count = len(host.link.request("orphans", timeout=_INSPECT)["found"])
    except DisttuiError as error:
        return [Check("host.report", "warning", (host.name,), error.what, "part of this host was not checked")]
    if not count:
        return []
    what = f"{amount(count, 'process')} left by ended runs"
    cure = f"End them: disttui runs orphans {host.name} --end"
    return [Check("host.leftovers", "warning", (host.name,), what, "they hold memory, ports and GPUs", cure)]


def _differences(
    profile: Profile | None, hosts: Sequence[Host], reached: Sequence[_Host]
) -> Iterable[checks.HostDifference]:
    by_name = {host.name: host for host in (profile.hosts if profile else hosts)}
    pythons = [
        find_python(profile, by_name[one.name], one.facts)[1]
        if profile
        else next((each for each in one.facts.interpreters if each.is_eligible), None)
        for one in reached
    ]
    names = [one.name for one in reached]
    return checks.differences(names, [one.facts for one in reached], [one.found for one in reached], pythons)


def _connect(
    reached: Sequence[_Host], profile: Profile | None, ports: list[int]
) -> tuple[list[Way], dict[str, Listening]]:
    """Let every host listen and all others connect to its addresses; return the results, and what each listens on."""
    keys = {host.name: secrets.token_bytes(32) for host in reached}
    given = {host.name: host.address for host in profile.hosts if host.address} if profile else {}
    listening: dict[str, Listening] = {}
    streams = []
    with ThreadPoolExecutor(max_workers=CONNECTS) as pool:
        for host, (future, opened) in zip(
            reached, pool.map(lambda host: _listen(host, keys[host.name], ports), reached), strict=True
        ):
            streams.append((host, future))
            if opened is not None:
                listening[host.name] = opened
        targets = {
            host.name: [
                target
                for other in reached
                if other.name != host.name and other.name in listening
                for target in _targets(other, listening[other.name], given.get(other.name))
            ]
            for host in reached
        }
        nonces = {host.name: secrets.token_bytes(16) for host in reached}
        answers = dict(pool.map(lambda host: (host.name, _dial(host, targets[host.name], nonces[host.name])), reached))
    for host, future in streams:
        host.link.cancel(future)
    proofs = {
        name: {other: hmac.new(keys[other], nonce, "sha256").hexdigest() for other in keys}
        for name, nonce in nonces.items()
    }
    return checks.ways([host.name for host in reached], targets, answers, proofs), listening


def _listen(host: _Host, key: bytes, ports: list[int]) -> tuple[Future[Any], Listening | None]:
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def take(event: Any) -> None:
        heard.put(event)

    future = host.link.stream("listen", take, key=key.hex(), ports=ports, seconds=_DIALS)
    future.add_done_callback(take)
    try:
        event = heard.get(timeout=_INSPECT)
    except queue.Empty:
        return future, None
    fixed, free = (whole(event.get(name), 1 << 16) for name in ("fixed", "free")) if isinstance(event, dict) else (0, 0)
    return future, {"fixed": fixed or None, "free": free} if free else None


def _targets(host: _Host, opened: Listening, given: str | None) -> list[tuple[str, str, int, bool]]:
    addresses = list(dict.fromkeys([*([given] if given else []), *network.candidates(host.facts)]))[:_ADDRESSES]
    both = ((opened["fixed"], True), (opened["free"], False))
    return [(host.name, address, port, fixed) for address in addresses for port, fixed in both if port is not None]


def _dial(host: _Host, targets: Sequence[tuple[str, str, int, bool]], nonce: bytes) -> list[Dialled]:
    asked = [{"address": address, "port": port} for _, address, port, _ in targets]
    try:
        answer = host.link.request("dial", timeout=_DIALS, targets=asked, nonce=nonce.hex(), seconds=_DIAL)
    except DisttuiError as error:
        return [{"ms": None, "proof": "", "error": error.what.partition("\n")[0]} for _ in targets]
    dialled: list[Dialled] = answer["dialled"]
    return dialled


START = 100.0
"""Seconds for the ranks to import torch and to meet."""
PHASE = 20.0
"""Seconds for each phase after that, and for the hosts to end the ranks of one that takes longer."""


@dataclass(frozen=True)
class Measured:
    """The measurements of all hosts, and the conclusion for the job."""

    figures: tuple[HostFigures, ...]
    advice: str = ""
    """Whether one host is faster, with both numbers; empty: unknown."""


def of_hosts(names: Sequence[str]) -> Profile:
    """A profile of hosts by name, only for the measurement."""
    return parse(
        json.dumps({"disttui": 1, "name": "check", "hosts": list(dict.fromkeys(names)), "job": {"builtin": "bytegpt"}}),
        "-",
    )


def measurement(profile: Profile, *, of_job: bool) -> Profile:
    """The profile with the measurement instead of its job: same ranks, launcher, ports and environment.

    Args:
        of_job: Whether a step of the built-in job is measured too.
    """
    own = profile.job
    builtin = own.builtin is not None
    args = (*(own.args if builtin else ()), "--measure", "job" if builtin and of_job else "hosts")
    job = own.model_copy(
        update={"builtin": "bytegpt", "script": None, "module": None, "command": None, "args": args, "outputs": (),
                "setup": (), "sync": None, "workdir": "~" if own.sync else own.workdir},
    )  # fmt: skip
    launch = profile.launch.model_copy(update={"restarts": 0, "instrument": True, "resume_args": ()})
    nobody = Notify.model_validate(dict.fromkeys(NOTIFY_KINDS))
    update: dict[str, object] = {
        "name": "check",
        "job": job,
        "launch": launch,
        "notify": nobody,
        "watch": Watch(),
        "on_end": OnEnd(),
    }
    if not builtin:
        update.update(data=(), parallel=Parallel(), precision="auto", metrics=Metrics())
    return profile.model_copy(update=update)


def measure(
    viewer: Viewer,
    profile: Profile,
    tell: Callable[[Check], None],
    parameters: float | None = None,
    control: RunControl | None = None,
) -> Measured:
    """Start the measurement on all hosts of a profile, and judge it; its run is removed unless it failed.

    Args:
        tell: Takes each conclusion.
        parameters: Of a model that is not the profile's, for the advice.
        control: Stop it early; may be set from other threads.
    """
    run = new_run_id("check", run_names(viewer.environ))
    ranks: dict[int, Placed] = {}
    try:
        wanted = measurement(profile, of_job=parameters is None)
        with closing(start(viewer, wanted, run=run)) as steps:
            launched = next(step for step in steps if isinstance(step, Launched))
            with follow(viewer, launched.run, launched.links, control=control) as following:
                done = _hear(following, ranks, tell)
            hosts = launched.run.hosts
            if done and not following.exit_code:
                with suppress(DisttuiError):
                    forget(viewer, launched.run)
    except DisttuiError as error:
        tell(Check("train.start", "error", (error.host,) if error.host else (), error.what, _NEEDED, error.cure))
        return Measured(())
    except BaseException:  # such as Ctrl-C: no rank must outlive this call
        if is_known(run, viewer.environ):
            with suppress(DisttuiError):
                stop(viewer, find_run(run, viewer.environ), now=True)
        raise
    world = sum(host.nproc for host in hosts)
    if not done:
        return Measured(())
    known = Measurements.load(viewer.environ)
    for check in tournament.judge(ranks, world, {host.name: known.of_host(host.host) for host in hosts}):
        tell(check)
    found = tournament.figures(ranks, time.time())
    if viewer.sandbox is not None:
        return Measured(tuple(found))  # a sandbox's hosts are all this machine
    step = tournament.predict(ranks)
    known.save(viewer.environ, profile, found, step)
    advice = tournament.break_even(ranks, parameters) if parameters else step and step.text()
    return Measured(tuple(found), advice or "")


_NEEDED = "the measurement starts like a run, so a run would fail too"


def _hear(following: Following, ranks: dict[int, Placed], tell: Callable[[Check], None]) -> bool:
    """Collect the reports of all ranks until the run ends; stop it if a phase takes too long.

    Returns whether every rank has completed all measurements.
    """
    state = following.state
    owner = [host.node for host in state.hosts for _ in range(host.nproc)]
    names = [host.name for host in state.hosts]
    raw: dict[int, dict[str, object]] = {}
    progress, limit = time.monotonic(), START + PHASE
    done = late = False
    for update in following:
        now = time.monotonic()
        if isinstance(update, RecordRead) and isinstance(update.content, MetricsLine):
            rank, record = update.content.rank, update.content.metrics
            if not (0 <= rank < len(owner) and owner[rank] == update.node):
                continue  # a host may report only its own ranks
            if record.get("phase"):
                progress, limit = now, PHASE if len(raw) == len(owner) else limit
                raw[rank] = {**raw.get(rank, {}), **record}
                done = len(raw) == len(owner) and all(one["phase"] == "done" for one in raw.values())
            ranks[rank] = Placed(names[update.node], build(RankReport, raw.get(rank, {})), now)
        elif now - progress > limit and not late:
            if not done:
                tell(tournament.silent(ranks, names, now, limit))
            late, progress, limit = True, now, PHASE
            following.stop(now=True)
        elif late and now - progress > limit:
            following.leave()
    cause = find(following.state)
    if following.exit_code and not late:
        what = cause.failure.message if cause else "the measurement has failed"
        hosts = (names[cause.failure.node],) if cause and cause.failure.node is not None else ()
        cure = f"See disttui runs show {short(following.run.run)}"
        tell(Check("train.start", "error", hosts, what.strip().rpartition("\n")[2], _NEEDED, cure))
    return done
