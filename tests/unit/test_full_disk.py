"""A run folder's disk without bytes or without inodes: the disk is the cause, and no attempt is spent on it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node import disk
from disttui.runner.node.probe import report
from disttui.runner.node.telemetry.sampler import Sampler
from disttui.runner.node.telemetry.sampling import Alarms
from tests.files import tmpfs
from tests.unit.runs_kit import Make, making

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")

_INODES = """
step(1)
folder = os.environ["DISTTUI_DIR"]
while '"e":"step"' not in open(folder + "/../events.jsonl").read():
    time.sleep(0.05)
try:
    for number in range(10**6):
        open(f"{folder}/{number}", "w").close()
except OSError:
    pass
"""
_BYTES = """
step(1)
folder = os.environ["DISTTUI_DIR"]
while '"e":"step"' not in open(folder + "/../events.jsonl").read():
    time.sleep(0.05)
with open(folder + "/checkpoint", "wb", buffering=0) as file:
    while file.write(b"x" * 4096):
        pass
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB and 100 inodes, where the runs are."""
    with tmpfs(tmp_path / "runs0", "size=4m,nr_inodes=100,mode=0700") as folder:
        yield folder


@pytest.fixture
def cluster(tmp_path: Path, small: Path) -> Iterator[Make]:
    yield from making(tmp_path)


@pytest.mark.parametrize("end", ["os._exit(1)", "raise ConnectionError('Connection closed by peer')"])
def test_no_inodes_left_is_the_cause_and_costs_one_attempt(cluster: Make, small: Path, end: str) -> None:
    run = cluster(_INODES + end, launch={"restarts": 3}).start()
    last = run.exit(0)
    assert (last["state"], last["attempt"]) == ("failed", 1)
    assert f"the disk of {run.folder(0)} has no free inodes" in last["cause"]["message"]
    assert "disk" not in last["cause"]


def test_a_full_disk_costs_one_attempt(cluster: Make, small: Path) -> None:
    run = cluster(_BYTES, launch={"restarts": 3}).start()
    last = run.exit(0)
    assert (last["state"], last["attempt"]) == ("failed", 1)
    assert "No space left on device" in last["cause"]["message"] or "is full: " in last["cause"]["message"]


def test_a_disk_with_room_is_not_blamed(cluster: Make, small: Path) -> None:
    run = cluster("step(1)\nraise ValueError('mine')").start()
    assert (run.exit(0)["cause"]["type"], run.exit(0)["cause"]["message"]) == ("ValueError", "mine")


def test_inodes_are_counted_before_the_start_and_while_it_runs(small: Path) -> None:
    made = 0
    while not disk.fullness(str(small)):
        (small / f"{made}").touch()
        made += 1
    problems: list[str] = []
    assert not report.disk(str(small / "x"), problems)["writable"]
    assert f"the disk of {small} has no free inodes (100 in use)" in problems[0]
    sampler = Sampler(str(small))
    record: Any = sampler.sample({})
    sampler.close()
    assert (record["inodes_free"], record["inodes_total"]) == (0, 100)
    watch = Alarms([], lambda pid: None)
    seen = [event["text"] for _ in range(3) for event in watch.look(record)]
    assert seen == ["the disk of the run's folder is nearly out of inodes: 0 free"]
    (small / "0").unlink()
    assert disk.fullness(str(small)) == ""
