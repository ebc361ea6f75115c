"""A run is stopped, whether anybody looks at it or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.commands.stop import stop
from runner.runs.find import find_run
from runner.runs.history import mirror_of
from runner.runs.remote import reach, sync

if TYPE_CHECKING:
    from tui.shell import Shell


def end(app: Shell, run_id: str) -> None:
    """Stop a run on all its hosts and bring its mirror to its end; to be called in a thread. Raises DisttuiError."""
    run = find_run(run_id, app.environ)
    connector = app.connector(run.ssh_config)
    stop(run, connector, app.notify)
    with mirror_of(run) as folder, reach(run, connector) as reached:
        sync(run, folder, reached)
