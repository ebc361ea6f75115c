"""The command that shows what hosts have."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from runner.cli.options import AS_JSON, complete_hosts, example, ssh_options
from runner.errors import DisttuiError


@click.command(epilog=example("disttui probe local box1 alice@box2:2222"))
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...", shell_complete=complete_hosts)
@AS_JSON
@ssh_options
def probe(hosts: tuple[str, ...], as_json: bool, ssh_config: str | None, accept_new_host_keys: bool) -> None:
    """Show what each HOST has: cores, memory, GPUs, network, torch.

    Also who uses the GPUs. HOST is an ssh alias, user@host:port, or `local`. Exit code 3 when a host cannot be reached.
    """
    from runner.api.probing import probe as probe_hosts
    from runner.cli.viewing import viewing
    from runner.render.probe import render_probe

    with viewing(ssh_config, accept_new_host_keys) as viewer:
        results = probe_hosts(viewer, hosts)
    plain = [
        {"host": name, "error": {"what": found.sentence, "cure": found.cure}}
        if isinstance(found, DisttuiError)
        else {"host": name, "facts": asdict(found)}
        for name, found in results
    ]
    click.echo(json.dumps(plain, indent=2) if as_json else render_probe(results))
    raise SystemExit(3 if any(isinstance(found, DisttuiError) for _, found in results) else 0)
