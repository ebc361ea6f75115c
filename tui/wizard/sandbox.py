"""The sandbox of the app: hosts played on this machine, until the app ends, with whatever runs on them."""

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
    """The viewer of the played hosts, which are made when it is first asked for. Blocks.

    It is not the app's own: that is closed with the app, before `close` has ended the runs.
    """
    with _lock:
        if not _played:
            _played.append(Viewer.in_sandbox(SANDBOX, environ))
        return _played[0]


def end_with_app(run: str, run_dir: str, links: Mapping[int, Link]) -> None:
    """Have a run end when the app does.

    Args:
        links: Node rank → a link that stays open.
    """
    _runs.append((run, run_dir, links))


def close() -> None:
    """End the runs and the hosts; done when the app has been left."""
    alive = [(link, {"run": run, "run_dir": folder, "node_rank": node})
             for run, folder, links in _runs for node, link in links.items()]  # fmt: skip
    _runs.clear()
    for link, request in alive:
        link.submit("stop", now=True, reason="user", **request)
    deadline = time.monotonic() + _PATIENCE
    told = False
    while alive and time.monotonic() < deadline:
        alive = [(link, request) for link, request in alive if _lives(link, request)]
        if alive and not told:
            told = True
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
