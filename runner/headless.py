"""The commands without a screen: each takes a profile through the stages and prints what comes out."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

from runner.cli.render.jsonl import JsonPrinter
from runner.cli.render.live import TextPrinter
from runner.cli.render.output import put
from runner.errors import DisttuiError, HostError
from runner.hosts.facts import HostFacts, facts_of
from runner.hosts.ship import node_parcel, train_parcel
from runner.hosts.survey import Surveyed, open_link, side_by_side, survey
from runner.ids import new_run_id
from runner.profile import Host, Profile, parse_host
from runner.profile.problems import printable
from runner.runs.find import run_names
from runner.runs.history import KnownRun, keep, mirror_of
from runner.runs.hooks import tell_end
from runner.runs.launch import launch
from runner.runs.session import Session, Signals
from runner.runs.state import RunState
from runner.text import clean
from runner.transport import Connector

if TYPE_CHECKING:
    from runner.planning.plan import Plan
    from runner.planning.preflight import Finding
    from runner.planning.recommend import Recommendation


@dataclass(frozen=True)
class Prepared:
    """A profile whose hosts were reached and whose plan is made."""

    hosts: Sequence[Surveyed]
    recommendation: Recommendation
    plan: Plan
    findings: tuple[Finding, ...]


class Speaker(Protocol):
    """Says what is being done."""

    def say(self, text: str) -> None:
        """Say something in disttui's own words."""


def prepare(profile: Profile, connector: Connector, environ: Mapping[str, str], tell: Speaker) -> Prepared:
    """Reach the hosts, recommend, plan, check. Starts nothing. Raises DisttuiError for hosts that cannot be used."""

    def news(node: int, kind: str, note: str) -> None:
        host = profile.hosts[node]
        if kind == "connecting":
            tell.say(f"{host.name}: connecting")
        elif kind == "probing" and host.activate:
            tell.say(f"{host.name}: running its activate line: {printable(host.activate)}")

    # Whatever comes after the hosts' answers is imported while they are awaited.
    Thread(target=_import_planning, daemon=True).start()
    hosts = survey(profile, connector, news)
    from runner.planning.plan import make_plan
    from runner.planning.preflight import check
    from runner.planning.recommend import recommend

    facts = [host.facts for host in hosts]
    recommendation = recommend(profile, facts)
    plan = make_plan(profile, facts, recommendation, train_parcel().remote_path)
    return Prepared(hosts, recommendation, plan, check(profile, facts, plan, environ))


def _import_planning() -> None:
    node_parcel()
    import runner.planning.preflight
    import runner.render.story  # noqa: F401


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Raise one HostError that holds every finding that forbids the start."""
    errors = [finding for finding in findings if finding.level == "error"]
    if not errors:
        return
    raise PreflightError(errors)


class PreflightError(DisttuiError):
    """Checks before the launch failed; nothing was started."""

    exit_code = 3

    def __init__(self, findings: Sequence[Finding]) -> None:
        errors = (HostError(one.host or "the profile", clean(one.what), clean(one.cure)) for one in findings)
        super().__init__("\n".join(map(str, errors)))


def run(
    profile: Profile,
    connector: Connector,
    environ: Mapping[str, str],
    *,
    as_json: bool = False,
    detach: bool = False,
    kept: Mapping[str, Any] | None = None,
) -> int:
    """Run a profile to its end and return the command's exit code.

    Args:
        detach: Leave as soon as all hosts have joined.
        kept: Further fields of KnownRun: where the profile comes from, how the hosts are reached.
    """
    begun = time.monotonic()
    printer = _printer(profile, environ, as_json)
    signals = Signals()
    with signals.caught():
        # A missing secret is known before any host is troubled.
        for node in range(len(profile.hosts)):
            profile.split_env(node, environ)
        prepared = prepare(profile, connector, environ, printer)
        with _closing(prepared.hosts):
            refuse_errors(prepared.findings)
            _tell_plan(prepared, printer)
            signals.hold_back()
            known = _start(profile, prepared, connector, environ, kept or {})
            with mirror_of(known) as folder:
                session = Session(
                    known.begin(),
                    printer,
                    signals,
                    folder=folder,
                    request=known.request(),
                    reopen=lambda node: open_link(profile.hosts[node], connector),
                    until=(lambda state: state.attempt > 0) if detach else None,
                )
                code = session.follow([host.link for host in prepared.hosts])
                finish(printer, session.state, time.monotonic() - begun, folder)
        tell_end(profile, known, session.state, printer.say)
        if detach and session.state.result is None:
            printer.detached(known.run)
        return code


def _tell_plan(prepared: Prepared, tell: Speaker) -> None:
    """Say what is about to run, and what is to be known about it."""
    from runner.planning.plan import counts_line

    for advice in prepared.recommendation.warnings:
        tell.say(_line(advice.host, advice.text))
    for finding in prepared.findings:
        if finding.level == "warning":
            tell.say(_line(finding.host, f"{finding.what}. {finding.cure}"))
    plan = prepared.plan
    tell.say(f"{counts_line(plan)}; {plan.backend}, {plan.strategy}, {plan.precision}")


def _start(
    profile: Profile,
    prepared: Prepared,
    connector: Connector,
    environ: Mapping[str, str],
    kept: Mapping[str, Any],
) -> KnownRun:
    """Start the run on all hosts; what is needed to come back to it is written down before. Raises DisttuiError."""
    plan = prepared.plan
    run_id = new_run_id(profile.name, run_names(environ))
    known = keep(profile, [host.num_processes for host in plan.hosts], run_id, environ, **kept)
    try:
        launch(
            profile=profile,
            plan=plan,
            hosts=prepared.hosts,
            run=run_id,
            environ=environ,
            tell=_quiet,
            reopen=lambda node: open_link(profile.hosts[node], connector),
            by=known.by,
            resume_from=known.resume_from,
        )
    except DisttuiError as error:
        known.failed(error.what)
        raise
    return known


def finish(printer: TextPrinter | JsonPrinter, state: RunState, elapsed: float, folder: Path) -> None:
    """Print what closes a command that followed a run; nothing for one that goes on without it."""
    if isinstance(printer, JsonPrinter):
        printer.end(state, str(folder))
    else:
        from runner.render.story import ending

        printer.end(ending(state, elapsed, folder, printer.launcher_tails))


def show_plan(
    profile: Profile, connector: Connector, environ: Mapping[str, str], *, as_json: bool = False
) -> tuple[str, int]:
    """The plan of a profile as text, and the exit code of the command that shows it."""
    prepared = prepare(profile, connector, environ, _ToStderr())
    with _closing(prepared.hosts):
        from runner.render.plan import plan_json, render_plan

        parts = (prepared.plan, prepared.recommendation, prepared.findings)
        text = json.dumps(plan_json(*parts), indent=2) if as_json else render_plan(*parts)
    return text, 3 if any(finding.level == "error" for finding in prepared.findings) else 0


def probe(names: Sequence[str], connector: Connector, *, as_json: bool = False) -> tuple[str, int]:
    """What each host has as text, and the exit code of the command that shows it. Raises InputError for bad names."""
    hosts = [parse_host(name) for name in names]

    def one(host: Host) -> tuple[str, HostFacts | DisttuiError]:
        try:
            link = open_link(host, connector)
        except DisttuiError as error:
            return host.name, error
        try:
            return host.name, facts_of(host.name, link.request("probe", ports=[29500, 29599]))
        except DisttuiError as error:
            return host.name, error
        finally:
            link.close()

    results = side_by_side(one, hosts)
    failed = any(isinstance(found, DisttuiError) for _, found in results)
    if as_json:
        plain = [
            {"host": name, "error": {"what": found.what, "cure": found.cure}}
            if isinstance(found, DisttuiError)
            else {"host": name, "facts": asdict(found)}
            for name, found in results
        ]
        return json.dumps(plain, indent=2), 3 if failed else 0
    from runner.render.probe import render_probe

    return render_probe(results), 3 if failed else 0


@contextmanager
def _closing(hosts: Sequence[Surveyed]) -> Iterator[None]:
    try:
        yield
    finally:
        for host in hosts:
            host.link.close()


def _printer(profile: Profile, environ: Mapping[str, str], as_json: bool) -> TextPrinter | JsonPrinter:
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not end the command.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    if as_json:
        return JsonPrinter(sys.stdout)
    names = tuple(host.name for host in profile.hosts)
    most = sum(host.num_processes or 1 for host in profile.hosts)
    return TextPrinter(sys.stdout, sys.stderr, names, most, colour=not environ.get("NO_COLOR"))


def _line(host: str | None, text: str) -> str:
    return clean(f"{host}: {text}" if host else text).rstrip()


class _ToStderr:
    """For commands whose output is their result."""

    def say(self, text: str) -> None:
        """Say it beside the result."""
        put(sys.stderr, f"disttui: {text}\n")


def _quiet(node: int, kind: str, note: str) -> None:
    """Launching is short: its news are the supervisors' own events."""


def at_home(profile: Profile) -> Profile:
    """The same profile; `local` takes disttui's own interpreter where the profile names none and it has torch."""
    if find_spec("torch") is None:
        return profile
    hosts = tuple(
        host.model_copy(update={"python": sys.executable})
        if host.endpoint.is_local and not (host.python or host.activate)
        else host
        for host in profile.hosts
    )
    return profile.model_copy(update={"hosts": hosts})


def sandboxed(profile: Profile) -> Profile:
    """The same profile for hosts that are all played on this machine: everything stays on its loopback."""
    hosts = tuple(
        host.model_copy(update={"python": host.python or sys.executable, "interface": _loopback(), "address": None})
        for host in profile.hosts
    )
    return profile.model_copy(
        update={"hosts": hosts, "launch": profile.launch.model_copy(update={"master": "127.0.0.1"})}
    )


def _loopback() -> str:
    return "lo0" if sys.platform == "darwin" else "lo"
