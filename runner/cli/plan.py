"""The commands `profile validate` and `profile plan`."""

from __future__ import annotations

import sys

import click

import disttui
from disttui.runner.cli import startup
from disttui.runner.cli.global_options import emit, say, wants_json
from disttui.runner.cli.options import OVERRIDES, complete_profiles, example, load_profile, profile_options, viewing
from disttui.runner.errors import InputError
from disttui.runner.formatting import amount
from disttui.runner.text import clean, clean_lines


@click.command(epilog=example("disttui profile validate mine.yaml 2node"))
@click.argument("profiles", nargs=-1, required=True, metavar="PROFILE...", shell_complete=complete_profiles)
@click.option("--resolved", is_flag=True, help="Show every value that its files give, with file and line.")
@OVERRIDES
def validate(profiles: tuple[str, ...], resolved: bool, overrides: tuple[str, ...]) -> None:
    """Check each PROFILE, and show what it runs, without any host.

    Every error is shown, with its line and column. Exit code 2 when there is one.
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
    """Print what a profile runs; returns the same as data, and its errors."""
    from disttui.runner.cli.render.library import origin_data, origin_lines
    from disttui.runner.profile.effects import effect_lines
    from disttui.runner.profile.leaks import refuse

    data: dict[str, object] = {"profile": clean(name)}
    errors: list[InputError] = []
    try:
        found = disttui.read_profile(name, overrides)
    except InputError as error:
        return data, [error]
    data["hosts"] = [host.name for host in found.profile.hosts]
    try:
        refuse(found.text, str(found.path))
        say(f"{clean(name)}: good ({amount(len(found.profile.hosts), 'host')})")
    except InputError as error:
        errors.append(error)
        say(f"{clean(name)}: contains what looks like a secret")
    if resolved:
        data["values"] = origin_data(found.profile)
        say("\n".join(f"  {line}" for line in origin_lines(found.profile)))
    data["runs"] = [{"key": key, "words": text} for key, text in effect_lines(found.profile)]
    with startup.without_guesses():  # the user reads it to decide
        for key, text in effect_lines(found.profile):
            say(f"  {key}: {text}")
    if found.doubt:
        data["doubt"] = clean(found.doubt.why)
        say(f"  ▲ {clean(found.doubt.why)}: it is used only after a yes, or with --trust-profile")
    return data, errors


@click.command(
    epilog=example(
        "disttui profile plan mine.yaml", "disttui profile plan 2x8gpu --set hosts='[box1, alice@box2:2222]'"
    )
)
@profile_options
@click.option(
    "--when-free", is_flag=True, help="Show what run --when-free would queue, and, as text, whom it would wait for."
)
def plan(
    profile: str,
    overrides: tuple[str, ...],
    sandbox: bool,
    trust_profile: bool,
    when_free: bool,
) -> None:
    """Show what PROFILE would run where, and why; start nothing.

    The commands are exact: copied to the hosts and started by hand, they train. What PROFILE has run besides, on which
    host, and the secrets it sends there are listed. Its `activate` lines are run on the hosts, to find out which Python
    they lead to; standard error says so. Exit code 3 when a check found something that forbids the start.
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
        put(sys.stderr, "disttui: --when-free changes nothing for a job of Slurm: it waits in Slurm's queue\n")
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
