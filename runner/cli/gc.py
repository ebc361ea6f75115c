"""The command that removes old runs."""

from __future__ import annotations

import sys

import click

from runner.cli.options import example, ssh_options
from runner.cli.run_selector import warn
from runner.errors import InputError


def parse_age(text: str) -> float:
    """Seconds of an age such as `30d` or `12h`. Raises InputError."""
    from runner.profile.numbers import age
    from runner.text import clean

    found = age(text)
    if found is None:
        raise InputError(f"--older {clean(text)!r}: no age", "Give 30d or 12h.")
    return found


def parse_size(text: str) -> int:
    """Bytes of a size such as `10GiB`. Raises InputError."""
    from runner.profile.numbers import size
    from runner.text import clean

    found = size(text)
    if found is None:
        raise InputError(f"--over {clean(text)!r}: no size", "Give 500MiB or 10GiB.")
    return found


@click.command(epilog=example("disttui gc --older 7d", "disttui gc --over 50GiB --yes"))
@click.option("--older", metavar="AGE", help="Runs that ended longer ago, such as 30d (the default) or 12h.")
@click.option("--over", metavar="SIZE", help="The oldest runs, until all together hold no more, such as 10GiB.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@ssh_options
def gc(older: str | None, over: str | None, yes: bool, ssh_config: str | None, accept_new_host_keys: bool) -> None:
    """Remove old runs, on their hosts and here, after showing which.

    Runs that live are never touched. Sweeps of that age whose runs are all removed go, too; not with --over alone.
    """
    from runner.api.old import old_runs, old_sweeps, remove, remove_sweep
    from runner.cli.viewing import viewing
    from runner.ids import short
    from runner.render.old import forgotten, old_table

    if older is None and over is None:
        older = "30d"
    age = parse_age(older) if older is not None else None
    size = parse_size(over) if over is not None else None
    code = 0
    with viewing(ssh_config, accept_new_host_keys) as viewer:
        chosen, problems = old_runs(viewer, older=age, over=size)
        warn(problems)
        sweeps = old_sweeps(viewer, age, chosen) if age is not None else ()
        if not chosen and not sweeps:
            click.echo("nothing to remove")
            return
        if chosen:
            click.echo(old_table(chosen))
        for name in sweeps:
            click.echo(f"  {name}: a sweep without runs, its table is lost")
        if not yes and not (sys.stdin.isatty() and click.confirm("Remove them?")):
            click.echo("nothing is removed; add --yes to remove them")
            return
        for known, error in remove(viewer, chosen):
            click.echo(forgotten(known) if error is None else f"{short(known.run)}: {error.sentence}")
            code = error.exit_code if error else code
        for name in old_sweeps(viewer, age) if age is not None else ():
            remove_sweep(viewer, name)
            click.echo(f"{name}: removed")
    raise SystemExit(code)
