"""The sandbox of the app: hosts on this machine that end with the app, and their runs with them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping

from runner.api.viewer import Viewer
from runner.errors import DisttuiError
from runner.hosts.link import Link
from tui.run.again import SANDBOX

_PATIENCE = 20.0
_lock = threading.Lock()
_played: list[Viewer] = []
_runs: list[tuple[str, str, Mapping[int, Link]]] = []


def ground(environ: Mapping[str, str]) -> Viewer:
    """The viewer of the sandbox hosts; the first call starts them. Blocks.

    It is not the app's own viewer, which the app closes before `close` has ended the runs.
    """
    with _lock:
        if not _played:
            _played.append(Viewer.in_sandbox(SANDBOX, environ))
        return _played[0]


def end_with_app(run: str, run_dir: str, links: Mapping[int, Link]) -> None:
    """Make a run end with the app.

    Args:
        links: Node rank → a link that stays open.
    """
    _runs.append((run, run_dir, links))


def close() -> None:
    """End the runs and the hosts; called after the app has ended."""
    alive = [(link, {"run": run, "run_dir": folder, "node_rank": node})
             for run, folder, links in _runs for node, link in links.items()]  # fmt: skip
    _runs.clear()
    for link, request in alive:
        link.submit("stop", now=True, reason="user", **request)
    deadline = time.monotonic() + _PATIENCE
    reported = False
    while alive and time.monotonic() < deadline:
        alive = [(link, request) for link, request in alive if _lives(link, request)]
        if alive and not reported:
            reported = True
            sys.stderr.write("disttui: ending the sandbox and what runs in it\n")
        time.sleep(0.1 if alive else 0)
    with _lock:
        while _played:
            _played.pop().close()


def _lives(link: Link, request: Mapping[str, object]) -> bool:
    try:
        return bool(link.request("status", timeout=5.0, **request)["alive"])
    except (DisttuiError, LookupError, TypeError):
        return False
