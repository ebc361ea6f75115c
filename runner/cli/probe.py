"""The commands that show what hosts have, and what they are doing."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

import disttui
from disttui.runner.cli.app import open_app
from disttui.runner.cli.options import complete_hosts, complete_profiles, emit, emit_line, example, viewing, wants_json
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.text import quote


@click.command(epilog=example("disttui probe local box1 alice@box2:2222"))
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...", shell_complete=complete_hosts)
def probe(hosts: tuple[str, ...]) -> None:
    """Show what each HOST has: cores, memory, GPUs, network, torch.

    Also shows who uses the GPUs. HOST is an ssh alias, user@host:port, or `local`. Exit code 3 if a host is
    unreachable.
    """
    from disttui.runner.render.probe import render_probe

    for name in hosts:
        if name.endswith((".yaml", ".yml")) and Path(name).is_file():
            raise InputError(f"{name} is a file, not a host", f"For a profile: disttui check {quote(name)}")
    with viewing() as viewer:
        results = disttui.probe(viewer, hosts)
    failed = any(isinstance(found, DisttuiError) for _, found in results)
    plain = [
        {"host": name, **({"error": found.as_json()} if isinstance(found, DisttuiError) else {"facts": asdict(found)})}
        for name, found in results
    ]
    emit(plain, render_probe(results))
    raise SystemExit(3 if failed else 0)


def _complete_places(ctx: click.Context, param: object, incomplete: str) -> list[CompletionItem]:
    return [*complete_profiles(ctx, param, incomplete), *complete_hosts(ctx, param, incomplete)]


@click.command(epilog=example("disttui top", "disttui top mine.yaml --once"))
@click.argument("hosts", nargs=-1, metavar="[HOST...|PROFILE]", shell_complete=_complete_places)
@click.option("--once", is_flag=True, help="Print one table, without the app.")
def top(hosts: tuple[str, ...], once: bool) -> None:
    """Show the load of hosts: CPUs, memory, network, GPUs.

    Also shows the busiest processes of all users. Needs no run. Without HOST or PROFILE, shows all hosts of known runs,
    of your profiles and your team's, and this machine. Exit code of --once: 3 if a host is unreachable.
    """
    if once:
        raise SystemExit(_print_once(hosts))
    if wants_json():
        _print_lines(hosts)
    named = "".join(f" {quote(name)}" for name in hosts)
    open_app(f"Use disttui top{named} --once", ("top", (hosts,)))


def _print_once(names: tuple[str, ...]) -> int:
    """Print one table; returns the exit code: 3 if a host is unreachable."""
    import shutil  # slow to load

    from disttui.runner.render.top import render_top, top_json

    with viewing() as viewer:
        hosts = disttui.top(viewer, names)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    emit_line(top_json(hosts), render_top(hosts, width))
    return 0 if all(host.state == "seen" for host in hosts) else 3


def _print_lines(names: tuple[str, ...]) -> NoReturn:
    """Print all hosts as one line of JSON per second, until interrupted."""
    from disttui.runner.render.top import top_json

    with viewing() as viewer:
        watch = disttui.watch_hosts(viewer, names)
        watch.start()
        try:
            while True:
                time.sleep(1.0)
                click.echo(json.dumps(top_json(watch.now())))
        finally:
            watch.close()
