"""The commands of libraries of profiles."""

from __future__ import annotations

import json

import click

from runner.cli.options import AS_JSON, example


@click.group(
    epilog=example(
        "disttui library add team hub:profiles.git",
        "disttui library list",
        "disttui run team/2node",
    )
)
def library() -> None:
    """Share profiles with a team, by git or a folder.

    A profile is named 2node, which is looked for in all libraries in their order, or team/2node.
    """


@library.command("list", epilog=example("disttui library list", "disttui library list team"))
@click.argument("name", metavar="[LIBRARY]", required=False)
@AS_JSON
def list_(name: str | None, as_json: bool) -> None:
    """List all profiles, with the last run of each."""
    from runner.api.libraries import list_library
    from runner.cli.render.library import library_data, library_table

    found = list_library(library=name)
    click.echo(json.dumps(library_data(found), indent=2) if as_json else library_table(found))
