"""A traceback is shown once: held back while it may be the cause of the end, printed when it is not."""

from __future__ import annotations

import disttui.runner.cli.render.live as module
from disttui.runner.cli.render.live import TracebackBuffer

TRACE = ["Traceback (most recent call last):", '  File "t.py", line 1, in <module>', "ValueError: boom"]


def test_lines_pass_at_once() -> None:
    assert TracebackBuffer().feed(["one", "two"]) == ["one", "two"]


def test_reported_traceback_is_not_printed_in_either_order() -> None:
    hold = TracebackBuffer()
    assert hold.feed(["before", *TRACE]) == ["before"]
    assert hold.report(TRACE) == []
    assert hold.release(everything=True) == []
    hold = TracebackBuffer()
    assert hold.report(TRACE) == []
    assert hold.feed(["before", *TRACE, "after"]) == ["before", "after"]


def test_it_is_recognised_under_torchs_prefix_and_in_pieces() -> None:
    hold = TracebackBuffer()
    shown = hold.feed(["x", f"[rank1]: {TRACE[0]}"])
    shown += hold.feed([f"[rank1]: {TRACE[1]}"])
    hold.report(TRACE)
    shown += hold.feed([f"[rank1]: {TRACE[2]}", "y"])
    assert shown == ["x", "y"]


def test_traceback_that_the_script_survived_is_printed_later(monkeypatch: object) -> None:
    hold = TracebackBuffer()
    assert hold.feed(TRACE) == []
    assert hold.release() == []
    hold._since -= module.PATIENCE + 1
    assert hold.release() == TRACE
    assert hold.feed(["next"]) == ["next"]


def test_an_end_that_is_no_report_loses_nothing() -> None:
    hold = TracebackBuffer()
    hold.feed(TRACE)
    assert hold.release(everything=True) == TRACE
