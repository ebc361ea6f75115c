"""Runs that wait for what others have leased: who goes when, and what becomes of those that are killed."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from disttui.runner.api import leasing as api_leasing
from disttui.runner.api import listing as api_listing
from disttui.runner.api import viewer as api_viewer
from disttui.runner.api.leasing import Moved, dropped, move
from disttui.runner.api.leasing import who as ask_who
from disttui.runner.cli.app import cli
from disttui.runner.errors import HostError, InputError
from disttui.runner.node import leases, procs
from disttui.runner.node.problem import Problem
from disttui.runner.node.serve import listing, runs
from disttui.runner.node.serve.channel import Sender, Server
from disttui.runner.node.serve.leasing import list_leases
from disttui.runner.profile.load import parse
from disttui.runner.render.leases import moved_line
from disttui.runner.runs.registry import KnownHost, KnownRun, keep
from disttui.runner.runs.remote import Reached
from disttui.tui.inventory import read_inventory
from tests.files import new_file, new_folder
from tests.unit.runs_kit import SLEEP, Cluster, Make, making, same
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")


@pytest.fixture
def cluster(leases_of_the_tests: Path, tmp_path: Path) -> Iterator[Make]:
    yield from making(tmp_path)
    for path in leases_of_the_tests.iterdir():
        path.unlink()


def queued(
    order: float,
    nodes: int = 1,
    round_number: int = 0,
    code: Any = None,
    any_of: list[int] | None = None,
    lasts: bool = False,
) -> dict[str, Any]:
    turns = list(reversed(range(nodes)))
    queue = {"round": round_number, "order": order, "any_of": any_of, "lasts": lasts, "turns": turns, "code": code}
    return {"queue": queue, "by": "alice@laptop"}


def in_line(run: Cluster) -> str:
    def look() -> str:
        return next((e["text"] for e in run.events(0, "note") if e["text"].startswith("queued: ")), "")

    return str(wait_for(look, "its place in the line"))


def test_queued_run_names_the_holder_and_starts_soon_after_it(cluster: Make) -> None:
    """Two hosts; from the exit of the first to the attempt of the second."""
    first = cluster(SLEEP, gpus=[0, 1]).start().wait_ranks()
    second = cluster(SLEEP, [1, 1], gpus=[1], **queued(100.0, 2)).start()
    assert f"'s {first.run} holds GPUs 0, 1" in in_line(second)
    assert not second.path(0, "attempt-1").exists(), "nothing of it runs while it waits"
    first.stop()
    end = first.exit(0)["t"]
    began = second.wait_event(0, "attempt")["t"]
    assert began - end < 2.0
    second.wait_ranks()
    assert {one["state"] for one in leases.look().leases} == {"held"}
    second.stop(1)
    assert same(second)["state"] == "stopped"
    assert leases.look().leases == []


def test_killed_run_hands_over_and_a_killed_waiter_is_skipped(cluster: Make) -> None:
    first, dead, later = (
        cluster(SLEEP, gpus=[0]),
        cluster(SLEEP, gpus=[0], **queued(1.0)),
        cluster(SLEEP, gpus=[0], **queued(2.0)),
    )
    for run in (first, dead, later):
        run.start()
    assert dead.run in in_line(later)
    for run in (dead, first):
        up = run.supervisor(0)
        for who in (up["warden"], up):
            os.kill(who["pid"], signal.SIGKILL)
    killed = time.time()
    assert later.wait_event(0, "attempt")["t"] - killed < 5.0


def rebooted(*died: Cluster) -> None:
    """What a host has after a power cut: these runs' files, of another boot, whose pids are those of new processes."""
    new = procs.identity(os.getpid())
    pid, start = f'"pid":{new["pid"]}', f'"start_time":{new["start_time"]}'
    all_of_them = [who for run in died for up in [run.supervisor(0)] for who in (up, up["warden"])]
    for way in (signal.SIGSTOP, signal.SIGKILL):  # none sees another's death, and tidies up or starts
        for who in all_of_them:
            os.kill(who["pid"], way)
    wait_for(lambda: not any(map(procs.alive, all_of_them)), "their death")
    for run in died:
        lease = next(path for path in leases_folder().iterdir() if run.run.encode() in path.read_bytes())
        for path in (run.path(0, "supervisor.json"), lease):
            text = re.sub(r'"pid": ?\d+', pid, path.read_text().replace(new["boot_id"], "0" * 36))
            path.write_text(re.sub(r'"start_time": ?\d+', start, text))


def leases_folder() -> Path:
    return Path(os.environ[leases.VARIABLE])


def test_reboot_frees_all_gpus_and_explains_dropped_queued_runs(cluster: Make, tmp_path: Path) -> None:
    """Also where a stranger has locked the files that are left."""
    first, second, beside = (
        cluster(SLEEP, gpus=[0]),
        cluster(SLEEP, gpus=[0], **queued(1.0)),
        cluster(SLEEP, gpus=[1], **queued(2.0)),
    )
    for run in (first, second):
        run.start()
    in_line(second)
    rebooted(first, second)
    strangers = [path.open("rb") for path in leases_folder().iterdir()]
    try:
        for file in strangers:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert leases.look().leases == []
        again = cluster(SLEEP, gpus=[0])
        for run in (again, beside):
            run.start()
        beside.wait_event(0, "attempt")
        assert {(one["run"], one["state"]) for one in leases.look().leases} == {
            (again.run, "held"),
            (beside.run, "held"),
        }
    finally:
        for file in strangers:
            file.close()
    rows = {str(row["run"]): row for row in listing.list_runs(str(second.run_dir(0)), None)}
    assert (rows[second.run]["state"], rows[second.run]["dropped"]) == ("lost", "the host was rebooted")
    assert not rows[first.run]["dropped"] and not rows[again.run]["dropped"]
    said = f"dropped from the queue: the host was rebooted; queue it again: disttui rerun {second.run} --when-free"
    environ = {"XDG_DATA_HOME": str(tmp_path / "data")}
    text = "disttui: 1\nhosts: [{name: host0, host: local}]\njob: {script: x.py}\n"
    text += f"launch: {{run_dir: {second.run_dir(0)}}}"
    keep(parse(text, "mine.yaml"), [1], second.run, environ)
    shown = [CliRunner().invoke(cli, words, env=environ).output for words in (["lease", "queue", "host0"], ["ps"])]
    assert shown[0].splitlines()[-1] == f"{second.run}: {said}"
    assert shown[1].splitlines()[-1] == f"{second.run}: {said}"
    assert [row.cause for row in read_inventory(environ, time.time()).runs] == [said], "the home screen"
    assert runs.status(second.folder(0))["exit"] == second.exit(0), "who attaches writes its end"
    (row,) = listing.list_runs(str(second.run_dir(0)), second.run)
    assert (row["state"], row["dropped"]) == ("failed", "the host was rebooted")


def test_hosts_that_only_profiles_name_fail_no_list(
    leases_of_the_tests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the user names does."""
    profiles = new_folder(tmp_path / "config" / "disttui" / "profiles")
    text = "disttui: 1\nhosts: [placeholder.invalid]\njob: {script: x.py}\n"
    (profiles / "mine.yaml").write_text(text)
    for name in ("config", "data"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / name))
    for command in ("queue", "list"):
        shown = CliRunner().invoke(cli, ["lease", command])
        assert shown.exit_code == 0, shown.output
        assert "1 host of profiles cannot be reached: placeholder.invalid" in shown.stderr
    assert CliRunner().invoke(cli, ["lease", "queue", "placeholder.invalid"]).exit_code == 3


def test_lists_have_a_line_for_each_queued_run_of_80_columns(leases_of_the_tests: Path) -> None:
    """A run with a long name that waits behind many others; details of one run on request."""
    waiting = [
        leases.take(leases.new_text(f"a-run-with-a-long-name-{n:04x}{'0' * 12}", 0, [0, 1, 2], "alice@laptop",
                                    state="waiting", order=float(n + 1), round=n))
        for n in range(46)
    ]  # fmt: skip
    shown = CliRunner().invoke(cli, ["lease", "queue", "local"])
    lines = shown.output.splitlines()
    assert len(lines) == 47 and max(map(len, lines)) <= 80, shown.output
    assert "a-run-with-a-long-name-002d " in lines[-1] and " 16+ ahead: " in lines[-1]
    assert len(CliRunner().invoke(cli, ["lease", "queue", "local", "--json"]).output) < 60_000
    who = CliRunner().invoke(cli, ["lease", "list", "local"]).output.splitlines()
    assert len(who) == 3 and "46 runs: disttui lease queue local" in who[-1], who
    details = CliRunner().invoke(cli, ["lease", "queue", "--verbose", "local"]).output
    assert "  local: GPUs 0, 1, 2, behind GPUs 0, 1, 2: " in details
    for one in waiting:
        one.release()


@pytest.mark.parametrize("lasts", [True, False])
def test_a_list_brings_back_a_queued_run_after_a_reboot(cluster: Make, lasts: bool) -> None:
    """With its place, unless it has secrets that only its viewer knows; twice changes nothing."""
    first, waits = cluster(SLEEP, gpus=[0]), cluster(SLEEP, gpus=[0], **queued(7.0, round_number=3, lasts=lasts))
    for run in (first, waits):
        run.start()
    in_line(waits)
    rebooted(first, waits)
    holder = cluster(SLEEP, gpus=[0]).start()
    server = Server(str(waits.zip), None, Sender(io.BytesIO()))
    for _ in range(2):
        (row,) = server.do_list({"run_dir": str(waits.run_dir(0)), "run": waits.run})["runs"]
        assert (row["state"], row["dropped"]) == (("queued", "") if lasts else ("lost", "the host was rebooted"))
    found = [(one["round"], one["order"]) for one in leases.look().leases if one["run"] == waits.run]
    assert found == ([(3, 7.0)] if lasts else [])
    holder.stop()
    if lasts:
        waits.wait_event(0, "attempt")
        waits.stop()
        assert waits.exit(0)["state"] == "stopped"


@pytest.mark.parametrize("says", ["stopping", "running"])
def test_a_shutdown_does_not_end_a_queued_run(
    cluster: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    new_file(tmp_path / "systemctl", f"#!/bin/sh\necho {says}\n", 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    first, waits = cluster(SLEEP, gpus=[0]).start(), cluster(SLEEP, gpus=[0], **queued(7.0, lasts=True)).start()
    in_line(waits)
    up = waits.supervisor(0)
    for who in (up, up["warden"]):
        os.kill(who["pid"], signal.SIGTERM)
    wait_for(lambda: not procs.alive(up) and not procs.alive(up["warden"]), "their end")
    assert waits.path(0, "exit.json").exists() is (says == "running")
    waits.path(0, "supervisor.json").write_text(json.dumps({**up, "boot_id": "0" * 36}))
    server = Server(str(waits.zip), None, Sender(io.BytesIO()))
    (row,) = server.do_list({"run_dir": str(waits.run_dir(0)), "run": waits.run})["runs"]
    assert row["state"] == ("queued" if says == "stopping" else "stopped")
    waits.stop()
    first.stop()


def test_queue_of_a_host_asks_no_other_and_shows_only_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path)}

    def known(run: str, name: str, host: str) -> None:
        text = f"disttui: 1\nname: {name}\nhosts: [{{name: box1, host: {host}}}]\njob: {{script: x.py}}\n"
        keep(parse(text, "mine.yaml"), [1], run, environ)

    known("mine-0a", "mine", "local")
    known("other-0b", "other", "far")
    asked = []

    def answers(hosts: Any, wanted: Any, *_: object) -> Any:
        asked.extend(hosts)
        rows = [{"run": run, "node_rank": 0, "state": "lost", "dropped": "why"} for run in ("mine-0a", "other-0b")]
        return dict.fromkeys(wanted, rows), {}

    monkeypatch.setattr(api_listing, "_ask", answers)
    with api_viewer.Viewer(environ) as viewer:
        local = ask_who(viewer, ["local"], gpus=False).places
        assert [row["run"] for row in dropped(viewer, local)] == ["mine-0a"]
        known("mine-0c", "mine", "far")
        assert not dropped(viewer, local), "it was run again since then, elsewhere"
    assert set(asked) == {("local", None, None)}


class Viewer:
    """A viewer whose hosts are those of runs of `runs_kit`."""

    def __init__(self, *runs: Cluster, environ: dict[str, str]) -> None:
        self.host = "host"
        self.environ = environ
        self._runs = {run.run: run for run in runs}
        self._run = runs[0]

    def reach(self, run: KnownRun) -> Reached:
        self._run = self._runs[run.run]
        link: Any = self
        return Reached(dict.fromkeys(range(len(self._run.nproc)), link))

    def submit(self, op: str, node_rank: int, **request: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            if op == "leases":
                done.set_result(list_leases({"gpus": False}))
            else:
                folder = self._runs[request["run"]].folder(node_rank)
                done.set_result(runs.move(folder, request["round"], request["order"]))
        except Problem as problem:
            done.set_exception(HostError("host", problem.what))
        return done

    def close(self) -> None:
        pass


def test_runs_of_one_user_trade_places_on_all_hosts(
    cluster: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = cluster(SLEEP, gpus=[0]), cluster(SLEEP, gpus=[0], **queued(1.0, round_number=3))
    third = cluster(SLEEP, [1, 1], gpus=[0], **queued(2.0, 2, round_number=4))
    for run in (first, second, third):
        run.start()
    assert second.run in in_line(third)
    third.wait_event(0, "join", node=1)

    def known(run: Cluster) -> KnownRun:
        hosts = tuple(KnownHost(f"host{node}", "local") for node in range(len(run.nproc)))
        return KnownRun(run.run, run.base, hosts, {}, "", 0.0, "me")

    viewer: Any = Viewer(second, third, environ={"XDG_DATA_HOME": str(tmp_path)})
    with pytest.raises(InputError, match=", which was started elsewhere"):
        move(viewer, known(third), "first")
    monkeypatch.setattr(api_leasing, "known_runs", lambda environ: ([known(second), known(third)], []))
    assert move(viewer, known(third), "first") == Moved(0, second.run)
    assert move(viewer, known(second), "last") == Moved(1, "")

    def places() -> set[tuple[str, int, float]]:
        waiting = [one for one in leases.look().leases if one["state"] == "waiting"]
        return {(one["run"], one["round"], one["order"]) for one in waiting}

    wait_for(lambda: places() == {(third.run, 3, 1.0), (second.run, 4, 2.0)}, "their places on both hosts")
    first.stop()
    third.wait_event(0, "attempt")
    assert not second.events(0, "attempt")
    with pytest.raises(InputError, match="is not queued"):
        move(viewer, known(third), "last")
    with pytest.raises(Problem, match="not queued on this host"):
        runs.move(first.folder(0), 0, 1.0)


def test_a_run_uses_the_gpu_that_is_free_at_its_turn(cluster: Make) -> None:
    """It was queued for GPU 0 while all were leased, and GPU 1 is released."""
    holders = [cluster(SLEEP, gpus=[n]) for n in range(2)]
    environ = {"CUDA_VISIBLE_DEVICES": "0"}
    waits = cluster(SLEEP, gpus=[0], env=environ, **queued(1.0, any_of=[0, 1]))
    for run in (*holders, waits):
        run.start()
    in_line(waits)
    holders[1].stop()
    waits.wait_event(0, "note", text="uses GPU 1")
    waits.wait_ranks()
    pid = waits.wait_event(0, "rank")["pid"]
    assert b"CUDA_VISIBLE_DEVICES=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert [one["gpus"] for one in leases.look().leases if one["run"] == waits.run] == [[1]]


def test_unstarted_or_stopped_queued_run_blames_no_reboot(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "mine-1" / "0")
    (folder / "spec.json").write_text(json.dumps({"run": "mine-1", "node_rank": 0, "queue": {"order": 1.0}}))
    for word in (None, "{", '{"pid": 1}'):
        if word is not None:
            (folder / "supervisor.json").write_text(word)
        (row,) = listing.list_runs(str(tmp_path), None)
        assert (row["state"], row["dropped"]) == ("lost", "its supervisor never started")
    (folder / "stop").touch()
    (row,) = listing.list_runs(str(tmp_path), None)
    assert not row["dropped"]


def test_move_of_a_run_with_a_lease_reports_a_dead_supervisor(
    leases_of_the_tests: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine-1" / "0"
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700)
    (folder / "spec.json").write_text(json.dumps({"run": "mine-1", "node_rank": 0, "queue": {"order": 1.0}}))
    mine = leases.take(leases.new_text("mine-1", 0, [0], "", order=1.0))
    runs.move(str(folder), 0, 1.0)
    monkeypatch.setattr(runs, "_UP", 3600.0)
    with pytest.raises(Problem, match="its supervisor does not answer"):
        runs.move(str(folder), 3, 1.0)
    mine.release()
    with pytest.raises(Problem, match="not queued on this host"):
        runs.move(str(folder), 3, 1.0)


def test_a_queued_run_is_stopped_while_it_waits(cluster: Make) -> None:
    first, second = cluster(SLEEP, gpus=[0]), cluster(SLEEP, [1, 1], gpus=[0], **queued(1.0, 2))
    first.start()
    second.start()
    in_line(second)
    second.wait_event(0, "join", node=1)
    second.stop()
    assert same(second)["state"] == "stopped"
    assert [one["run"] for one in leases.look().leases] == [first.run]


# 50 leases change, one each millisecond.
_OTHERS = """
import json, sys, time

for turn in range(1500):
    with open(f"{sys.argv[1]}{turn % 50:016x}", "w") as other:
        json.dump({**json.loads(sys.argv[2]), "note": f"{turn}"}, other)
    time.sleep(0.001)
"""


def test_constant_lease_changes_of_others_stay_cheap_to_watch(cluster: Make, leases_of_the_tests: Path) -> None:
    first, second = cluster(SLEEP, gpus=[0]), cluster(SLEEP, gpus=[0, 1], **queued(1.0))
    first.start()
    second.start()
    in_line(second)
    before = _reads(second)
    text = json.dumps(leases.new_text("", 0, [1], "bob@desk"))
    subprocess.run([sys.executable, "-c", _OTHERS, leases_of_the_tests / leases.PREFIX, text], check=True, timeout=200)
    read = _reads(second) - before
    notes = [note for note in second.events(0, "note") if note["text"].startswith("queued: ")]
    # Each change leaves 50 leases to be read: they are read for few of them.
    assert len(notes) < 150 and read < 15_000
    second.stop()
    assert second.exit(0)["state"] == "stopped"


def _reads(run: Cluster) -> int:
    """How often a supervisor has read something."""
    return int(Path(f"/proc/{run.supervisor(0)['pid']}/io").read_text().partition("syscr: ")[2].split()[0])


def test_queued_cpu_runs_run_one_at_a_time_by_round(cluster: Make) -> None:
    first = cluster(SLEEP, **queued(1.0)).start().wait_ranks()
    late, early = cluster("pass", **queued(2.0, round_number=2)), cluster("pass", **queued(3.0, round_number=1))
    for run in (late, early):
        run.start()
        in_line(run)
    beside = cluster(SLEEP).start()
    beside.wait_event(0, "attempt")
    beside.stop()
    beside.exit(0)
    first.job.write_text("")
    first.stop()
    ends = [run.exit(0) for run in (early, late)]
    assert [end["state"] for end in ends] == ["finished", "finished"]
    assert early.events(0, "verdict")[0]["t"] <= late.events(0, "attempt")[0]["t"]


def test_code_changed_since_queueing_is_noted_without_git(
    cluster: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "bin").mkdir()
    new_file(tmp_path / "bin" / "git", f"#!/bin/sh\ntouch {tmp_path}/asked\n", 0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    old = {"file": None, "script": "0" * 64, "folder": None, "git": None, "nccl_line": None, "launcher_line": None}
    run = cluster(SLEEP, **queued(1.0, code=old)).start()
    changed = f"the code in {tmp_path} has changed since this run was queued; the new code runs"
    run.wait_event(0, "note", text=changed)
    assert not (tmp_path / "asked").exists()


def test_a_move_says_how_many_runs_are_before_it() -> None:
    assert moved_line("box-000a", Moved(3, "box-000b"), "first") == (
        "box-000a is the first of your runs, traded places with box-000b; 3 runs before it: disttui lease queue"
    )
    assert moved_line("box-000a", Moved(1, ""), "last").startswith("box-000a is the last of your runs already; 1 run")


@pytest.mark.parametrize("words", ["--first --last", ""])
def test_move_needs_one_new_place(words: str) -> None:
    result = CliRunner().invoke(cli, ["lease", "move", "x", *words.split()])
    assert isinstance(result.exception, InputError) and "--first or --last is required" in str(result.exception)
