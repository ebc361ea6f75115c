"""One host: start, end, stop, and what is left when something dies."""

from __future__ import annotations

import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from disttui.runner.node import procs
from disttui.runner.node.problem import Problem
from disttui.runner.node.serve import runs
from tests.command import ran
from tests.files import tmpfs
from tests.unit.runs_kit import SLEEP, Make
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")


def test_finishes_and_tells_the_story(cluster: Make) -> None:
    run = cluster("step(1); print('hello', rank, os.environ['SECRET'])", nproc=2)
    answer = run.ask()
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
    run = cluster("for n in range(1, 4): print(f'Step {n} | Loss: 0.{n}')").start()
    assert run.exit(0)["state"] == "finished"
    lines = run.path(0, "attempt-1/rank-0.metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 3
    assert run.events(0, "step")


def test_start_twice_is_once_and_another_spec_is_refused(cluster: Make) -> None:
    run = cluster(SLEEP)
    first = run.ask()
    second = run.ask()
    assert (second["already"], second["pid"]) == (True, first["pid"])
    run.changes["workdir"] = "/"
    with pytest.raises(Problem, match="another run"):
        run.start()
    del run.changes["workdir"]
    run.stop()
    assert run.exit(0)["state"] == "stopped"
    assert run.ask()["already"] is True
    assert run.stop()["stopped"] is False


def test_double_start_at_once_makes_one_supervisor(cluster: Make) -> None:
    run = cluster(SLEEP)
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(run.ask, [0] * 5))
    assert sorted(answer["already"] for answer in answers) == [False, True, True, True, True]
    assert len({answer["pid"] for answer in answers}) == 1
    assert len(run.events(0, "supervisor")) == 1


def test_stop_is_quick_where_ranks_obey(cluster: Make) -> None:
    run = cluster(SLEEP, nproc=2).start().wait_ranks()
    assert run.stop()["stopped"] is True
    stop = json.loads(run.path(0, "stop").read_text())
    end = run.exit(0)
    assert (end["state"], end["code"]) == ("stopped", 130)
    assert end["t"] - stop["t"] < 2.0, "nobody waits for the grace (5 s)"
    wait_for(lambda: not run.living(), "the supervisor's end")


def test_stop_while_warming_up_kills_at_once(cluster: Make) -> None:
    run = cluster(SLEEP, env={"STUB_WARM": "600"}).start()
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
    run = cluster(job, launch={"grace": 2}).start()
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
    run = cluster(job, launch={"grace": 300}).start()
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
    end = time.time() + 120
    beat = os.open(os.environ["BEAT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while time.time() < end:      # a storm of new sessions, each outliving its parent
        os.write(beat, b".")
        if os.fork():
            time.sleep(0.01); os._exit(0)
        os.setsid()
print("armed", flush=True)
time.sleep(600)
"""


def test_a_nasty_tree_leaves_nothing(cluster: Make, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    os.mkfifo(beat)
    beats = os.open(beat, os.O_RDONLY | os.O_NONBLOCK)
    run = cluster(NASTY, launch={"grace": 2}, env={"BEAT": str(beat)}).start()
    log = run.path(0, "attempt-1/rank-0.log")
    wait_for(lambda: log.exists() and "armed" in log.read_text(), "the tree")
    scrubbed = int(log.read_text().partition("scrubbed ")[2].split()[0])
    run.stop()
    end = run.exit(0)
    assert end["left"] == []
    assert run.living() == {}
    assert procs.read(scrubbed) is None
    # A pipe ends when nobody has it open any more; until then reading from it when it is empty is an error.
    heard = b""
    while data := os.read(beats, 1 << 16):
        heard += data
    os.close(beats)
    assert heard


def test_hostile_words_reach_the_script_byte_for_byte(cluster: Make, tmp_path: Path) -> None:
    words = ["$(touch pwned)", "a b\nc", "'\"\\", "☃ é", "--master-port"]
    out = tmp_path / "argv.json"
    job = f"json.dump([sys.argv[1:], os.environ['ODD']], open({str(out)!r}, 'w'))"
    run = cluster(job, env={"ODD": "`x` ☃\n"}, activate="cat; export ODD=overridden PATH=$PATH:/x")
    run.changes["target"] = {"kind": "script", "value": str(run.job), "args": words}
    run.start()
    assert run.exit(0)["state"] == "finished", run.events(0)
    assert json.loads(out.read_text()) == [words, "`x` ☃\n"]


def test_forget_refuses_the_living(cluster: Make) -> None:
    run = cluster(SLEEP).start()
    with pytest.raises(Problem, match="is still active"):
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
    run = cluster("step(1)\n" + SLEEP, nproc=2, launch={"restarts": 3}).start()
    # The last file that they make: one made while its folder is removed would keep that.
    wait_for(lambda: len(list(Path(run.folder(0)).glob("attempt-1/rank-*.metrics.jsonl"))) == 2, "the ranks' metrics")
    run.wait_ranks()
    up = run.supervisor(0)
    shutil.rmtree(run.folder(0), ignore_errors=True)
    wait_for(lambda: not (procs.alive(up) or procs.alive(up["warden"])), "the end of supervisor and warden")
    assert run.living() == {}
    assert not Path(run.folder(0)).exists()


def test_warden_and_supervisor_are_small(cluster: Make) -> None:
    run = cluster("step(1)\n" + SLEEP, nproc=2).start()
    run.wait_event(0, "step")
    up = run.supervisor(0)
    wait_for(lambda: len(run.path(0, "telemetry.jsonl").read_text().splitlines()) > 2, "telemetry")
    total = 0
    for pid in (up["pid"], up["warden"]["pid"]):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    assert total < 40 * 1024


@pytest.mark.root
def test_full_disk_does_not_end_the_run(cluster: Make, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "runs0", "size=512k") as small:
        run = cluster(SLEEP).start().wait_ranks()
        with pytest.raises(OSError, match="No space"), (small / "fill").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        assert run.stop()["stopped"] is True
        assert run.exit(0)["state"] == "stopped"
        assert run.living() == {}
        run.clean_up()


def test_a_warden_holds_little_in_memory_while_its_run_lasts() -> None:
    code = (
        "import sys, disttui.runner.node.supervise.warden;"
        "print(*(name for name in sys.modules if name.startswith('disttui.runner.')))"
    )
    done = ran([sys.executable, "-c", code], check=True)
    assert set(done.stdout.split()) == {
        "disttui.runner.node", "disttui.runner.node.procs", "disttui.runner.node.supervise",
        "disttui.runner.node.supervise.warden",
    }  # fmt: skip
