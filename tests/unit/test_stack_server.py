"""The stacks of a process whose threads run on while they are told."""

from __future__ import annotations

import linecache
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from disttui.runner.node.rank import stack_server


def test_a_stack_is_whole_although_its_thread_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the source lets other threads run: a generator that has ended meanwhile has no caller any more."""
    inside, goes_on, gone = threading.Event(), threading.Event(), threading.Event()

    def generator() -> Iterator[None]:
        inside.set()
        goes_on.wait(60)
        yield

    def caller() -> None:
        for _ in generator():
            pass
        gone.set()

    def read(*_: Any) -> str:
        goes_on.set()
        gone.wait(60)
        return ""

    thread = threading.Thread(target=caller, name="caller")
    thread.start()
    assert inside.wait(60)
    monkeypatch.setattr(linecache, "getline", read)
    try:
        (told,) = [one for one in stack_server._threads() if one["name"] == "caller"]
    finally:
        goes_on.set()
        thread.join()
    functions = [frame["function"] for frame in told["frames"]]
    assert "caller" in functions and functions.index("caller") < functions.index("generator")
