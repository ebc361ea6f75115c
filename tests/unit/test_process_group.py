"""Distinguishes ranks that train alone from ranks that have found the others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.cli.render.live import TextPrinter
from disttui.runner.node import procs
from disttui.runner.node.host import HostPart
from disttui.runner.node.observe.signs import ProcessGroupCheck
from disttui.runner.render.story import ending
from disttui.runner.runs.contents import read_content
from disttui.runner.runs.state import RunState, begin
from tests.command import ran
from tests.unit.runs_kit import Make, same
from tests.unit.state_kit import fold
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")


def watching(kind: str = "script", launcher: str = "torchrun", **launch: Any) -> tuple[ProcessGroupCheck, list[Any]]:
    """What watches over the only rank of a host of two, and what it says."""
    launch = {"instrument": True, **launch}
    spec: Any = {"nproc": [1, 1], "launch": launch, "launcher": launcher, "target": {"kind": kind}}
    said: list[Any] = []
    return ProcessGroupCheck(HostPart(spec, "", "", None, {}, 0o022), 1, said.append), said


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[str]]:
    """A process that starts what it is given on a line, and says which process that is."""
    code = "import subprocess, sys\nfor line in sys.stdin:\n    print(subprocess.Popen(eval(line)).pid, flush=True)"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


def starts(rank: subprocess.Popen[str], command: list[str]) -> None:
    assert rank.stdin and rank.stdout
    rank.stdin.write(f"{command!r}\n")
    rank.stdin.flush()
    pid = int(rank.stdout.readline())
    wait_for(lambda: procs.command(pid), "its command line, which the kernel writes last")


@pytest.mark.openmpi
@pytest.mark.parametrize(("launcher", "reported"), [("mpirun", False), ("mpirun-per-host", True)])
def test_ranks_that_may_use_mpi_are_not_reported_ungrouped(launcher: str, reported: bool) -> None:
    company, said = watching(launcher=launcher)
    code = "import ctypes; ctypes.CDLL('libmpi.so.40'); print('up', flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        for now in range(100, 130):
            company.look([process.pid], True, float(now))
        process.kill()
    assert bool(said) is reported


def test_ungrouped_ranks_are_reported_within_half_a_minute(rank: subprocess.Popen[str]) -> None:
    company, said = watching()
    for now in range(100, 130):
        company.look([rank.pid], True, float(now))
    assert [(one["e"], one["attempt"]) for one in said] == [("ungrouped", 1)]
    company.join()
    assert said[-1]["over"] is True


def test_ranks_still_reading_data_are_not_reported_ungrouped(rank: subprocess.Popen[str]) -> None:
    company, said = watching()
    for now in range(100, 160):
        company.look([rank.pid], False, float(now))
    assert said == []


@pytest.mark.parametrize(
    ("command", "known"),
    [
        (["sleep", "60"], True),
        (
            [sys.executable, "-c", "from multiprocessing.resource_tracker import main; import time; time.sleep(60)"],
            True,
        ),
        ([sys.executable, "-c", "from multiprocessing.spawn import spawn_main; import time; time.sleep(60)"], False),
        ([sys.executable, "-u", "-c", "import time; time.sleep(60)"], False),
    ],
    ids=["a tool", "a helper of Python", "a rank that the script spawns", "a launcher's script"],
)
def test_a_launcher_in_a_launcher_does_not_train_alone(
    rank: subprocess.Popen[str], command: list[str], known: bool
) -> None:
    """`accelerate launch` starts the script as another program, mp.spawn one for each GPU: those join."""
    company, said = watching()
    starts(rank, command)
    company.look([rank.pid], True, 100.0)
    company.look([rank.pid], True, 125.0)
    assert bool(said) is known


@pytest.mark.parametrize(("kind", "launch"), [("command", {}), ("script", {"instrument": False})])
def test_what_cannot_be_checked_is_reported_at_the_end(
    rank: subprocess.Popen[str], kind: str, launch: dict[str, Any]
) -> None:
    company, said = watching(kind, **launch)
    for now in (100.0, 130.0):
        company.look([rank.pid], True, now)
    assert said == []
    company.end()
    assert [one["unknown"] for one in said] == [True]
    (line,) = [line for line in closing([(0, said[0])], {"state": "finished", "code": 0}) if "together" in line]
    assert line == "! not checked: whether the ranks trained together"


def test_many_hosts_that_train_alone_are_not_a_line_each() -> None:
    names = tuple(f"host{number}" for number in range(64))
    state, err = begin("t-1", names, (1,) * 64), StringIO()
    printer = TextPrinter(StringIO(), err, names, 64, colour=False)
    for node in range(64):
        event = {"e": "ungrouped", "t": 20.0, "attempt": 1}
        state = fold(state, node, "events.jsonl", event)
        printer.record(state, node, read_content("events.jsonl", event))
    lines = err.getvalue().splitlines()
    words = "none of its ranks was seen in a process group: each may be training alone"
    assert lines == [f"disttui: host{number}: {words}" for number in range(3)]


_UNTIL_SEEN = """
while not os.path.exists("seen"):
    time.sleep(0.1)
"""


def closing(events: list[tuple[int, dict[str, Any]]], result: dict[str, Any]) -> list[str]:
    state: RunState = begin("t-1", ("host0", "host1"), (1, 1))
    for node, event in events:
        state = fold(state, node, "events.jsonl", event)
    return ending(fold(state, 0, "exit.json", result), 3.0, Path("/x"), {})


def finished(cluster: Make, script: str) -> list[str]:
    """The closing lines of a run of two hosts whose ranks end once they were seen."""
    run = cluster(script, [1, 1]).start().wait_ranks()
    (run.base / "seen").touch()
    result = same(run)
    assert result["state"] == "finished"
    return closing([(node, event) for node in (0, 1) for event in run.events(node)], result)


def test_short_run_without_a_process_group_ends_with_a_warning(cluster: Make) -> None:
    lines = finished(cluster, _UNTIL_SEEN)
    assert lines[1:3] == [
        "! no rank was seen in a process group on any host: each may have trained alone "
        "(a custom group of less than half a second is not detected)",
        "! no metrics found in the output",
    ]


_DESTROYS = """
import types
torch = types.ModuleType("torch.distributed")
torch.is_available, torch.is_initialized = lambda: True, lambda: False
sys.modules["torch.distributed"] = torch
core = sys.modules["torch.distributed.distributed_c10d"] = types.ModuleType("core")
core._default_pg_init_method = "env://"
"""


def test_destroyed_process_group_is_not_reported_as_missing(cluster: Make) -> None:
    """A script may check its hosts, or save its last words, by a group that is there for a moment."""
    lines = finished(cluster, _DESTROYS + _UNTIL_SEEN)
    assert lines[1:2] == ["! no metrics found in the output"]


@pytest.mark.torch
def test_torch_keeps_the_trace_of_a_group_that_was_destroyed(tmp_path: Path) -> None:
    code = (
        "import sys, torch.distributed as dist; from disttui.runner.node.rank import stack_server as it; said = []\n"
        "class Reports: say = lambda self, *words, **more: said.append(words)\n"
        "reports = Reports(); it.tell_group(reports); assert not said\n"
        "dist.init_process_group('gloo', init_method='file://' + sys.argv[1], rank=0, world_size=1)\n"
        "dist.destroy_process_group(); it.tell_group(reports); it.tell_group(reports); print(said)\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "store")]
    done = ran(words)
    assert done.stdout == "[('grouped',)]\n", done.stderr


def test_a_short_run_of_one_rank_needs_no_process_group(cluster: Make) -> None:
    run = cluster("step(1)" + _UNTIL_SEEN).start().wait_ranks()
    (run.base / "seen").touch()
    assert run.exit(0)["state"] == "finished"
    assert run.events(0, "ungrouped") == []
