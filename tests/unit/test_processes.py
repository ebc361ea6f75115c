"""The processes of telemetry: real ones, sampled as `disttui top` has them sampled."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node import procs
from disttui.runner.node.telemetry.sampler import MOST, Processes, Sampler, most_of
from disttui.runner.protocol.telemetry import ProcessUse
from tests.unit.waiting import wait_for, wait_for_work

SPIN = "while True: pass"
SLEEP = "import time; time.sleep(300)"


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait(60)


def start(children: list[subprocess.Popen[bytes]], *argv: str, **variables: str) -> int:
    command = [sys.executable, "-c", *argv]
    children.append(subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **variables}))
    return children[-1].pid


def row_of(pid: int, rows: list[ProcessUse]) -> Any:
    return next((row for row in rows if row["pid"] == pid), None)


def test_a_busy_process_and_one_of_a_run_are_reported(children: list[subprocess.Popen[bytes]]) -> None:
    busy = start(children, SPIN)
    tagged = start(children, SLEEP, "word\nof two", **{procs.TAG: "2node-7f3a/1/2"})
    wait_for(lambda: procs.tag(tagged), "its environment")
    processes = Processes()
    processes.sample(time.monotonic(), {})
    wait_for_work(busy, 0.5)
    rows, count = processes.sample(time.monotonic(), {})
    assert len(rows) <= MOST <= 100 and count >= 3
    ours = row_of(tagged, rows)
    assert ours is not None and ours["tag"] == "2node-7f3a/1/2" and ours["user"] == getpass.getuser()
    assert ours["command"].endswith("time.sleep(300) word\nof two"), "cleaned where it is shown, not here"
    assert ours["rss"] == pytest.approx(int(Path(f"/proc/{tagged}/statm").read_text().split()[1]) * 4096, rel=0.3)
    spinning = row_of(busy, rows)
    assert spinning is not None and 5 < spinning["cpu"] < 120
    assert "tag" not in spinning and "gpus" not in spinning


def test_what_a_process_becomes_by_exec_is_noticed(children: list[subprocess.Popen[bytes]]) -> None:
    pid = start(children, "import os, time; time.sleep(0.6); os.execve('/bin/sleep', ['sleep', '299'], "
                f"{{'{procs.TAG}': 'late/0/1'}})")  # fmt: skip
    processes = Processes()
    processes.sample(time.monotonic(), {})
    processes.sample(time.monotonic(), {})
    wait_for(lambda: procs.tag(pid) == "late/0/1", "its exec")

    def seen() -> bool:
        row = row_of(pid, processes.sample(time.monotonic(), {}, 100)[0])
        return row is not None and row.get("tag") == "late/0/1" and row["command"] == "sleep 299"

    wait_for(seen, "the new command and tag")


def test_idle_ones_are_looked_at_again_and_ended_ones_go(children: list[subprocess.Popen[bytes]]) -> None:
    pid = start(children, "import sys; sys.stdin.readline()\n" + SPIN, **{procs.TAG: "wakes/0/1"})
    wait_for(lambda: procs.tag(pid), "its environment")
    processes = Processes()
    wait_for(lambda: (row_of(pid, processes.sample(time.monotonic(), {})[0]) or {}).get("cpu") == 0.0, "its rest")
    assert children[-1].stdin is not None
    children[-1].stdin.write(b"go\n")
    children[-1].stdin.flush()

    def awake() -> bool:
        return ((row_of(pid, processes.sample(time.monotonic(), {})[0]) or {}).get("cpu") or 0) > 5

    wait_for(awake, "its work")
    children[-1].kill()
    children[-1].wait(60)
    assert row_of(pid, processes.sample(time.monotonic(), {})[0]) is None


def test_who_is_on_a_gpu_comes_first_even_out_of_sight(children: list[subprocess.Popen[bytes]]) -> None:
    pid = start(children, SLEEP)
    processes = Processes()
    gpus: dict[int, dict[int, int | None]] = {0: {pid: 5 << 30}, 3: {pid: 1 << 30, 2**22 + 5: None}}
    rows, _ = processes.sample(time.monotonic(), gpus, 3)
    assert rows[0] == {"pid": 2**22 + 5, "user": "?", "command": "", "gpus": [3]}
    assert rows[1]["pid"] == pid and rows[1]["gpus"] == [0, 3] and rows[1]["gpu_memory"] == 6 << 30
    assert len(rows) == 3 and len(Processes().sample(time.monotonic(), gpus, 1)[0]) == 1


def test_the_number_that_is_asked_for() -> None:
    assert [most_of(wanted) for wanted in (True, False, None, 7, 10**9, -1, "40", 2.5)] == [MOST, 0, 0, 7, 100, 0, 0, 0]


def test_records_hold_them_only_when_asked(tmp_path: Path) -> None:
    plain, asked = Sampler(str(tmp_path)), Sampler(str(tmp_path), processes=5)
    try:
        assert "processes" not in plain.sample({})
        record = asked.sample({})
        assert len(record["processes"]) == 5 and record["cpus"] == os.cpu_count() and record["process_count"] > 5
        assert len(json.dumps(record)) < 4000
    finally:
        plain.close()
        asked.close()
