"""`disttui stop`, as far as hosts that answer late are concerned."""

from __future__ import annotations

from pathlib import Path

from runner.api import ending
from tests.unit.liar_kit import liar, lied, viewer

END = '{"t": 1.0, "state": "stopped", "code": 130, "cause": None, "attempt": 1, "left": []}'


def test_a_stop_does_not_wait_for_hosts_that_connect_late(tmp_path: Path) -> None:
    """The second host answers once the first has received the stop, as one that is off or busy does later."""
    heard = tmp_path / "heard"
    body = f"""
    if op == "stop":
        open({str(heard)!r}, "a").close()
        yield {{"ok": {{"stopped": True, "state": "running"}}}}
    yield {{"ok": {{"alive": False, "pid": None, "exit": {END}, "waits": None}}}}
    """
    quick, late = liar(tmp_path, "quick", body), liar(tmp_path, "late", body)
    assert late.python
    program = Path(late.python)
    program.write_text(f"#!/bin/sh\nuntil [ -e '{heard}' ]; do sleep 0.05; done\n{program.read_text()}")
    done = ending.stop(viewer(tmp_path), lied(tmp_path, quick, late))
    assert set(done.ends) == {"quick", "late"} and done.complete
