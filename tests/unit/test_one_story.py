"""A run's end is the same for every command, whatever is known of its hosts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api.diagnosing import Diagnosed, diagnose
from disttui.runner.api.ending import stop
from disttui.runner.api.following import attach, replay
from disttui.runner.api.listing import refresh
from disttui.runner.cli.render.run_story import render_run
from disttui.runner.cli.render.runs import render_runs
from disttui.runner.formatting import code_words
from disttui.runner.ids import short
from disttui.runner.protocol.files import Exit
from disttui.runner.render.diagnosis import diagnosis_data, diagnosis_text
from disttui.runner.render.stopping import stopped_lines
from disttui.runner.runs import following
from disttui.runner.runs.condition import run_word
from disttui.runner.runs.registry import KnownHost, KnownRun, keep
from disttui.runner.runs.state import outcome
from disttui.runner.runs.summary import cause_text
from disttui.tui.home.rows import details
from disttui.tui.inventory import read_inventory
from tests.unit.history_kit import command, environ, kept, lines, mirrored, profile
from tests.unit.liar_kit import liar, lied, viewer

LOST: Exit = {"state": "failed", "code": 1, "cause": {"kind": "host lost", "node": 1}}
FINISHED: Exit = {"state": "finished", "code": 0}
FAILED: Exit = {"state": "failed", "code": 1}
STOPPED: Exit = {"state": "stopped", "code": 130}


@pytest.mark.parametrize(
    ("ends", "state"),
    [
        ({}, None),
        ({0: FINISHED}, "finished"),
        ({0: STOPPED}, "stopped"),
        ({1: FAILED}, "failed"),
        ({1: STOPPED}, None),
        ({1: STOPPED, 2: STOPPED}, None),
        ({0: LOST, 2: STOPPED}, "stopped"),
        ({0: LOST, 1: {"state": "lost", "code": 1}}, "failed"),
        ({0: FAILED, 1: STOPPED}, "failed"),
    ],
)
def test_a_run_has_one_outcome(ends: dict[int, Exit], state: str | None) -> None:
    end = outcome(ends, 3)
    assert (end.get("state") if end else None) == state


def told(folder: Path, run: KnownRun) -> set[str]:
    """What the commands say that ask no host."""
    [row] = json.loads(command(folder, "ps", "--local", "--json").stdout)
    shown = json.loads(command(folder, "runs", "show", "--local", "--json", run.run).stdout)
    return {row["state"], shown["state"], str(run.summary()["state"])}


def away(name: str) -> KnownHost:
    """A host that refuses connections."""
    return KnownHost(name, "127.0.0.1", "root", 1)


STORED = [None, FINISHED, FAILED, LOST, STOPPED]


@pytest.mark.parametrize(("first", "second"), list(product(STORED, STORED)))
@pytest.mark.parametrize("noted", [False, True], ids=["mirrored", "noted"])
def test_list_and_story_of_stored_ends_agree(
    tmp_path: Path, first: Exit | None, second: Exit | None, noted: bool
) -> None:
    made = kept(tmp_path)
    spec = {"disttui": 1, "run": made.run, "node_rank": 0, "hosts": ["a", "b"], "nproc": [1, 2]}
    events = lines({"t": 9, "e": "supervisor"}, {"t": 10, "e": "launch", "attempt": 1})
    mirrored(made, 0, {"spec.json": json.dumps(spec), "events.jsonl": events})
    for node, end in enumerate((first, second)):
        if end and noted:
            made.note_ends({node: end})
        elif end:
            files: dict[str, str | bytes] = {"exit.json": json.dumps(end)}
            before: dict[str, str | bytes] = (
                {"spec.json": json.dumps(spec), "events.jsonl": events} if node == 0 else {}
            )
            mirrored(made, node, before | files)
    result = replay(viewer(tmp_path), made, local=True).state.result
    state = made.summary()["state"]
    assert state == (result.get("state") if result else "stopping" if STOPPED in (first, second) else "starting")


def test_aborted_start_is_reported_as_failed_not_stopped(tmp_path: Path) -> None:
    """The hosts that had started it were stopped: that is not how it ended."""
    made = kept(tmp_path, problem="b: the host refuses the login")
    mirrored(made, 0, {"exit.json": json.dumps(STOPPED)})
    assert told(tmp_path, made) == {"failed"}
    shown = command(tmp_path, "runs", "show", "--local", made.run).stdout
    assert "could not be started: b: the host refuses the login" in shown and "stopped" not in shown


def test_what_a_stop_has_learned_is_known_at_once(tmp_path: Path) -> None:
    """In a fresh home: nothing of the run has been mirrored. A second stop says the same of the same host."""
    end = {"t": 1.0, "state": "stopped", "code": 130, "attempt": 1, "left": [], "unconfirmed": [1, 2]}
    body = f"""
    if op == "stop":
        yield {{"ok": {{"stopped": not os.path.exists("{tmp_path}/over"), "state": "stopping"}}}}
        open("{tmp_path}/over", "w").close()
    yield {{"ok": {{"alive": False, "pid": None, "exit": {end!r}, "waits": None}}}}
    """
    run = lied(tmp_path, liar(tmp_path, "n25", body), away("n26"), liar(tmp_path, "n27", body))
    done = stop(viewer(tmp_path), run)
    assert stopped_lines(done)[0] == "lied-1a2b stopped on n25, n27"
    assert done.unconfirmed == ("n26",) and not done.complete
    assert told(tmp_path, run) == {"stopped"}
    assert run.summary()["note"] == "n26 has not confirmed the stop"
    assert "\nn26 has not confirmed the stop\n" in command(tmp_path, "runs", "show", "--local", run.run).stdout
    shown = json.loads(command(tmp_path, "runs", "show", "--local", "--json", run.run).stdout)
    assert shown["unconfirmed"] == ["n26"]
    again = stop(viewer(tmp_path), run)
    assert again.before and again.unconfirmed == ("n26",) and not again.complete
    assert stopped_lines(again)[0].startswith("lied-1a2b has already stopped at ")


def test_a_host_that_the_leader_heard_has_confirmed(tmp_path: Path) -> None:
    end: dict[str, Any] = {"t": 1.0, "state": "stopped", "code": 130, "attempt": 1, "left": [], "unconfirmed": []}
    body = f"""
    if op == "stop":
        yield {{"ok": {{"stopped": True, "state": "stopping"}}}}
    yield {{"ok": {{"alive": False, "pid": None, "exit": {end!r}, "waits": None}}}}
    """
    run = lied(tmp_path, liar(tmp_path, "n1", body), away("n2"))
    assert stop(viewer(tmp_path), run).complete
    assert run.summary()["note"] == ""


def test_lists_say_how_far_a_stopped_run_has_come(tmp_path: Path) -> None:
    """`ps` said "step 73" for good, `runs show` "step 394"."""
    end: dict[str, Any] = {"t": 1.0, "state": "stopped", "code": 130, "attempt": 1, "left": [], "unconfirmed": []}
    body = f"""
    if op == "stop":
        yield {{"ok": {{"stopped": True, "state": "stopping"}}}}
    if op == "list":
        runs = [{{"run": request["run"], "node_rank": node, "step": 394 + node}} for node in (1, 0)]
        yield {{"ok": {{"runs": runs}}}}
    yield {{"ok": {{"alive": False, "pid": None, "exit": {end!r}, "waits": None}}}}
    """
    run = lied(tmp_path, liar(tmp_path, "n1", body), away("n2"))
    run.note_seen({"run": run.run, "node_rank": 0, "step": 73})
    assert stop(viewer(tmp_path), run).complete
    [row] = json.loads(command(tmp_path, "ps", "--local", "--json").stdout)
    assert (row["state"], row["step"]) == ("stopped", 394)


def test_a_stop_of_a_run_that_ended_needs_no_host(tmp_path: Path) -> None:
    run = lied(tmp_path, away("n1"), away("n2"))
    for node in (0, 1):
        mirrored(run, node, {"exit.json": json.dumps({**FINISHED, "t": 1.0})})
    done = stop(viewer(tmp_path), run)
    assert done.complete and stopped_lines(done)[0].startswith("lied-1a2b has already finished at ")


def test_a_sandbox_run_whose_hosts_answer_has_no_warning(tmp_path: Path) -> None:
    body = """
    if op == "list":
        yield {"ok": {"runs": [{"run": "lied-1a2b", "node_rank": 0, "step": 1}]}}
    """
    run = replace(lied(tmp_path, liar(tmp_path, "n1", body)), sandbox=True)
    assert refresh(viewer(tmp_path), [run]) == {}


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ({"kind": "exception", "type": "ValueError", "message": "no such token"}, "rank 1: ValueError: no such token"),
        ({"kind": "exit", "code": 3, "message": ""}, "rank 1 ended with exit code 3"),
        ({"kind": "exit", "code": 3, "message": "ended with exit code 3"}, "rank 1 ended with exit code 3"),
        ({"kind": "signal", "code": -9, "message": "x"}, f"rank 1 ended with {code_words(-9)}: x"),
        (
            {"kind": "signal", "code": -11, "type": "SIGSEGV", "message": "killed by SIGSEGV: in f (a.py:1)"},
            f"rank 1 ended with {code_words(-11)}: in f (a.py:1)",
        ),
        ({"kind": "host lost", "rank": None, "node": 1}, "host lost: b"),
        ({"kind": "join", "rank": None, "message": "b did not join"}, "b did not join"),
    ],
)
def test_lists_say_in_words_why_a_run_failed(cause: dict[str, Any], words: str) -> None:
    assert cause_text({"hosts": ["a", "b"], "cause": {"node": 0, "rank": 1, **cause}}) == words


def test_lists_say_why_a_run_is_lost(tmp_path: Path) -> None:
    died = "its supervisors died unexpectedly"
    assert [cause_text({"state": "lost", "note": note}) for note in ("", "sandbox")] == [died, died]
    assert cause_text({"state": "lost", "note": "its sandbox has ended"}) == "its sandbox has ended"
    run = lied(tmp_path, away("n1"), away("n2"))
    run.note_removed([0, 1])
    [row] = json.loads(command(tmp_path, "ps", "--local", "--json").stdout)
    [shown] = read_inventory({"XDG_DATA_HOME": str(tmp_path)}, run.started).runs
    assert row["explain"]["cause"] == shown.cause == "its run folder on n1, n2 was removed"


def test_a_run_started_when_its_viewer_says_so(tmp_path: Path) -> None:
    """`ps` and `runs show` gave moments that differed by milliseconds."""
    run = kept(tmp_path)
    mirrored(run, 0, {"spec.json": json.dumps({"disttui": 1, "run": run.run, "node_rank": 0, "started": 5.0})})
    assert run.summary()["started"] == run.started
    [row] = json.loads(command(tmp_path, "ps", "--local", "--json").stdout)
    shown = json.loads(command(tmp_path, "runs", "show", "--local", "--json", run.run).stdout)
    assert row["started"] == shown["started"]


def test_step_is_shown_although_the_last_step_is_unknown(tmp_path: Path) -> None:
    """`ps` had it, `runs show` and the first line of `attach` had not."""
    run = kept(tmp_path)
    mirrored(run, 0, {
        "spec.json": json.dumps({"disttui": 1, "run": run.run, "node_rank": 0, "started": 5.0}),
        "events.jsonl": lines({"t": 10, "e": "launch", "attempt": 1}),
        "attempt-1/rank-0.metrics.jsonl": lines({"t": 11.0, "step": 1240, "loss": 0.09853}),
        "exit.json": json.dumps({**FINISHED, "t": 12.0}),
    })  # fmt: skip
    mirrored(run, 1, {"exit.json": json.dumps({**FINISHED, "t": 12.0})})
    listed = command(tmp_path, "ps", "--local").stdout
    assert "1,240" in listed and "0.09853" in listed
    assert ", step 1,240, loss 0.09853" in command(tmp_path, "runs", "show", "--local", run.run).stdout
    assert ", step 1,240, loss 0.09853" in command(tmp_path, "attach", run.run).stderr


def test_a_run_removed_on_its_hosts_is_lost_for_every_command(tmp_path: Path) -> None:
    """`runs show` and `diagnose` said that it is running; diagnose printed "[Errno 2]" as well."""
    body = """
    if op == "list":
        yield {"ok": {"runs": []}}
    if op == "mirror":
        yield {"event": {"caught_up": True}}
        yield {"ok": {}}
    if op == "stacks":
        yield {"error": {"what": "[Errno 2] No such file or directory: '/x'", "cure": ""}}
    """
    run = lied(tmp_path, liar(tmp_path, "n1", body), liar(tmp_path, "n2", body))
    run.note_seen(RUNNING)
    words = "✗ lied-1a2b is lost: its run folder on n1, n2 was removed"
    shown = command(tmp_path, "runs", "show", run.run)
    assert words in shown.stdout and ", lost\n" in shown.stdout
    assert json.loads(command(tmp_path, "runs", "show", "--json", run.run).stdout)["state"] == "lost"
    told = command(tmp_path, "diagnose", run.run)
    assert words in told.stdout and "Errno" not in told.stderr
    assert json.loads(command(tmp_path, "diagnose", "--json", run.run).stdout)["state"] == "lost"
    row, local = (json.loads(command(tmp_path, "ps", "--json", *more).stdout)[0] for more in ((), ("--local",)))
    assert row == local and (row["state"], row["note"]) == ("lost", "its run folder on n1, n2 was removed")


def test_a_run_lost_with_its_sandbox_is_lost_for_every_command(tmp_path: Path) -> None:
    """`diagnose` said that no rank has started yet, `attach` named each host instead of the run."""
    run = replace(kept(tmp_path), sandbox=True)
    run.save()
    mirrored(run, 0, {
        "events.jsonl": lines({"t": 10, "e": "launch", "attempt": 1}),
        "attempt-1/rank-0.log": "step 7\n",
    })  # fmt: skip
    words = f"✗ {short(run.run)} is lost: its sandbox has ended; its ranks were ended with it"
    for look in (("runs", "show"), ("diagnose",), ("wait",), ("attach",)):
        seen = command(tmp_path, *look, run.run)
        assert words in (seen.stderr if look == ("attach",) else seen.stdout).splitlines(), look
        assert seen.returncode == (look in (("wait",), ("attach",))), look
    assert command(tmp_path, "attach", run.run).stdout == "a:0 │ step 7\n"
    end = json.loads(command(tmp_path, "attach", "--json", run.run).stdout.splitlines()[-1])
    assert (end["type"], end["result"]["state"], end["result"]["code"]) == ("end", "lost", 1)
    explained = [
        json.loads(command(tmp_path, *look, "--json").stdout)["explain"]["cause"]
        for look in (("runs", "show", run.run), ("diagnose", run.run))
    ]
    [row] = json.loads(command(tmp_path, "ps", "--local", "--json").stdout)
    assert {*explained, row["explain"]["cause"], end["result"]["cause"]["message"]} == {"its sandbox has ended"}


def test_a_run_whose_supervisor_died_is_lost_for_every_command(tmp_path: Path) -> None:
    """`runs show` and `diagnose` said that it is running: the mirror was newer than what `ps` had been told."""
    body = """
    if op == "list":
        yield {"ok": {"runs": [{"run": "lied-1a2b", "node_rank": 0, "state": "lost", "alive": False}]}}
    if op == "mirror":
        yield {"event": {"caught_up": True}}
        yield {"ok": {}}
    if op == "stacks":
        yield {"ok": {"ranks": {"0": {"state": "ended", "note": "the process has ended"}}}}
    """
    run = lied(tmp_path, liar(tmp_path, "n1", body))
    mirrored(run, 0, {"events.jsonl": lines({"t": 10, "e": "launch", "attempt": 1})})
    cure = "disttui stop lied-1a2b ends any remaining processes"
    words = f"✗ lied-1a2b is lost: its supervisors died unexpectedly; {cure}"
    for look in (("runs", "show"), ("diagnose",), ("runs", "show", "--local")):
        assert words in command(tmp_path, *look, run.run).stdout.splitlines(), look
    told = command(tmp_path, "diagnose", run.run).stdout
    assert "rank 0 on n1 has ended" in told and "while it was running" not in told
    assert "✗ lost" in command(tmp_path, "ps", "--local").stdout and "✗ lost" in command(tmp_path, "ps").stdout


NO_RUN = """
    if op == "orphans":
        yield {"ok": {"found": []}}
    if op == "list":
        yield {"ok": {"runs": []}}
    if op == "mirror":
        yield {"event": {"caught_up": True}}
        yield {"ok": {}}
    yield {"error": {"what": "no run found at /x", "cure": "find it with disttui ps"}}
"""
RUNNING = {"run": "lied-1a2b", "node_rank": 0, "state": "running"}


def test_a_stop_of_a_run_removed_on_its_hosts_is_done(tmp_path: Path) -> None:
    run = lied(tmp_path, liar(tmp_path, "n1", NO_RUN), liar(tmp_path, "n2", NO_RUN))
    run.note_seen(RUNNING)
    stopped = command(tmp_path, "stop", run.run)
    assert stopped.returncode == 0 and "lied-1a2b is not running: nothing to stop" in stopped.stdout
    assert "n2: the run was removed there" in stopped.stdout
    assert run.summary()["state"] == "lost"


def test_a_run_that_is_still_starting_is_not_lost(tmp_path: Path) -> None:
    """While its code is being sent, no host has it: a stop must not report success, as the start continues."""
    run = lied(tmp_path, liar(tmp_path, "n1", NO_RUN), liar(tmp_path, "n2", NO_RUN))
    stopped = command(tmp_path, "stop", run.run)
    assert stopped.returncode == 3 and "no run found" in stopped.stderr
    for words in (["ps"], ["ps", "--local"], ["runs", "show"], ["diagnose"]):
        name = [] if words[0] == "ps" else [run.run]
        told = command(tmp_path, *words, "--json", *name)
        assert '"lost"' not in told.stdout and "gone" not in told.stdout, words
    assert run.summary()["state"] == "unknown"


def test_a_run_that_stands_still_is_stalled_for_every_command(tmp_path: Path) -> None:
    """`ps` and `diagnose` said that it is running, `wait` and the status line that it has stalled."""
    run = lied(tmp_path, away("n1"))
    stall = {"t": 3.0, "e": "stall", "attempt": 1, "since": 2.0, "pace": 1.0, "silent": {"0": 60.0}}
    begun = {"t": 2.0, "e": "attempt", "attempt": 1, "master": "m", "port": 1, "world_size": 1}
    spec = {"disttui": 1, "run": run.run, "node_rank": 0, "started": run.started}
    mirrored(run, 0, {"spec.json": json.dumps(spec), "events.jsonl": lines(begun, stall)})
    assert run.summary()["state"] == run_word(replay(viewer(tmp_path), run, local=True).state) == "stalled"
    assert read_inventory({"XDG_DATA_HOME": str(tmp_path)}, 3.0).runs[0].state == "stalled"
    for later in ({**stall, "over": True}, {**begun, "attempt": 2}):
        mirrored(run, 0, {"events.jsonl": lines(begun, stall, later)})
        assert run.summary()["state"] == run_word(replay(viewer(tmp_path), run, local=True).state) == "starting"


def test_a_run_starts_until_its_first_hosts_ranks_are_up(tmp_path: Path) -> None:
    """`ps` said that it is running, the dashboard and the status line that it is starting."""
    run = keep(profile(), [2, 1], "two-7f3a", environ(tmp_path))
    spec = {"disttui": 1, "run": run.run, "node_rank": 0, "started": run.started, "nproc": [2, 1]}
    files: dict[str, str | bytes] = {"spec.json": json.dumps(spec)}
    begun = {"t": 2.0, "e": "attempt", "attempt": 1, "master": "m", "port": 1, "world_size": 3}
    first, second = ({"t": 3.0, "e": "rank", "attempt": 1, "rank": rank, "pid": 9} for rank in (0, 1))
    group = {"t": 4.0, "e": "group", "attempt": 1, "rank": 1, "backend": "gloo"}
    again = {**begun, "attempt": 2}

    def word(*events: dict[str, Any], now: float = 4.0) -> str:
        mirrored(run, 0, {**files, "events.jsonl": lines(*events), "telemetry.jsonl": lines({"t": now})})
        state = str(run.summary()["state"])
        assert told(tmp_path, run) == {state} == {run_word(replay(viewer(tmp_path), run, local=True).state)}
        return state

    assert word({"t": 1.0, "e": "note", "text": "queued: a: bob's x holds GPU 0", "level": "info"}) == "queued"
    assert word(begun) == word(begun, first) == word(begun, first, second) == word(begun, first, group) == "starting"
    assert word(begun, first, {**first, "e": "group"}, second, group) == "running"
    assert word(begun, first, second, now=9.0) == "running"
    assert word(begun, first, second, again, now=9.0) == "starting"
    files["attempt-2/rank-1.metrics.jsonl"] = lines({"t": 3.0, "step": 7})
    assert word(begun, first, second, again) == "running"


STOPPING = {"t": 4.0, "e": "stopping", "attempt": 1, "reason": "user", "now": False}
AGAIN = {"t": 5.0, "e": "failed", "attempt": 1, "cause": {"kind": "host lost", "node": 1}}


@pytest.mark.parametrize(("events", "word"), [([STOPPING], "stopping"), ([STOPPING, AGAIN], "restarting")])
def test_every_command_shows_a_run_as_stopping_or_restarting(
    tmp_path: Path, events: list[dict[str, Any]], word: str
) -> None:
    """`runs show`, `diagnose`, `ps --local` and home said that it is running."""
    run = kept(tmp_path)
    run.note_seen({"run": run.run, "node_rank": 0, "state": "running", "attempt": 1, "step": 7})  # asked before
    begun = {"t": 2.0, "e": "attempt", "attempt": 1, "master": "m", "port": 1, "world_size": 3}
    spec = {"disttui": 1, "run": run.run, "node_rank": 0, "started": run.started}
    steps = lines({"t": 3.0, "step": 7})
    files = {"spec.json": json.dumps(spec), "attempt-1/rank-0.metrics.jsonl": steps}
    mirrored(run, 0, {**files, "events.jsonl": lines(begun, *events)})
    found = replay(viewer(tmp_path), run, local=True)
    assert told(tmp_path, run) == {word} == {run_word(found.state)}
    assert f", {word}" in render_run(run, found)[0]
    diagnosed = Diagnosed(run, found.state, (), asked=False, warnings=())
    assert diagnosis_text(diagnosed).startswith(f"two-7f3a is {word}: attempt 1\n")
    assert diagnosis_data(diagnosed)["state"] == word
    assert read_inventory({"XDG_DATA_HOME": str(tmp_path)}, run.started).runs[0].state == word
    mirrored(run, 0, {**files, "events.jsonl": lines(begun, *events, {**begun, "attempt": 2})})
    assert run.summary()["state"] == "starting"


def test_lists_show_the_cause_of_a_run_last_seen_running(tmp_path: Path) -> None:
    """At its last step. `ps --json` and home had no cause then, and "alive" was true."""
    run = kept(tmp_path)
    spec = {"disttui": 1, "run": run.run, "node_rank": 0, "started": run.started}
    mirrored(run, 0, {
        "spec.json": json.dumps(spec),
        "events.jsonl": lines({"t": 10, "e": "launch", "attempt": 1}),
        "attempt-1/rank-0.metrics.jsonl": lines({"t": 11.0, "step": 7}),
        "exit.json": json.dumps({**LOST, "t": 12.0}),
    })  # fmt: skip
    before = {"state": "running", "alive": True, "attempt": 1, "step": 7, "silent": 9.0, "hosts": ["a", "b"]}
    run.note_seen({"run": run.run, "node_rank": 0, **before})
    [row] = json.loads(command(tmp_path, "ps", "--local", "--json").stdout)
    assert (row["state"], row["alive"], row.get("silent")) == ("failed", False, None)
    assert row["explain"]["cause"] == "host lost: b"
    assert read_inventory({"XDG_DATA_HOME": str(tmp_path)}, 3.0).runs[0].cause == "host lost: b"


def test_lists_say_why_a_run_could_not_be_started(tmp_path: Path) -> None:
    run = kept(tmp_path, problem="b: the host refuses the login")
    [row] = json.loads(command(tmp_path, "ps", "--local", "--json").stdout)
    [shown] = read_inventory({"XDG_DATA_HOME": str(tmp_path)}, run.started).runs
    assert row["explain"]["cause"] == shown.cause == "b: the host refuses the login"
    marks = [point.mark.strip() for point in details(shown, 0.0, "")]
    assert "cause" in marks and "problem" not in marks


def test_a_run_that_a_host_has_again_is_not_lost(tmp_path: Path) -> None:
    run = lied(tmp_path, away("n1"), away("n2"))
    run.note_removed([0, 1])
    assert run.summary()["state"] == "lost"
    assert run.summary({0: {"run": run.run, "node_rank": 0, "state": "running"}})["state"] == "running"


@pytest.mark.parametrize("place", ["0", "0/attempt-1"])
def test_a_linked_mirror_hides_no_run(tmp_path: Path, place: str) -> None:
    """A link that leads out of one mirror, or a folder of root's, ended `ps` and crashed the app at every start."""
    other = lied(tmp_path, away("n1"), run="other-1a2b")
    run = lied(tmp_path, away("n1"))
    mirrored(run, 0, {"events.jsonl": "", "attempt-1/rank-0.metrics.jsonl": lines({"t": 2.0, "step": 40, "loss": 2.5})})
    shutil.move(run.folder / place, tmp_path / "away")
    (run.folder / place).symlink_to(tmp_path / "away")
    listed = command(tmp_path, "ps", "--local", "--json")
    assert {row["run"] for row in json.loads(listed.stdout)} == {run.run, other.run}, listed.stderr
    assert {row.run for row in read_inventory(environ(tmp_path), 0.0).runs} == {run.run, other.run}


def test_an_end_known_here_needs_no_unreachable_host(tmp_path: Path) -> None:
    """With only the leader off, its run was lost in lists, and unknown to `diagnose`, `attach` and `wait`."""
    run = lied(tmp_path, away("n1"), away("n2"))
    mirrored(run, 1, {"exit.json": json.dumps({**FAILED, "state": "lost", "t": 9.0, "attempt": 1})})
    assert run_word(diagnose(viewer(tmp_path), run).state) == str(run.summary()["state"]) == "lost"
    with attach(viewer(tmp_path), run) as session:
        assert list(session.unreached) == [0]


def test_attach_and_list_agree_on_the_end_a_host_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader had told a list how the run ended; for `attach` it was lost for another reason."""
    monkeypatch.setattr(following, "LINGER", 1000.0)  # nothing can come
    monkeypatch.setattr(following, "GIVE_UP_AFTER", 1000.0)
    run = lied(tmp_path, away("n1"), away("n2"))
    mirrored(run, 1, {"exit.json": json.dumps({**FAILED, "state": "lost", "t": 9.0, "attempt": 1})})
    run.note_ends({0: {**LOST, "t": 8.0, "attempt": 1}})
    with attach(viewer(tmp_path), run) as session:
        assert list(session)
    assert session.state.result == diagnose(viewer(tmp_path), run).state.result
    assert run_word(session.state) == str(run.summary()["state"]) == "failed"


def test_a_piped_list_of_runs_names_all_hosts(tmp_path: Path) -> None:
    names = [f"host{node}.long.example.org" for node in range(9)]
    row = {"run": "a-1a2b", "state": "running", "hosts": names, "note": "y" * 200}
    whole = render_runs([row], None)
    assert ", ".join(names) in whole and "y" * 200 in whole
    assert "and 6 mor…" in render_runs([row], 80)
