"""Asks hosts for the state of runs, in the background: without any question to the user."""

from __future__ import annotations

from collections.abc import Mapping

from runner.errors import DisttuiError

NEWEST = 12
"""The most runs whose hosts are asked."""


def ask_hosts(environ: Mapping[str, str], ssh_config: str | None) -> Mapping[str, str]:
    """Ask as `disttui ps` does, and keep the answers; call it in a thread. Returns run → why there is no new state."""
    from runner.runs.registry import known_runs

    runs = [run for run in known_runs(environ)[0] if not (run.gone or run.problem or run.summary().get("ended"))]
    if not runs:
        return {}
    from runner.api.listing import refresh
    from runner.api.viewer import Viewer

    with Viewer(environ, ssh_config=ssh_config, runs_bring_theirs=True) as viewer:
        try:
            return refresh(viewer, sorted(runs, key=lambda run: -run.started)[:NEWEST])
        except DisttuiError as error:
            return {run.run: error.sentence for run in runs}
