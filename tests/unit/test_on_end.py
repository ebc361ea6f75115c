"""What the profile wants done when a run has ended: once, with its summary, and never in the way."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.errors import InputError
from disttui.runner.node import procs
from disttui.runner.profile.load import parse
from disttui.runner.runs import hooks
from disttui.runner.runs.registry import keep
from disttui.runner.runs.state import RunState, begin
from tests.tui.live_kit import Live
from tests.unit.state_kit import fold
from tests.unit.waiting import wait_for

_PROFILE = "disttui: 1\nname: one\nhosts: [a]\njob: {builtin: bytegpt}\nenv: {TOKEN: '${env:TOKEN}', B: hush}\n"


def ended() -> RunState:
    state = fold(begin("one-1", ("a",), (1,)), 0, "attempt-1/rank-0.metrics.jsonl", {"t": 1.0, "step": 7, "loss": 0.5})
    state = fold(state, 0, "events.jsonl", {"t": 1.0, "e": "launch", "attempt": 1})
    return fold(state, 0, "exit.json", {"t": 2.0, "state": "finished", "code": 0, "cause": None, "attempt": 1})


def tell(tmp_path: Path, on_end: dict[str, Any], state: RunState) -> list[str]:
    profile = parse(_PROFILE + f"on_end: {json.dumps(on_end)}\n", "one.yaml")
    known = keep(profile, [1], "one-1", {"XDG_DATA_HOME": str(tmp_path)})
    said: list[str] = []
    hooks.tell_end(profile, known, state, said.append)
    return said


class Hook(BaseHTTPRequestHandler):
    heard: list[tuple[str | None, Any]]
    answer = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.heard.append((self.headers["Content-Type"], json.loads(body)))
        self.send_response(self.answer)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


@pytest.fixture
def hook() -> Iterator[tuple[str, type[Hook]]]:
    kind = type("Here", (Hook,), {"heard": []})
    server = HTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/secret-path", kind
    server.shutdown()
    thread.join()
    server.server_close()


def test_command_and_webhook_get_the_summary_once(tmp_path: Path, hook: tuple[str, type[Hook]]) -> None:
    url, kind = hook
    got = tmp_path / "got.json"
    save = [sys.executable, "-c", f"import sys; open({str(got)!r}, 'a').write(sys.stdin.read())"]
    on_end = {"command": save, "webhook": url}
    [line] = tell(tmp_path, on_end, begin("one-1", ("a",), (1,)))
    assert "on_end has not run" in line and "disttui attach one-1" in line and not got.exists()
    assert tell(tmp_path, {}, begin("one-1", ("a",), (1,))) == []
    assert tell(tmp_path, on_end, ended()) == []
    assert tell(tmp_path, on_end, ended()) == []
    summary = json.loads(got.read_text())
    assert (summary["run"], summary["state"], summary["metrics"]["loss"]) == ("one-1", "finished", 0.5)
    assert "hush" not in got.read_text() and "TOKEN" not in got.read_text()
    assert kind.heard == [("application/json", summary)]


def test_what_goes_wrong_is_one_line_and_no_error(tmp_path: Path, hook: tuple[str, type[Hook]]) -> None:
    url, kind = hook
    kind.answer = 500
    script = "import sys; print('\\x1b[2Jno way', file=sys.stderr); sys.exit(3)"
    said = tell(tmp_path, {"command": [sys.executable, "-c", script], "webhook": url}, ended())
    assert said[0].endswith("ended with exit code 3: no way") and "answered 500" in said[1]
    assert all("secret-path" not in line for line in said)
    said = tell(tmp_path / "2", {"command": ["/nowhere"], "webhook": "http://127.0.0.1:9/x"}, ended())
    assert "No such file" in said[0] and "cannot be reached" in said[1]


def test_a_command_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "LIMIT", 0.5)
    said = tell(tmp_path, {"command": [sys.executable, "-c", "import time; time.sleep(1000)"]}, ended())
    assert "took longer" in said[0]


def test_a_command_that_hangs_is_ended_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "LIMIT", 2.0)
    pids = tmp_path / "pids"
    said = tell(tmp_path, {"command": ["sh", "-c", f"sleep 1000 & echo $! $$ >{pids}; wait"]}, ended())
    assert "took longer" in said[0]
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2
    wait_for(lambda: not any(map(procs.command, started)), "the end of what on_end started")


def test_what_a_command_leaves_running_holds_up_nobody(tmp_path: Path) -> None:
    left = tmp_path / "left"
    assert tell(tmp_path, {"command": ["sh", "-c", f"sleep 1000 & echo $! >{left}"]}, ended()) == []
    os.kill(int(left.read_text()), signal.SIGTERM)


@pytest.mark.parametrize("on_end", [{"webhook": "file:///etc/passwd"}, {"webhook": "http://a b"}, {"cmd": []}])
def test_bad_on_end_is_refused_with_its_place(tmp_path: Path, on_end: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"one.yaml:6:"):
        tell(tmp_path, on_end, ended())


@pytest.mark.slow
def test_a_detached_start_says_when_on_end_runs(tmp_path: Path) -> None:
    """Before anything starts; it runs for whoever attaches."""
    got, enough = tmp_path / "got", tmp_path / "enough"
    run = Live(tmp_path, on_end={"command": ["cp", "/dev/stdin", str(got)]})
    before, _, after = run.said.partition(
        "on_end runs on this machine once `disttui attach` or the app sees the run's end"
    )
    assert "= 2 processes" in before and "watch it: disttui attach" in after and "on_end" not in before + after
    enough.touch()
    run.typed("attach", "--plain", run.run)
    assert json.loads(got.read_text())["state"] == "finished"
