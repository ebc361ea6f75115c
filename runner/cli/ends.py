"""The commands that change runs: stop, run again, fetch, remove."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from runner.cli.options import AS_LINES, DETACH, OVERRIDES, ask_about_rerun, example, ssh_options
from runner.cli.run_selector import existing, finding, run_options, say, warn
from runner.cli.running import run_profile


@click.command(epilog=example("disttui stop 2node-7f3a"))
@click.option("--now", is_flag=True, help="Kill at once, without the grace that lets ranks save their work.")
@run_options
def stop(now: bool, **where: Any) -> None:
    """Stop RUN on all its hosts, and wait until nothing is left.

    One host that is reached is enough: it hands the stop on. A run that has ended already is left as it is.
    """
    from runner.commands.stop import stop as end

    with finding(where) as (known, viewer):
        code = end(known, viewer.connector(known.ssh_config), say, now=now)
    raise SystemExit(code)


@click.command(epilog=example("disttui rerun 2node-7f3a --resume", "disttui rerun 2node-7f3a --set launch.restarts=2"))
@OVERRIDES
@click.option("--resume", is_flag=True, help="Go on from its newest checkpoint.")
@DETACH
@AS_LINES
@click.option("--trust-profile", is_flag=True, help="Run without asking what a run that was started elsewhere has run.")
@run_options
def rerun(
    overrides: tuple[str, ...], resume: bool, detach: bool, as_json: bool, trust_profile: bool, **where: Any
) -> None:
    """Run the profile of RUN once more, exactly as it was run then.

    The profile of a run that was started elsewhere is its host's word: what it has run is shown before.
    With --resume the job gets DISTTUI_RESUME=1, DISTTUI_RESUME_FROM, the folder of that run's checkpoints, and the
    profile's launch.resume_args, from the first attempt on. The new run saves to a folder of its own.
    """
    from runner.runs.again import again, newest_checkpoint, no_checkpoint

    with finding(where) as (known, viewer):
        made = again(known, overrides, resume=resume)
        if resume and newest_checkpoint(known, viewer.connector(known.ssh_config)) is None:
            raise no_checkpoint(known)
    if made.foreign and not trust_profile:
        ask_about_rerun(known.run, made.profile)
    code = run_profile(
        made.profile,
        made.source,
        sandbox=made.sandbox,
        ssh_config=where["ssh_config"] or existing(known.ssh_config),
        accept_new=where["accept_new_host_keys"],
        as_json=as_json,
        detach=detach,
        resume_from=made.resume_from,
    )
    raise SystemExit(code)


@click.command(epilog=example("disttui forget 2node-7f3a"))
@click.option("--here", is_flag=True, help="Remove only what is held here; the hosts keep the run.")
@run_options
def forget(here: bool, **where: Any) -> None:
    """Remove RUN, logs and checkpoints too, on its hosts and here.

    Refused while it lives.
    """
    from runner.commands.stop import forget as remove
    from runner.commands.stop import forget_here
    from runner.errors import InputError

    if here:
        if where["host"]:
            raise InputError("--here asks no host, and --host names one", "Leave out one of them.")
        raise SystemExit(forget_here(where["run"], os.environ, say))
    with finding(where) as (known, viewer):
        code = remove(known, viewer.connector(known.ssh_config), say)
    raise SystemExit(code)


@click.command(epilog=example("disttui gc --older 7d", "disttui gc --over 50GiB --yes"))
@click.option("--older", metavar="AGE", help="Runs that ended longer ago, such as 30d (the default) or 12h.")
@click.option("--over", metavar="SIZE", help="The oldest runs, until all together hold no more, such as 10GiB.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@ssh_options
def gc(older: str | None, over: str | None, yes: bool, ssh_config: str | None, accept_new_host_keys: bool) -> None:
    """Remove old runs, on their hosts and here, after showing which.

    Runs that live are never touched.
    """
    from runner.commands import gc as command

    if older is None and over is None:
        older = "30d"
    age = command.parse_age(older) if older is not None else None
    size = command.parse_size(over) if over is not None else None
    from runner.cli.viewing import viewing

    with viewing(ssh_config, accept_new_host_keys) as viewer:
        connect = viewer.connector
        chosen, problems = command.choose(os.environ, connect, older=age, over=size)
        warn(problems)
        if not chosen:
            click.echo("nothing to remove")
            return
        click.echo(command.render(chosen))
        if not yes and not (sys.stdin.isatty() and click.confirm("Remove them?")):
            click.echo("nothing is removed; add --yes to remove them")
            return
        code = command.remove(chosen, connect, say)
    raise SystemExit(code)


@click.command(epilog=example("disttui pull 2node-7f3a --to results"))
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), help="Into this folder, by default ./RUN.")
@run_options
def pull(to: Path | None, **where: Any) -> None:
    """Copy the checkpoints and results of RUN to here.

    What was copied before is not copied again.
    """
    from runner.commands.pull import pull as copy

    with finding(where) as (known, viewer):
        code = copy(known, viewer.connector(known.ssh_config), to or Path(known.run), say)
    raise SystemExit(code)
