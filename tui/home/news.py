"""How the newest runs are, asked of their hosts in the background: nobody is asked anything for it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from runner.errors import DisttuiError

if TYPE_CHECKING:
    from runner.transport import Connector

NEWEST = 12
"""Runs whose hosts are asked at most."""


def ask_hosts(environ: Mapping[str, str], ssh_config: str | None) -> Mapping[str, str]:
    """Ask as `disttui ps` does, and keep the answers; call it in a thread. Run → why nothing is known anew."""
    from runner.runs.find import known_runs

    runs = [run for run in known_runs(environ)[0] if not (run.sandbox or run.problem or run.summary().get("ended"))]
    if not runs:
        return {}
    from runner.commands.ps import refresh
    from runner.transport.base import RefusePrompts
    from runner.transport.connector import HostConnector

    with ExitStack() as opened:

        def connect(config: str | None) -> Connector:
            connector = HostConnector(config or ssh_config, RefusePrompts())
            opened.callback(connector.close)
            return connector

        try:
            return refresh(sorted(runs, key=lambda run: -run.started)[:NEWEST], connect)
        except DisttuiError as error:
            return {run.run: error.what for run in runs}
