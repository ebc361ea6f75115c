"""Concurrent look-ups, each with a time limit, so that none blocks the others."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, Mapping


def together(tasks: Mapping[str, Callable[[], Any]], limit: float) -> Dict[str, Any]:
    """Run every task in a thread of its own and return the results by name.

    The result of a task that raised is its exception, that of one that did not end within `limit` seconds a
    TimeoutError: its thread (a dead NFS server, a silent DNS) is abandoned, and does not keep the program from ending.
    """
    results: Dict[str, Any] = {}

    def run(name: str, task: Callable[[], Any]) -> None:
        try:
            results[name] = task()
        except Exception as error:
            results[name] = error

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in tasks.items()]
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = TimeoutError(f"no answer in {limit:g} s")
    return {name: results.get(name, late) for name in tasks}
