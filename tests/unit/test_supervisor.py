"""One host: start, end, stop, and what is left when something dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.node import procs
from runner.node.problem import Problem
from runner.node.serve import runs
from tests.unit.runs_kit import Cluster
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")
Make = Callable[..., Cluster]
SLEEP = "time.sleep(600)\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Make]:
    made: list[Cluster] = []

    def make(job: str, nproc: int = 1, **changes: Any) -> Cluster:
        made.append(Cluster(tmp_path, [nproc], job, **changes))
        return made[-1]

    yield make
    for one in made:
        one.clean_up()
        assert one.living() == {}


def test_finishes_and_tells_the_story(cluster: Make) -> None:
    run = cluster("step(1); print('hello', rank, os.environ['SECRET'])", nproc=2)
    answer = run.start()
    assert answer["already"] is False
    assert answer["gang"] is None
    end = run.exit(0)
    assert (end["state"], end["code"], end["cause"], end["attempt"], end["left"]) == (
        "finished", 0, None, 1, [],
    )  # fmt: skip
    assert run.path(0, "attempt-1/rank-1.log").read_text() == "hello 1 s3cret ☃ $(x)\n"
    kinds = [event["e"] for event in run.events(0)]
    for kind in ("supervisor", "join", "attempt", "launch", "rank", "launcher", "verdict"):
        assert kind in kinds
    assert run.log(0) == ""
    assert "s3cret" not in "".join(p.read_text() for p in Path(run.folder(0)).glob("*.json*") if p.name != "job.py")
    assert oct(Path(run.folder(0)).stat().st_mode)[-3:] == "700"
    assert oct(run.path(0, "spec.json").stat().st_mode)[-3:] == "600"


def test_printed_metrics_are_harvested_up_to_the_last_line(cluster: Make) -> None:
    run = cluster("for n in range(1, 4): print(f'Step {n} | Loss: 0.{n}')")
    run.start()
    assert run.exit(0)["state"] == "finished"
    lines = run.path(0, "attempt-1/rank-0.metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 3
    assert run.events(0, "step")


def test_start_twice_is_once_and_another_spec_is_refused(cluster: Make) -> None:
    run = cluster(SLEEP)
    first = run.start()
    second = run.start()
    assert (second["already"], second["pid"]) == (True, first["pid"])
    run.changes["workdir"] = "/"
    with pytest.raises(Problem, match="another run"):
        run.start()
    del run.changes["workdir"]
    run.stop()
    assert run.exit(0)["state"] == "stopped"
    assert run.start()["already"] is True
    assert run.stop()["stopped"] is False


def test_double_start_at_once_makes_one_supervisor(cluster: Make) -> None:
    run = cluster(SLEEP)
    answers: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: answers.append(run.start())) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer["already"] for answer in answers) == [False, True, True, True, True]
    assert len({answer["pid"] for answer in answers}) == 1
    assert len(run.events(0, "supervisor")) == 1


def test_stop_is_quick_where_ranks_obey(cluster: Make) -> None:
    run = cluster(SLEEP, nproc=2)
    run.start()
    run.wait_ranks()
    assert run.stop()["stopped"] is True
    stop = json.loads(run.path(0, "stop").read_text())
    end = run.exit(0)
    assert (end["state"], end["code"]) == ("stopped", 130)
    assert end["t"] - stop["t"] < 2.0, "nobody waits for the grace (5 s)"
    wait_for(lambda: not run.living(), "the supervisor's end")


def test_stop_while_warming_up_kills_at_once(cluster: Make) -> None:
    run = cluster(SLEEP, env={"STUB_WARM": "600"})
    run.start()
    run.wait_event(0, "launch")
    run.stop()
    assert run.exit(0, 10)["state"] == "stopped"


def test_term_once_then_grace_then_kill(cluster: Make) -> None:
    job = """
import signal
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"TERM\\n"))
os.write(1, b"armed\\n")
while True: time.sleep(60)
"""
    run = cluster(job, launch={"grace": 2})
    run.start()
    log = run.path(0, "attempt-1/rank-0.log")
    wait_for(lambda: log.exists() and "armed" in log.read_text(), "the rank")
    run.stop()
    assert run.exit(0)["state"] == "stopped"
    # By the supervisor's own clock: what a busy machine adds before and after is no matter of the grace.
    [stopping], [death] = run.events(0, "stopping"), run.events(0, "death")
    assert death["code"] == -9
    assert 2.0 <= death["at"] - stopping["t"] < 2.0 + 1.5
    assert log.read_text() == "armed\nTERM\n"


def test_stop_now_needs_no_grace(cluster: Make) -> None:
    job = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('armed', flush=True)\n" + SLEEP
    run = cluster(job, launch={"grace": 300})
    run.start()
    log = run.path(0, "attempt-1/rank-0.log")
    wait_for(lambda: log.exists() and "armed" in log.read_text(), "the rank")
    run.stop()
    run.stop(now=True)
    assert run.exit(0, 20)["state"] == "stopped"


NASTY = """
import signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600); os._exit(0)
for _ in range(5): daemon()
scrubbed = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
print("scrubbed", scrubbed.pid, flush=True)
if os.fork() == 0:
    os.setsid()
    end = time.time() + 600
    while time.time() < end:      # a storm of new sessions, each outliving its parent
        if os.fork():
            time.sleep(0.01); os._exit(0)
        os.setsid()
print("armed", flush=True)
time.sleep(600)
"""


def test_a_nasty_tree_leaves_nothing(cluster: Make) -> None:
    run = cluster(NASTY, launch={"grace": 2})
    run.start()
    log = run.path(0, "attempt-1/rank-0.log")
    wait_for(lambda: log.exists() and "armed" in log.read_text(), "the tree")
    scrubbed = int(log.read_text().split()[1])
    run.stop()
    end = run.exit(0)
    assert end["left"] == []
    assert run.living() == {}
    assert procs.read(scrubbed) is None


def test_exception_is_the_cause(cluster: Make) -> None:
    run = cluster("step(1)\nif rank == 1: raise ValueError('boom')\n" + SLEEP, nproc=2)
    run.start()
    end = run.exit(0)
    assert (end["state"], end["code"]) == ("failed", 1)
    cause = end["cause"]
    assert (cause["kind"], cause["rank"], cause["type"], cause["message"]) == (
        "exception", 1, "ValueError", "boom",
    )  # fmt: skip
    assert run.events(0, "error")[0]["traceback"]


@pytest.mark.parametrize("kind", ["script", "command"])
def test_an_exception_that_nobody_reports_is_read_from_the_log(cluster: Make, kind: str) -> None:
    run = cluster("step(1)\nraise KeyError('boom')", launch={"instrument": False})
    command = {"kind": "command", "value": "sh", "args": ["-c", f"{sys.executable} {run.job}"]}
    run.changes["target"] = command if kind == "command" else run.spec(0)["target"]
    run.start()
    cause = run.exit(0)["cause"]
    assert (cause["kind"], cause["rank"], cause["type"], cause["message"]) == ("exception", 0, "KeyError", "'boom'")
    [told] = run.events(0, "error")
    log = run.path(0, "attempt-1/rank-0.log").read_text()
    assert told["traceback"].startswith("Traceback (most recent call last):") and told["traceback"] in log


def test_a_cpp_exception_is_read_from_the_log(cluster: Make) -> None:
    words = "terminate called after throwing an instance of 'c10::Error'\n  what():  no more\nException raised from x"
    run = cluster(f"step(1)\nprint({words!r}, flush=True)\nos.abort()")
    run.start()
    cause = run.exit(0)["cause"]
    assert (cause["kind"], cause["rank"], cause["type"], cause["message"]) == ("exception", 0, "c10::Error", "no more")
    assert [told["code"] for told in run.events(0, "death")] == [-6]


def test_killed_rank_is_told_with_its_signal(cluster: Make) -> None:
    run = cluster("if rank == 1: os.kill(os.getpid(), 9)\n" + SLEEP, nproc=2)
    run.start()
    cause = run.exit(0)["cause"]
    assert (cause["kind"], cause["rank"], cause["code"], cause["type"]) == ("signal", 1, -9, "SIGKILL")


def test_exit_code_of_a_silent_end(cluster: Make) -> None:
    run = cluster("os._exit(3)")
    run.start()
    assert run.exit(0)["cause"]["code"] == 3


def test_launcher_without_torch(cluster: Make) -> None:
    run = cluster(SLEEP, env={"STUB_NO_TORCH": "1"})
    run.start()
    cause = run.exit(0)["cause"]
    assert cause["kind"] == "launch"
    assert "no torch in" in cause["message"]


@pytest.mark.parametrize("change", [{"python": "/no/such/python"}, {"workdir": "/no/such/folder"}])
def test_what_is_not_there_is_named(cluster: Make, change: dict[str, str]) -> None:
    run = cluster(SLEEP, **change)
    run.start()
    cause = run.exit(0)["cause"]
    assert cause["kind"] == "launch"
    assert next(iter(change.values())) in cause["message"]


def test_wrong_world_size_ends_the_run(cluster: Make) -> None:
    run = cluster(SLEEP, nproc=2, env={"STUB_WORLD": "1"})
    run.start()
    cause = run.exit(0)["cause"]
    assert (cause["kind"], cause["type"]) == ("launch", "WorldSize")


def test_supervisor_killed_the_warden_tidies_up(cluster: Make) -> None:
    run = cluster(SLEEP, nproc=2)
    pid = run.start()["pid"]
    run.wait_ranks()
    os.kill(pid, signal.SIGKILL)
    end = run.exit(0)
    assert (end["state"], end["cause"]["kind"]) == ("failed", "supervisor lost")
    assert run.living() == {}


def test_both_killed_the_next_viewer_tidies_up(cluster: Make) -> None:
    run = cluster("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP)
    run.start()
    run.wait_ranks()
    up = run.supervisor(0)
    os.kill(up["warden"]["pid"], signal.SIGKILL)
    os.kill(up["pid"], signal.SIGKILL)
    wait_for(lambda: not (procs.alive(up) or procs.alive(up["warden"])), "the death of both")
    found = runs.status(run.folder(0))
    assert found["alive"] is False
    assert found["exit"]["cause"]["kind"] == "supervisor lost"
    assert run.living() == {}
    assert run.events(0)[-1]["e"] == "verdict"


@pytest.mark.parametrize("who", ["supervisor", "warden"])
def test_term_of_the_machine_is_a_stop(cluster: Make, who: str) -> None:
    run = cluster(SLEEP)
    run.start()
    run.wait_ranks()
    up = run.supervisor(0)
    os.kill((up if who == "supervisor" else up["warden"])["pid"], signal.SIGTERM)
    assert run.exit(0)["state"] == "stopped"
    assert run.events(0, "stopping")[0]["reason"] == "signal"


def test_restart_recovers(cluster: Make) -> None:
    job = """
step(attempt)
if attempt == 1:
    time.sleep(0.5)
    raise ValueError("once")
assert os.environ["DISTTUI_RESUME"] == "1"
"""
    run = cluster(job, launch={"restarts": 1})
    run.start()
    end = run.exit(0)
    assert (end["state"], end["attempt"]) == ("finished", 2)
    assert [e["attempt"] for e in run.events(0, "attempt")] == [1, 2]
    [failed] = run.events(0, "failed")
    assert (failed["attempt"], failed["cause"]["message"], failed["cause"]["rank"]) == (1, "once", 0)
    first, second = run.events(0, "attempt")
    assert first["port"] != second["port"]


def test_no_restart_before_the_first_step(cluster: Make) -> None:
    run = cluster("raise ValueError('never')", launch={"restarts": 3})
    run.start()
    assert run.exit(0)["attempt"] == 1
    assert "no further attempt: this one has never made a step" in [note["text"] for note in run.events(0, "note")]


def test_no_third_attempt_at_the_same_step(cluster: Make) -> None:
    run = cluster("step(7); time.sleep(0.5); raise ValueError('again')", launch={"restarts": 5})
    run.start()
    end = run.exit(0)
    assert (end["state"], end["attempt"], end["cause"]["message"]) == ("failed", 2, "again")
    assert "no further attempt: two in a row have ended at step 7" in [note["text"] for note in run.events(0, "note")]


def test_stop_during_the_switch_of_attempts(cluster: Make) -> None:
    run = cluster("step(attempt); time.sleep(0.3); raise ValueError('again')", launch={"restarts": 1000})
    run.start()
    run.wait_event(0, "attempt", attempt=3)
    run.stop()
    assert run.exit(0)["state"] == "stopped"
    wait_for(lambda: not run.living(), "the end of all")


def test_port_taken_meanwhile_is_the_next_port_of_the_same_attempt(cluster: Make) -> None:
    run = cluster("step(1)")
    first = run.launch["ports"][0]
    run.changes["env"] = {"STUB_TAKEN": f"{first},{first + 1}"}
    run.start()
    assert run.exit(0)["state"] == "finished"
    told = run.events(0, "attempt")
    assert [one["attempt"] for one in told] == [1, 1, 1]
    assert len({one["port"] for one in told}) == 3


def test_hostile_words_reach_the_script_byte_for_byte(cluster: Make, tmp_path: Path) -> None:
    words = ["$(touch pwned)", "a b\nc", "'\"\\", "☃ é", "--master-port"]
    out = tmp_path / "argv.json"
    job = f"json.dump([sys.argv[1:], os.environ['ODD']], open({str(out)!r}, 'w'))"
    run = cluster(job, env={"ODD": "`x` ☃\n"}, activate="export ODD=overridden PATH=$PATH:/x")
    run.changes["target"] = {"kind": "script", "value": str(run.job), "args": words}
    run.start()
    assert run.exit(0)["state"] == "finished", run.events(0)
    assert json.loads(out.read_text()) == [words, "`x` ☃\n"]


def test_forget_refuses_the_living(cluster: Make) -> None:
    run = cluster(SLEEP)
    run.start()
    with pytest.raises(Problem, match="alive"):
        runs.forget(run.folder(0))
    run.stop()
    run.exit(0)
    wait_for(lambda: not procs.alive(run.supervisor(0)), "the supervisor's end")
    runs.forget(run.folder(0))
    assert not Path(run.folder(0)).exists()
    with pytest.raises(Problem, match="no run"):
        runs.status(run.folder(0))


def test_a_folder_that_cannot_be_written(cluster: Make, tmp_path: Path) -> None:
    run = cluster(SLEEP)
    (tmp_path / "file").write_text("")
    run.changes["run_dir"] = str(tmp_path / "file")
    with pytest.raises(Problem, match="cannot be written"):
        run.start()


def test_a_run_whose_folder_is_removed_ends(cluster: Make) -> None:
    run = cluster("step(1)\n" + SLEEP, nproc=2, launch={"restarts": 3})
    run.start()
    run.wait_ranks()
    up = run.supervisor(0)
    shutil.rmtree(run.folder(0), ignore_errors=True)
    wait_for(lambda: not (procs.alive(up) or procs.alive(up["warden"])), "the end of supervisor and warden")
    assert run.living() == {}
    assert not Path(run.folder(0)).exists()


def test_warden_and_supervisor_are_small(cluster: Make) -> None:
    run = cluster("step(1)\n" + SLEEP, nproc=2)
    run.start()
    run.wait_event(0, "step")
    up = run.supervisor(0)
    wait_for(lambda: len(run.path(0, "telemetry.jsonl").read_text().splitlines()) > 2, "telemetry")
    total = 0
    for pid in (up["pid"], up["warden"]["pid"]):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    assert total < 40 * 1024


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_full_disk_does_not_end_the_run(cluster: Make, tmp_path: Path) -> None:
    import subprocess

    disk = tmp_path / "runs0"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("no mounts here")
    try:
        run = cluster(SLEEP)
        run.start()
        run.wait_ranks()
        with pytest.raises(OSError, match="No space"), (disk / "fill").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        assert run.stop()["stopped"] is True
        assert run.exit(0)["state"] == "stopped"
        assert run.living() == {}
        run.clean_up()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
