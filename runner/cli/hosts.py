"""The commands that look at hosts, whatever runs there."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem

from runner.cli.options import AS_JSON, complete_hosts, complete_profiles, example, ssh_options
from runner.cli.run_selector import complete_runs, warn


@click.command(epilog=example("disttui probe local box1 alice@box2:2222"))
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...", shell_complete=complete_hosts)
@AS_JSON
@ssh_options
def probe(hosts: tuple[str, ...], as_json: bool, ssh_config: str | None, accept_new_host_keys: bool) -> None:
    """Show what each HOST has: cores, memory, GPUs, network, torch.

    And who uses its GPUs. HOST is an ssh alias, user@host:port, or `local`. Exit code 3 when a host cannot be reached.
    """
    from runner import headless
    from runner.cli.viewing import viewing

    with viewing(ssh_config, accept_new_host_keys) as viewer:
        text, code = headless.probe(hosts, viewer.connector(), as_json=as_json)
    click.echo(text)
    raise SystemExit(code)


@click.command(epilog=example("disttui orphans", "disttui orphans box1 --end"))
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_hosts)
@click.option("--end", is_flag=True, help="End them, and say what is left.")
@click.option("--run", default="", metavar="RUN", shell_complete=complete_runs, help="Of this run only.")
@AS_JSON
@ssh_options
def orphans(
    hosts: tuple[str, ...], end: bool, run: str, as_json: bool, ssh_config: str | None, accept_new_host_keys: bool
) -> None:
    """List what ended runs have left on each HOST.

    Processes, their ports and the GPU memory they hold. They are known by the tag that every process of a run carries,
    never by name. Without HOST, the hosts of all runs that are known here are asked. Exit code 1 when something could
    not be ended, 3 when a host could not be asked.
    """
    from runner.cli.viewing import viewing
    from runner.commands.orphans import orphans as listed

    with viewing(ssh_config, accept_new_host_keys) as viewer:
        text, problems, code = listed(hosts, viewer.connector, os.environ, end=end, run=run, as_json=as_json)
        warn(problems)
        click.echo(text)
    raise SystemExit(code)


def _complete_places(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    return [*complete_profiles(ctx, param, incomplete), *complete_hosts(ctx, param, incomplete)]


@click.command(epilog=example("disttui top", "disttui top mine.yaml --once"))
@click.argument("hosts", nargs=-1, metavar="[HOST...|PROFILE]", shell_complete=_complete_places)
@click.option("--once", is_flag=True, help="Print one table, without the app.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON a second, or one with --once.")
@ssh_options
def top(hosts: tuple[str, ...], once: bool, as_json: bool, ssh_config: str | None, accept_new_host_keys: bool) -> None:
    """Show what hosts are doing: CPUs, memory, network, GPUs.

    And the processes that matter, of whoever. Needs no run. Without HOST or PROFILE, all hosts of runs that are known
    here, of your profiles and your team's, and this machine.
    Exit code of --once: 3 when a host could not be seen.
    """
    if once or as_json:
        raise SystemExit(_print_top(hosts, once, as_json, ssh_config, accept_new_host_keys))
    from runner.cli.app import open_app

    options = {"ssh_config": ssh_config, "accept_new_host_keys": accept_new_host_keys}
    open_app("Without one: disttui top --once", ("top", (hosts,)), **options)


def _print_top(hosts: tuple[str, ...], once: bool, as_json: bool, ssh_config: str | None, accept_new: bool) -> int:
    import shutil
    import sys

    from runner.cli.viewing import viewing
    from runner.commands.top import top_lines, top_once
    from runner.runs.places import chosen

    places = chosen(hosts, None, os.environ)
    with viewing(ssh_config, accept_new) as viewer:
        if not once:
            top_lines(places, viewer.connector, click.echo)
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        text, code = top_once(places, viewer.connector, as_json=as_json, width=width)
    click.echo(text)
    return code
