"""The command that queues a run for each combination of values."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

import disttui
from disttui.runner.cli.global_options import emit, say
from disttui.runner.cli.options import TRUST, complete_profiles, example, naming_trust, viewing
from disttui.runner.errors import InputError


@click.command(
    epilog=example(
        "disttui sweep mine.yaml --set job.args.lr=1e-3,3e-4 --set job.args.seed=1,2",
        "disttui sweep --results mine-sweep-7f3a0b12",
    )
)
@click.argument("profile", required=False, shell_complete=complete_profiles)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=A,B", help="Values of a key; job.args.lr sets --lr of the job."
)
@click.option("--results", metavar="SWEEP", help="Show sweep results; the name may be shortened.")
@TRUST
def sweep(profile: str | None, settings: tuple[str, ...], *, results: str | None, trust_profile: bool) -> None:
    """Queue PROFILE for each combination of values.

    Each is a run of its own that starts when its GPUs are free, on the CPU when its hosts are:
    see disttui lease queue, ps and stop.
    --results prints a table of their values, states and losses.
    """
    from disttui.runner.cli.signals import held_back
    from disttui.runner.render.sweep import render_sweep
    from disttui.runner.runs.hooks import say_on_end
    from disttui.runner.runs.registry import make_folder, profile_of

    if (profile is None) == (results is None):
        raise InputError("give PROFILE or --results SWEEP", "See: disttui sweep --help")
    if settings and profile is None:
        raise InputError("--set cannot be changed once a sweep was started", "Leave it out, or give PROFILE instead.")
    with viewing() as viewer:
        if profile is None:
            assert results is not None
            found = disttui.find_sweep(viewer, results)
        else:
            make_folder(os.environ)
            with naming_trust():
                found = disttui.start_sweep(viewer, profile, settings, trusted=trust_profile, whole=held_back)
            own = profile_of(disttui.find_run(viewer, found.runs[0].run))
            say_on_end(own, lambda text: click.echo(f"disttui: {text}", err=True))
    emit(asdict(found), render_sweep(found))
    if results is None:
        say(f"results: disttui sweep --results {found.name}")
