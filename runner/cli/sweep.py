"""The command that queues a run for each combination of values, or for those that a search asks for."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from runner.cli.options import AS_JSON, TRUST, complete_profiles, example, naming_trust, ssh_options
from runner.errors import InputError

if TYPE_CHECKING:
    from runner.api.sweeping import Sweep
    from runner.api.viewer import Viewer

_TRIALS = 20


@click.command(
    epilog=example(
        "disttui sweep mine.yaml --set job.args.lr=1e-3,3e-4 --set job.args.seed=1,2",
        "disttui sweep --results mine-sweep-7f3a0b12",
        "disttui sweep mine.yaml --search job.args.lr=log:1e-5..1e-2 --goal min:loss --trials 20",
        "disttui sweep --resume mine-sweep-7f3a0b12",
    )
)
@click.argument("profile", required=False, shell_complete=complete_profiles)
@click.option("--set", "settings", multiple=True, metavar="KEY=A,B", help="A key's values; job.args.lr is --lr.")
@click.option("--results", metavar="SWEEP", help="Show how the runs of a sweep do; its name may be shortened.")
@click.option(
    "--search",
    "space",
    multiple=True,
    metavar="KEY=VALUES",
    help="Let Optuna choose a key's values: LOW..HIGH, log:LOW..HIGH, or A,B,C.",
)
@click.option("--goal", metavar="GOAL", help="With --search: min:METRIC or max:METRIC, by a run's last value.")
@click.option("--best", is_flag=True, help="With --search: by its best value.")
@click.option(
    "--trials", type=click.IntRange(1, 256), help=f"With --search: the number of all runs; {_TRIALS} if not given."
)
@click.option("--parallel", type=click.IntRange(1, 256), help="With --search: the most runs at a time; 1 if not given.")
@click.option("--resume", metavar="SWEEP", help="Go on with a search, with what its runs have reached meanwhile.")
@TRUST
@AS_JSON
@ssh_options
def sweep(
    profile: str | None,
    settings: tuple[str, ...],
    *,
    results: str | None,
    space: tuple[str, ...],
    goal: str | None,
    best: bool,
    trials: int | None,
    parallel: int | None,
    resume: str | None,
    trust_profile: bool,
    as_json: bool,
    ssh_config: str | None,
    accept_new_host_keys: bool,
) -> None:
    """Queue PROFILE for each combination of values, or by a search.

    Each is a run of its own that starts when its GPUs are free, on the CPU when its hosts are: disttui queue, ps, stop.
    --results prints a table of their values, states and losses.

    A search (--search and --goal) goes on while this command does: it queues --parallel runs at a time, and Optuna
    chooses the next values by what those before have reached. Ctrl-C leaves; the runs go on, and so does the search
    with --resume. Exit code 1 where no run has reached a value.
    """
    from runner.api.sweeping import find_sweep, start_sweep
    from runner.cli.signals import held_back
    from runner.cli.viewing import viewing
    from runner.render.sweep import render_sweep
    from runner.runs.registry import make_folder

    if sum(each is not None for each in (profile, results, resume)) != 1:
        raise InputError("give one of PROFILE, --results SWEEP and --resume SWEEP", "See: disttui sweep --help")
    _refuse_stray(profile, resume, space, goal, fixed=best or bool(settings), more=bool(trials or parallel))
    if best and not space:
        raise InputError("--best is for a search", "Give --search and --goal, too, or leave it out.")
    with viewing(ssh_config, accept_new_host_keys) as viewer:
        if results is not None:
            found = find_sweep(viewer, results)
        else:
            make_folder(os.environ)
            with naming_trust():
                if resume is None and not space:
                    assert profile is not None
                    found = start_sweep(viewer, profile, settings, trusted=trust_profile, whole=held_back)
                else:
                    if resume is None:
                        from runner.api.searching import begin_search

                        assert profile is not None and goal is not None
                        resume = begin_search(
                            viewer, profile, space, goal, settings=settings, trials=trials or _TRIALS,
                            parallel=parallel or 1, best=best, trusted=trust_profile,
                        )  # fmt: skip
                    found = _search(viewer, resume, trials, parallel, trusted=trust_profile)
    click.echo(json.dumps(asdict(found), indent=2) if as_json else render_sweep(found))
    if results is None and not as_json:
        click.echo(f"results: disttui sweep --results {found.name}")
    raise SystemExit(1 if found.search and results is None and all(one.value is None for one in found.runs) else 0)


def _refuse_stray(
    profile: str | None, resume: str | None, space: tuple[str, ...], goal: str | None, *, fixed: bool, more: bool
) -> None:
    """Raise InputError for options that would be without effect."""
    if bool(space) != bool(goal):
        raise InputError("a search needs --search and --goal", "Give both: --search job.args.lr=1e-5..1e-2 --goal …")
    if (space or fixed) and profile is None:
        what = "--set, --search, --goal and --best cannot be changed once a sweep was started"
        raise InputError(what, "Leave them out, or give PROFILE for a new one.")
    if more and not space and resume is None:
        raise InputError(
            "--trials and --parallel are for a search", "Give --search and --goal, too, or leave them out."
        )


def _search(viewer: Viewer, name: str, trials: int | None, parallel: int | None, *, trusted: bool) -> Sweep:
    """Go on with a search and say how; returns it as it is in the end."""
    from runner.api.news import HostNotice
    from runner.api.searching import continue_search
    from runner.api.sweeping import find_sweep, load_sweep
    from runner.cli.signals import held_back
    from runner.render.sweep import progress_line

    sweep = load_sweep(os.environ, name)
    again = f"disttui sweep --resume {sweep.name}"
    click.echo(f"disttui: search {sweep.name}", err=True)
    try:
        searching = continue_search(viewer, name, trials=trials, parallel=parallel, trusted=trusted, whole=held_back)
        for news in searching:
            host = f"{news.host}: " if isinstance(news, HostNotice) and news.host else ""
            words = f"{host}{news.text}" if isinstance(news, HostNotice) else progress_line(sweep, news)
            click.echo(f"disttui: {words}", err=True)
    except KeyboardInterrupt:
        click.echo(f"disttui: left: its runs go on without this command, and the search with {again}", err=True)
        raise SystemExit(130) from None
    return find_sweep(viewer, name)
