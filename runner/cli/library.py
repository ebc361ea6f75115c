"""The commands of libraries of profiles."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

import disttui
from disttui.runner.cli.options import OVERRIDES, can_ask, complete_profiles, emit, example, say, wants_json
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.formatting import amount
from disttui.runner.text import clean, clean_lines

if TYPE_CHECKING:
    from disttui.runner.library.store import Saved


def _complete_libraries(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    from disttui.runner.profile.library import libraries

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

    A profile's name is team/2node, or 2node, which is searched for in all libraries in order.
    """


@library.command("list", epilog=example("disttui library list", "disttui library list team"))
@_LIBRARY
def list_(name: str | None) -> None:
    """List all profiles and inventories, with their last runs."""
    from disttui.runner.render.library import library_data, library_table

    found = disttui.list_library(library=name)
    emit(library_data(found), library_table(found))


@library.command(epilog=example("disttui library show team/2node", "disttui library show team/2node --set var.steps=5"))
@_PROFILE
@click.option("--text", "as_text", is_flag=True, help="Print the file as it is.")
@OVERRIDES
def show(profile: str, as_text: bool, overrides: tuple[str, ...]) -> None:
    """Show every value of a profile, and where it comes from."""
    from disttui.runner.profile.library import find
    from disttui.runner.profile.nodes import read
    from disttui.runner.render.library import origin_data, origin_lines

    if as_text:
        text = clean_lines(read(find(profile)).text)
        emit({"text": text}, text)
    else:
        found = disttui.read_profile(profile, overrides, check_job=False).profile
        emit({"values": origin_data(found)}, "\n".join(origin_lines(found)))


@library.command(epilog=example("disttui library add team hub:profiles.git", "disttui library add lab /data/profiles"))
@click.argument("name")
@click.argument("where")
def add(name: str, where: str) -> None:
    """Add a library: a git repository, or a folder.

    A repository is cloned for you. Your config lists the libraries in search order. Then you are asked for settings
    that the profiles leave open: login name, Python and key. Without a terminal, these are listed.
    """
    from disttui.runner.render.library import synced_data, synced_lines

    done = disttui.add_library(name, where)
    say("\n".join(synced_lines(name, done)) if done else f"{name}: added")
    _ask_personal(name)
    emit({"library": name, "synced": done and synced_data(done)})


def _ask_personal(library: str) -> None:
    """Ask for what a library's profiles leave to the user, and store it; without a terminal, list it."""
    from disttui.runner.api.libraries import keep_key, keep_personal, left_to_you, personal_file
    from disttui.runner.profile.effects import names

    left = left_to_you(library)
    me = left.me
    if not can_ask():
        lines = []
        if left.login:
            lines.append(f"your login on {names(left.login)} (now {me}): hosts: {{{left.login[0]}: {{user: NAME}}, …}}")
        if left.python:
            lines.append(f"Python on {names(left.python)} (now the first with torch): python: ~/venv/bin/python")
        if lines:
            say("\n  ".join([f"if yours differ, set them in {personal_file()}:", *lines]))
        if left.key:
            say(f"no key found for {names(left.key)}: set IdentityFile in ~/.ssh/config, or start an agent")
        return
    user = click.prompt(f"Your login on {names(left.login)}", default=me) if left.login else me
    python = click.prompt(f"Python on {names(left.python)}", default="auto") if left.python else "auto"
    key = click.prompt(f"Key file for {names(left.key)} (empty: none)", default="") if left.key else ""
    user, python = user if user != me else "", python if python != "auto" else ""
    if user or python:
        keep_personal(left.login, user, python)
        click.echo(f"saved in {personal_file()}")
    if key:
        click.echo(f"saved in {keep_key(left.key, key)}")


_YES = click.option("--yes", is_flag=True, help="Do not ask, even if other profiles extend PROFILE.")


@library.command(epilog=example("disttui library remove team", "disttui library remove team/2node"))
@click.argument("name", shell_complete=_complete_libraries)
@click.option("--unsent", is_flag=True, help="Also discard saved edits that were not sent.")
@_YES
def remove(name: str, unsent: bool, yes: bool) -> None:
    """Remove a library from your list, or a profile from its library.

    NAME is a library, whose remote or folder stays, or a profile or inventory such as team/2node or team/inventory/lab.
    """
    if "/" not in name:
        disttui.remove_library(name, unsent=unsent)
        emit({"library": name, "profile": None}, f"{name}: removed from your libraries")
        return
    _refuse_used(name, yes)
    reading = disttui.read_for_edit(name)
    disttui.save_profile(reading, None)
    data = {"library": reading.library.name, "profile": name}
    emit(data, f"{name}: removed{_then(reading.library.name, reading.library.url)}")


@library.command(epilog=example("disttui library rename team/2node team/nlp/2node"))
@_PROFILE
@click.argument("to", metavar="LIBRARY/NAME")
@_YES
def rename(profile: str, to: str, yes: bool) -> None:
    """Give a profile or an inventory another name."""
    from disttui.runner.api.library_edits import rename_profile

    _refuse_used(profile, yes)
    _say(rename_profile(profile, to))


def _refuse_used(name: str, yes: bool) -> None:
    """Ask whether to remove or rename what other profiles extend. Raises InputError unless the user agrees."""
    from disttui.runner.api.library_edits import dependents

    others = [] if yes else dependents(disttui.read_for_edit(name))
    if not others:
        return
    what = f"{name} is needed by {', '.join(others)}"
    if not (can_ask() and click.confirm(f"{what}. Continue?")):
        raise InputError(what, "Change them first, or add --yes.")


@library.command(
    epilog=example("disttui library save mine.yaml team/mine", "disttui library save 2node own/2node --replace")
)
@click.argument("source", metavar="PROFILE", shell_complete=complete_profiles)
@click.argument("to", metavar="LIBRARY/NAME")
@click.option("--replace", is_flag=True, help="Replace a profile of this name.")
def save(source: str, to: str, replace: bool) -> None:
    """Save PROFILE, a file or a name, into a library.

    An inventory is saved as team/inventory/lab. In a git repository this makes a commit in your name, whose message
    lists the changed keys; `sync` sends it.
    """
    _say(disttui.copy_profile(source, to, replace=replace))


@library.command(epilog=example("disttui library copy team/2node team/4node"))
@_PROFILE
@click.argument("to", metavar="LIBRARY/NAME")
def copy(profile: str, to: str) -> None:
    """Copy a profile or an inventory under another name."""
    _say(disttui.copy_profile(profile, to))


@library.command(epilog=example("disttui library edit team/2node", "disttui library edit team/inventory/lab"))
@_PROFILE
def edit(profile: str) -> None:
    """Edit a profile in $EDITOR, check it, and save it.

    Edits that others saved in the meantime are merged by key; if you both changed the same key, both versions are kept.
    """
    import subprocess
    import tempfile

    from disttui.runner.user.terminal import editor_command, needs_terminal

    reading = disttui.read_for_edit(profile)
    folder = tempfile.mkdtemp(prefix="disttui-edit-")
    draft = Path(folder) / f"{Path(reading.name).name}.yaml"  # type: ignore[unsafe-path]
    draft.write_text(reading.text or "", encoding="utf-8")
    try:
        command = editor_command(os.environ, draft)
        if needs_terminal(command) and not sys.stdin.isatty():
            cure = f"Set EDITOR to one that needs none, or: disttui library save FILE {profile} --replace"
            raise InputError(f"editor {command[0]} needs a terminal", cure)
    except InputError:
        draft.unlink()
        Path(folder).rmdir()
        raise
    while True:
        code = subprocess.run(command, check=False).returncode
        try:
            if code:
                raise InputError(f"{command[0]} ended with exit code {code}")
            text = draft.read_bytes().decode()  # read_text would change the ends of lines
            if text == reading.text:
                emit({"library": reading.library.name, "profile": None}, f"{profile}: unchanged")
            else:
                _say(disttui.save_profile(reading, text))
        except (DisttuiError, OSError, UnicodeDecodeError) as error:
            if wants_json():
                raise InputError(str(error), f"Not saved. Your text is in {draft}.") from None
            click.echo(clean_lines(str(error)), err=True)
            if not can_ask() or not click.confirm("Edit it again?", default=True):
                raise InputError("the profile was not saved", f"Your text is in {draft}.") from None
        else:
            draft.unlink()
            Path(folder).rmdir()
            return


@library.command(epilog=example("disttui library diff team/2node", "disttui library diff team/2node 3f2a91c"))
@_PROFILE
@click.argument("commit", required=False)
def diff(profile: str, commit: str | None) -> None:
    """Show two versions of a profile side by side.

    Without COMMIT, shows versions that were kept because two people changed the same key, and unsaved edits.
    """
    from disttui.runner.api.library_edits import compare
    from disttui.runner.render.library import side_by_side

    found = compare(profile, commit)
    data = [
        {
            "titles": each.titles,
            "texts": each.texts,
            "changes": None if each.changes is None else [one._asdict() for one in each.changes],
        }
        for each in found
    ]
    emit(data, "\n\n".join(map(side_by_side, found)) if found else f"{profile}: only one version")


@library.command(epilog=example("disttui library history team/2node", "disttui library history team"))
@_PROFILE
def history(profile: str) -> None:
    """List the commits that have changed a profile, or a library."""
    from disttui.runner.api.library_edits import history_of
    from disttui.runner.render.library import history_lines

    found = history_of(profile)
    emit([each._asdict() for each in found], "\n".join(history_lines(found)) or "no commits")


@library.command(epilog=example("disttui library restore team/2node 3f2a91c"))
@_PROFILE
@click.argument("commit")
def restore(profile: str, commit: str) -> None:
    """Save a profile as it was in COMMIT.

    The history keeps the present version.
    """
    _say(disttui.restore_profile(profile, commit))


@library.command(epilog=example("disttui library sync", "disttui library sync team"))
@_LIBRARY
def sync(name: str | None) -> None:
    """Get others' edits, and send yours.

    Edits of two people are merged by key. If both changed the same key, both versions are kept: `disttui library diff`
    shows them.
    """
    from disttui.runner.render.library import synced_data, synced_lines

    data = []
    try:
        for each, done in disttui.sync_libraries(name=name):
            data.append({"library": each.name, **synced_data(done)})
            say("\n".join(synced_lines(each.name, done)))
    except DisttuiError:
        if data:
            emit(data)
        raise
    emit(data, "" if data else "no git libraries. Add one: disttui library add team hub:profiles.git")


@library.command(epilog=example("disttui library validate", "disttui library validate --ci ."))
@click.argument("names", metavar="[LIBRARY|FOLDER]...", nargs=-1, shell_complete=_complete_libraries)
@click.option("--ci", is_flag=True, help="For CI or a hook: check the current folder by default; print only errors.")
def validate(names: tuple[str, ...], ci: bool) -> None:
    """Check all profiles of libraries.

    Without a name, checks all libraries except the examples. Exit code 2 if there is an error.
    """
    code = 0
    data = []
    for each, checked in disttui.check_libraries(names or ((".",) if ci else ())):
        wrong = [problem for file in checked for problem in file.problems]
        code = 2 if wrong else code
        data.append({"library": each, "profiles": len(checked), "problems": wrong})
        if wrong and not wants_json():
            click.echo("\n".join(wrong), err=True)
        if not ci:
            bad = sum(bool(file.problems) for file in checked)
            say(f"{each}: {amount(len(checked), 'profile')}, {bad} with errors")
    emit(data)
    raise SystemExit(code)


def _say(saved: Saved) -> None:
    library_name, url = saved.library.name, saved.library.url
    full = f"{library_name}/{clean(saved.name)}"
    if saved.other:
        other = f"{library_name}/{clean(saved.other)}"
        say(f"{full}: conflict: your version was saved as {other}")
        say(f"  → disttui library diff {full}")
    elif url and not saved.commit:
        say(f"{full}: unchanged")
    else:
        joined = ", merged with others' changes" if saved.joined else ""
        say(f"{full}: saved{joined}{_then(library_name, url)}")
    conflict = f"{library_name}/{clean(saved.other)}" if saved.other else None
    emit({"profile": full, "file": str(saved.path), "commit": saved.commit or None, "conflict": conflict})


def _then(library_name: str, url: str) -> str:
    return f"; disttui library sync {library_name} sends it" if url else ""
