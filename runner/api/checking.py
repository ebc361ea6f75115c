"""Checks hosts, and the network between them, before a run: real measurements, each with a time limit."""

from __future__ import annotations

import hmac
import queue
import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from typing import Any

from disttui.runner.api.environments import with_environments
from disttui.runner.api.preparing import as_run, plan_run
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, HostError
from disttui.runner.hosts.facts import HostFacts, facts_of
from disttui.runner.hosts.link import Link
from disttui.runner.hosts.survey import CONNECTS, probe_request, side_by_side
from disttui.runner.planning import checks, network
from disttui.runner.planning.checks import Check, CheckReport, Way
from disttui.runner.planning.interpreter import find_python
from disttui.runner.profile import Host, Profile, parse_host
from disttui.runner.protocol.checks import Dialled, Inspected, Listening
from disttui.runner.protocol.requests import ProbeRequest
from disttui.runner.untrusted.records import whole

_PORTS = (29500, 29599)
_ADDRESSES = 8
"""Of one host that others dial."""
_DIAL = 3.0
"""Seconds for one connection."""
_INSPECT = 30.0
_DIALS = 60.0


@dataclass
class _Host:
    name: str
    link: Link
    facts: HostFacts
    found: Inspected


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
    """Check the hosts of a profile, or hosts by name, each by itself and then all pairs of them.

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
    from disttui.runner.api.measuring import measure, of_hosts

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
    hosts = list(profile.hosts) if profile else [parse_host(name) for name in dict.fromkeys(asked)]  # type: ignore[arg-type]
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
                conclude([*checks.of_host(one.name, one.facts, one.found, 0), *_leftovers(one)])
            else:
                conclude([_unreachable(one)])
        if not reached:
            return CheckReport(names, tuple(found), skipped=tuple(skip))
        own = [host.name for host in reached]
        if profile and len(reached) == len(hosts):
            links, facts = [host.link for host in reached], [host.facts for host in reached]
            profile, facts = with_environments(viewer, profile, links, facts)
            hosts = list(profile.hosts)
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
            ports = profile.launch.ports if profile else _PORTS
            ways, listening = _connect(reached, profile, list(ports))
            conclude(checks.of_network(own, {host.name: host.facts for host in reached}, ways, listening))
        if profile and len(reached) == len(hosts) and checks.selected("plan", only, skip):
            planned = plan_run(profile, [host.facts for host in reached], viewer.environ)
            conclude(checks.of_plan(planned.findings))
        return CheckReport(names, tuple(found), different, tuple(ways), tuple(skip))
    finally:
        for host in reached:
            host.link.close()


def _reach(viewer: Viewer, profile: Profile | None, node: int, host: Host) -> _Host | DisttuiError:
    link = None
    try:
        link = viewer.open_link(host)
        request = probe_request(profile, node) if profile else ProbeRequest(ports=list(_PORTS))
        folders = [profile.launch.run_dir, profile.workdir(node)] if profile else ["~/.disttui/runs"]
        inspecting = link.submit("inspect", folders=folders, gpus=True)
        facts = facts_of(host.name, link.request("probe", **request))
        try:
            return _Host(host.name, link, facts, inspecting.result(_INSPECT))
        except FutureTimeout:
            what, cure = f"its checks took more than {_INSPECT:g} s", "See what the host is busy with."
            raise HostError(host.name, what, cure) from None
    except DisttuiError as error:
        if link:
            link.close()
        return error


def _unreachable(error: DisttuiError) -> Check:
    hosts = (error.host,) if error.host else ()
    return Check("host.reach", "error", hosts, error.what, "a run needs all of its hosts", error.cure)


def _leftovers(host: _Host) -> list[Check]:
    try:
        found = host.link.request("orphans", timeout=_INSPECT).get("found")
    except DisttuiError as error:
        return [Check("host.report", "warning", (host.name,), error.what, "a part of the host could not be checked")]
    count = len(found) if isinstance(found, list) else 0
    if not count:
        return []
    what = f"{count} processes of runs that have ended are still there"
    cure = f"End them: disttui runs orphans {host.name} --end"
    return [Check("host.leftovers", "warning", (host.name,), what, "they hold memory, ports and GPUs", cure)]


def _differences(
    profile: Profile | None, hosts: Sequence[Host], reached: Sequence[_Host]
) -> Iterable[checks.HostDifference]:
    by_name = {host.name: host for host in hosts}
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
    """Have every host listen, and every other dial all of its addresses."""
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
