"""Reruns a run: the contents of the form, and the start of the wizard's checks."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from disttui.runner.api.comparing import curve_of
from disttui.runner.api.listing import PATIENCE
from disttui.runner.api.rerunning import Again, again, checkpoints
from disttui.runner.errors import InputError
from disttui.runner.formatting import amount
from disttui.runner.ids import short
from disttui.runner.profile.effects import foreign_lines
from disttui.runner.profile.schema import Profile
from disttui.runner.runs.notes import Checkpoint
from disttui.runner.runs.registry import KnownRun
from disttui.runner.text import clean
from disttui.tui.router import screen_class

if TYPE_CHECKING:
    from disttui.tui.shell import Shell


SANDBOX = ("node1", "node2")
"""The sandbox hosts that the app runs on this machine."""
_LATEST = "latest code"
"""Key of the value whether to send the current folder of `job.sync`; it is not in the profile."""


class RerunValue(NamedTuple):
    """A value of the form."""

    key: str
    """Key as for `--set`; empty if the text consists of KEY=VALUE words."""
    text: str
    """The value as typed."""


class SavedState(NamedTuple):
    """A checkpoint, and the loss at its step if it is known."""

    checkpoint: Checkpoint
    loss: float | None


async def run_again(app: Shell, run: KnownRun, *, resume: bool = False) -> None:
    """Show the form, then let the wizard check the hosts and launch; call it in a worker.

    Args:
        resume: Whether to select the newest checkpoint.
    """

    def make(changes: Sequence[RerunValue], checkpoint: Checkpoint | None) -> Again:
        of_profile = [one for one in changes if one.key != _LATEST]
        answer = next((one.text.strip().lower() for one in changes if one.key == _LATEST), code)
        if answer not in ("yes", "no"):
            raise InputError(f"{_LATEST}: expected yes or no")
        found = again(run, overrides(run, made.profile, of_profile), checkpoint, latest=answer == "yes")
        _refuse_played(found)
        return found

    def find() -> list[SavedState]:
        curve = curve_of(run)
        found = checkpoints(app.viewer(), run, PATIENCE)
        return [SavedState(one, None if one.step is None else curve.at(one.step)) for one in found]

    try:
        made = await asyncio.to_thread(_as_it_was, run)
        _refuse_played(made)
    except InputError as error:
        app.notify(str(error), severity="error", timeout=12)
        return
    screen = await asyncio.to_thread(screen_class, "rerun")
    verb = "Resume" if resume else "Rerun"
    code = "yes" if made.code and not made.code.recorded else "no"
    values = [*settings(run, made.profile), *([RerunValue(_LATEST, code)] if made.code else [])]
    form = screen(f"{verb} {short(run.run)}", consequence(run, made), values, find, make, resume=resume)
    if chosen := await app.push_screen_wait(form):
        app.router.open_again(chosen)


def _as_it_was(run: KnownRun) -> Again:
    """The settings of a run, with its current folder if its code is no longer on this machine. Raises InputError."""
    try:
        return again(run)
    except InputError:
        with suppress(InputError):
            return again(run, latest=True)
        raise


def settings(run: KnownRun, profile: Profile) -> list[RerunValue]:
    """The values of a run that can be changed: arguments and variables, then launch settings."""
    return [RerunValue(key, _text(value)) for key, value in _values(run, profile)]


def _values(run: KnownRun, profile: Profile) -> Iterator[tuple[str, object]]:
    written = run.template or run.profile

    def section(name: str) -> Mapping[str, object]:
        found = written.get(name)
        return found if isinstance(found, Mapping) else {}

    job, env = section("job"), section("job").get("env")
    yield "job.args", job.get("args", [])
    for name, values in (("var", section("var")), ("job.env", env), ("env", section("env"))):
        yield from ((f"{name}.{key}", value) for key, value in (values if isinstance(values, Mapping) else {}).items())
    if "num_processes" in written:
        yield "num_processes", written["num_processes"]
    if not run.sandbox:
        hosts = written.get("hosts")
        if _is_words(hosts):
            yield "hosts", hosts
    usual = {name: getattr(profile.launch, name) for name in ("restarts", "grace")}
    yield from ((f"launch.{key}", value) for key, value in {**usual, **section("launch")}.items())


def _is_words(value: object) -> TypeGuard[Sequence[str]]:
    return isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)


def _text(value: object) -> str:
    """A value as the user types it: words as in a shell, all else as in a profile."""
    if isinstance(value, str):
        return value
    if _is_words(value):
        return shlex.join(value)
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def overrides(run: KnownRun, profile: Profile, changes: Sequence[RerunValue]) -> list[str]:
    """The changed values as for `--set`. Raises InputError if quotes are missing."""
    before, found = dict(_values(run, profile)), []
    for key, text in changes:
        value = before.get(key)
        if not key or _is_words(value):
            try:
                parts = shlex.split(text)
            except ValueError as error:
                raise InputError(f"{key or 'more'}: {error}".lower()) from None
            found += [f"{key}={json.dumps(parts)}"] if key else parts
        else:
            found.append(f"{key}={json.dumps(text) if isinstance(value, str) else text}")
    return found


def consequence(run: KnownRun, made: Again) -> list[str]:
    """The consequences of rerunning a run, one per line."""
    names = ", ".join(host.name for host in made.profile.hosts)
    processes = amount(sum(host.nproc for host in run.hosts), "process")
    lines = [
        f"Checks {amount(len(made.profile.hosts), 'host')} first: {names}. If no check fails, starts a new run there, "
        f"with its own folder for checkpoints (this one had {processes})."
    ]
    if made.code and not made.code.recorded:
        lines.append("Its recorded code is no longer here: sends the folder as it is now.")
    if made.foreign:
        lines.append("Its profile comes from the host where it was found. With your login, it runs:")
    foreign = foreign_lines(made.profile) if made.foreign else ()
    # `foreign_lines` is already safe; text that only looks like a secret is not masked.
    return [*(clean(line, guesses=False) for line in lines), *(f"{key}: {text}" for key, text in foreign)]


def _refuse_played(again: Again) -> None:
    """Raise InputError if a run used sandbox hosts that the app's sandbox does not have."""
    if again.sandbox and not {host.host for host in again.profile.hosts} <= set(SANDBOX):
        raise InputError(
            f"{short(again.run)} ran in a sandbox with other hosts",
            f"Rerun it unchanged: disttui rerun {short(again.run)}",
        )
