"""The command that makes files of other launchers of a profile."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.options import OVERRIDES, TRUST, complete_profiles, example, load_profile, ssh_options

if TYPE_CHECKING:
    from runner.planning.interop.write import Target


@click.command(
    epilog=example(
        "disttui export mine.yaml --to accelerate -o accelerate",
        "disttui export 2node --to script --probe --set hosts='[box1, alice@box2]'",
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
    help="Write the files here, by default into ./NAME-TARGET.",
)
@click.option("--probe", is_flag=True, help="Ask the hosts, as plan does, for what PROFILE leaves to them.")
@OVERRIDES
@TRUST
@ssh_options
def export(
    profile: str,
    target: Target,
    output: Path | None,
    probe: bool,
    overrides: tuple[str, ...],
    trust_profile: bool,
    ssh_config: str | None,
    accept_new_host_keys: bool,
) -> None:
    """Write files that run PROFILE without disttui.

    Without --probe no host is asked, and what PROFILE leaves to them is an error that names it. Secrets are not
    written: a ${env:NAME} stays a variable of the shell that starts the job.
    """
    from runner.api.exporting import export_profile, save_exported
    from runner.api.preparing import prepare
    from runner.cli.render.output import put
    from runner.cli.running import host_words
    from runner.cli.viewing import viewing
    from runner.profile.problems import printable
    from runner.text import clean

    loaded = load_profile(profile, overrides, trusted=trust_profile)
    if probe:
        news = host_words(loaded, lambda text: put(sys.stderr, f"disttui: {text}\n"))
        with viewing(ssh_config, accept_new_host_keys, None) as viewer, prepare(viewer, loaded, news) as prepared:
            exported = export_profile(loaded, target, prepared)
    else:
        exported = export_profile(loaded, target)
    for path in save_exported(exported, loaded, output or Path(f"{loaded.name}-{target}")):
        click.echo(printable(str(path)))
    for note in exported.notes:
        click.echo(clean(note), err=True)
