"""The launcher is torchrun: the same ranks, the same ends, recorded in launcher.json; no process outlives it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node.ports import is_listening, listen, reserve
from tests.kept import node_program
from tests.light import light_python
from tests.unit.launcher_kit import Launch, alive, free_port, plain, script
from tests.unit.waiting import wait_for

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

DATA = Path(__file__).parents[1] / "data" / "shim"


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    started: list[Launch] = []

    def start(*job: str, **how: Any) -> Launch:
        started.append(Launch(tmp_path, *job, **how))
        return started[-1]

    yield start
    for one in started:
        one.close()


TRAIN = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.tensor([6.0 + dist.get_rank()]); dist.all_reduce(t)
print("sum", t.item(), os.environ["EXTRA"], os.environ["LOCAL_WORLD_SIZE"])
while not os.path.exists("enough"): time.sleep(0.05)
dist.destroy_process_group()
"""


def test_two_ranks_train_and_report(launch: Callable[..., Launch], tmp_path: Path) -> None:
    one = launch("script", script(tmp_path, TRAIN))
    one.ready()
    one.go(EXTRA="more")
    groups = wait_for(lambda: len(found := one.reports("group")) == 2 and found)
    assert {(g["world_size"], g["backend"]) for g in groups.values()} == {(2, "gloo")}
    (tmp_path / "enough").touch()
    said = one.end()
    assert (said["code"], said["error"], said["failures"], said["port_in_use"]) == (0, None, [], False)
    for rank in (0, 1):
        assert one.log(f"rank-{rank}").endswith("sum 13.0 more 2\n")
        assert one.reports("start")[rank]["world_size"] == 2
        assert one.reports("exit")[rank]["code"] == 0
        assert (tmp_path / f"attempt-1/rank-{rank}.log").stat().st_mode & 0o777 == 0o600


RANK_0_IS_KILLED = """
if os.environ["RANK"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
while True:  # a signal that arrives as one sleep begins is heard after it
    time.sleep(1)
"""


def test_failures_are_reported_with_codes_and_signals(launch: Callable[..., Launch], tmp_path: Path) -> None:
    text = """
import os, signal, time
while open("attempt-1/ranks.jsonl").read().count("start_time") < 2:
    time.sleep(0.02)
"""
    one = launch("script", script(tmp_path, text + RANK_0_IS_KILLED))
    one.go()
    said = one.end()
    pids = {rank: start["pid"] for rank, start in one.reports("start").items()}
    assert said["code"] == 1
    first = said["failures"][0]
    assert (first["local_rank"], first["pid"], first["code"]) == (0, pids[0], -9)
    assert first["t"] <= said["t"]
    assert not alive(pids[1])


def test_failures_are_reported_before_the_other_ranks_are_ended(launch: Callable[..., Launch], tmp_path: Path) -> None:
    text = """
import os, signal, time
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, lambda *_: print("asked", file=open("asked", "a"), flush=True))
    open("deaf", "x").close()
while not os.path.exists("deaf"):
    time.sleep(0.02)
"""
    one = launch("script", script(tmp_path, text + RANK_0_IS_KILLED))
    one.go()
    said = wait_for(lambda: (path := one.attempt / "launcher.json").exists() and json.loads(path.read_text()))
    assert [(f["local_rank"], f["code"]) for f in said["failures"]] == [(0, -9)]
    asked = tmp_path / "asked"
    wait_for(lambda: asked.exists() and len(asked.read_text().split()) == 1, "what rank 1 gets for the failure")
    one.process.send_signal(signal.SIGTERM)
    wait_for(lambda: len(asked.read_text().split()) == 2, "what rank 1 gets since the launcher has noted it")
    os.kill(one.reports("start")[1]["pid"], signal.SIGKILL)
    said = one.end()
    assert (said["signal"], said["failures"][0]["local_rank"], said["failures"][0]["code"]) == (signal.SIGTERM, 0, -9)


def test_an_exception_is_reported_by_the_rank(launch: Callable[..., Launch], tmp_path: Path) -> None:
    one = launch("script", script(tmp_path, "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('boom')"))
    one.go()
    said = one.end()
    # The other rank may still be on its way when torchrun ends it.
    assert {(f["local_rank"], f["code"]) for f in said["failures"]} - {(0, -15)} == {(1, 1)}
    error = one.reports("error")[1]
    assert (error["type"], error["message"]) == ("ValueError", "boom")
    assert error["traceback"] == one.log("rank-1")
    assert error["traceback"].count("File ") == 1
    assert one.reports("exit")[1]["code"] == 1


def test_the_ranks_die_with_a_killed_launcher(launch: Callable[..., Launch], tmp_path: Path) -> None:
    one = launch("script", script(tmp_path, "import time; time.sleep(600)"), python=light_python(tmp_path / "light"))
    one.go()
    started = wait_for(lambda: len(found := one.reports("start")) == 2 and found)
    one.process.send_signal(signal.SIGKILL)
    wait_for(lambda: not any(alive(start["pid"]) for start in started.values()), timeout=10)


def test_term_reaches_each_rank_once(launch: Callable[..., Launch], tmp_path: Path) -> None:
    text = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *a: print("TERM", flush=True))
print("up", flush=True)
end = time.time() + 600
while time.time() < end:
    time.sleep(1)
    if open(sys.argv[1] % __import__("os").environ["RANK"]).read().count("TERM"):
        time.sleep(2)
        break
"""
    one = launch("script", script(tmp_path, text), str(tmp_path / "attempt-1/rank-%s.log"))
    one.go()
    wait_for(lambda: [p for p in tmp_path.glob("attempt-1/rank-?.log") if "up\n" in p.read_text()][1:])
    one.process.send_signal(signal.SIGTERM)
    said = one.end()
    assert (said["code"], said["signal"], said["error"]) == (1, signal.SIGTERM, None)
    assert [one.log(f"rank-{rank}") for rank in (0, 1)] == ["up\nTERM\n"] * 2


def test_a_port_in_use_is_reported_as_such(launch: Callable[..., Launch], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        one = launch("script", script(tmp_path, "print('never')"))
        one.go(port=taken.getsockname()[1])
        said = one.end()
    assert said["port_in_use"] is True
    assert "EADDRINUSE" in said["error"]
    assert not (tmp_path / "attempt-1" / "rank-0.log").exists()


def test_launcher_without_a_start_message_starts_no_ranks(launch: Callable[..., Launch], tmp_path: Path) -> None:
    one = launch("script", script(tmp_path, "print('never')"), python=light_python(tmp_path / "light"))
    one.process.stdin.close()  # type: ignore[union-attr]
    assert one.process.wait(120) == 1
    assert sorted(p.name for p in one.attempt.iterdir()) == ["launcher.log", "launcher.ready"]
    assert one.log("launcher").strip() == "disttui: no start line arrived"


def test_the_launcher_dies_with_who_started_it(tmp_path: Path) -> None:
    starter = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([*sys.argv[1:], 'torchrun'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", starter, light_python(tmp_path / "light"), node_program()], cwd=tmp_path,
        env={**os.environ, "DISTTUI_DIR": str(tmp_path)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_for((tmp_path / "launcher.ready").exists)
        parent.kill()
        wait_for(lambda: not alive(pid), timeout=10)


def test_an_interpreter_without_torch_is_said(launch: Callable[..., Launch], tmp_path: Path) -> None:
    empty = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True)
    python = str(empty / "bin" / "python")
    one = launch("script", "x.py", python=python)
    said = one.end()
    assert (said["code"], said["error"]) == (1, f"no torch in {python}")
    assert "Traceback" not in one.log("launcher")


@pytest.mark.parametrize(
    ("source", "words"),
    [("__version__ = '1.13.1'", "torch 1.13.1 in"), ("raise OSError('libcudart.so: no such file')", "libcudart.so")],
)
def test_an_unusable_torch_is_said(launch: Callable[..., Launch], tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text(source)
    said = launch("script", "x.py", env={"PYTHONPATH": str(tmp_path / "lib")}).end()
    assert words in said["error"]


def test_torch_serves_at_the_socket_that_it_is_given(launch: Callable[..., Launch], tmp_path: Path) -> None:
    """The port is held from the first moment on, and is open to this machine alone where the socket is."""
    ours, theirs = socket.socketpair()
    one = launch("script", script(tmp_path, TRAIN), keep=(theirs.fileno(),))
    port, server = reserve((29500, 29599), only="127.0.0.1")
    with ours, server:
        socket.send_fds(ours, [b"1"], [server.fileno()])
    one.go(port=port, listener=theirs.fileno(), EXTRA="more")
    theirs.close()
    wait_for(lambda: len(one.reports("group")) == 2)
    assert is_listening(port, lambda: [one.process.pid])
    with pytest.raises(OSError, match="in use"):
        listen(port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 5)
    (tmp_path / "enough").touch()
    assert one.end()["code"] == 0, one.log("launcher")


def test_torch_listens_by_itself_where_the_socket_does_not_come(launch: Callable[..., Launch], tmp_path: Path) -> None:
    one = launch("script", script(tmp_path, "print('up')\n"))
    one.go(listener=77)
    assert one.end()["code"] == 0, one.log("launcher")


def test_a_wrong_option_is_reported(launch: Callable[..., Launch], tmp_path: Path) -> None:
    one = launch("script", "x.py")
    assert one.process.stdin is not None
    one.process.stdin.write(b'{"args": ["--no-such-option"], "env": {}}\n')
    one.process.stdin.close()
    said = one.end()
    assert (said["code"], said["error"]) == (2, "torchrun rejected its options")


@pytest.mark.parametrize("preload", [False, True], ids=["started", "forked"])
def test_a_probing_script_sees_the_same_under_bare_torchrun(
    launch: Callable[..., Launch], tmp_path: Path, preload: bool
) -> None:
    for file in DATA.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    port = free_port()
    bare_env = {**plain(), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2", "--node-rank", "0",
         "--rdzv-backend", "static", "--max-restarts", "0", "--master-addr", "127.0.0.1", "--master-port", str(port),
         "--rdzv-id", "test-1", "probe.py", "bare-%s.json", "--lr", "1"],
        cwd=tmp_path, env=bare_env, check=True, timeout=200, stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip
    one = launch("script", "probe.py", "ours-%s.json", "--lr", "1", preload=preload)
    one.go(port=port)
    assert one.end()["code"] == 0
    assert "each rank imports torch itself" not in one.log("launcher")
    for rank in (0, 1):
        bare, ours = (json.loads((tmp_path / f"{who}-{rank}.json").read_text()) for who in ("bare", "ours"))
        added = {name for name in set(ours["env"]) - set(bare["env"]) if ours["env"].pop(name)}
        assert added == {
            "DISTTUI_DIR", "DISTTUI_RUN", "DISTTUI_NODE", "DISTTUI_ATTEMPT", "DISTTUI_METRICS", "PYTHONUNBUFFERED",
        }  # fmt: skip
        for seen in (bare, ours):
            # A folder with a random name, made by each torchrun.
            assert seen["env"].pop("TORCHELASTIC_ERROR_FILE").endswith(f"/{rank}/error.json")
            seen["argv"][1] = seen["orig_argv"][3] = ""
        assert set(ours) == set(bare)
        for what in bare:
            assert ours[what] == bare[what], what
