"""From a run's id to what a feed needs: its hosts, the ways to them, and a mirror of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from runner.hosts.link import Link
from runner.hosts.survey import open_link
from runner.runs.find import find_run
from runner.runs.history import KnownRun, mirror_of
from runner.runs.remote import TAIL
from runner.transport.connector import HostConnector
from tui.dialogs.prompts import AppPrompts
from tui.run.feed import Way

if TYPE_CHECKING:
    from tui.app import DisttuiApp


@contextmanager
def attached(app: DisttuiApp, run_id: str) -> Iterator[tuple[KnownRun, Way]]:
    """The way to a run that this viewer knows, as long as the block runs. Raises InputError for unknown ids."""
    known = find_run(run_id, app.environ)
    connector = HostConnector(known.ssh_config or app.ssh_config, AppPrompts(app))

    def reopen(node: int) -> Link:
        return open_link(known.hosts[node].as_host(), connector)

    try:
        with mirror_of(known) as folder:
            request: dict[str, Any] = {**known.request(), "tail": TAIL}
            names = tuple(host.name for host in known.hosts)
            nproc = tuple(host.nproc for host in known.hosts)
            yield known, Way(known.run, names, nproc, folder, request, reopen, only_look=app.read_only)
    finally:
        connector.close()
