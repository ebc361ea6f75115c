"""The command that checks profiles."""

from __future__ import annotations

import click

from runner.cli.options import OVERRIDES, complete_profiles, example
from runner.errors import InputError


@click.command(epilog=example("disttui validate mine.yaml 2node"))
@click.argument("profiles", nargs=-1, required=True, metavar="PROFILE...", shell_complete=complete_profiles)
@click.option("--resolved", is_flag=True, help="Show every value that its files give, with file and line.")
@OVERRIDES
def validate(profiles: tuple[str, ...], resolved: bool, overrides: tuple[str, ...]) -> None:
    """Check each PROFILE, and show what it runs, without any host.

    Every error is shown, with its line and column. Exit code 2 when there is one.
    """
    from runner.api.library import read_profile
    from runner.cli.render.library import origin_lines
    from runner.cli.startup import without_guesses
    from runner.profile.disclosure import effect_lines
    from runner.profile.leaks import refuse
    from runner.text import clean, clean_lines

    code = 0
    for name in profiles:
        try:
            found = read_profile(name, overrides)
        except InputError as error:
            code = error.exit_code
            click.echo(clean_lines(str(error)), err=True)
        else:
            count = len(found.profile.hosts)
            try:
                refuse(found.text, str(found.path))
                click.echo(f"{clean(name)}: good ({count} host{'s' if count != 1 else ''})")
            except InputError as error:
                code = error.exit_code
                click.echo(clean_lines(str(error)), err=True)
                click.echo(f"{clean(name)}: holds what looks like a secret")
            if resolved:
                click.echo("\n".join(f"  {line}" for line in origin_lines(found.profile)))
            with without_guesses():  # the user reads it to decide
                for key, text in effect_lines(found.profile):
                    click.echo(f"  {key}: {text}")
            if found.doubt:
                click.echo(f"  ▲ {clean(found.doubt.why)}: it is used only after a yes, or with --trust-profile")
    raise SystemExit(code)
