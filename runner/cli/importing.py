"""The command that makes a profile of another launcher's file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.cli.options import complete_hosts, example
from runner.errors import InputError

if TYPE_CHECKING:
    from runner.planning.interop.recognise import Kind


@click.command(
    "import",
    epilog=example(
        "disttui import default_config.yaml --host box1 --host box2 --script train.py -o mine.yaml",
        "disttui import hostfile --script train.py > mine.yaml",
        "disttui import job.sbatch --login cluster -o mine.yaml",
    ),
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--from",
    "kind",
    type=click.Choice(["accelerate", "hostfile", "deepspeed", "sbatch"]),
    help="What FILE is, by default recognised from its content.",
)
@click.option(
    "--host", "hosts", multiple=True, shell_complete=complete_hosts, help="A host; several in the order of node ranks."
)
@click.option(
    "--login",
    metavar="HOST",
    shell_complete=complete_hosts,
    help="The login node: a job script becomes a profile that is run as a job of Slurm.",
)
@click.option("--script", metavar="PATH", help="What runs, for a file that does not say.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write it here; else it is printed.",
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
    Standard error has a note on every line: what it has become, why it has no counterpart, or what you have to decide.
    Nothing in FILE is run. Exit code 2 where the profile lacks hosts that FILE does not name.
    """
    from runner.api.importing import import_profile
    from runner.profile.problems import printable
    from runner.profile.save import save
    from runner.text import clean

    imported = import_profile(file, kind, hosts=hosts, script=script, login=login)
    if output is not None:
        save(imported.text, output, replace=False)
    else:
        click.echo(imported.text, nl=False)
    name = printable(str(file))
    for note in imported.notes:
        place = f"{name}:{note.line}" if note.line else name
        mark = {"translated": "", "dropped": "dropped: ", "ambiguous": "▲ "}[note.fate]
        click.echo(clean(f"{place}: {note.key}: {mark}{note.what}"), err=True)
    if imported.missing:
        raise InputError(imported.missing.what, imported.missing.cure, place=imported.missing.place)
