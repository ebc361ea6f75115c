"""The command that shows what hosts have."""

from __future__ import annotations

from dataclasses import asdict

import click

import disttui
from disttui.runner.cli.global_options import emit
from disttui.runner.cli.options import complete_hosts, example, viewing
from disttui.runner.errors import DisttuiError


@click.command(epilog=example("disttui probe local box1 alice@box2:2222"))
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...", shell_complete=complete_hosts)
def probe(hosts: tuple[str, ...]) -> None:
    """Show what each HOST has: cores, memory, GPUs, network, torch.

    Also who uses the GPUs. HOST is an ssh alias, user@host:port, or `local`. Exit code 3 when a host cannot be reached.
    """
    from disttui.runner.render.probe import render_probe

    with viewing() as viewer:
        results = disttui.probe(viewer, hosts)
    failed = any(isinstance(found, DisttuiError) for _, found in results)
    plain = [
        {"host": name, **({"error": found.as_json()} if isinstance(found, DisttuiError) else {"facts": asdict(found)})}
        for name, found in results
    ]
    emit(plain, render_probe(results))
    raise SystemExit(3 if failed else 0)
