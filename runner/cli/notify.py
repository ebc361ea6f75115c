"""The commands that try out what the hosts do with every viewer closed: notifications, and the rules of `watch`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

import disttui
from disttui.runner.cli.global_options import emit
from disttui.runner.cli.options import LOCAL, OVERRIDES, example, load_profile, profile_options, viewing
from disttui.runner.cli.run_selector import finding, run_options
from disttui.runner.errors import DisttuiError


@click.command(epilog=example("disttui notify --test mine.yaml"))
@click.option("--test", is_flag=True, required=True, help="Send one test notification from every host.")
@profile_options
def notify(test: bool, profile: str, overrides: tuple[str, ...], sandbox: bool, trust_profile: bool) -> None:
    """Test the notifications of PROFILE.

    Its hosts send them, whether or not a disttui is open; `notify` of the profile and `notifications` of your config
    say where to. Exit code 3 when one did not arrive.
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

    The rules are those of its profile and of --set. In a run, its hosts judge them, whether or not a disttui is open.
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
