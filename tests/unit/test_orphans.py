"""Orphans: found by tag, judged by the machine they run on, ended with everything that carries their tag."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.cli.ending import render_orphans
from disttui.runner.hosts.answers import read_answer
from disttui.runner.node import procs
from disttui.runner.node.serve import orphans as module
from disttui.runner.node.serve import runs
from disttui.runner.node.serve.orphans import orphans
from disttui.runner.node.supervise import stop
from disttui.runner.node.telemetry import sampling
from disttui.runner.protocol.requests import Orphan
from tests.command import disttui
from tests.unit.runs_kit import Cluster
from tests.unit.waiting import wait_for

STRAY = """
import socket, subprocess, sys
step(1)
if rank == 0:
    subprocess.Popen([sys.executable, "-c", '''
import socket, time
door = socket.create_server(("127.0.0.1", 0))
print(door.getsockname()[1], flush=True)
time.sleep(300)
'''], stdout=open("port", "w"), start_new_session=True)
time.sleep(300)
"""


def found(run: str, end: bool = False) -> list[Orphan]:
    """Only of our own run: other tests may run beside this one."""
    return orphans(end, run)


class Strays:
    """Processes that carry a tag, as a run would leave them."""

    def __init__(self, base: Path) -> None:
        self.run = "orphan" + uuid.uuid4().hex[:8]
        self.folder = base / "runs" / self.run / "0"
        (self.folder / "attempt-1").mkdir(parents=True)
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, code: str = "import time; time.sleep(300)") -> int:
        tag = {procs.TAG: f"{self.run}/0/1", "DISTTUI_DIR": f"{self.folder}/attempt-1"}
        child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **tag})
        self.children.append(child)
        wait_for(lambda: procs.tag(child.pid), "its environment")
        return child.pid

    def up(self, **changes: Any) -> None:
        dead = {"pid": 2**22, "start_time": 1, "boot_id": procs.boot_id(), "pid_namespace": procs.pid_namespace()}
        (self.folder / "supervisor.json").write_text(json.dumps({**dead, "warden": dead, "gang": None, **changes}))

    def end(self) -> None:
        (self.folder / "exit.json").write_text(json.dumps({"t": 1.0, "state": "finished", "code": 0}))


@pytest.fixture
def strays(tmp_path: Path) -> Iterator[Strays]:
    made = Strays(tmp_path)
    yield made
    for child in made.children:
        child.kill()
        child.wait(60)


def test_live_run_has_no_orphans_and_a_dead_supervisor_does(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, [1, 1], f"import os\nos.chdir({str(tmp_path)!r})\n" + STRAY)
    try:
        cluster.start().wait_ranks()
        port = int(wait_for(lambda: (tmp_path / "port").exists() and (tmp_path / "port").read_text(), "the port"))
        assert found(cluster.run) == []
        up = cluster.supervisor(0)
        for who in (up["warden"], up):
            os.kill(who["pid"], 9)
        # The launcher, which holds the gang's port, may need a moment to die with its parent.
        rows = wait_for(lambda: [row for row in found(cluster.run) if port in row["ports"]], "the orphan")
        assert [(row["node_rank"], row["attempt"], row["ports"], row["ended"]) for row in rows] == [
            (0, 1, [port], False)
        ]
        assert "socket.create_server" in rows[0]["command"]
        assert rows[0]["why"] == "its supervisor and warden are dead"
        assert rows[0]["rss"] > 1 << 20 and 0 <= rows[0]["age"] < 240 and rows[0]["gpu_memory"] is None
        ended = found(cluster.run, end=True)
        assert rows[0]["pid"] in [row["pid"] for row in ended] and all(row["ended"] for row in ended)
        assert {row["node_rank"] for row in ended} == {0}, "the other host's own supervisor sees to its ranks"
        assert found(cluster.run) == [] and cluster.living(0) == {}
        assert cluster.exit(0)["cause"]["kind"] == "supervisor lost", "the run was brought to its end"
    finally:
        cluster.clean_up()


def test_orphans_of_ended_and_removed_runs_are_found(strays: Strays) -> None:
    pid = strays.start()
    assert found(strays.run) == [], "nothing is known of its supervisor"
    strays.end()
    assert [(row["pid"], row["why"], row["user"]) for row in found(strays.run)] == [
        (pid, "its run has ended", getpass.getuser())
    ]
    for path in sorted(strays.folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    strays.folder.rmdir()
    assert [row["why"] for row in found(strays.run)] == ["its run folder was removed"]
    assert [row["ended"] for row in found(strays.run, end=True)] == [True]
    assert strays.children[0].wait(60) == -9


@pytest.mark.parametrize("elsewhere", [{"boot_id": "another"}, {"pid_namespace": "pid:[1]"}])
def test_a_supervisor_out_of_sight_is_not_called_dead(strays: Strays, elsewhere: dict[str, str]) -> None:
    strays.start()
    strays.up(**elsewhere)
    assert found(strays.run) == [] and found(strays.run, end=True) == []
    assert strays.children[0].poll() is None
    strays.up()
    assert len(found(strays.run)) == 1


def test_a_warden_in_sight_is_enough_to_spare(strays: Strays) -> None:
    strays.start()
    strays.end()
    warden = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "warden", str(strays.folder)])
    try:
        wait_for(lambda: "warden" in procs.command(warden.pid), "its command line")
        assert found(strays.run, end=True) == []
    finally:
        warden.kill()
        warden.wait(60)
    assert len(found(strays.run)) == 1


def test_what_they_start_while_they_are_ended_goes_too(strays: Strays) -> None:
    strays.end()
    strays.start("""
import os, time
while True:
    if os.fork() == 0:
        os.setsid()
        time.sleep(30)
        os._exit(0)
    time.sleep(0.05)
""")
    wait_for(lambda: len(found(strays.run)) > 3, "its children")
    assert all(row["ended"] for row in found(strays.run, end=True))
    strays.children[0].wait(60)
    assert found(strays.run) == []


def test_forged_tag_of_a_live_run_does_not_end_that_run(
    strays: Strays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It got into the sweep by the note of an ended run; what begins during that belongs to the live one."""
    live = Strays(tmp_path)
    born: list[int] = []

    def kill(pid: int, start: int, number: int) -> None:
        if not born:
            born.append(live.start())
        os.kill(pid, number)

    strays.end()
    forger = strays.start()
    monkeypatch.setattr(procs, "tag", lambda pid, real=procs.tag: f"{live.run}/0/1" if pid == forger else real(pid))
    monkeypatch.setattr(stop, "_send_only", kill)
    try:
        stop.sweep(lambda: {pid for pid in (forger,) if (found := procs.read(pid)) and not found.dead})
        assert born and live.children[0].poll() is None
    finally:
        live.children[0].kill()
        live.children[0].wait(60)


def test_process_that_reuses_a_pid_is_not_signalled(strays: Strays) -> None:
    """Between the look at the whole table and the signal, a user can end a process and wait for the next to begin."""
    other = strays.start()
    looks = iter([{other}])
    stop.sweep(lambda: next(looks, set()))
    assert strays.children[-1].poll() is None
    proc = procs.read(other)
    assert proc
    stop._send_only(other, proc.start - 1, signal.SIGKILL)
    assert strays.children[-1].poll() is None
    stop._send_only(other, proc.start, signal.SIGKILL)
    assert strays.children[-1].wait(60) == -signal.SIGKILL


def test_other_runs_are_left_alone(strays: Strays, tmp_path: Path) -> None:
    other = Strays(tmp_path)
    try:
        for one in (strays, other):
            one.start()
            one.end()
        assert [row["ended"] for row in found(strays.run, end=True)] == [True]
        assert other.children[0].poll() is None and len(found(other.run)) == 1
    finally:
        other.children[0].kill()
        other.children[0].wait(60)


_ORPHAN: Orphan = {
    "run": "r-1", "node_rank": 0, "attempt": 1, "pid": 7, "user": "u", "command": "sleep", "why": "w", "age": 1.0,
    "rss": 1, "ports": [], "gpu_memory": None, "ended": False,
}  # fmt: skip


def test_hosts_that_were_not_asked_are_not_called_clean() -> None:
    five: dict[str, list[Orphan]] = {f"node{n}": [] for n in range(5)}
    assert render_orphans(five, end=False, unasked=1) == (
        "no processes of ended runs left on the 5 hosts that answered; 1 host could not be asked"
    )
    assert render_orphans({"node1": []}, end=False) == "no processes of ended runs left on node1"
    seen = render_orphans({"node1": [{**_ORPHAN, "ended": True}]}, end=True, unasked=2)
    assert seen.endswith("1 ended, nothing is left; 2 hosts could not be asked")


def test_unreachable_host_is_counted_as_not_asked(tmp_path: Path) -> None:
    """`local` answers, and nothing listens on the other's port."""
    done = disttui("runs", "orphans", "--run", "orphan-none", "local", "root@127.0.0.1:1")
    assert done.returncode == 3
    assert done.stdout == "no processes of orphan-none left on local; 1 host could not be asked\n", done.stderr


def test_orphans_accept_a_shown_run_id_and_reject_an_empty_one(strays: Strays) -> None:
    strays.start()
    strays.end()
    shown = strays.run[:-1]
    done = disttui("runs", "orphans", "--run", shown, "local")
    assert "1 left behind" in done.stdout, done.stderr
    done = disttui("runs", "orphans", "--end", "--run", "", "local")
    assert done.returncode == 2 and "'' is not a run id" in done.stderr
    assert strays.children[0].poll() is None
    done = disttui("runs", "orphans", "--end", "--run", shown, "local")
    assert (done.returncode, strays.children[0].wait(60)) == (0, -9), done.stdout


@pytest.mark.root
def test_a_tag_that_another_user_forges_counts_for_nothing(strays: Strays) -> None:
    strays.start()
    strays.end()
    forged = {procs.TAG: f"{strays.run}/0/1", "DISTTUI_DIR": f"{strays.folder}/attempt-1"}
    shell = ["/bin/sh", "-c", "read line", "sh"]
    more: dict[str, Any] = {"env": {**os.environ, **forged}, "user": 65533, "cwd": "/", "stdin": subprocess.PIPE}
    stranger = subprocess.Popen(shell, **more)
    warden = subprocess.Popen([*shell, "warden", str(strays.folder)], **more)
    strays.children += [stranger, warden]
    wait_for(lambda: procs.tag(stranger.pid), "its environment")
    wait_for(lambda: b"warden" in Path(f"/proc/{warden.pid}/cmdline").read_bytes(), "its arguments")
    assert procs.tagged(procs.table(), strays.run, 0) == {strays.children[0].pid}
    [row] = found(strays.run, end=True)
    assert (row["pid"], row["ended"]) == (strays.children[0].pid, True)
    assert stranger.poll() is None


@pytest.mark.root
def test_many_foreign_orphans_are_bounded_and_hide_no_own_row(strays: Strays, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a run of its own, most with a name that no run has."""
    monkeypatch.setattr(module, "MOST_ORPHANS", 3)
    looks = []
    real = procs.table

    def table() -> dict[int, procs.Proc]:
        looks.append(1)
        return real()

    monkeypatch.setattr(procs, "table", table)
    names = [*(f"{strays.run}-{number}" for number in range(20)), strays.run + "y" * 3000, strays.run + " \x1b[2J"]
    for name in names:
        forged = {"PATH": os.environ["PATH"], procs.TAG: f"{name}/0/1", "DISTTUI_DIR": "/nowhere/attempt-1"}
        strays.children.append(subprocess.Popen(["sleep", "300"], env=forged, user=65533, cwd="/"))
    others = strays.children[:]
    wait_for(lambda: all(procs.tag(one.pid) for one in others), "their environments")
    own = strays.start()
    strays.end()
    wait_for(lambda: procs.tag(own), "its environment")
    rows = orphans(end=True, run=strays.run)
    assert len(rows) == 3 and own in [row["pid"] for row in rows]
    assert all(child.wait(60) == -9 for child in [*others[:20], strays.children[-1]])
    assert all(child.poll() is None for child in others[20:])
    assert len(looks) < 3 * len(names), "the table is not read anew for each run"


def test_endless_texts_of_a_host_break_no_column(strays: Strays) -> None:
    endless = "w" * 5000
    lie = {"run": endless, "user": endless, "why": endless, "ports": [*range(9999)], "command": endless}
    wrong = {"ports": [{}], "pid": "7"}
    sent = {"found": [{**_ORPHAN, **lie}, {**_ORPHAN, **wrong}, "", _ORPHAN | {"run": "true-1"}, *[_ORPHAN] * 9999]}
    read = read_answer("orphans", sent)["found"]
    assert len(read) < 5001 and len(read[0]["why"]) < 1000
    text = render_orphans({"liar": read[:2]}, end=False)
    assert max(map(len, text.splitlines())) < 400 and "true-1" in text


@pytest.mark.root
@pytest.mark.parametrize("trap", ["a large file", "a link", "a pipe", "a file of another"])
def test_root_reads_no_file_whole_and_no_link_of_another_user(strays: Strays, trap: str) -> None:
    """Its supervisor.json says that the supervisor is dead: where it is read, the process is an orphan."""
    strays.up()
    path = strays.folder / "supervisor.json"
    if trap == "a large file":
        path.write_text(path.read_text() + " " * (1 << 20) + "x")
    elif trap == "a link":
        path.rename(strays.folder / "real")
        path.symlink_to("real")
    elif trap == "a pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        os.chown(path, 65533, 65533)
    strays.start()
    assert found(strays.run) == []


_DAEMON = """
import subprocess
step(1)
child = subprocess.Popen(["/bin/sh", "-c", "while :; do sleep 5; done"], env={}, start_new_session=True)
print(child.pid)
time.sleep(600)
"""


@pytest.mark.parametrize("by", ["orphans", "status"])
def test_untagged_daemon_is_ended_after_supervisor_and_warden(tmp_path: Path, by: str) -> None:
    run = Cluster(tmp_path, [1], _DAEMON)
    try:
        run.start()
        log = run.path(0, "attempt-1/rank-0.log")
        daemon = int(wait_for(lambda: log.exists() and log.read_text(), "the daemon"))
        noted = run.path(0, sampling.UNTAGGED)
        wait_for(lambda: noted.exists() and str(daemon) in noted.read_text(), "the note")
        assert noted.stat().st_mode & 0o777 == 0o600
        up = run.supervisor(0)
        for who in (up["warden"], up):
            os.kill(who["pid"], 9)
        wait_for(lambda: not procs.alive(up) and not procs.alive(up["warden"]), "their death")
        assert not procs.tag(daemon) and procs.read(daemon)
        if by == "status":
            runs.status(run.folder(0))
        else:
            assert daemon not in [row["pid"] for row in orphans(False, run.run)]
            rows = orphans(True, run.run, [str(run.run_dir(0))])
            assert [(row["ended"], row["node_rank"]) for row in rows if row["pid"] == daemon] == [(True, 0)]
        now = procs.read(daemon)
        assert now is None or now.dead
        assert run.exit(0)["state"] == "failed"
    finally:
        run.clean_up()


def test_note_of_another_boot_or_of_a_reused_pid_is_ignored(tmp_path: Path) -> None:
    me = procs.read(os.getpid())
    assert me
    here: dict[str, Any] = {"boot_id": procs.boot_id(), "pid_namespace": procs.pid_namespace()}
    for changes, expected in (
        ({}, {me.pid}),
        ({"boot_id": "another"}, set()),
        ({"processes": [[me.pid, me.start + 1], [1, 0], ["x", None], 7]}, set()),
        ({"processes": "x"}, set()),
    ):
        data = {**here, "processes": [[me.pid, me.start]], **changes}
        (tmp_path / sampling.UNTAGGED).write_text(json.dumps(data))
        assert sampling.noted(str(tmp_path)) == expected
