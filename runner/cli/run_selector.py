"""The options that select a run, and the viewer for its hosts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from runner.cli.options import complete_hosts, complete_profiles, ssh_options
from runner.protocol.names import RUN_DIR

if TYPE_CHECKING:
    from runner.api.viewer import Viewer
    from runner.runs.registry import KnownRun


def complete_runs(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    """The ids that begin with `incomplete`."""
    from runner.ids import short
    from runner.runs.registry import run_names

    names = run_names(os.environ)
    shown = {name: short(name, names) for name in names if name.startswith(incomplete)}
    return [CompletionItem(few if few.startswith(incomplete) else name) for name, few in shown.items()]


def check_run_dir(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse an invalid path of a host. Raises BadParameter."""
    if value is not None and not (value.startswith(("/", "~")) and value.isprintable()):
        raise click.BadParameter("expected a folder of the host, as an absolute path or one that starts with ~/")
    return value


_FINDING: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = (
    ssh_options,
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
        help="With --host: reach the run's hosts as this profile does, in its order.",
    ),
    click.option(
        "--host",
        metavar="HOST",
        shell_complete=complete_hosts,
        help="Find RUN on this host, also if somebody else has started it.",
    ),
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the run, and the options that find one that was started elsewhere."""
    return _with_run(command, required=True)


def optional_run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the same options to a command that also works without a run."""
    return _with_run(command, required=False)


def _with_run(command: Callable[..., Any], *, required: bool) -> Callable[..., Any]:
    for option in _FINDING:
        command = option(command)
    return click.argument("run", metavar="RUN", required=required, shell_complete=complete_runs)(command)


@contextmanager
def finding(
    *, run: str, host: str | None, hosts_from: str | None, run_dir: str | None, ssh_config: str | None,
    accept_new_host_keys: bool, trust_hosts: bool,
) -> Iterator[tuple[KnownRun, Viewer]]:  # fmt: skip
    """The run that the options of `run_options` select, and a viewer for its hosts."""
    from runner.api.finding import adopt, find_run
    from runner.cli.options import load_profile
    from runner.cli.viewing import viewing
    from runner.errors import InputError

    if host is None and (hosts_from or run_dir or trust_hosts):
        raise InputError("--profile, --run-dir and --trust-hosts need --host", "Add --host, any host of the run.")
    profile = load_profile(hosts_from) if hosts_from else None
    with viewing(ssh_config, accept_new_host_keys) as viewer:
        if host is None:
            yield find_run(viewer, run), viewer
        else:
            yield adopt(viewer, run, host, profile=profile, run_dir=run_dir, trust_hosts=trust_hosts), viewer


def existing(path: str | None) -> str | None:
    """The ssh configuration that a run was started with, if it is still there."""
    return path if path and os.path.isfile(path) else None  # noqa: PTH113 - never raises, whatever the path


def warn(lines: Iterable[str]) -> None:
    """Print warnings on standard error."""
    for line in lines:
        click.echo(f"disttui: {line}", err=True)
