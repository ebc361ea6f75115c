"""What `disttui probe` shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from runner.errors import DisttuiError
from runner.hosts.facts import HostFacts, facts_of
from runner.hosts.survey import open_link, side_by_side
from runner.profile import Host, parse_host
from runner.render.probe import render_probe
from runner.transport import Connector


def probe(names: Sequence[str], connector: Connector, *, as_json: bool = False) -> tuple[str, int]:
    """What each host has as text, and the exit code of the command that shows it. Raises InputError for bad names."""
    hosts = [parse_host(name) for name in names]

    def one(host: Host) -> tuple[str, HostFacts | DisttuiError]:
        try:
            link = open_link(host, connector)
        except DisttuiError as error:
            return host.name, error
        try:
            return host.name, facts_of(host.name, link.request("probe", ports=[29500, 29599]))
        except DisttuiError as error:
            return host.name, error
        finally:
            link.close()

    results = side_by_side(one, hosts)
    failed = any(isinstance(found, DisttuiError) for _, found in results)
    if as_json:
        plain = [
            {"host": name, "error": {"what": found.sentence, "cure": found.cure}}
            if isinstance(found, DisttuiError)
            else {"host": name, "facts": asdict(found)}
            for name, found in results
        ]
        return json.dumps(plain, indent=2), 3 if failed else 0
    return render_probe(results), 3 if failed else 0
