"""The command that shows a plan."""

from __future__ import annotations

import json
import sys

import click

from runner.cli import startup
from runner.cli.options import AS_JSON, example, load_profile, profile_options, ssh_options


@click.command(epilog=example("disttui plan mine.yaml", "disttui plan 2x8gpu --set hosts='[box1, alice@box2:2222]'"))
@profile_options
@click.option(
    "--when-free", is_flag=True, help="Show what run --when-free would queue, and, as text, whom it would wait for."
)
@AS_JSON
@ssh_options
def plan(
    profile: str,
    overrides: tuple[str, ...],
    sandbox: bool,
    trust_profile: bool,
    when_free: bool,
    as_json: bool,
    ssh_config: str | None,
    accept_new_host_keys: bool,
) -> None:
    """Show what PROFILE would run where, and why; start nothing.

    The commands are exact: copied to the hosts and started by hand, they train. What PROFILE has run besides, on which
    host, and the secrets it sends there are listed. Its `activate` lines are run on the hosts, to find out which Python
    they lead to; standard error says so. Exit code 3 when a check found something that forbids the start.
    """
    from runner.api.preparing import ahead, prepare
    from runner.cli.render.output import put
    from runner.cli.running import host_words
    from runner.cli.viewing import viewing
    from runner.render.leases import ahead_lines
    from runner.render.plan import plan_json, render_plan

    loaded = load_profile(profile, overrides, trusted=trust_profile)
    startup.import_ahead()
    # On standard error: standard output carries the plan only.
    news = host_words(loaded, lambda text: put(sys.stderr, f"disttui: {text}\n"))
    if when_free and loaded.slurm is not None:
        put(sys.stderr, "disttui: --when-free changes nothing for a job of Slurm: it waits in Slurm's queue\n")
    with (
        viewing(ssh_config, accept_new_host_keys, loaded if sandbox else None) as viewer,
        prepare(viewer, loaded, news, queued=when_free) as prepared,
    ):
        planned = prepared.planned
    parts = (planned.plan, planned.recommendation, planned.findings)
    click.echo(json.dumps(plan_json(*parts), indent=2) if as_json else render_plan(*parts))
    if when_free and loaded.slurm is None and not as_json and not planned.errors:
        click.echo("\n".join(ahead_lines(ahead(planned))))
    raise SystemExit(3 if planned.errors else 0)
