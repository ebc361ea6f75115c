"""What is held after the processes of a run have ended: the master port, memory of GPUs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node.supervise import stop
from disttui.runner.node.supervise.stop import Leftover
from disttui.runner.node.telemetry.gpu_nvml import memory_by_process
from disttui.runner.protocol.events import Held
from disttui.runner.render.story import held_words
from disttui.runner.untrusted.decode import decode
from tests.unit.runs_kit import Cluster

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")

_NVML = """
struct process { unsigned pid; unsigned long long memory; unsigned gpu, compute; };
static int asked;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &asked; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *out) {
    *count = ++asked > TIMES ? 1 : 2;
    out[0].pid = 1; out[0].memory = 1ull << 30;
    out[1].pid = PID; out[1].memory = 3ull << 30;
    return 0;
}
"""
Driver = Callable[[int, int], str]


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    """Compile a stand-in for libnvidia-ml that reports a pid so many times, and pid 1 always."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")

    def make(pid: int, times: int) -> str:
        source, built = tmp_path / "nvml.c", tmp_path / f"libnvml{pid}-{times}.so"
        source.write_text(_NVML)
        what = [f"-DPID={pid}", f"-DTIMES={times}"]
        subprocess.run(["gcc", "-shared", "-fPIC", *what, "-o", built, source], check=True, timeout=120)
        return str(built)

    return make


def ended() -> int:
    """The pid of a process that has ended."""
    child = subprocess.Popen(["true"])
    child.wait(60)
    return child.pid


def seen(leftover: Leftover) -> Held:
    """Its answer."""
    while (found := leftover.look()) is None:
        time.sleep(0.01)
    return found


def test_memory_that_stays_is_reported(driver: Driver) -> None:
    pid = ended()
    assert seen(Leftover({pid, ended()}, None, True, driver(pid, 1 << 30))) == {
        "gpu_memory": [{"pid": pid, "bytes": 3 << 30}]
    }


def test_memory_that_goes_in_a_moment_is_waited_for(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[dict[int, int]] = []

    def ask(library: str) -> dict[int, int]:
        answers.append(memory_by_process(library))
        return answers[-1]

    monkeypatch.setattr(stop, "_PATIENCE", 3600.0)
    monkeypatch.setattr(stop, "memory_by_process", ask)
    pid = ended()
    assert seen(Leftover({pid}, None, True, driver(pid, 3))) == {}
    assert [pid in answer for answer in answers] == [True, True, True, False]


def test_memory_of_other_processes_is_not_reported(driver: Driver) -> None:
    """Neither that of processes that were never ours, nor that of one which has got an old number of ours."""
    assert seen(Leftover({ended(), os.getpid()}, None, True, driver(os.getpid(), 1 << 30))) == {}


def test_a_missing_driver_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "_PATIENCE", 3600.0)
    assert seen(Leftover({ended()}, None, True, "libthere-is-none.so")) == {}


def test_a_port_is_waited_for_and_reported_with_who_has_it() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    leftover = Leftover(set(), port)
    assert leftover.look() is None
    held = seen(leftover)
    assert held["port"]["port"] == port and held["port"]["pid"] == os.getpid()
    assert held["port"]["command"].startswith(sys.executable)
    leftover = Leftover(set(), port)
    threading.Timer(0.3, server.close).start()
    assert seen(leftover) == {}


_LISTENS = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("tag", "words", "ours"),
    [
        ("mine-1/0/1", [], True),
        ("other-2/0/1", [], False),
        ("", ["warden", "/home/ada/.disttui/runs/other-2"], False),
        ("", ["warden", "/home/ada/.disttui/runs/mine-1"], True),
        ("", [], True),
    ],
    ids=["a rank", "another run's rank", "another run's supervisor", "its own supervisor", "a stranger"],
)
def test_port_held_by_another_run_is_not_a_leftover(tag: str, words: list[str], ours: bool) -> None:
    command = [sys.executable, "-c", _LISTENS, *words]
    env = {**os.environ, "DISTTUI_TAG": tag}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as listens:
        assert listens.stdout is not None and listens.stdin is not None
        port = int(listens.stdout.readline())
        held = seen(Leftover(set(), port, False, run="mine-1"))
        listens.stdin.close()
    assert (held.get("port", {}).get("pid") == listens.pid) is ours, held


def test_what_is_held_after_a_stop_is_in_the_runs_end(tmp_path: Path) -> None:
    """A stranger listens on the port that the run's launcher had: it is named, and left alone."""
    run = Cluster(tmp_path, [1], "step(1)\ntime.sleep(600)")
    try:
        run.start().wait_ranks()
        [attempt] = run.events(0, "attempt")
        with socket.socket(socket.AF_INET6) as stranger:
            # Beside the launcher, which takes IPv4 only.
            stranger.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                stranger.bind(("::1", attempt["port"]))
            except OSError:
                pytest.skip("no IPv6 here")
            stranger.listen()
            run.stop()
            end = run.exit(0)
        assert (end["state"], end["left"]) == ("stopped", [])
        assert (end["held"]["port"]["port"], end["held"]["port"]["pid"]) == (attempt["port"], os.getpid())
        [seen] = run.events(0, "left")
        assert (seen["processes"], seen["port"]) == ([], end["held"]["port"])
    finally:
        run.clean_up()


def test_the_words() -> None:
    held: Any = {
        "port": {"port": 29501, "pid": 7, "command": "nc -l\x1b[2J"},
        "gpu_memory": [{"pid": 9, "bytes": 3 << 30}, {"pid": 8, "bytes": 0}, "nonsense"],
    }
    first, *others = held_words(decode(Held, held))
    assert (
        first.startswith("pid 7 (nc -l") and first.endswith("listens on the run's port 29501") and "\x1b" not in first
    )
    assert others == [
        "the driver still holds 3.0 GiB of GPU memory for pid 9, which has ended",
        "the driver still holds GPU memory for pid 8, which has ended",
    ]
    assert held_words({"port": {"port": 1, "pid": None}}) == ["an unknown process listens on the run's port 1"]
    assert held_words(decode(Held, {"port": 7, "gpu_memory": "x"})) == []
