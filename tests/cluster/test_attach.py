"""Runs that go on by themselves: left, found from another machine, watched by two, stopped, fetched, removed."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from disttui.runner.ids import short
from tests.cluster.typed import COMMAND, User, Viewer, elsewhere, typed, wait_gone
from tests.command import ran
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.torch

# Says and counts until it is enough.
_TALK = """
import json, os, pathlib, sys, time

here = pathlib.Path(__file__).parent
rank = int(os.environ["RANK"])
step = 0
print(f"rank {rank} begins")
if len(sys.argv) > 1 and rank == 0:
    line = "x" * 99
    for _ in range(int(sys.argv[1]) * 10):
        print("\\n".join([line] * 1000))
    print("that was much", flush=True)
    (here / "much").touch()
with open(os.environ["DISTTUI_METRICS"], "a") as metrics:
    while not (here / "enough").exists():
        step += 1
        print(f"rank {rank} says {step}", flush=True)
        metrics.write(json.dumps({"t": time.time(), "step": step, "loss": 1 / step}) + "\\n")
        metrics.flush()
        time.sleep(0.2)
if rank == 0:
    folder = pathlib.Path(os.environ["DISTTUI_CHECKPOINTS"])
    (folder / "step-1").mkdir(parents=True)
    (folder / "step-1" / "model.pt").write_bytes(bytes(range(256)) * 20_000)
print(f"rank {rank} says goodbye", flush=True)
"""


def detached(me: User, *args: str, **keys: Any) -> str:
    """Start a run that talks, and leave; returns its id."""
    script = me.script(_TALK)
    profile = me.profile({"script": str(script), "args": list(args), "outputs": ["out/"]}, **keys)
    said = typed(me, "run", "--detach", profile)
    return next(line for line in said.splitlines() if line.startswith("t-") and " " not in line)


def enough(me: User) -> None:
    (me.cluster.shared / "enough").touch()


def host_files(me: User, run: str, node: int) -> dict[str, bytes]:
    """What a mirror must hold of a host: all that is not empty."""
    folder = me.cluster[node].home / ".disttui" / "runs" / run / str(node)
    paths = [path for path in folder.rglob("*") if path.suffix in (".log", ".jsonl", ".json")]
    skipped = ("supervisor.json", "supervisor.log", "untagged.json", ".exit.json")
    found = {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.name not in skipped}
    return {name: content for name, content in found.items() if content}


def test_detached_run_is_shown_in_full_from_elsewhere(user: Callable[..., User]) -> None:
    me = user(3, light=True)
    run = detached(me)
    you = elsewhere(me)
    assert short(run) in typed(you, "ps", "--host", "node2")
    assert "known here" in typed(you, "attach", run, code=2)
    mine, yours = Viewer(me, run[:-1]), Viewer(you, run, "--host", "node3", "--trust-hosts", "--read-only")
    for viewer in (mine, yours):
        for rank in range(3):
            viewer.wait_line(f"rank {rank} says")
        viewer.wait_line("says 20")
    assert "● running" in typed(me, "ps")
    assert "is still active on" in typed(you, "runs forget", run, code=2)
    # One leaves: nobody notices.
    left = Viewer(you, run, "--read-only")
    left.wait_line("says")
    left.process.send_signal(signal.SIGINT)
    assert left.end() == 0, left.said()
    enough(me)
    for viewer in (mine, yours):
        assert viewer.end() == 0, viewer.said()
        assert f"✓ {short(run)} finished" in viewer.said()
        for rank in range(3):
            assert f"rank {rank} says goodbye" in viewer.said()
    wait_gone(me.cluster)

    table = list(csv.DictReader(io.StringIO(typed(you, "runs metrics", run, "--csv"))))
    for rank in range(3):
        steps = [int(row["step"]) for row in table if row["rank"] == str(rank)]
        assert steps == list(range(1, len(steps) + 1)) and len(steps) > 20
        logged = typed(you, "logs", run, "--rank", str(rank))
        assert f"rank {rank} begins" in logged and logged.count(" says ") == len(steps) + 1
    assert typed(you, "logs", run, "--grep", "goodbye$", "--host", "node2").count("\n") == 1
    for node in range(3):
        folder = you.home / ".local/share/disttui/runs" / run / str(node)
        for name, content in host_files(me, run, node).items():
            assert hashlib.sha256((folder / name).read_bytes()).digest() == hashlib.sha256(content).digest(), name
    story = typed(you, "runs show", run)
    assert "3 ranks, master" in story and "script:" in story and "torch 2" in story

    for host in me.cluster.hosts[:2]:
        (host.home / "out/deep").mkdir(parents=True)
        (host.home / "out/deep/note.txt").write_text(f"from {host.name}")
        (host.home / "out/etc").symlink_to("/etc")
    said = typed(you, "runs pull", run, "--to", "got")
    assert "5 MiB" in said and "node1: 2 files to fetch, " in said
    assert "node2: skipped: 1 symbolic link below " in said
    assert re.search(r"node3: skipped: \S+/out: No such file", said)
    assert (you.home / "got/outputs/out/deep/note.txt").read_text() == "from node1"
    assert (you.home / "got/node2/outputs/out/deep/note.txt").read_text() == "from node2"
    assert not list((you.home / "got").rglob("etc"))
    assert (you.home / "got/checkpoints/step-1/model.pt").read_bytes() == bytes(range(256)) * 20_000
    assert "already here" in typed(you, "runs pull", run, "--to", "got")
    assert "already" in typed(me, "stop", run)
    assert "removed on node1, node2, node3 and here" in typed(me, "runs forget", run)
    assert not any((host.home / ".disttui/runs" / run).exists() for host in me.cluster.hosts)
    typed(you, "runs forget", run)


def test_stopped_from_elsewhere_through_any_host(user: Callable[..., User]) -> None:
    me = user(2, light=True)
    run = detached(me)
    you = elsewhere(me)
    viewer = Viewer(me, run, "--json")
    viewer.wait_line("says 5")
    # By addresses instead of names: a profile says which host is which.
    profile = you.profile({"builtin": "bytegpt"}, [f"root@{host.address}" for host in me.cluster.hosts])
    alone = you.profile({"builtin": "bytegpt"}, [f"root@{me.cluster[1].address}"])
    assert "has 1 host," in typed(you, "stop", run, "--host", "node2", "--profile", alone, code=2)
    said = typed(you, "stop", run, "--host", f"root@{me.cluster[1].address}", "--profile", profile)
    assert f"{short(run)} stopped on node1, node2" in said
    wait_gone(me.cluster, 10)
    assert viewer.end() == 130, viewer.said()
    records = [json.loads(line) for line in viewer.out.read_text().splitlines()]
    assert records[-1]["result"]["state"] == "stopped"
    assert typed(me, "attach", run, code=130).count("■") == 1
    assert "■ stopped" in typed(me, "ps")


def test_big_log_shows_its_tail_and_is_fetched_on_request(user: Callable[..., User]) -> None:
    me = user(1, light=True)
    run = detached(me, "100")
    you = elsewhere(me)
    wait_for((me.cluster.shared / "much").exists, "100 MB of a log", 100)
    begun = time.monotonic()
    viewer = Viewer(you, run, "--host", "node1")
    viewer.wait_line("says")
    print(f"first screen of a run with 100 MB of logs after {time.monotonic() - begun:.2f} s")
    held = you.home / ".local/share/disttui/runs" / run / "0/attempt-1/rank-0.log"
    assert held.stat().st_size > 100_000_000 and held.stat().st_blocks * 512 < 2_000_000
    enough(me)
    assert viewer.end() == 0, viewer.said()
    whole = typed(you, "logs", run)
    assert whole.count("x" * 99 + "\n") == 1_000_000 and "rank 0 begins" in whole
    assert held.read_bytes() == (me.cluster[0].home / ".disttui/runs" / run / "0/attempt-1/rank-0.log").read_bytes()


def test_stop_cleans_up_after_killed_supervisors(user: Callable[..., User]) -> None:
    """Warden and supervisor killed: a read-only view leaves things as they are, a stop ends what is left."""
    me = user(1)
    run = detached(me)
    host = me.cluster[0]
    ours = [pid for pid, command in host.processes() if " warden " in command]
    assert len(ours) == 2
    for pid in ours:
        host.kill(pid)
    folder = host.home / ".disttui/runs" / run / "0"
    assert f"✗ {short(run)} is lost" in typed(me, "attach", run, "--read-only", code=1)
    assert not (folder / "exit.json").exists()
    assert "lost" in typed(me, "ps")
    assert "already" in typed(me, "stop", run)
    wait_gone(me.cluster, 10)
    assert "killed" in typed(me, "runs show", run)


def test_queue_order_holds_with_clocks_an_hour_apart(user: Callable[..., User]) -> None:
    me = user(2, clock_offset={"node1": 3600})
    config = {"DISTTUI_SSH_CONFIG": str(me.cluster.ssh_config)}
    enough(me)
    job, names = {"script": str(me.script(_TALK))}, ["node1", "node2"]

    def say(*words: str, **env: str) -> str:
        done = ran([COMMAND, *words], cwd=me.home, env=me.environment(**config, **env))
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def line() -> list[str]:
        found = json.loads(say("lease", "queue", "--json", *names))["runs"]
        assert all(len(one["hosts"]) == 2 for one in found), found
        return [one["run"] for one in found]

    say("lease", "add", *names, "--until", "never", LOGNAME="bob")
    profiles = [me.profile(job, hosts=order) for order in (names, names[::-1])]
    first, second = (say("run", "--when-free", "--detach", str(one)).split()[-1] for one in profiles)
    assert line() == [first, second], "by the leaders' clocks the second came an hour before the first"
    say("lease", "move", second, "--first")
    assert line() == [second, first]
    say("lease", "release", *names, LOGNAME="bob")
    wait_gone(me.cluster)
    began = {}
    for run, node in ((first, 0), (second, 1)):
        events = (me.cluster[0].home / f".disttui/runs/{run}/{node}/events.jsonl").read_text().splitlines()
        began[run] = next(one["t"] for one in map(json.loads, events) if one["e"] == "launch")
    assert began[second] < began[first]
