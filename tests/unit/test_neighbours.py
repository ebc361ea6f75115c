"""Another user of the host takes every name and port that he can: runs start, stop and are forgotten all the same."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from disttui.runner.node import locks, procs, sockets
from disttui.runner.node.journal import read_json
from disttui.runner.node.loop import Loop
from disttui.runner.node.observe import stacks
from disttui.runner.node.problem import Problem
from disttui.runner.node.serve import runs
from disttui.runner.node.supervise import control
from tests.files import new_folder
from tests.neighbours import UID, own_network, squatting
from tests.unit.runs_kit import SLEEP, Cluster, Make, making, same
from tests.unit.waiting import wait_for

# Only root can act as another user, in a network of its own.
pytestmark = [pytest.mark.root, pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")]
HOLD = (
    "import sys; from disttui.runner.node import locks; lock = locks.take(*sys.argv[1:]);"
    "print(lock, flush=True); input()"
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Make]:
    with own_network():
        yield from making(tmp_path)


def guessed(run: Cluster, *nodes: int) -> list[str]:
    """Names that follow from what anybody knows of a run."""
    digests = [hashlib.sha256(os.fsencode(os.path.realpath(run.folder(node)))).hexdigest()[:24] for node in nodes]
    kinds = ("run", "start", "spawn")
    names = [f"disttui-{kind}-{os.getuid()}-{digest}" for kind in kinds for digest in digests]
    ports: list[int] = run.launch["ports"]
    doors = [f"disttui-{run.run}-{node}-1-{rank}" for node in nodes for rank in range(4)]
    return [*names, *doors, *(f"disttui-port-{port}" for port in range(ports[0], ports[1] + 1))]


def hold(kind: str, folder: str) -> subprocess.Popen[str]:
    """Another process of ours that takes a lock, and says what it got."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, kind, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout and "Lock" in holder.stdout.readline()
    return holder


def end(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.communicate()


def test_a_run_starts_and_ends_while_every_name_is_squatted(cluster: Make) -> None:
    run = cluster(SLEEP, [1, 1])
    with squatting(*guessed(run, 0, 1)):
        run.start().wait_ranks()
        assert run.ask(1)["already"] is True
        assert stacks.collect(run.folder(0))["0"]["threads"]
        assert run.stop(1)["stopped"] is True
        assert same(run)["state"] == "stopped"
        grace: int = run.launch["grace"]
        assert max(end["t"] for end in run.exits()) - read_json(str(run.path(1, "stop")))["t"] < grace + 2.0
        assert run.stop()["stopped"] is False
        wait_for(lambda: not run.living())
        for node in (0, 1):
            runs.forget(run.folder(node))
        assert not run.path(0, "").exists()


def test_impostor_at_a_dead_supervisors_name_is_not_trusted(cluster: Make) -> None:
    run = cluster(SLEEP).start().wait_ranks()
    up = run.supervisor(0)
    with squatting():
        for who in (up["warden"], up):
            os.kill(who["pid"], signal.SIGKILL)

        def taken() -> bool:
            try:
                sockets.connect(up["control"], 1.0).close()
            except PermissionError:
                return True
            except ConnectionError:
                pass
            return False

        wait_for(taken, "the neighbour at the supervisor's name")
        wait_for(lambda: not procs.alive(up) and not procs.alive(up["warden"]), "their death")
        assert control.ask(run.folder(0), {"op": "stop", "now": True}) is False
        assert run.stop() == {"stopped": False, "state": "failed"}
        assert not run.living()


def test_flooded_control_socket_still_hears_its_user(tmp_path: Path) -> None:
    """Its name stands in /proc/net/unix, where anybody can call it; one who is not its user is sent away."""
    loop, heard = Loop(), list[object]()
    door = control.Control(loop, heard.append)
    calling: Future[socket.socket] = Future()
    with contextlib.ExitStack() as callers:
        with pytest.raises(BlockingIOError):
            while True:  # until the queue is full
                caller = callers.enter_context(socket.socket(socket.AF_UNIX))
                caller.setblocking(False)
                caller.connect("\0" + door.address)
        ours = threading.Thread(target=lambda: calling.set_result(sockets.connect(door.address, 60.0)), daemon=True)
        ours.start()
        wait_for(lambda: not ours.is_alive() or waits_in_the_kernel(ours), "the call")
        assert ours.is_alive(), "it gave up"
    calling.add_done_callback(lambda called: called.result().sendall(b'{"op": "lead"}'))
    loop.every(0.01, lambda: loop.stop() if heard else None)
    loop.run()
    calling.result().close()
    assert heard == [{"op": "lead"}]


def waits_in_the_kernel(thread: threading.Thread) -> bool:
    path = Path(f"/proc/self/task/{thread.native_id}/stat")
    return path.read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("kind", ["start", "run"])
def test_a_stop_waits_for_no_process_that_hangs_with_a_lock(
    cluster: Make, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cluster(SLEEP).start().wait_ranks()
    lock = None if kind == "run" else hold(kind, run.folder(0))  # the supervisor itself has the other one
    monkeypatch.setattr(runs, "_MOMENT", 3600.0)
    assert run.stop(now=True)["stopped"] is True
    assert run.exit(0)["state"] == "stopped"
    assert runs.status(run.folder(0))["alive"] is False
    if lock:
        end(lock)


def test_lost_run_ends_although_a_process_holds_its_lock(cluster: Make) -> None:
    run = cluster(SLEEP).start().wait_ranks()
    up = run.supervisor(0)
    lock = hold("start", run.folder(0))
    for who in (up["warden"], up):
        os.kill(who["pid"], signal.SIGKILL)
    wait_for(lambda: not runs.status(run.folder(0))["alive"])
    assert run.path(0, "exit.json").exists() is False, "the holder of the lock is about to write it"
    assert run.stop() == {"stopped": False, "state": "failed"}
    assert not run.living()
    end(lock)


def test_a_stop_reaches_a_run_that_is_still_being_started(cluster: Make) -> None:
    run = cluster(SLEEP)
    folder = Path(run.folder(0))
    for one in (folder.parent.parent, folder.parent, folder):
        one.mkdir(mode=0o700)
    run.path(0, "spec.json").write_text("{}")
    lock = hold("start", str(folder))
    assert runs.status(str(folder))["alive"] is True
    assert run.stop()["stopped"] is True
    with (
        pytest.raises(Problem, match=rf"process {lock.pid} \(.*python.* holds its start lock"),
        locks.hold("start", str(folder), 0.1),
    ):
        pass
    end(lock)
    run.path(0, "spec.json").unlink()
    run.start()
    assert run.exit(0)["state"] == "stopped"
    assert not run.events(0, "rank")


def test_a_second_stop_does_not_take_back_that_it_is_now(tmp_path: Path) -> None:
    control.write_stop(str(tmp_path), "user", now=True)
    control.write_stop(str(tmp_path), "user", now=False)
    assert read_json(str(tmp_path / "stop"))["now"] is True
    (tmp_path / "stop").unlink()
    control.write_stop(str(tmp_path), "first", now=False)
    control.write_stop(str(tmp_path), "second", now=False)
    assert read_json(str(tmp_path / "stop"))["reason"] == "first"
    control.write_stop(str(tmp_path), "user", now=True)
    assert read_json(str(tmp_path / "stop"))["now"] is True
    assert [path.name for path in tmp_path.iterdir()] == ["stop"]


def test_a_start_says_who_has_the_ports(cluster: Make) -> None:
    run = cluster(SLEEP, [1, 1], launch={"ports": [29500, 29503]}, master="127.0.0.1")
    with squatting(ports=(29500, 29503)) as neighbour, pytest.raises(Problem) as refused:
        run.start(0)
    named = f"no free port between 29500 and 29503: nobody holds 4 ports (pid {neighbour.pid}: /usr/bin/python3 "
    assert refused.value.what.startswith(named)
    assert run.exit(0)["cause"]["message"] == refused.value.what


def test_nobody_can_take_the_master_port_before_torch_does(cluster: Make) -> None:
    run = cluster("step(1)", [1, 1], env={"STUB_WARM": "3"}, launch={"ports": [29500, 29502]})
    run.start(0)  # has the first port
    with squatting(ports=(29502, 29502)):
        run.start(1)
        run.wait_event(0, "attempt")
        with squatting(ports=(29500, 29510)):  # tries again and again
            assert same(run)["state"] == "finished"
    assert [event["port"] for event in run.events(0, "attempt")] == [29501]


@pytest.mark.parametrize("around", [{}, {"activate": "export X=1", "wrap": ["env"]}], ids=["plain", "wrapped"])
def test_master_port_on_one_machine_is_closed_to_the_network(cluster: Make, around: dict[str, object]) -> None:
    run = cluster(SLEEP, **around).start().wait_ranks()
    port = run.wait_event(0, "attempt")["port"]
    socket.create_connection(("127.0.0.1", port), 5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 5)
    run.stop(now=True)
    assert run.exit(0)["state"] == "stopped"


def test_taken_master_port_is_replaced_by_the_next_in_range(cluster: Make) -> None:
    run = cluster("step(1)", [1], env={"STUB_DEAF": "1", "STUB_TAKEN": "29500,29501"}, launch={"ports": [29500, 29502]})
    run.start()
    assert run.exit(0)["state"] == "finished"
    assert [event["port"] for event in run.events(0, "attempt")] == [29500, 29501, 29502]


def test_a_launcher_that_cannot_listen_anywhere_ends_the_run(cluster: Make) -> None:
    run = cluster("step(1)", [1], env={"STUB_TAKEN": "29500,29501"}, launch={"ports": [29500, 29501]}).start()
    assert "no free port between 29500 and 29501: torch cannot" in run.exit(0)["cause"]["message"]


def test_port_taken_over_by_a_neighbour_is_not_reported_held(cluster: Make) -> None:
    run = cluster(SLEEP, [1]).start().wait_ranks()
    port = run.wait_event(0, "attempt")["port"]
    with squatting(ports=(port, port)):
        run.stop()
        end = run.exit(0)
        assert "held" not in end, end


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    folder = str(tmp_path)
    with locks.hold("start", folder):
        with pytest.raises(locks.LockHeld, match="holds its start lock"), locks.hold("start", folder, 0.1):
            pass
        with locks.hold("spawn", folder):
            pass
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    with locks.hold("start", folder, 0.0):
        pass
    child.kill()
    child.wait()


def test_a_lock_of_a_folder_on_a_file_server_is_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "is_remote", lambda folder: True)
    bases = [tmp_path / name for name in ("shm", "tmp")]
    for base in bases:
        new_folder(base, 0o1777)
    monkeypatch.setattr(locks, "_BASES", tuple(map(str, bases)))
    folder = new_folder(tmp_path / "run")
    with locks.hold("start", str(folder)):
        assert locks.take("start", str(folder)) is None
        [path] = bases[0].iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in folder.iterdir()] == [".locks"]

    # Another user has his file at that name, or a link to a file of ours: the lock goes to the next place.
    target = tmp_path / "precious"
    for trap in ("file", "link", "FIFO", "folder"):
        path.unlink()
        if trap == "link":
            path.symlink_to(target)
        elif trap == "FIFO":
            os.mkfifo(path)
        elif trap == "folder":
            path.mkdir()
        else:
            path.touch(0o666)
        os.chown(path, UID, UID, follow_symlinks=False)
        with locks.hold("start", str(folder)):
            assert [one.name for one in bases[1].iterdir()] == [path.name]
            assert locks.take("start", str(folder)) is None
        if trap == "folder":
            path.rmdir()
            path.touch()
    assert not target.exists()
    locks.forget(str(folder))
    assert not list(bases[1].iterdir())


def test_lock_whose_file_its_holder_removed_can_be_taken_again(tmp_path: Path) -> None:
    lock = locks.take("start", str(tmp_path))
    assert lock
    [path] = tmp_path.iterdir()
    old = os.open(path, os.O_RDONLY)
    path.unlink()
    lock.close()
    assert not locks._is_at(old, str(path))
    again = locks.take("start", str(tmp_path))
    assert again and locks.take("start", str(tmp_path)) is None
    again.close()
    os.close(old)
