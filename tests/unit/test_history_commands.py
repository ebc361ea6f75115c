"""What commands tell of kept runs: spans of time and sizes, old runs, completion, tables."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api import listing
from disttui.runner.api.comparing import Comparison, Difference
from disttui.runner.api.log_lines import LineFilter
from disttui.runner.api.sweeping import Sweep, SweptRun, keep_sweep, sweeps_folder
from disttui.runner.api.viewer import Viewer
from disttui.runner.cli.ending import parse_size
from disttui.runner.cli.logs import parse_grep, parse_since
from disttui.runner.cli.options import duration
from disttui.runner.cli.render.run_story import render_comparison
from disttui.runner.errors import InputError
from disttui.runner.protocol.summary import summarize
from disttui.runner.runs.replay import MetricRecord, replay
from tests.command import disttui, ran
from tests.files import new_file
from tests.unit.history_kit import command, environ, kept, lines, mirrored, printed

FOREIGN = Path(__file__).parents[1] / "data" / "foreign"


def test_since_is_reported_by_the_growth_of_the_logs(tmp_path: Path) -> None:
    made = kept(tmp_path)
    ended = lines({"t": 12, "state": "finished", "code": 0})
    growth = lines({"t": 100.0, "sizes": {"0": 4}}, {"t": 200.0, "sizes": {"0": 8}}, {"t": 300.0, "sizes": {"0": 12}})
    mirrored(made, 0, {"attempt-1/rank-0.log": "one\ntwo\nsix\n", "attempt-1/growth.jsonl": growth, "exit.json": ended})
    mirrored(made, 1, {"attempt-1/rank-1.log": b"\x1b[31mred\x1b[0m\nrest", "exit.json": ended})
    assert printed(made, LineFilter(rank=0, since=150.0)) == "a:0 │ two\na:0 │ six\n"
    assert printed(made, LineFilter(rank=0, since=301.0)) == ""
    assert printed(made, LineFilter(host="b")) == "b:1 │ red\nb:1 │ rest\n"
    assert printed(made, LineFilter(grep=re.compile("^t|t$"))) == "a:0 │ two\nb:1 │ rest\n"
    with pytest.raises(InputError, match="ranks are 0 to 2"):
        printed(made, LineFilter(rank=3))
    with pytest.raises(InputError, match="It has a, b"):
        printed(made, LineFilter(host="c"))


def test_silent_rank_does_not_hide_lines_of_others(tmp_path: Path) -> None:
    """Its log was announced by the host, and no byte of it has come."""
    run = kept(tmp_path)
    for node in (0, 1):
        mirrored(run, node, {"exit.json": "{}", f"attempt-1/rank-{node}.log": "", "attempt-1/launcher.log": "ready\n"})
        (run.folder / f"{node}/attempt-1/rank-{node}.log").unlink()
    done = command(tmp_path, "logs", "two")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("ready") == 2


@pytest.mark.parametrize(
    ("seen", "shown"),
    [
        ({1: "stopped"}, ("stopping", "no answer from a")),
        ({1: "stopping"}, ("stopping", "no answer from a")),
        ({0: "stopped"}, ("stopped", "")),
        ({0: "stopping"}, ("stopping", "no answer from b")),
        ({0: "stopping", 1: "stopping"}, ("stopping", "")),
        ({1: "running"}, ("running", "")),
    ],
)
def test_ps_says_stopped_when_it_is_known_of_every_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: dict[int, str], shown: tuple[str, str]
) -> None:
    """The leader waits for all hosts before it says so; another host's word counts for itself alone."""
    made = kept(tmp_path)
    places = [listing.place_of_host(host) for host in made.hosts]
    ended: dict[str, dict[str, float]] = {"stopped": {"ended": 5.0}, "stopping": {}, "running": {}}

    def ask(*_: Any) -> Any:
        found = {
            (places[node], made.run_dir): [{"run": made.run, "node_rank": node, "state": state, **ended[state]}]
            for node, state in seen.items()
        }
        return found, {place: "cut off" for node, place in enumerate(places) if node not in seen}

    monkeypatch.setattr(listing, "_ask", ask)
    [row] = listing.list_runs(Viewer(environ(tmp_path))).rows
    assert (row["state"], row["note"]) == shown
    assert ("ended" in row) == (row["state"] == "stopped")
    # What is not known to have ended is asked for again the next time.
    assert bool(made.summary().get("ended")) == ("ended" in row)


def test_a_host_with_too_many_runs_to_list_is_not_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kept(tmp_path)
    places = [listing.place_of_host(host) for host in made.hosts]
    found = {
        (place, made.run_dir): [{"run": made.run, "node_rank": node, "state": "stopping"}]
        for node, place in enumerate(places)
    }
    monkeypatch.setattr(listing, "_ask", lambda *_: (found, dict.fromkeys(places, "there are too many runs")))
    [row] = listing.list_runs(Viewer(environ(tmp_path))).rows
    assert (row["state"], row["note"]) == ("stopping", "")


def test_ps_shows_no_step_of_the_attempt_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts have been asked in attempt 1, and this machine's copy is of then; attempt 2 has made no step yet."""
    made = kept(tmp_path)
    place = listing.place_of_host(made.hosts[0])
    spec = {"disttui": 1, "run": made.run, "node_rank": 0, "hosts": ["a", "b"], "nproc": [1, 2]}
    steps = lines(*({"t": 1.0, "step": n, "steps": 5000, "loss": 0.5} for n in range(90)))
    mirrored(made, 0, {"spec.json": json.dumps(spec), "events.jsonl": lines({"t": 10, "e": "launch", "attempt": 1}),
                       "attempt-1/rank-0.metrics.jsonl": steps})  # fmt: skip
    shown = []
    for figures in (
        {"attempt": 1, "step": 70, "steps": 5000, "loss": 0.6},
        {"attempt": 2},
        {"attempt": 2, "step": 3, "steps": 5000, "loss": 0.75},
    ):
        said = {"run": made.run, "node_rank": 0, "state": "running", **figures}
        monkeypatch.setattr(listing, "_ask", lambda *_, said=said: ({(place, made.run_dir): [said]}, {}))
        for local in (False, True):
            [row] = listing.list_runs(Viewer(environ(tmp_path)), local=local).rows
            shown.append((row.get("attempt"), row.get("step"), row.get("steps"), row.get("loss")))
    assert shown == [(1, 70, 5000, 0.6), (1, 89, 5000, 0.5), *[(2, None, None, None)] * 2, *[(2, 3, 5000, 0.75)] * 2]


@pytest.mark.parametrize("text", ["", "10", "m", "1.5y", "yesterday", "99999999999d", "2026-13-01"])
def test_bad_spans_of_time(text: str) -> None:
    with pytest.raises(InputError, match="--since"):
        parse_since(text)
    with pytest.raises(InputError, match="--older"):
        duration("--older", text)


def test_spans_and_sizes() -> None:
    before, since, after = time.time(), parse_since("10m"), time.time()
    assert before - 600 <= since <= after - 600
    assert (
        duration("--older", "30d") == 30 * 86400
        and duration("--older", "10m") == 600
        and parse_size("1.5GiB") == 3 << 29
        and parse_size("10GB") == 10 * 10**9
    )
    with pytest.raises(InputError, match="--over"):
        parse_size("10XB")
    with pytest.raises(InputError, match="--grep"):
        parse_grep("(")


def test_diff_of_long_values_shows_the_words_that_differ() -> None:
    same = " ".join(f"--option-{number} {number}" for number in range(40))
    path = "/data/" + "x" * 130
    pairs = {
        "job.args": (f"{same} --lr 3e-4 --seed 1", f"{same} --lr 1e-3 --seed 1 --fp16"),
        "job.workdir": (f"{path}/a", f"{path}/b"),
    }
    found = tuple(Difference("profile", key, *pair) for key, pair in pairs.items())
    assert list(render_comparison(Comparison(("a-0001", "a-0002"), found, (), ())))[3:6] == [
        "  job.args     --lr 3e-4 → 1e-3",
        "               nothing → --fp16",
        f"  job.workdir  …{'x' * 19}/a → …{'x' * 19}/b",
    ]


def test_size_of_a_run_is_what_du_says(tmp_path: Path) -> None:
    """Two hosts share a disk, the checkpoints lie beside their folders, and one has a second name."""
    run = tmp_path / "two-0001"
    for place in ("0/attempt-1", "1/attempt-1", "checkpoints/step-1"):
        new_file(run / place / "file", b"x" * 300_000)
    os.link(run / "checkpoints/step-1/file", run / "checkpoints/last")
    for node in "01":
        (run / node / "spec.json").write_text("{}")
    sizes = [int(str((summarize(str(run / node), lambda: False) or {})["size"])) for node in "01"]
    counted = ran(["du", "-s", "-B1", run], check=True).stdout
    assert sum(sizes) == int(counted.split()[0])


def test_gc_shows_before_it_removes(tmp_path: Path) -> None:
    old, new = kept(tmp_path, "two-0001", sandbox=True), kept(tmp_path, "two-0002", sandbox=True)
    for run, ended in ((old, time.time() - 40 * 86400), (new, time.time() - 60)):
        mirrored(run, 0, {"spec.json": json.dumps({"disttui": 1}), "attempt-1/rank-0.log": b"x" * 300_000,
                          "exit.json": lines({"t": ended, "state": "finished", "code": 0})})  # fmt: skip
    done = command(tmp_path, "runs", "gc")
    assert done.returncode == 0 and "two-0001" in done.stdout and "two-0002" not in done.stdout
    assert "nothing was removed" in done.stdout and old.folder.exists()
    assert command(tmp_path, "runs", "gc", "--over", "100MiB").stdout == "nothing to remove\n"
    done = command(tmp_path, "runs", "gc", "--over", "400KiB", "--yes")
    assert done.returncode == 0 and not old.folder.exists() and new.folder.exists()


@pytest.mark.parametrize("ended", [True, False])
def test_stop_of_a_run_that_ended_with_its_sandbox(tmp_path: Path, ended: bool) -> None:
    run = kept(tmp_path, "two-0001", sandbox=True)
    if ended:
        mirrored(run, 0, {"exit.json": lines({"t": 1.0, "state": "finished", "code": 0})})
    done = command(tmp_path, "stop", "two-0001")
    assert (done.returncode, done.stderr) == (0, "")
    assert ("has already finished" if ended else "two-0001 is not running: nothing to stop") in done.stdout


def test_gc_keeps_checkpoints_that_a_run_may_still_load(tmp_path: Path) -> None:
    old = kept(tmp_path, "two-0001", sandbox=True)
    end = lines({"t": time.time() - 40 * 86400, "state": "finished", "code": 0})
    mirrored(old, 0, {"spec.json": json.dumps({"disttui": 1}), "exit.json": end})
    later = kept(tmp_path, "two-0002", resume_from="~/.disttui/runs/two-0001/checkpoints")
    later.failed("box2 was not reached")
    assert "two-0001" in command(tmp_path, "runs", "gc").stdout
    kept(tmp_path, "two-0003", resume_from="~/.disttui/runs/two-0001/checkpoints/step-7")
    kept_back = command(tmp_path, "runs", "gc", "--yes")
    assert "two-0001" not in kept_back.stdout
    assert "two-0001: not removed: two-0003 continues from its checkpoints" in kept_back.stderr
    done = command(tmp_path, "runs", "forget", "two-0001", "--yes")
    assert done.returncode == 2 and "two-0003 continues from the checkpoints of two-0001" in done.stderr
    assert old.folder.exists()


def test_gc_removes_sweeps_that_ended_and_have_no_run_left(tmp_path: Path) -> None:
    run = kept(tmp_path, "two-0001", sandbox=True)
    ended = time.time() - 40 * 86400
    end = lines({"t": ended, "state": "finished", "code": 0})
    mirrored(run, 0, {"spec.json": json.dumps({"disttui": 1}), "exit.json": end})
    kinds = {
        "left": Sweep("left", (SweptRun("two-0001", {}),)),
        "gone": Sweep("gone", (SweptRun("gone-0001", {}),)),
        "new": Sweep("new", (SweptRun("gone-0001", {}),)),
    }
    folder = sweeps_folder(environ(tmp_path))
    for name, sweep in kinds.items():
        keep_sweep(environ(tmp_path), sweep)
        (folder / f"{name}.journal").touch()
        os.utime(folder / f"{name}.json", (ended, ended) if name != "new" else None)
    asked = command(tmp_path, "runs", "gc", "--older", "50d")
    assert asked.stdout == "nothing to remove\n"
    asked = command(tmp_path, "runs", "gc")
    assert "  left: a sweep without runs; its table is removed as well" in asked.stdout
    assert len([*folder.iterdir()]) == 6
    done_ = command(tmp_path, "runs", "gc", "--yes")
    assert done_.returncode == 0 and "gone: removed\nleft: removed\n" in done_.stdout, done_
    assert {path.stem for path in folder.iterdir()} == {"new"}


def test_run_ids_complete(tmp_path: Path) -> None:
    kept(tmp_path, "two-7f3a")
    kept(tmp_path, "other-1")
    env = {"_DISTTUI_COMPLETE": "bash_complete", "COMP_WORDS": "disttui attach t", "COMP_CWORD": "2"}
    done = disttui(env={**os.environ, **environ(tmp_path), **env})
    assert done.stdout == "plain,two-7f3a\n"


def test_a_log_is_tried_without_any_run(tmp_path: Path) -> None:
    log = new_file(tmp_path / "train.log", b"hello\n\nstep 1 loss 0.5\rstep 2 loss 0.25\n\xff\xfe" + b"x" * 3000000)
    tried = command(tmp_path, "runs", "metrics", "--try", str(log), "--json")
    assert [json.loads(line) for line in tried.stdout.splitlines()] == [
        {"line": 3, "record": {"step": 1, "loss": 0.5}},
        {"line": 3, "record": {"step": 2, "loss": 0.25}},
    ]
    tried = command(tmp_path, "runs", "metrics", "--try", str(log), "--pattern", r"loss (?P<train_error>\S+)")
    assert "train_error 0.25" in tried.stdout
    assert "2 lines of 3 with metrics" in tried.stdout
    for wrong in (["--pattern", "("], ["run"], ["--csv"]):
        refused = command(tmp_path, "runs", "metrics", "--try", str(log), *wrong)
        assert refused.returncode == 2
        assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("events.out.tfevents.1795323783.node1.1.0", "5 samples with metrics: step (5), loss (5), lr (5), "),
        ("run.wandb", "6 samples with metrics: step (6), loss (6), "),
        ("metrics.csv", "22 samples with metrics: step (22), epoch (22), loss (20), val_loss (2)"),
    ],
)
def test_a_file_of_metrics_is_tried_without_any_run(tmp_path: Path, name: str, words: str) -> None:
    path = FOREIGN / name
    assert words in command(tmp_path, "runs", "metrics", "--try", str(path)).stdout
    tried = command(tmp_path, "runs", "metrics", "--try", str(path), "--json")
    first = json.loads(tried.stdout.splitlines()[0])
    assert first["sample"] == 1 and 0.8 < first["record"]["loss"] <= 2.5
    assert command(tmp_path, "runs", "metrics", "--try", str(path), "--pattern", "(?P<x>1)").returncode == 2
    damaged = new_file(tmp_path / name, path.read_bytes()[:900] + b"\0" * 20_000)
    refused = command(tmp_path, "runs", "metrics", "--try", str(damaged))
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert f"{name}: a " in refused.stderr and "before this can be read" in refused.stderr


def test_metrics_as_a_table_is_no_trap_for_spreadsheets(tmp_path: Path) -> None:
    made = kept(tmp_path)
    ended = lines({"t": 12, "state": "finished", "code": 0})
    record = {"t": 1.0, "step": 1, "sample": "=HYPERLINK(1)\n\x1b[2J", "loss": "nan", "delta": -3}
    mirrored(made, 0, {"attempt-1/rank-0.metrics.jsonl": lines(record), "exit.json": ended})
    mirrored(made, 1, {"exit.json": ended})
    done = command(tmp_path, "runs", "metrics", "two", "--csv")
    assert done.stdout == "host,attempt,rank,t,step,sample,loss,delta\na,1,0,1.0,1,'=HYPERLINK(1) ,nan,-3\n"
    assert json.loads(command(tmp_path, "runs", "metrics", "two").stdout)["delta"] == -3


def test_metrics_of_a_replay_are_typed_records_and_a_table(tmp_path: Path) -> None:
    made = kept(tmp_path)
    ended = lines({"t": 12, "state": "finished", "code": 0})
    record = {"t": 1.0, "step": 1, "loss": 0.5, "rank": 7}
    mirrored(made, 0, {"attempt-1/rank-0.metrics.jsonl": lines(record), "exit.json": ended})
    mirrored(made, 1, {"exit.json": ended})
    found = replay(made, made.folder)
    assert found.metrics == (MetricRecord("a", 1, 0, record),)
    assert found.table() == [{"host": "a", "attempt": 1, "rank": 0, "t": 1.0, "step": 1, "loss": 0.5}]


def test_ps_fails_for_a_host_that_cannot_be_asked(tmp_path: Path) -> None:
    kept(tmp_path, problem="it could not be started")
    done = command(tmp_path, "ps", "--host", "root@127.0.0.1:1")
    assert done.returncode == 3 and "127.0.0.1" in done.stderr and done.stdout == "no runs match\n"
    assert command(tmp_path, "ps", "--host", "local").returncode == 0
    done = command(tmp_path, "ps", "--local", "--host", "local")
    assert done.returncode == 2 and "--local and --host" in done.stderr
