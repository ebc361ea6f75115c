"""The commands of libraries of profiles."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from runner.cli.options import AS_JSON, OVERRIDES, complete_profiles, example
from runner.errors import DisttuiError, InputError

if TYPE_CHECKING:
    from runner.library.store import Saved


def _complete_libraries(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    from runner.profile.library import libraries

    return [CompletionItem(each.name) for each in libraries() if each.name.startswith(incomplete)]


_PROFILE = click.argument("profile", metavar="PROFILE", shell_complete=complete_profiles)
_LIBRARY = click.argument("name", metavar="[LIBRARY]", required=False, shell_complete=_complete_libraries)


@click.group(
    epilog=example(
        "disttui library add team hub:profiles.git",
        "disttui library save mine.yaml team/mine",
        "disttui library sync",
        "disttui run team/mine",
    )
)
def library() -> None:
    """Share profiles with a team, by git or a folder.

    A profile is named 2node, which is looked for in all libraries in their order, or team/2node.
    """


@library.command("list", epilog=example("disttui library list", "disttui library list team"))
@_LIBRARY
@AS_JSON
def list_(name: str | None, as_json: bool) -> None:
    """List all profiles, with the last run of each."""
    from runner.api.libraries import list_library
    from runner.cli.render.library import library_data, library_table

    found = list_library(library=name)
    click.echo(json.dumps(library_data(found), indent=2) if as_json else library_table(found))


@library.command(epilog=example("disttui library show team/2node", "disttui library show team/2node --set var.steps=5"))
@_PROFILE
@click.option("--text", "as_text", is_flag=True, help="Print the file as it is.")
@OVERRIDES
def show(profile: str, as_text: bool, overrides: tuple[str, ...]) -> None:
    """Show every value of a profile, and where it comes from."""
    from runner.api.library import read_profile
    from runner.cli.render.library import origin_lines
    from runner.text import clean_lines

    found = read_profile(profile, overrides, check_job=False)
    click.echo(clean_lines(found.text) if as_text else "\n".join(origin_lines(found.profile)))


@library.command(epilog=example("disttui library add team hub:profiles.git", "disttui library add lab /data/profiles"))
@click.argument("name")
@click.argument("where")
def add(name: str, where: str) -> None:
    """Add a library: a git repository, or a folder.

    A repository is cloned for you alone. The list of libraries stands in your config; its order is that of the search.
    """
    from runner.api.libraries import add_library
    from runner.render.library import synced_lines

    done = add_library(name, where)
    click.echo("\n".join(synced_lines(name, done)) if done else f"{name}: added")


@library.command(epilog=example("disttui library remove team", "disttui library remove team/2node"))
@click.argument("name", shell_complete=_complete_libraries)
@click.option("--unsent", is_flag=True, help="Also a library with saved edits that were not sent; they are lost then.")
def remove(name: str, unsent: bool) -> None:
    """Remove a library from your list, or a profile from its library.

    NAME is that of a library, whose remote or folder stays, or one such as team/2node.
    """
    from runner.api.libraries import remove_library
    from runner.api.library_edits import read_for_edit, save_profile

    if "/" not in name:
        remove_library(name, unsent=unsent)
        click.echo(f"{name}: removed from your libraries")
        return
    reading = read_for_edit(name)
    if reading.text is None:
        raise InputError(f"{name}: no such profile", f"disttui library list {name.partition('/')[0]}")
    save_profile(reading, None)
    click.echo(f"{name}: removed{_then(reading.library.name, reading.library.url)}")


@library.command(
    epilog=example("disttui library save mine.yaml team/mine", "disttui library save 2node own/2node --replace")
)
@click.argument("source", metavar="PROFILE", shell_complete=complete_profiles)
@click.argument("to", metavar="LIBRARY/NAME")
@click.option("--replace", is_flag=True, help="Replace a profile of this name.")
def save(source: str, to: str, replace: bool) -> None:
    """Save PROFILE, a file or a name, into a library.

    In a git repository this is a commit of yours, whose message names the keys that differ. It is sent by `sync`.
    """
    from runner.api.library_edits import copy_profile

    _say(to.partition("/")[0], copy_profile(source, to, replace=replace))


@library.command(epilog=example("disttui library edit team/2node"))
@_PROFILE
def edit(profile: str) -> None:
    """Edit a profile in $EDITOR, check it, and save it.

    What somebody else has saved meanwhile is joined key by key; where you both have changed the same keys, both
    versions are kept.
    """
    import subprocess
    import tempfile

    from runner.api.library_edits import read_for_edit, save_profile
    from runner.text import clean_lines
    from runner.user.editor import editor_command

    reading = read_for_edit(profile)
    folder = tempfile.mkdtemp(prefix="disttui-edit-")
    draft = Path(folder) / f"{Path(reading.name).name}.yaml"  # type: ignore[unsafe-path]
    draft.write_text(reading.text or "disttui: 1\nhosts: [local]\njob: {builtin: bytegpt}\n", encoding="utf-8")
    try:
        command = editor_command(os.environ, draft)
    except InputError:
        draft.unlink()
        Path(folder).rmdir()
        raise
    while True:
        code = subprocess.run(command, check=False).returncode
        try:
            if code:
                raise InputError(f"{command[0]} has ended with code {code}")
            text = draft.read_bytes().decode()  # read_text would change the ends of lines
            if text == reading.text:
                click.echo(f"{profile}: nothing has changed")
            else:
                _say(reading.library.name, save_profile(reading, text))
        except (DisttuiError, OSError, UnicodeDecodeError) as error:
            click.echo(clean_lines(str(error)), err=True)
            if not sys.stdin.isatty() or not click.confirm("Edit it again?", default=True):
                raise InputError("it is not saved", f"Your text is in {draft}.") from None
        else:
            draft.unlink()
            Path(folder).rmdir()
            return


@library.command(epilog=example("disttui library diff team/2node", "disttui library diff team/2node 3f2a91c"))
@_PROFILE
@click.argument("commit", required=False)
def diff(profile: str, commit: str | None) -> None:
    """Show two versions of a profile side by side.

    Without COMMIT: those that were kept since two people had changed the same keys, and what was edited but not saved.
    """
    from runner.api.library_edits import compare
    from runner.cli.render.library import side_by_side

    found = compare(profile, commit)
    click.echo(
        "\n\n".join([side_by_side(each) for each in found]) if found else f"{profile}: there is one version only"
    )


@library.command(epilog=example("disttui library history team/2node", "disttui library history team"))
@_PROFILE
@AS_JSON
def history(profile: str, as_json: bool) -> None:
    """List the commits that have changed a profile, or a library."""
    from runner.api.library_edits import history_of
    from runner.cli.render.library import history_lines

    found = history_of(profile)
    if as_json:
        click.echo(json.dumps([each._asdict() for each in found], indent=2))
    else:
        click.echo("\n".join(history_lines(found)) or "no commits")


@library.command(epilog=example("disttui library restore team/2node 3f2a91c"))
@_PROFILE
@click.argument("commit")
def restore(profile: str, commit: str) -> None:
    """Save a profile as it was in COMMIT.

    The history keeps what it is now.
    """
    from runner.api.library_edits import library_name_of, restore_profile

    _say(library_name_of(profile), restore_profile(profile, commit))


@library.command(epilog=example("disttui library sync", "disttui library sync team"))
@_LIBRARY
def sync(name: str | None) -> None:
    """Get what others have saved, and send what you have.

    Edits of two people are joined key by key. Where both have changed the same keys, both versions are kept:
    `disttui library diff` shows them.
    """
    from runner.api.libraries import sync_libraries
    from runner.render.library import synced_lines

    found = False
    for each, done in sync_libraries(name=name):
        found = True
        click.echo("\n".join(synced_lines(each.name, done)))
    if not found:
        click.echo("no library is a git repository. Add one: disttui library add team hub:profiles.git")


@library.command(epilog=example("disttui library validate", "disttui library validate --ci ."))
@click.argument("names", metavar="[LIBRARY|FOLDER]...", nargs=-1, shell_complete=_complete_libraries)
@click.option(
    "--ci", is_flag=True, help="For CI or a hook: check the current folder by default, print nothing if all is good."
)
def validate(names: tuple[str, ...], ci: bool) -> None:
    """Check all profiles of libraries.

    Without a name, of all libraries but the examples. Exit code 2 when there is an error.
    """
    from runner.api.libraries import check_libraries
    from runner.formatting import amount

    code = 0
    for each, checked in check_libraries(names or ((".",) if ci else ())):
        wrong = [problem for file in checked for problem in file.problems]
        code = 2 if wrong else code
        if wrong:
            click.echo("\n".join(wrong), err=True)
        if not ci:
            bad = sum(bool(file.problems) for file in checked)
            click.echo(f"{each}: {amount(len(checked), 'profile')}, {bad} with errors")
    raise SystemExit(code)


def _say(library_name: str, saved: Saved) -> None:
    from runner.profile.library import library_named
    from runner.text import clean

    full = f"{library_name}/{clean(saved.name)}"
    url = library_named(library_name).url
    if saved.other:
        other = f"{library_name}/{clean(saved.other)}"
        click.echo(f"{full}: somebody has changed the same keys meanwhile: yours is saved as {other}")
        click.echo(f"  → disttui library diff {full}")
    elif url and not saved.commit:
        click.echo(f"{full}: nothing has changed")
    else:
        joined = ", with what somebody has changed meanwhile" if saved.joined else ""
        click.echo(f"{full}: saved{joined}{_then(library_name, url)}")


def _then(library_name: str, url: str) -> str:
    return f"; disttui library sync {library_name} sends it" if url else ""
