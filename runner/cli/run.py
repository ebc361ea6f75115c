"""The commands `run` and `rerun`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

import disttui
from disttui.runner.cli.options import OVERRIDES, example, load_profile, profile_options, start_options
from disttui.runner.cli.run_selector import existing, finding, run_options
from disttui.runner.cli.running import run_profile
from disttui.runner.errors import InputError
from disttui.runner.ids import short
from disttui.runner.text import clean, quote


@click.command(
    epilog=example(
        "disttui run 2node --sandbox",
        "disttui run mine.yaml --set job.args.lr=1e-3",
        "disttui run train.py --hosts box1,alice@box2 -- --lr 1e-3",
    )
)
@profile_options
@start_options
@click.option("--hosts", metavar="HOST,...", help="Run there: in place of the profile's hosts, or without a profile.")
@click.argument("args", nargs=-1, metavar="[-- ARGS...]")
def run(
    profile: str,
    overrides: tuple[str, ...],
    args: tuple[str, ...],
    *,
    hosts: str | None,
    sandbox: bool,
    trust_profile: bool,
    allow_differences: bool,
    **start: Any,
) -> None:
    """Run PROFILE on all its hosts until it has trained.

    PROFILE is a file, the name of a saved profile, or with --hosts a Python script: then its folder is sent to the
    hosts, and its arguments are ARGS. Standard output carries the ranks' lines, standard error disttui's own messages.
    Ctrl-C stops the whole gang, a second Ctrl-C kills it; when the terminal is closed the run continues.
    """
    from disttui.runner.api.library import named_hosts
    from disttui.runner.profile.library import find

    overrides = _allowing(overrides, allow_differences)
    script = Path(profile)
    named = named_hosts(hosts) if hosts is not None else None
    if script.suffix == ".py" and script.is_file():
        if named is None:
            cure = f"Name them: disttui run {quote(profile)} --hosts box1,box2 (or local). Or make a profile: disttui."
            raise InputError(f"{clean(profile)} is a script, and no hosts are given", cure)
        loaded = disttui.script_profile(script, named, args, overrides)
        raise SystemExit(run_profile(loaded, None, sandbox=sandbox, **start))
    if args:
        cure = "Those of a profile are in job.args; --set job.args.lr=1e-3 changes one."
        raise InputError(f"arguments can be given to a script only, not to the profile {clean(profile)}", cure)
    if named is not None:
        overrides = (f"hosts={json.dumps(named)}", *overrides)
    path = str(find(profile))
    loaded = load_profile(path, overrides, trusted=trust_profile)
    raise SystemExit(run_profile(loaded, path, sandbox=sandbox, **start))


@click.command(epilog=example("disttui rerun 2node-7f3a", "disttui rerun 2node-7f3a --resume --set job.args.lr=1.5e-4"))
@OVERRIDES
@click.option("--resume", is_flag=True, help="Resume from its newest checkpoint.")
@click.option("--latest", is_flag=True, help="Send the folder of job.sync as it is now, not as it was.")
@start_options
@click.option(
    "--trust-profile", "--trust", is_flag=True, help="Run it without asking, also if RUN was started elsewhere."
)
@run_options
def rerun(
    overrides: tuple[str, ...],
    resume: bool,
    latest: bool,
    detach: bool,
    allow_differences: bool,
    ignore_leases: bool,
    when_free: bool,
    trust_profile: bool,
    **where: Any,
) -> None:
    """Rerun RUN with its original profile.

    The profile of a run that was started elsewhere comes from its host: the commands in it are shown first.
    With --resume the job gets DISTTUI_RESUME=1, DISTTUI_RESUME_FROM, the folder of that run's checkpoints, and the
    profile's launch.resume_args, from the first attempt on. The new run saves to a folder of its own.
    """
    from disttui.runner.api.library import doubt_of_run, refuse_doubt

    with finding(**where) as (known, viewer):
        made = disttui.rerun(viewer, known, _allowing(overrides, allow_differences), resume=resume, latest=latest)
        if made.foreign and not trust_profile:
            cure = f"Read it (disttui runs show {short(known.run)}); then add --trust-profile."
            refuse_doubt(doubt_of_run(known.run, made.profile), viewer.questions, cure)
    code = run_profile(
        made.profile, made.source, sandbox=made.sandbox, ssh_config=existing(known.ssh_config), earlier=made,
        detach=detach, ignore_leases=ignore_leases, when_free=when_free,
    )  # fmt: skip
    raise SystemExit(code)


def _allowing(overrides: tuple[str, ...], differences: bool) -> tuple[str, ...]:
    """The overrides, with what --allow-differences stands for."""
    return (*overrides, "launch.allow_differences=true") if differences else overrides
