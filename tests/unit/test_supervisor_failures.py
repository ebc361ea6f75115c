"""One host: what is reported when ranks, launchers and supervisors die, and the attempts after that."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.diagnose.cause import find
from disttui.runner.node import journal, procs
from disttui.runner.node.folders import user_name
from disttui.runner.node.problem import Problem
from disttui.runner.node.serve import listing, runs
from disttui.runner.node.supervise import stop
from disttui.runner.protocol.events import Death
from disttui.runner.render.story import attempt_words, death_words, others
from disttui.runner.runs.state import begin
from disttui.runner.untrusted.decode import decode
from tests.unit.runs_kit import SLEEP, Cluster, Make
from tests.unit.state_kit import fold
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")


def test_exception_is_the_cause(cluster: Make) -> None:
    run = cluster("step(1)\nif rank == 1: raise ValueError('boom')\n" + SLEEP, nproc=2).start()
    end = run.exit(0)
    assert (end["state"], end["code"]) == ("failed", 1)
    cause = end["cause"]
    assert (cause["kind"], cause["rank"], cause["type"], cause["message"]) == (
        "exception", 1, "ValueError", "boom",
    )  # fmt: skip
    assert run.events(0, "error")[0]["traceback"]


def test_rank_exiting_with_0_counts_as_gone_not_as_stopped(cluster: Make) -> None:
    """os._exit runs no exit handler: the rank itself reports nothing, and the other loses its connection to it."""
    wait = "while os.path.exists('/proc/%s' % open('pid').read()): time.sleep(0.05)"
    run = cluster(
        "step(1)\n"
        "if rank == 1:\n  open('pid.part', 'w').write(str(os.getpid())); os.rename('pid.part', 'pid')\n"
        "  time.sleep(0.5); os._exit(0)\n"
        "while not os.path.exists('pid'): time.sleep(0.05)\n"
        f"{wait}\ntime.sleep(1)\nraise RuntimeError('Connection closed by peer')\n",
        nproc=2,
        env={"STUB_POLL": "3"},  # how it ended is seen before the launcher looks
    )  # fmt: skip
    run.start()
    end = run.exit(0)
    state = begin("run-1", ("node1",), (2,))
    for name in ("events.jsonl", "attempt-1/ranks.jsonl"):
        for line in run.path(0, name).read_text().splitlines():
            state = fold(state, 0, name, json.loads(line))
    state = fold(state, 0, "exit.json", end)
    cause = find(state)
    assert cause and cause.gone == (1,) and not others(state, cause)
    assert "rank 1 on node1 had ended (exit code 0) while rank 0 on node1 still waited" in attempt_words(state, 1)


@pytest.mark.parametrize("kind", ["script", "command"])
def test_an_exception_that_nobody_reports_is_read_from_the_log(cluster: Make, kind: str) -> None:
    run = cluster("step(1)\nraise KeyError('boom')", launch={"instrument": False})
    command = {"kind": "command", "value": "sh", "args": ["-c", shlex.join([sys.executable, str(run.job)])]}
    run.changes["target"] = command if kind == "command" else run.spec(0)["target"]
    run.start()
    cause = run.exit(0)["cause"]
    assert (cause["kind"], cause["rank"], cause["type"], cause["message"]) == ("exception", 0, "KeyError", "'boom'")
    [seen] = run.events(0, "error")
    log = run.path(0, "attempt-1/rank-0.log").read_text()
    assert seen["traceback"].startswith("Traceback (most recent call last):") and seen["traceback"] in log


def test_a_cpp_exception_is_read_from_the_log(cluster: Make) -> None:
    words = "terminate called after throwing an instance of 'c10::Error'\n  what():  no more\nException raised from x"
    run = cluster(f"step(1)\nprint({words!r}, flush=True)\nos.abort()").start()
    cause = run.exit(0)["cause"]
    assert (cause["kind"], cause["rank"], cause["type"], cause["message"]) == ("exception", 0, "c10::Error", "no more")
    assert [seen["code"] for seen in run.events(0, "death")] == [-6]


def test_killed_rank_is_reported_with_its_signal(cluster: Make) -> None:
    run = cluster("if rank == 1: os.kill(os.getpid(), 9)\n" + SLEEP, nproc=2).start()
    cause = run.exit(0)["cause"]
    assert (cause["kind"], cause["rank"], cause["code"], cause["type"]) == ("signal", 1, -9, "SIGKILL")


def test_exit_code_of_a_silent_end(cluster: Make) -> None:
    run = cluster("os._exit(3)").start()
    assert run.exit(0)["cause"]["code"] == 3


def test_launcher_killed_while_writing_leaves_no_partial_file(cluster: Make) -> None:
    run = cluster("""
folder = os.path.dirname(os.environ["DISTTUI_METRICS"])
open(f"{folder}/launcher.json.{os.getppid()}", "w").write('{"code"')
os.kill(os.getppid(), 9)
""").start()
    assert run.exit(0)["cause"]["type"] == "" and "SIGKILL" in run.exit(0)["cause"]["message"]
    assert not list(Path(run.folder(0), "attempt-1").glob("launcher.json.*"))


def test_launcher_without_torch(cluster: Make) -> None:
    run = cluster(SLEEP, env={"STUB_NO_TORCH": "1"}).start()
    cause = run.exit(0)["cause"]
    assert cause["kind"] == "launch"
    assert "no torch in" in cause["message"]


@pytest.mark.parametrize("change", [{"python": "/no/such/python"}, {"workdir": "/no/such/folder"}])
def test_what_is_not_there_is_named(cluster: Make, change: dict[str, str]) -> None:
    run = cluster(SLEEP, **change).start()
    cause = run.exit(0)["cause"]
    assert cause["kind"] == "launch"
    assert next(iter(change.values())) in cause["message"]


def test_wrong_world_size_ends_the_run(cluster: Make) -> None:
    run = cluster(SLEEP, nproc=2, env={"STUB_WORLD": "1"}).start()
    cause = run.exit(0)["cause"]
    assert (cause["kind"], cause["type"]) == ("launch", "WorldSize")


def test_supervisor_killed_the_warden_tidies_up(cluster: Make) -> None:
    run = cluster(SLEEP, nproc=2)
    pid = run.ask()["pid"]
    run.wait_ranks()
    os.kill(pid, signal.SIGKILL)
    end = run.exit(0)
    assert (end["state"], end["cause"]["kind"]) == ("failed", "supervisor lost")
    assert run.living() == {}


def test_both_killed_the_next_viewer_tidies_up(cluster: Make) -> None:
    run = cluster("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP).start().wait_ranks()
    up = run.supervisor(0)
    os.kill(up["warden"]["pid"], signal.SIGKILL)
    os.kill(up["pid"], signal.SIGKILL)
    wait_for(lambda: not (procs.alive(up) or procs.alive(up["warden"])), "the death of both")
    found: Any = runs.status(run.folder(0))
    assert found["alive"] is False
    assert found["exit"]["cause"]["kind"] == "supervisor lost"
    assert run.living() == {}
    assert run.events(0)[-1]["e"] == "verdict"


_FROZEN = {
    "supervisor": {"supervisor": signal.SIGSTOP},
    "both": {"warden": signal.SIGSTOP, "supervisor": signal.SIGSTOP},
    "warden of a dead one": {"warden": signal.SIGSTOP, "supervisor": signal.SIGKILL},
}


@pytest.mark.parametrize("signals", _FROZEN.values(), ids=_FROZEN)
def test_frozen_supervisor_is_named_by_stop_and_killed_by_now(cluster: Make, signals: dict[str, int]) -> None:
    run = cluster("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP).start().wait_ranks()
    up = run.supervisor(0)
    for who, number in signals.items():
        os.kill((up if who == "supervisor" else up["warden"])["pid"], number)
    with pytest.raises(Problem, match=r"pid \d+\) is frozen by a signal") as raised:
        run.stop()
    assert f"disttui stop {run.run} --now" in raised.value.cure
    assert run.living(), "a stop without --now kills nothing there"
    assert run.stop(now=True)["stopped"]
    end = json.loads(run.path(0, "exit.json").read_text())
    assert (end["state"], end["code"], end["cause"], end["left"]) == ("stopped", 130, None, [])
    assert run.living() == {} and not procs.alive(up) and not procs.alive(up["warden"])


@pytest.mark.parametrize(("states", "limit", "seen"), [("DDS", 60.0, "S"), ("DD", 0.0, "D"), ("T", 60.0, "T")])
def test_only_a_process_that_stays_in_the_kernel_hangs(
    states: str, limit: float, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(states)
    monkeypatch.setattr(procs, "read", lambda _pid: types.SimpleNamespace(state=next(looks)))
    monkeypatch.setattr(runs, "_MOMENT", limit)
    assert runs._lasting_state(1) == seen


@pytest.mark.parametrize("who", ["warden", "rank", "launcher"])
def test_frozen_process_is_ended_by_stop(cluster: Make, who: str) -> None:
    run = cluster(SLEEP, launch={"grace": 1}).start().wait_ranks()
    warden = run.supervisor(0)["warden"]
    event = "rank" if who == "rank" else "launch"
    os.kill(warden["pid"] if who == "warden" else run.events(0, event)[0]["pid"], signal.SIGSTOP)
    run.stop()
    assert run.exit(0)["state"] == "stopped"
    assert run.living() == {}
    wait_for(lambda: not procs.alive(warden), "the warden's end")


def test_run_survives_a_viewer_that_dies_during_the_start(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads the line that says that the supervisor is up."""
    run = cluster("step(1)")
    with monkeypatch.context() as patch, pytest.raises(Problem, match="did not start"):
        patch.setattr("disttui.runner.node.serve.runs.select", types.SimpleNamespace(select=lambda *_: ([], [], [])))
        run.start()
    assert run.exit(0)["state"] == "finished"


def test_start_that_is_given_up_is_stopped_once_it_is_up(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run = cluster(SLEEP)
    with monkeypatch.context() as patch, pytest.raises(Problem, match="did not start"):
        patch.setattr("disttui.runner.node.serve.runs.select", types.SimpleNamespace(select=lambda *_: ([], [], [])))
        run.start()
    assert run.stop(now=True)["stopped"]
    assert run.exit(0)["state"] == "stopped"


def test_start_that_was_killed_is_settled_later(cluster: Make) -> None:
    run = cluster(SLEEP)
    folder = Path(run.folder(0))
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    journal.write_json(str(folder / "spec.json"), run.spec(0))
    assert runs.status(str(folder))["exit"] is None, "its supervisor may still come up"
    os.utime(folder / "spec.json", (0, 0))
    end: Any = runs.status(str(folder))["exit"]
    assert (end["state"], end["cause"]["message"]) == ("failed", "its supervisor never started")


def test_what_survives_a_kill_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    own = procs.read(os.getpid())
    assert own
    monkeypatch.setattr(procs, "read", lambda _: own._replace(state="D"))
    assert "state D" in stop._why_left(os.getpid())
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert stop._why_left(os.getpid()) == f"it belongs to {user_name(Path('/proc/self').stat().st_uid)}"


@pytest.mark.parametrize(
    ("other", "age", "alive"),
    [({"hostname": "gpu01", "boot_id": "another"}, 30, True),
     ({"hostname": "gpu01", "boot_id": "another"}, 120, False),
     ({"pid_namespace": "pid:[1]"}, 30, True),
     ({"hostname": os.uname().nodename, "boot_id": "another"}, 1, False)],
    ids=["another machine", "silent machine", "another container", "rebooted"],
)  # fmt: skip
def test_a_run_on_a_machine_with_the_same_disk_is_alive(
    tmp_path: Path, other: dict[str, str], age: float, alive: bool
) -> None:
    folder = tmp_path / "t-0123456789abcdef" / "0"
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    queue = {"round": 0, "order": 1.0, "lasts": True}
    spec = {"run": "t-0123456789abcdef", "node_rank": 0, "queue": queue, "target": {"kind": "script"}}
    journal.write_json(str(folder / "spec.json"), spec)
    who = {**procs.identity(os.getpid()), "hostname": os.uname().nodename, "pid": 2**22, **other}
    journal.write_json(str(folder / "supervisor.json"), who)
    os.utime(folder / "supervisor.json", (time.time() - age,) * 2)
    if procs.elsewhere(who):  # after a reboot, it would be started
        assert runs.queue_again(str(tmp_path), "t-0123456789abcdef", "none", None) is alive
    found = runs.status(str(folder))
    assert (found["alive"], found["exit"] is None) == (alive, alive)


def test_run_that_ends_during_a_status_call_keeps_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer that finds no process alive looks for exit.json after that, not before."""
    looks: list[Callable[[str], Any]] = [
        lambda folder: (runs.status(folder)["exit"] or {}).get("state"),
        lambda folder: listing.list_runs(str(Path(folder).parents[1]), None)[0]["state"],
    ]
    for number, look in enumerate(looks):
        folder = tmp_path / f"runs-{number}" / "t-1" / "0"
        folder.mkdir(parents=True, mode=0o700)
        folder.parent.chmod(0o700)
        journal.write_json(str(folder / "spec.json"), {"run": "t-1", "node_rank": 0})
        journal.write_json(str(folder / "supervisor.json"), {"pid": 1, "boot_id": procs.boot_id()})

        def ends(_up: object, folder: Path = folder) -> bool:
            journal.write_json(str(folder / "exit.json"), {"state": "finished", "code": 0})
            return False

        monkeypatch.setattr(procs, "alive", ends)
        assert look(str(folder)) == "finished"


@pytest.mark.parametrize("who", ["supervisor", "warden"])
def test_term_of_the_machine_is_a_stop(cluster: Make, who: str) -> None:
    run = cluster(SLEEP).start().wait_ranks()
    up = run.supervisor(0)
    os.kill((up if who == "supervisor" else up["warden"])["pid"], signal.SIGTERM)
    assert run.exit(0)["state"] == "stopped"
    assert run.events(0, "stopping")[0]["reason"] == "signal"


def test_an_unchanged_script_resumes_by_its_own_arguments(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    job = """
seen = json.dumps([sys.argv[1:], os.environ.get("DISTTUI_RESUME")])
open(os.environ["DISTTUI_DIR"] + "/seen", "w").write(seen)
step(attempt)
if attempt == 1:
    time.sleep(1)  # the step is seen
    raise ValueError("once")
"""
    monkeypatch.setenv("DISTTUI_RESUME", "1")  # of a shell inside another run
    run = cluster(job, launch={"restarts": 1, "resume_args": ["--init_from=resume"]})
    run.changes["target"] = {**run.spec(0)["target"], "args": ["--lr", "1"]}
    run.start()
    assert run.exit(0)["state"] == "finished"
    seen = [json.loads(run.path(0, f"attempt-{attempt}/seen").read_text()) for attempt in (1, 2)]
    assert seen == [[["--lr", "1"], None], [["--lr", "1", "--init_from=resume"], "1"]]


def test_snapshots_that_differ_between_hosts_are_reported(cluster: Make) -> None:
    job = """
snapshot = os.path.join(os.path.dirname(os.environ["DISTTUI_CHECKPOINTS"]), "snapshot")
begin = int(open(snapshot).read()) if os.path.exists(snapshot) else 0
for n in range(begin, begin + 3):
    step(n)
    time.sleep(1)
if attempt == 1:
    if rank == 0:
        open(snapshot, "w").write("80")
    else:
        time.sleep(1)
        raise ValueError("once")
"""
    run = cluster(job + SLEEP, nproc=[1, 1], launch={"restarts": 1}).start()

    def seen() -> list[str]:
        return [note["text"] for note in run.events(0, "note") if "same point" in note["text"]]

    wait_for(seen, "the warning")
    assert "attempt 2 begins with step 80 on rank 0 and step 0 on rank 1." in seen()[0]


def test_restart_recovers(cluster: Make) -> None:
    job = """
step(attempt)
if attempt == 1:
    time.sleep(0.5)
    raise ValueError("once")
assert os.environ["DISTTUI_RESUME"] == "1"
"""
    run = cluster(job, launch={"restarts": 1}).start()
    end = run.exit(0)
    assert (end["state"], end["attempt"]) == ("finished", 2)
    assert [e["attempt"] for e in run.events(0, "attempt")] == [1, 2]
    [failed] = run.events(0, "failed")
    assert (failed["attempt"], failed["cause"]["message"], failed["cause"]["rank"]) == (1, "once", 0)
    first, second = run.events(0, "attempt")
    assert first["port"] != second["port"]


def test_no_restart_before_anything_shows_that_it_trains(cluster: Make) -> None:
    run = cluster("raise ValueError('never')", launch={"restarts": 3}).start()
    assert run.exit(0)["attempt"] == 1
    [text] = [note["text"] for note in run.events(0, "note")]
    assert re.fullmatch(
        r"no further attempt: this attempt ended \d+ s after its start, without any sign of training", text
    )


_KILLED = """
if attempt == 1:
    while not os.path.exists("enough"):
        print("saving")
        time.sleep(0.5)
    import signal
    os.kill(os.getpid(), signal.SIGKILL)
"""
_GROUPED = """
report = {"t": time.time(), "rank": rank, "local_rank": 0, "pid": os.getpid(), "e": "group", "world_size": 1}
with open(os.path.join(os.environ["DISTTUI_DIR"], "ranks.jsonl"), "a") as f:
    f.write(json.dumps({**report, "backend": "gloo"}) + "\\n")
"""


def seconds_of_growth(run: Cluster) -> int:
    """In how many seconds the supervisor has seen the first attempt's log grow."""
    path = run.path(0, "attempt-1/growth.jsonl")
    return len({int(json.loads(line)["t"]) for line in path.read_text().splitlines()}) if path.exists() else 0


def test_killed_script_without_metrics_gets_its_next_attempt(cluster: Make) -> None:
    """Without a single metric: its log has grown for some seconds, and so it has begun."""
    run = cluster(_KILLED, launch={"restarts": 1}).start()
    wait_for(lambda: seconds_of_growth(run) > 4, "a log that has grown for some seconds")
    (run.base / "enough").touch()
    end = run.exit(0)
    assert (end["state"], end["attempt"]) == ("finished", 2)


def test_killed_script_without_output_gets_its_next_attempt(cluster: Make) -> None:
    """Its process group was up for some seconds."""
    run = cluster(_GROUPED + _KILLED.replace('print("saving")', "pass"), launch={"restarts": 1}).start()
    at = run.wait_event(0, "group")["t"]
    wait_for(lambda: time.time() > at + 7, "a group that is up for some seconds, even on a machine that stalls")
    (run.base / "enough").touch()
    end = run.exit(0)
    assert (end["state"], end["attempt"]) == ("finished", 2)


def test_no_third_attempt_with_the_same_error_at_the_same_step(cluster: Make) -> None:
    run = cluster("step(7); time.sleep(0.5); raise ValueError('again')", launch={"restarts": 5}).start()
    end = run.exit(0)
    assert (end["state"], end["attempt"], end["cause"]["message"]) == ("failed", 2, "again")
    text = "two attempts in a row ended with the same ValueError at step 7 of the log, and saved nothing"
    assert f"no further attempt: {text}" in [note["text"] for note in run.events(0, "note")]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(
            "os.makedirs('out', exist_ok=True); open('out/last.pt', 'w').write(str(attempt))\nraise OSError(5)"
        ),
        pytest.param("import signal; os.kill(os.getpid(), signal.SIGKILL)"),
    ],
    ids=["it saves", "it is killed"],
)
def test_a_script_that_logs_seldom_gets_all_its_attempts(cluster: Make, end: str) -> None:
    """The last step that is known is the same each time, which does not mean that it came no further."""
    run = cluster(f"step(0); time.sleep(0.5)\n{end}", launch={"restarts": 3}).start()
    assert run.exit(0)["attempt"] == 4
    assert not [note for note in run.events(0, "note") if "no further attempt" in note["text"]]


def test_taken_ports_are_skipped_within_the_same_attempt(cluster: Make) -> None:
    run = cluster("step(1)")
    first = run.spec(0)["launch"]["ports"][0]
    run.changes["env"] = {"STUB_TAKEN": f"{first},{first + 1}"}
    run.start()
    assert run.exit(0)["state"] == "finished"
    seen = run.events(0, "attempt")
    assert [one["attempt"] for one in seen] == [1, 1, 1]
    assert len({one["port"] for one in seen}) == 3


@pytest.mark.parametrize(
    ("job", "code", "said"),
    [
        ("sys.exit('no data in /data/train')", 1, "no data in /data/train"),
        (
            "import argparse; argparse.ArgumentParser('train.py').parse_args(['--nope'])",
            2,
            "train.py: error: unrecognized arguments: --nope",
        ),
    ],
    ids=["sys.exit", "argparse"],
)
def test_an_end_without_a_traceback_has_its_reason(cluster: Make, job: str, code: int, said: str) -> None:
    run = cluster(job).start()
    cause = run.exit(0)["cause"]
    assert (cause["kind"], cause["code"]) == ("exit", code)
    assert cause["message"] == f"ended with exit code {code}: {said}"
    assert run.events(0, "death")[0]["said"] == said
    state = begin(run.run, ("host0",), (1,))
    for event in run.events(0):
        state = fold(state, 0, "events.jsonl", event)
    assert attempt_words(state, 1) == f"rank 0 on host0 ended with exit code {code}: {said}"


def test_a_module_that_is_not_there_is_named(cluster: Make) -> None:
    run = cluster("", target={"kind": "module", "value": "nosuch.train", "args": []}).start()
    assert "No module named 'nosuch'" in run.exit(0)["cause"]["message"]


def test_a_command_at_home_is_found_there(cluster: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.sh").write_text("#!/bin/sh\necho it runs\n")
    (tmp_path / "own.sh").chmod(0o755)
    run = cluster("", target={"kind": "command", "value": "~/own.sh", "args": []}).start()
    assert run.exit(0)["state"] == "finished"


def test_a_command_that_is_not_there_is_named(cluster: Make) -> None:
    run = cluster("", target={"kind": "command", "value": "nosuch-launcher", "args": []}).start()
    message = run.exit(0)["cause"]["message"]
    assert message == "ended with exit code 127: disttui: nosuch-launcher: No such file or directory"


def test_kill_after_the_grace_is_reported_as_ours(cluster: Make) -> None:
    job = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('armed', 'x').close()\n" + SLEEP
    run = cluster(job, launch={"grace": 2}).start()
    wait_for((run.base / "armed").exists, "a rank that is deaf to TERM")
    run.stop()
    assert run.exit(0)["state"] == "stopped"
    [death] = run.events(0, "death")
    assert (death["code"], death["grace"]) == (-9, 2)
    assert death_words(decode(Death, death)) == "was killed by disttui: it did not end within 2 s (launch.grace)"


def test_foreign_kill_is_not_reported_as_ours(cluster: Make) -> None:
    run = cluster(SLEEP).start().wait_ranks()
    os.kill(run.events(0, "rank")[0]["pid"], signal.SIGKILL)
    run.exit(0)
    assert "grace" not in run.events(0, "death")[0]
