"""The commands `run`, `rerun` and `sweep`."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import disttui
from disttui.runner.cli.options import (
    OVERRIDES,
    TRUST,
    complete_profiles,
    emit,
    example,
    load_profile,
    naming_trust,
    profile_options,
    say,
    start_options,
    viewing,
)
from disttui.runner.cli.run_selector import existing, finding, run_options
from disttui.runner.cli.running import run_profile
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.formatting import figure, table
from disttui.runner.ids import short
from disttui.runner.text import clean, quote

_OF_LAUNCHERS = {
    "nproc-per-node nproc np n num-gpus num-processes": "Set the number per host: --set num_processes=2",
    "nnodes num-nodes num-machines host H standalone": "Name the hosts: --hosts box1,box2, or --hosts local",
    "node-rank machine-rank": "Start it once, here: disttui numbers the hosts in the order of --hosts",
    "hostfile machinefile config-file": "Make a profile of the file: disttui profile import FILE",
    "master-addr main-process-ip rdzv-endpoint": "disttui finds it, or set it: --set launch.master=ADDRESS",
    "master-port main-process-port": "disttui finds a free one, or set some: --set launch.ports=29500-29599",
    "max-restarts": "Set it: --set launch.restarts=3",
    "m module": "Name the module in a profile, as job: {module: pkg.train, sync: .}",
}
"""What to use in place of options of torchrun, accelerate, mpirun and deepspeed."""


class _WithArguments(click.Command):
    """A command that says what to use in place of a launcher's options, and where those of a script belong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as any command. Raises InputError for an option of a launcher or of the script."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("_", "-")
            cure = next((use for names, use in _OF_LAUNCHERS.items() if name in names.split()), "")
            if any(word.endswith(".py") for word in given):
                after = f"disttui run train.py --hosts box1 -- {error.option_name} …"
                cure = f"{cure}. If it is the script's: {after}" if cure else f"Put it after --: {after}"
            if not cure:
                raise
            raise InputError(f"{error.option_name} is not an option of disttui run", cure) from None


@click.command(
    cls=_WithArguments,
    epilog=example(
        "disttui run 2node --sandbox",
        "disttui run mine.yaml --set job.args.lr=1e-3",
        "disttui run train.py --hosts box1,alice@box2 -- --lr 1e-3",
    ),
)
@profile_options
@start_options
@click.option("--hosts", metavar="HOST,...", help="Run on these hosts instead of the profile's, or without a profile.")
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
    """Run PROFILE on all its hosts until it ends.

    PROFILE is a file, the name of a saved profile, or with --hosts a Python script: then its folder (only the script,
    if that is your home folder) is sent to the hosts, and its arguments are ARGS. Standard output has the ranks' lines,
    standard error disttui's messages. Ctrl-C stops the run on all hosts, a second Ctrl-C kills it; if the terminal is
    closed, the run continues, unless it is in a sandbox.
    """
    from disttui.runner.api.library import named_hosts
    from disttui.runner.profile.library import find

    overrides = _allowing(overrides, allow_differences)
    script = Path(profile)
    named = named_hosts(hosts) if hosts is not None else None
    _refuse_launcher(script)
    language = script_language(script)
    if language == "Python":
        if named is None:
            cure = f"Name them: disttui run {quote(profile)} --hosts box1,box2 (or local). Or make a profile: disttui."
            raise InputError(f"{clean(profile)} is a script, but no hosts are given", cure)
        loaded = disttui.script_profile(script, named, args, overrides)
        raise SystemExit(run_profile(loaded, None, sandbox=sandbox, **start))
    _refuse_code(script, language)
    if args:
        cure = "Set job.args in the profile; --set job.args.lr=1e-3 changes one."
        raise InputError(f"only scripts take arguments after --, not the profile {clean(profile)}", cure)
    if named is not None:
        overrides = (f"hosts={json.dumps(named)}", *overrides)
    path = str(find(profile))
    loaded = load_profile(path, overrides, trusted=trust_profile)
    raise SystemExit(run_profile(loaded, path, sandbox=sandbox, **start))


def _refuse_launcher(path: Path) -> None:
    """Raise InputError for a program that starts scripts, as in `disttui run torchrun train.py`."""
    from disttui.runner.profile.library import named

    starters = ("python", "python3", "torchrun", "accelerate", "deepspeed", "mpirun", "srun")
    if path.name not in starters or named(str(path)) or path.is_dir():
        return
    if not path.exists() or _beginning(path).startswith((b"#!", b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")):
        cure = "disttui starts it: disttui run train.py --hosts box1,box2 -- ARGS"
        raise InputError(f"{path.name} is a program that starts scripts, not a profile", cure)


def _refuse_code(path: Path, language: str) -> None:
    """Raise InputError for code other than Python, which would be read as a profile."""
    from disttui.runner.profile.library import named

    scripts: list[Path] = []
    with suppress(OSError):  # a name that is too long
        scripts = sorted(path.glob("*.py")) if path.is_dir() and not named(str(path)) else []
    if scripts:
        main = next((one for one in scripts if one.name in ("train.py", "main.py")), scripts[0])
        cure = f"Name the script in it: disttui run {quote(str(main))} --hosts box1,box2"
        raise InputError(f"{clean(str(path))} is a folder", cure)
    if path.suffix == ".ipynb" and path.is_file():
        cure = f"Convert it, then run the script: jupyter nbconvert --to script {quote(str(path))}"
        raise InputError(f"{clean(str(path))} is a notebook, not a Python script", cure)
    if language == "shell":
        cure = f"Put it into a profile as job.command: [bash, {path.name}], with job.sync for its folder."
        if b"\n#SBATCH" in _beginning(path):
            cure = f"Make a profile of it: disttui profile import {quote(str(path))} --host box1 --host box2"
        raise InputError(f"{clean(str(path))} is a shell script, not a Python script", cure)


def _beginning(path: Path) -> bytes:
    """The first 4 KiB of a regular file; empty for anything else."""
    with suppress(OSError):  # a name that is too long
        if path.is_file():
            with path.open("rb") as file:
                return file.read(4096)
    return b""


def script_language(path: Path) -> str:
    """Python or shell for a script, by its name or its first line; empty for any other file."""
    with suppress(OSError):  # a name that is too long
        if path.suffix in (".py", ".sh", ".yaml", ".yml"):
            return {".py": "Python", ".sh": "shell"}.get(path.suffix, "") if path.is_file() else ""
    found = re.match(rb"#!.*?\b(python|(?:ba|da|k|z)?sh)[\d.]*(?:\s|$)", _beginning(path).partition(b"\n")[0])
    return "" if found is None else "Python" if found[1] == b"python" else "shell"


@click.command(epilog=example("disttui rerun 2node-7f3a", "disttui rerun 2node-7f3a --resume --set job.args.lr=1.5e-4"))
@OVERRIDES
@click.option("--resume", is_flag=True, help="Resume from its newest checkpoint.")
@click.option("--latest", is_flag=True, help="Send the folder of job.sync as it is now, not as it was.")
@start_options
@click.option("--trust-profile", "--trust", is_flag=True, help="Do not ask, even if RUN was started elsewhere.")
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

    If the run was started elsewhere, its profile comes from its host, and its commands are shown first. With --resume
    the job gets DISTTUI_RESUME=1, DISTTUI_RESUME_FROM (the folder of that run's checkpoints) and launch.resume_args
    from the first attempt on. The new run has its own folder of checkpoints.
    """
    from disttui.runner.api.library import refuse_doubt

    with finding(**where) as (known, viewer):
        made = disttui.rerun(viewer, known, _allowing(overrides, allow_differences), resume=resume, latest=latest)
        if made.foreign and not trust_profile:
            cure = f"Read it (disttui runs show {short(known.run)}), then add --trust-profile."
            why = "its profile comes from the host where it was found"
            refuse_doubt(disttui.Doubt(made.profile, why, run=known.run), viewer.questions, cure)
    code = run_profile(
        made.profile, made.source, sandbox=made.sandbox, ssh_config=existing(known.ssh_config), earlier=made,
        detach=detach, ignore_leases=ignore_leases, when_free=when_free,
    )  # fmt: skip
    raise SystemExit(code)


def _allowing(overrides: tuple[str, ...], differences: bool) -> tuple[str, ...]:
    """The overrides, with the one that --allow-differences adds."""
    return (*overrides, "launch.allow_differences=true") if differences else overrides


def render_sweep(sweep: disttui.Sweep) -> str:
    """A line per run: its values, state, last step and loss."""
    keys = list(sweep.runs[0].values) if sweep.runs else []
    columns = [("RUN", "<"), *((clean(key.removeprefix("job.args.")), ">") for key in keys)]
    rows = []
    for one in sweep.runs:
        status = one.status
        step, loss = (status.get("step"), status.get("loss")) if status else (None, None)
        rows.append(
            (
                short(one.run),
                *(clean(one.values.get(key, "-")) for key in keys),
                clean(status.get("state", "-")) if status else "-",
                "-" if step is None else f"{step}",
                figure(loss) or "-",
            )
        )
    return table((*columns, ("STATE", "<"), ("STEP", ">"), ("LOSS", ">")), rows)


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

    Each combination is a separate run that starts when its GPUs (on the CPU: its hosts) are free: see disttui lease
    queue, ps and stop. --results prints a table of values, states and losses.
    """
    from disttui.runner.cli.signals import held_back
    from disttui.runner.runs.hooks import say_on_end
    from disttui.runner.runs.registry import make_folder, profile_of

    if (profile is None) == (results is None):
        raise InputError("PROFILE or --results SWEEP is required", "See: disttui sweep --help")
    if settings and profile is None:
        raise InputError("--set and --results exclude each other", "Omit --set, or give PROFILE instead.")
    with viewing() as viewer:
        if profile is None:
            assert results is not None
            found = disttui.find_sweep(viewer, results)
        else:
            make_folder(os.environ)
            queued: list[str] = []
            try:
                with naming_trust():
                    found = disttui.start_sweep(
                        viewer, profile, settings, trusted=trust_profile, whole=held_back,
                        tell=lambda one: queued.append(short(one.run)),
                    )  # fmt: skip
            except (DisttuiError, KeyboardInterrupt):
                if queued:
                    say(f"queued before that, and not removed: {', '.join(queued)}")
                raise
            own = profile_of(disttui.find_run(viewer, found.runs[0].run))
            say_on_end(own, lambda text: click.echo(f"disttui: {text}", err=True))
    emit(asdict(found), render_sweep(found))
    if results is None:
        say(f"results: disttui sweep --results {found.name}")
