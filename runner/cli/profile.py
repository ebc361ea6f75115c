"""The commands of `profile`: `validate`, `plan`, `import` and `export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

import disttui
from disttui.runner.cli import startup
from disttui.runner.cli.options import (
    OVERRIDES,
    TRUST,
    complete_hosts,
    complete_profiles,
    emit,
    example,
    load_profile,
    profile_options,
    say,
    viewing,
    wants_json,
)
from disttui.runner.errors import InputError
from disttui.runner.formatting import amount
from disttui.runner.text import clean, clean_lines

if TYPE_CHECKING:
    from disttui.runner.planning.interop.read import Kind
    from disttui.runner.planning.interop.write import Target


@click.command(epilog=example("disttui profile validate mine.yaml 2node"))
@click.argument("profiles", nargs=-1, required=True, metavar="PROFILE...", shell_complete=complete_profiles)
@click.option("--resolved", is_flag=True, help="Show every value that its files give, with file and line.")
@OVERRIDES
def validate(profiles: tuple[str, ...], resolved: bool, overrides: tuple[str, ...]) -> None:
    """Check each PROFILE, and show what it runs, without any host.

    Shows every error, with line and column. Exit code 2 if there is one.
    """
    code = 0
    checked = []
    for name in profiles:
        data, errors = _check(name, overrides, resolved=resolved)
        checked.append({**data, "errors": [error.as_json() for error in errors]})
        for error in errors:
            code = error.exit_code
            if not wants_json():
                click.echo(clean_lines(str(error)), err=True)
    with startup.without_guesses():
        emit(checked)
    raise SystemExit(code)


def _check(name: str, overrides: tuple[str, ...], *, resolved: bool) -> tuple[dict[str, object], list[InputError]]:
    """Print what a profile runs; returns it as data, and its errors."""
    from disttui.runner.profile.effects import effect_lines
    from disttui.runner.profile.leaks import refuse, without_leaks
    from disttui.runner.render.library import origin_data, origin_lines

    data: dict[str, object] = {"profile": clean(name)}
    errors: list[InputError] = []
    try:
        found = disttui.read_profile(name, overrides)
    except InputError as error:
        return data, [error]
    data["hosts"] = [host.name for host in found.profile.hosts]
    try:
        refuse(found.text, str(found.path))
        say(f"{clean(name)}: valid ({amount(len(found.profile.hosts), 'host')})")
    except InputError as error:
        errors.append(error)
        say(f"{clean(name)}: contains what looks like a secret")
    if resolved:
        data["values"] = origin_data(found.profile)
        say("\n".join(f"  {line}" for line in origin_lines(found.profile)))
    # A word of a command is shown, whatever its author made it look like; a token among arguments runs nothing.
    job = found.profile.job
    shown = found.profile.model_copy(update={"job": job.model_copy(update={"args": without_leaks(job.args)})})
    data["runs"] = [{"key": key, "words": text} for key, text in effect_lines(shown)]
    with startup.without_guesses():  # the user reads it to decide
        for key, text in effect_lines(shown):
            say(f"  {key}: {text}")
    if found.doubt:
        data["doubt"] = clean(found.doubt.why)
        say(f"  ▲ {clean(found.doubt.why)}: used only after you confirm, or with --trust-profile")
    return data, errors


@click.command(
    epilog=example(
        "disttui profile plan mine.yaml", "disttui profile plan 2x8gpu --set hosts='[box1, alice@box2:2222]'"
    )
)
@profile_options
@click.option(
    "--when-free", is_flag=True, help="Show what run --when-free would queue; as text, also what it would wait for."
)
def plan(
    profile: str,
    overrides: tuple[str, ...],
    sandbox: bool,
    trust_profile: bool,
    when_free: bool,
) -> None:
    """Show what PROFILE would run where, and why; start nothing.

    The commands are exact: copied to the hosts and started by hand, they train. Also lists PROFILE's other commands,
    their hosts, and the secrets it sends there. Runs its `activate` lines on the hosts to find their Python; standard
    error says so. Exit code 3 if a check forbids the start.
    """
    from disttui.runner.api.preparing import ahead
    from disttui.runner.cli.render.output import put
    from disttui.runner.cli.running import host_words
    from disttui.runner.render.leases import ahead_lines
    from disttui.runner.render.plan import plan_json, render_plan

    loaded = load_profile(profile, overrides, trusted=trust_profile)
    startup.import_ahead()
    # On standard error: standard output carries the plan only.
    news = host_words(loaded, lambda text: put(sys.stderr, f"disttui: {text}\n"))
    if when_free and loaded.slurm is not None:
        put(sys.stderr, "disttui: --when-free has no effect on a Slurm job: it waits in Slurm's queue\n")
    with (
        viewing(loaded if sandbox else None) as viewer,
        disttui.prepare(viewer, loaded, news, queued=when_free) as prepared,
    ):
        planned = prepared.planned
    parts = (planned.plan, planned.recommendation, planned.findings)
    emit(plan_json(*parts), render_plan(*parts))
    if when_free and loaded.slurm is None and not wants_json() and not planned.errors:
        click.echo("\n".join(ahead_lines(ahead(planned))))
    raise SystemExit(3 if planned.errors else 0)


@click.command(
    "import",
    epilog=example(
        "disttui profile import default_config.yaml --host box1 --host box2 --script train.py -o mine.yaml",
        "disttui profile import hostfile --script train.py > mine.yaml",
        "disttui profile import job.sbatch --login cluster -o mine.yaml",
    ),
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--from",
    "kind",
    type=click.Choice(["accelerate", "hostfile", "deepspeed", "sbatch"]),
    help="Kind of FILE (default: detected from its content).",
)
@click.option(
    "--host", "hosts", multiple=True, shell_complete=complete_hosts, help="A host; several in the order of node ranks."
)
@click.option(
    "--login",
    metavar="HOST",
    shell_complete=complete_hosts,
    help="The login node: makes a profile that runs as a Slurm job.",
)
@click.option("--script", metavar="PATH", help="The script, if the file does not name one.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file instead of standard output.",
)
def import_(
    file: Path,
    kind: Kind | None,
    hosts: tuple[str, ...],
    login: str | None,
    script: str | None,
    output: Path | None,
) -> None:
    """Make a profile of another launcher's FILE.

    FILE is a configuration of Accelerate or DeepSpeed, a hostfile of MPI or DeepSpeed, or a job script of Slurm.
    Standard error has a note on every line: its translation, why it has none, or what you have to decide. Nothing in
    FILE is run. Exit code 2 if FILE does not name the hosts, 1 if the number of hosts or processes is a guess; the
    profile is written in both cases.
    """
    from disttui.runner.profile.problems import printable
    from disttui.runner.profile.save import save

    imported = disttui.import_profile(file, kind, hosts=hosts, script=script, login=login)
    error = imported.missing or imported.guess
    if output is not None:
        save(imported.text, output, replace=False)
    if wants_json():
        notes = [{"line": note.line, "key": note.key, "fate": note.fate, "what": note.what} for note in imported.notes]
        missing, guess = (error and error.as_json() for error in (imported.missing, imported.guess))
        file_ = output and str(output)
        emit({"profile": imported.text, "file": file_, "notes": notes, "missing": missing, "guess": guess})
        raise SystemExit(error.exit_code if error else 0)
    if output is None:
        click.echo(imported.text, nl=False)
    name = printable(str(file))
    for note in imported.notes:
        place = f"{name}:{note.line}" if note.line else name
        mark = {"translated": "", "dropped": "dropped: ", "ambiguous": "▲ "}[note.fate]
        click.echo(clean(f"{place}: {note.key}: {mark}{note.what}"), err=True)
    if error:
        raise error


@click.command(
    epilog=example(
        "disttui profile export mine.yaml --to accelerate -o accelerate",
        "disttui profile export 2node --to script --probe --set hosts='[box1, alice@box2]'",
    )
)
@click.argument("profile", metavar="PROFILE", shell_complete=complete_profiles)
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Choice(["accelerate", "hostfile", "sbatch", "script"]),
    help="For accelerate launch, mpirun, sbatch, or a shell on each host.",
)
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the files here (default: ./NAME-TARGET).",
)
@click.option("--probe", is_flag=True, help="Probe the hosts, as plan does, for values that PROFILE leaves open.")
@OVERRIDES
@TRUST
def export(
    profile: str,
    target: Target,
    output: Path | None,
    probe: bool,
    overrides: tuple[str, ...],
    trust_profile: bool,
) -> None:
    """Write files that run PROFILE without disttui.

    Without --probe no host is asked, and values that PROFILE leaves open are errors. Secrets are not written:
    ${env:NAME} stays a variable of the shell that starts the job.
    """
    from disttui.runner.cli.render.output import put
    from disttui.runner.cli.running import host_words
    from disttui.runner.profile.problems import printable

    loaded = load_profile(profile, overrides, trusted=trust_profile)
    if probe:
        news = host_words(loaded, lambda text: put(sys.stderr, f"disttui: {text}\n"))
        with viewing() as viewer, disttui.prepare(viewer, loaded, news) as prepared:
            exported = disttui.export_profile(loaded, target, prepared)
    else:
        exported = disttui.export_profile(loaded, target)
    saved = disttui.save_exported(exported, loaded, output or Path(f"{loaded.name}-{target}"))
    files, notes = [printable(str(path)) for path in saved], [clean(note) for note in exported.notes]
    emit({"files": files, "notes": notes}, "\n".join(files))
    for note in () if wants_json() else notes:
        click.echo(note, err=True)
