"""Leader and followers that lose each other, for a while and for good."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node.serve import runs
from tests.unit.runs_kit import Cluster
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")
Make = Callable[..., "tuple[Cluster, Wire]"]
SLEEP = "step(attempt)\nif attempt == 1: time.sleep(600)\n"


class Wire:
    """A TCP relay between leader and follower that can fall silent without closing anything."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.silent = False
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.server.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(4096):
                while self.silent:
                    time.sleep(0.05)
                other.sendall(data)
        except OSError:
            pass
        while self.silent:
            time.sleep(0.05)
        other.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Make]:
    """Start a run on two hosts whose gang's connection goes over a wire: `pair(job, host_timeout=6)`."""
    made: list[Cluster] = []

    def make(job: str, **launch: Any) -> tuple[Cluster, Wire]:
        run = Cluster(tmp_path, [1, 1], job, launch=launch)
        made.append(run)
        run.start(0)
        wire = Wire(run.gang["port"])
        run.gang = {**run.gang, "port": wire.port, "addresses": ["127.0.0.1"]}
        run.start(1)
        run.wait_ranks()
        return run, wire

    yield make
    for one in made:
        one.clean_up()
        assert one.living() == {}


def test_a_cut_costs_nothing(pair: Make, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    run, wire = pair(f"while not os.path.exists({str(flag)!r}): time.sleep(0.1)", host_timeout=60)
    wire.silent = True
    run.wait_event(0, "host", node=1, state="not seen")
    run.wait_event(1, "host", node=0, state="not seen")
    flag.write_text("")
    wait_for(lambda: run.events(1, "launcher"), "the follower's part is done during the cut")
    wire.silent = False
    assert [end["state"] for end in run.exits()] == ["finished", "finished"]
    run.wait_event(0, "host", node=1, state="seen")


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [0, 3])
def test_a_long_cut_fences_both_sides(pair: Make, restarts: int) -> None:
    """Without a limit for coming back nobody waits for anybody, whatever may be left of restarts."""
    run, wire = pair(SLEEP, host_timeout=7, grace=1, restarts=restarts)
    run.wait_event(1, "step")
    wire.silent = True
    cut = time.time()
    ends = run.exits()
    assert [(end["state"], end["cause"]["kind"], end["cause"]["node"]) for end in ends] == [
        ("failed", "host lost", 1),
        ("lost", "host lost", 0),
    ]
    for node, end in enumerate(ends):
        assert abs(end["cause"]["last"] - cut) < 2.5, "the last sign of life was just before the cut"
        lost = run.events(node, "host")[-1]
        assert lost["state"] == "lost"
        # The times are the supervisors' own: a busy machine may be late with a word, but not with all of them.
        assert end["t"] - lost["t"] < 1 + 3 and lost["t"] - end["cause"]["last"] < 7 + 2.5
    assert run.living() == {}


@pytest.mark.slow
def test_a_gang_comes_back_after_a_long_cut(pair: Make) -> None:
    run, wire = pair(SLEEP, host_timeout=6, restarts=1, grace=1, rejoin_timeout=60)
    run.wait_event(1, "step")
    wire.silent = True
    run.wait_event(0, "host", node=1, state="lost")
    run.wait_event(1, "host", node=0, state="lost")
    run.wait_event(0, "failed")
    wire.silent = False
    assert [(end["state"], end["attempt"]) for end in run.exits()] == [("finished", 2)] * 2
    # The second attempt began only after the lost host must have ended the first.
    ended = run.events(1, "launcher")[0]["t"]
    assert run.events(0, "attempt")[1]["t"] > ended


@pytest.mark.slow
def test_a_host_that_does_not_come_back_in_time_is_lost(pair: Make) -> None:
    run, wire = pair(SLEEP, host_timeout=6, restarts=2, grace=1, rejoin_timeout=2)
    run.wait_event(1, "step")
    wire.silent = True
    ends = run.exits()
    assert [(end["state"], end["cause"]["kind"], end["cause"]["node"]) for end in ends] == [
        ("failed", "host lost", 1),
        ("lost", "host lost", 0),
    ]
    assert ends[0]["cause"]["message"] == "not back within 2 s (launch.rejoin_timeout)"
    assert ends[0]["cause"]["last"] == pytest.approx(run.events(0, "host")[-1]["last"], abs=0.1)
    assert len(run.events(0, "attempt")) == 1
    # Both wait for as long: grace and 6 s for the fence, then the limit.
    for node in (0, 1):
        assert ends[node]["t"] - ends[node]["cause"]["last"] > 6 + 1 + 6 + 2 - 1
    assert run.living() == {}


@pytest.mark.slow
@pytest.mark.parametrize("asked", [1, 0])
def test_a_stop_waits_for_a_host_that_is_cut_off_and_says_so(pair: Make, asked: int) -> None:
    """Asked of leader or follower: none says "stopped" while ranks go on, and who comes back is stopped."""
    run, wire = pair(SLEEP, host_timeout=120)
    wire.silent = True
    away = 1 - asked
    run.stop(asked)
    seen = run.wait_event(asked, "note", stop=True)["text"]
    assert seen.startswith(f"waiting for host{away} to stop (no heartbeat): it ends its ranks within 1")
    assert runs.status(run.folder(asked))["waits"] == seen
    wait_for(lambda: not run.living(asked), "the end of this host's own ranks")
    assert run.living(away)
    assert not run.path(asked, "exit.json").exists(), "it is not known to be stopped"
    wire.silent = False
    assert [(end["state"], end["cause"]) for end in run.exits()] == [("stopped", None)] * 2
    assert run.events(away, "stopping")[-1]["reason"] == "user"


@pytest.mark.slow
def test_stop_ends_once_ranks_of_a_lost_host_must_have_ended(pair: Make) -> None:
    run, wire = pair(SLEEP, host_timeout=6, grace=1)
    wire.silent = True
    cut = time.time()
    run.stop(0)
    ends = run.exits()
    assert (ends[0]["state"], ends[1]["state"]) == ("stopped", "lost")
    assert ends[0]["t"] - cut > 6 + 1
    assert ends[0]["t"] > run.events(1, "launcher")[-1]["t"], "the other host's ranks had ended"
