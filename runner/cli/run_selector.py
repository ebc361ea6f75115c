"""The options that select runs, and the viewer for their hosts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

import disttui
from disttui.runner.cli.options import can_ask, complete_hosts, complete_profiles, emit, say, viewing, wants_json
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.ids import short
from disttui.runner.protocol.names import RUN_DIR


def complete_runs(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    """The ids that begin with `incomplete`."""
    from disttui.runner.runs.registry import run_names

    if incomplete.startswith("@"):
        return [CompletionItem(word) for word in ("@latest", "@failed") if word.startswith(incomplete)]
    names = run_names(os.environ)
    shown = {name: short(name, names) for name in names if name.startswith(incomplete)}
    return [CompletionItem(few if few.startswith(incomplete) else name) for name, few in shown.items()]


def check_run_dir(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse an invalid path of a host. Raises BadParameter."""
    if value is not None and not (value.startswith(("/", "~")) and value.isprintable()):
        raise click.BadParameter("expected an absolute path on the host, or one that starts with ~/")
    return value


_FINDING: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = (
    click.option(
        "--run-dir",
        metavar="FOLDER",
        callback=check_run_dir,
        help=f"With --host: the folder of runs there, {RUN_DIR} unless the profile says otherwise.",
    ),
    click.option("--trust-hosts", is_flag=True, help="With --host: reach the run's other hosts without asking."),
    click.option(
        "--profile",
        "hosts_from",
        metavar="PROFILE",
        shell_complete=complete_profiles,
        help="With --host: reach the run's hosts by this profile, in its order.",
    ),
    click.option(
        "--host",
        metavar="HOST",
        shell_complete=complete_hosts,
        help="Find RUN on this host, even if another user started it.",
    ),
)


def runs_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add several runs, and the options that select or find them."""
    mine = click.option("--mine", is_flag=True, help="Only runs that you started; without RUN, all of these.")
    return run_options(mine(command), "runs", required=False, nargs=-1, metavar="[RUN]...")


YES = click.option("--yes", is_flag=True, help="Do not ask before acting on several runs.")


def run_options(command: Callable[..., Any], name: str = "run", **argument: Any) -> Callable[..., Any]:
    """Add the run, and the options that find one that was started elsewhere.

    Args:
        argument: Parameters of click's argument, such as `required=False`.
    """
    for option in _FINDING:
        command = option(command)
    return click.argument(name, shell_complete=complete_runs, **{"metavar": "RUN", **argument})(command)


@contextmanager
def finding(run: str, **where: Any) -> Iterator[tuple[disttui.KnownRun, disttui.Viewer]]:
    """The run that the options of `run_options` select, and a viewer for its hosts."""
    with _finding([run], find=lambda viewer: [disttui.find_run(viewer, run)], **where) as ([known], viewer):
        yield known, viewer


@contextmanager
def finding_all(
    runs: Sequence[str], *, mine: bool, **where: Any
) -> Iterator[tuple[list[disttui.KnownRun], disttui.Viewer]]:
    """The runs that the options of `runs_options` select, and a viewer for their hosts."""
    if not runs and not mine:
        raise InputError("no run was named", "Give a run's id, a sweep's name, @latest, @failed or --mine.")
    if mine and where["host"]:
        raise InputError("--mine and --host exclude each other", "Omit one of them.")
    with _finding(runs, find=lambda viewer: disttui.select_runs(viewer, runs, mine=mine), **where) as found:
        yield found


@contextmanager
def _finding(
    runs: Sequence[str],
    find: Callable[[disttui.Viewer], list[disttui.KnownRun]],
    *,
    host: str | None, hosts_from: str | None, run_dir: str | None, trust_hosts: bool,
) -> Iterator[tuple[list[disttui.KnownRun], disttui.Viewer]]:  # fmt: skip
    from disttui.runner.cli.options import load_profile

    if host is None and (hosts_from or run_dir or trust_hosts):
        raise InputError("--profile, --run-dir and --trust-hosts need --host", "Add --host with any host of the run.")
    profile = load_profile(hosts_from) if hosts_from else None
    with viewing(without_config=True) as viewer:
        if host is None:
            yield find(viewer), viewer
        else:
            found = [
                disttui.adopt(viewer, run, host, profile=profile, run_dir=run_dir, trust_hosts=trust_hosts)
                for run in runs
            ]
            yield found, viewer


def agree(verb: str, runs: Sequence[disttui.KnownRun], *, yes: bool) -> None:
    """Confirm an action on several runs; exit if refused. Raises InputError if it cannot ask."""
    if yes or len(runs) < 2:
        return
    question = f"{verb} {len(runs)} runs: {', '.join(short(run.run) for run in runs)}?"
    if not can_ask():
        raise InputError(question, "Add --yes to confirm without a terminal.")
    click.confirm(question, abort=True)


def for_each(
    runs: Sequence[disttui.KnownRun],
    do: Callable[[disttui.KnownRun], tuple[dict[str, object], int]],
    failed: Mapping[str, object] | None = None,
) -> NoReturn:
    """Act on each run, print the results, and end the command with the highest exit code.

    With several runs, errors are printed and the others continue.

    Args:
        do: Prints its text; returns its data and exit code.
        failed: More data of a run with an error.
    """
    done: list[dict[str, object]] = []
    codes = [0]
    for run in runs:
        try:
            data, code = do(run)
        except DisttuiError as error:
            if len(runs) == 1:
                raise
            say(f"{short(run.run)}: {error.sentence}")
            data, code = {**(failed or {}), "error": error.as_json()}, error.exit_code
        done.append({"run": run.run, "error": None, **data})
        codes.append(code)
    emit(done)
    raise SystemExit(max(codes))


def existing(path: str | None) -> str | None:
    """The ssh configuration that a run was started with, if it is still there."""
    return path if path and os.path.isfile(path) else None  # noqa: PTH113 - never raises, whatever the path


def warn_of(errors: Iterable[DisttuiError]) -> None:
    """Print errors that do not end a command on standard error; with --json, each as a line of JSON."""
    for error in errors:
        line = json.dumps({"type": "error", **error.as_json()}) if wants_json() else f"disttui: {error.sentence}"
        click.echo(line, err=True)


def warn(lines: Iterable[str]) -> None:
    """Print warnings on standard error."""
    for line in lines:
        click.echo(f"disttui: {line}", err=True)
