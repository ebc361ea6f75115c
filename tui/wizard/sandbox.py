"""The sandbox of the app: hosts on this machine that end with the app, together with their runs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from disttui.runner.api.ending import catch_up
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError
from disttui.runner.hosts.link import Link
from disttui.runner.runs.registry import find_run
from disttui.tui.run.again import SANDBOX

_PATIENCE = 20.0
_lock = threading.Lock()
_played: list[Viewer] = []
_runs: list[tuple[str, str, dict[int, Link]]] = []


def viewer(environ: Mapping[str, str]) -> Viewer:
    """The viewer of the sandbox hosts; the first call starts them. Blocks.

    It is not the app's own viewer, which the app closes before `close` has ended the runs.
    """
    with _lock:
        if not _played:
            _played.append(Viewer.in_sandbox(SANDBOX, environ))
        return _played[0]


def end_with_app(run: str, run_dir: str, links: dict[int, Link]) -> None:
    """Make a run end with the app.

    Args:
        links: Node rank → a link that stays open.
    """
    _runs.append((run, run_dir, links))


def running() -> list[str]:
    """The ids of the runs that have not ended."""
    return [run for run, folder, links in _runs if any(_lives(*one) for one in _requests(run, folder, links))]


def close() -> None:
    """End the runs and the hosts; called after the app has ended."""
    alive = [one for run in _runs for one in _requests(*run) if _lives(*one)]
    for link, request in alive:
        link.submit("stop", now=True, reason="user", **request)
    if alive:
        with suppress(OSError):  # the terminal may have been closed
            sys.stderr.write("disttui: stopping the sandbox and its runs\n")
    deadline = time.monotonic() + _PATIENCE
    while alive and time.monotonic() < deadline:
        alive = [(link, request) for link, request in alive if _lives(link, request)]
        time.sleep(0.1 if alive else 0)
    with _lock:
        for viewer in _played:
            for run, _, _ in _runs:
                # Otherwise the records of its end would be lost with its hosts.
                with suppress(DisttuiError, OSError):
                    catch_up(viewer, find_run(run, viewer.environ))
            viewer.close()
        _played.clear()
    _runs.clear()


def _requests(run: str, folder: str, links: dict[int, Link]) -> list[tuple[Link, dict[str, object]]]:
    """A link to each host of a run, and the arguments of requests about the run's part there."""
    for node in [node for node, link in links.items() if link.closed]:  # the app may have been suspended
        with suppress(DisttuiError):
            links[node] = _played[0].link_to(find_run(run, _played[0].environ), node)
    return [(link, {"run": run, "run_dir": folder, "node_rank": node}) for node, link in links.items()]


def _lives(link: Link, request: Mapping[str, object]) -> bool:
    try:
        return bool(link.request("status", timeout=5.0, **request)["alive"])
    except (DisttuiError, LookupError, TypeError):
        return False
