"""The commands that test a run before its start: hosts and network, notifications, `watch` rules."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import click

import disttui
from disttui.runner.cli.options import (
    LOCAL,
    OVERRIDES,
    SANDBOX,
    TRUST,
    complete_hosts,
    emit,
    emit_line,
    example,
    given,
    load_profile,
    profile_options,
    say,
    viewing,
    wants_json,
)
from disttui.runner.cli.run_selector import finding, run_options
from disttui.runner.errors import DisttuiError, InputError


@click.command(
    epilog=example("disttui check mine.yaml", "disttui check box1 box2 alice@box3", "disttui check mine.yaml --train"),
)
@click.argument("targets", nargs=-1, metavar="PROFILE|HOST...", shell_complete=complete_hosts)
@click.option("--only", multiple=True, metavar="ID", help="Only this check, or group such as network; repeatable.")
@click.option("--skip", multiple=True, metavar="ID", help="Leave this check or group out; repeatable.")
@click.option("--train", is_flag=True, help="Also start the ranks of a run and measure compute, memory and network.")
@click.option("--params", metavar="N", help="With --train: the size of your model, such as 124M.")
@click.option("--list", "listing", is_flag=True, help="List the checks.")
@SANDBOX
@TRUST
def check(
    targets: tuple[str, ...],
    only: tuple[str, ...],
    skip: tuple[str, ...],
    train: bool,
    params: str | None,
    listing: bool,
    sandbox: bool,
    trust_profile: bool,
) -> None:
    """Check hosts and the network between them before a run.

    Connects all hosts with each other on the ports of a run, compares versions, hardware and variables, and finds what
    stops or slows training: limits, full file systems, a small /dev/shm, clocks, faulty GPUs. With a PROFILE it also
    checks what profile plan checks. Starts nothing, needs no root. Exit code 3 if something would stop a run.

    With --train the ranks of the plan start with a measurement of up to 30 s instead of the job: results of
    collectives, bits of matrix products, rates, and the network between pairs of hosts. It names slow hosts, and says
    whether one host alone is faster.
    """
    from disttui.runner.planning.checks import IDS

    known = {*IDS, *(name.partition(".")[0] for name in IDS)}
    for name in (*only, *skip):
        if name not in known:
            raise InputError(f"unknown check '{name}'", "List all: disttui check --list")
    if listing:
        for name, about in IDS.items():
            emit_line({"id": name, "about": about}, f"{name:22} {about}")
        return
    parameters = _parameters(params) if params else None
    if params and not train:
        raise InputError("--params needs --train", "Add --train, or omit --params.")
    if not targets:
        raise InputError(
            "no host or profile was given", "For example: disttui check mine.yaml, disttui check box1 box2"
        )
    from disttui.runner.api.checking import check as check_hosts
    from disttui.runner.render.plan import check_lines, checked_json, end_lines

    profile = None
    if len(targets) == 1 and (sandbox or is_profile(targets[0])):
        profile = load_profile(targets[0], (), trusted=trust_profile)
        if profile.slurm is not None:
            raise InputError("the hosts of a Slurm job are unknown before it starts", "Name hosts to check.")
    with viewing(profile if sandbox else None) as viewer:
        checked = check_hosts(
            viewer,
            profile or targets,
            lambda one: emit_line({"type": "check", **asdict(one)}, "\n".join(check_lines(one))),
            only=only,
            skip=skip,
            train=train,
            parameters=parameters,
        )
    if wants_json():
        emit_line(checked_json(checked), "")
    say("\n".join(end_lines(checked)))
    raise SystemExit(0 if checked.passed else 3)


def _parameters(text: str) -> float:
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([kMGBT]?)", text)
    if not found or not float(found[1]):
        raise InputError(f"--params {text[:40]} is not a number of parameters", "For example 124M or 1.3B.")
    return float(found[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}[found[2]]


def is_profile(name: str) -> bool:
    """Whether a single word is a profile: a file, or a profile's name that is not also a host of the ssh config."""
    from disttui.runner.hosts.discovery import ssh_hosts
    from disttui.runner.profile.library import list_names

    if name.endswith((".yaml", ".yml")) or "/" in name:
        return True
    hosts = {"local", *(found.host for found in ssh_hosts(given("ssh_config")).candidates)}
    return name in list_names() and name not in hosts


@click.command(epilog=example("disttui notify --test mine.yaml"))
@click.option("--test", is_flag=True, required=True, help="Send one test notification from every host.")
@profile_options
def notify(test: bool, profile: str, overrides: tuple[str, ...], sandbox: bool, trust_profile: bool) -> None:
    """Test the notifications of PROFILE.

    Hosts send them, with or without an open disttui, to the places in `notify` of the profile or `notifications` of
    your config. Exit code 3 if one did not arrive.
    """
    loaded = load_profile(profile, overrides, trusted=trust_profile)
    with viewing(loaded if sandbox else None) as viewer:
        tested = disttui.try_notify(viewer, loaded)
    data: list[dict[str, object]] = []
    lines: list[str] = []
    for host, problems in tested:
        if isinstance(problems, DisttuiError):
            data.append({"host": host, "places": None, "error": problems.as_json()})
            lines.append(f"{host}: {problems.reason}")
        else:
            data.append({"host": host, "places": problems, "error": None})
            lines += [f"{host}: {kind}: {why or 'sent'}" for kind, why in problems.items()]
    emit(data, "\n".join(lines))
    raise SystemExit(0 if all(one.arrived for one in tested) else 3)


@click.command(epilog=example("disttui watch --try 2node-7f3a --set watch.spike=stop"))
@click.option("--try", "tried", is_flag=True, required=True, help="Judge a recorded run.")
@LOCAL
@OVERRIDES
@run_options
def watch(tried: bool, local: bool, overrides: tuple[str, ...], run: str, **where: Any) -> None:
    """Show what the rules of `watch` would have done in RUN.

    The rules are those of its profile and of --set. During a run its hosts check them, with or without an open disttui.
    """
    from disttui.runner.formatting import clock

    with finding(run, **where) as (known, viewer):
        fired = disttui.try_rules(viewer, known, overrides, local=local)
    lines = [
        f"{clock(one.at)}  attempt {one.attempt}, {'' if one.rank is None else f'rank {one.rank} on '}{one.host}: "
        f"{one.text} ({one.rule} → {one.do})"
        for one in fired
    ]
    emit([asdict(one) for one in fired], "\n".join(lines) or "no rule would have fired")
