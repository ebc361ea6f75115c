"""The command that shows what hosts are doing."""

from __future__ import annotations

import json
import sys
import time
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from runner.cli.app import open_app
from runner.cli.options import complete_hosts, complete_profiles, example, ssh_options


def _complete_places(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    return [*complete_profiles(ctx, param, incomplete), *complete_hosts(ctx, param, incomplete)]


@click.command(epilog=example("disttui top", "disttui top mine.yaml --once"))
@click.argument("hosts", nargs=-1, metavar="[HOST...|PROFILE]", shell_complete=_complete_places)
@click.option("--once", is_flag=True, help="Print one table, without the app.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON a second, or one with --once.")
@ssh_options
def top(hosts: tuple[str, ...], once: bool, as_json: bool, ssh_config: str | None, accept_new_host_keys: bool) -> None:
    """Show what hosts are doing: CPUs, memory, network, GPUs.

    And the busiest processes of all users. Needs no run. Without HOST or PROFILE, all hosts of runs that are known
    here, of your profiles and your team's, and this machine.
    Exit code of --once: 3 when a host could not be seen.
    """
    if once:
        raise SystemExit(_print_once(hosts, as_json, ssh_config, accept_new_host_keys))
    if as_json:
        _print_lines(hosts, ssh_config, accept_new_host_keys)
    options = {"ssh_config": ssh_config, "accept_new_host_keys": accept_new_host_keys}
    open_app("Without one: disttui top --once", ("top", (hosts,)), **options)


def _print_once(names: tuple[str, ...], as_json: bool, ssh_config: str | None, accept_new: bool) -> int:
    """Print one table; returns the exit code: 3 when a host could not be seen."""
    import shutil  # slow to load

    from runner.api.watching import top as look
    from runner.cli.viewing import viewing
    from runner.render.top import render_top, top_json

    with viewing(ssh_config, accept_new) as viewer:
        hosts = look(viewer, names)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    click.echo(json.dumps(top_json(hosts)) if as_json else render_top(hosts, width))
    return 0 if all(host.state == "seen" for host in hosts) else 3


def _print_lines(names: tuple[str, ...], ssh_config: str | None, accept_new: bool) -> NoReturn:
    """Print all hosts as one line of JSON a second, until it is interrupted."""
    from runner.api.watching import watch_hosts
    from runner.cli.viewing import viewing
    from runner.render.top import top_json

    with viewing(ssh_config, accept_new) as viewer:
        watch = watch_hosts(viewer, names)
        watch.start()
        try:
            while True:
                time.sleep(1.0)
                click.echo(json.dumps(top_json(watch.now())))
        finally:
            watch.close()
