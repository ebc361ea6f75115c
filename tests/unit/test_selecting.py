"""Runs selected by ids, sweeps, groups and filters; several stopped with one connection for each host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disttui.runner.api import listing
from disttui.runner.api.ending import StopResult, stop_runs
from disttui.runner.api.finding import find_run, select_runs
from disttui.runner.api.sweeping import Sweep, SweptRun, keep_sweep
from disttui.runner.api.viewer import Viewer
from disttui.runner.cli.render.runs import render_runs
from disttui.runner.errors import InputError
from disttui.runner.node.leases import new_text
from disttui.runner.runs.registry import whoami
from tests.unit.history_kit import command, environ, kept
from tests.unit.liar_kit import liar, lied, viewer


def runs_of(folder: Path) -> Viewer:
    """Three runs: a failed one, one of a sweep, and the newest, of another user."""
    seen = Viewer(environ(folder))
    kept(folder, "gpt-0001", started=1.0, problem="no such folder")
    kept(folder, "gpt-0002", started=2.0)
    kept(folder, "cnn-0003", started=3.0, by="bob@desk")
    keep_sweep(seen.environ, Sweep("gpt-sweep-5d21c0aa", (SweptRun("gpt-0002", {}), SweptRun("gpt-9999", {}))))
    return seen


@pytest.mark.parametrize(
    ("words", "mine", "chosen"),
    [
        (["gpt-0001", "cnn"], False, ["gpt-0001", "cnn-0003"]),
        (["gpt-sweep"], False, ["gpt-0002"]),
        (["@latest"], False, ["cnn-0003"]),
        (["@failed", "gpt-0001"], False, ["gpt-0001"]),
        ([], True, ["gpt-0002", "gpt-0001"]),
        (["@latest", "gpt-0002"], True, ["gpt-0002"]),
    ],
)
def test_runs_are_selected_by_words(tmp_path: Path, words: list[str], mine: bool, chosen: list[str]) -> None:
    assert [run.run for run in select_runs(runs_of(tmp_path), words, mine=mine)] == chosen


@pytest.mark.parametrize(
    ("word", "said"),
    [("@newest", "expected @latest or @failed"), ("x", "no run 'x' is known here"), ("", "no run '' is known here")],
)
def test_a_word_that_selects_nothing_is_refused(tmp_path: Path, word: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        select_runs(runs_of(tmp_path), [word])


def test_a_command_of_one_run_takes_a_word_for_one(tmp_path: Path) -> None:
    seen = runs_of(tmp_path)
    assert find_run(seen, "@latest").run == "cnn-0003"
    kept(tmp_path, "gpt-0004", problem="no such folder")
    with pytest.raises(InputError, match="@failed matches 2 runs: gpt-0004, gpt-0001"):
        find_run(seen, "@failed")


def test_several_runs_are_asked_about_once(tmp_path: Path) -> None:
    runs_of(tmp_path)
    done = command(tmp_path, "runs", "forget", "--here", "--mine")
    assert done.returncode == 2 and "Remove 2 runs: gpt-0002, gpt-0001?" in done.stderr, done.stderr
    done = command(tmp_path, "runs", "forget", "--here", "--mine", "--yes")
    assert done.returncode == 0 and "gpt-0002: local files removed" in done.stdout, done.stderr
    assert [row["run"] for row in json.loads(command(tmp_path, "ps", "--local", "--json").stdout)] == ["cnn-0003"]
    assert "no run was named" in command(tmp_path, "stop").stderr


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        (["--name", "tw"], ["cnn-0003", "gpt-0002", "gpt-0001"]),
        (["--name", "gpt"], []),
        (["--state", "failed"], ["gpt-0001"]),
        (["--sweep", "gpt-sweep"], ["gpt-0002"]),
        (["--user", "bob"], ["cnn-0003"]),
        (["--user", whoami()], ["gpt-0002", "gpt-0001"]),
        (["--since", "1970-01-02"], []),
    ],
)
def test_ps_filters(tmp_path: Path, options: list[str], chosen: list[str]) -> None:
    runs_of(tmp_path)
    assert [row["run"] for row in json.loads(command(tmp_path, "ps", "--local", "--json", *options).stdout)] == chosen


def test_several_runs_are_stopped_over_one_link_per_host(tmp_path: Path) -> None:
    """All get the stop before the first has ended; neither a missing run nor a strange node rank delays the others."""
    log = tmp_path / "log"
    body = f"""
    with open({str(log)!r}, "a") as file:
        print(os.getpid(), op, request.get("run"), file=file)
    if op == "stop" and request["run"] == "gone-1a2b":
        yield {{"error": {{"what": "no run found at /x", "cure": ""}}}}
    if op == "stop":
        yield {{"ok": {{"stopped": True, "state": "stopping"}}}}
    both = all(f"stop lied-{{number}}" in open({str(log)!r}).read() for number in (1, 2))
    end = {{"t": 1.0, "state": "stopped", "code": 130, "attempt": 1, "left": [], "unconfirmed": [7]}}
    yield {{"ok": {{"alive": not both, "pid": None, "exit": end if both else None, "waits": None}}}}
    """
    host = liar(tmp_path, "one", body)
    runs = [lied(tmp_path, host, run=run) for run in ("lied-1", "lied-2", "gone-1a2b")]
    first, second, third = stop_runs(viewer(tmp_path), runs)
    assert isinstance(first, StopResult) and isinstance(second, StopResult) and first.complete and second.complete
    assert not isinstance(third, StopResult) and "no run found" in str(third)
    assert len({line.split()[0] for line in log.read_text().splitlines()}) == 1
    assert [run.summary()["state"] for run in runs] == ["stopped", "stopped", "unknown"]


def test_private_runs_of_a_host_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their leases, which other users have written: what is no id of a run is left out."""
    lease = {**new_text("", 0, [0], "bob@desk"), "kind": "run", "since": 5.0, "order": 1.0, "uid": 1001, "user": "bob"}
    leases = [
        {**lease, "run": "llama-7f3a"}, {**lease, "run": "gpt-0001", "state": "waiting", "user": "\x1b[31mbob"},
        {**lease, "run": "mine-0001"}, {**lease, "run": "../x"}, {**lease, "kind": "hand", "run": ""},
        {**lease, "run": "x" * 1000},
    ]  # fmt: skip
    readable = {"run": "mine-0001", "node_rank": 0, "state": "running", "name": "mine", "started": 9.0}
    body = f"""
    if op == "list":
        yield {{"ok": {{"runs": [{readable!r}]}}}}
    if op == "leases":
        yield {{"ok": {{"leases": {leases!r}}}}}
    """
    host = liar(tmp_path, "n3", body).as_host()
    monkeypatch.setattr(listing, "parse_host", lambda _: host)
    rows = listing.list_runs(viewer(tmp_path), ["n3"]).rows
    assert [(row["run"], row["state"], row["note"]) for row in rows] == [
        ("mine-0001", "running", "on n3"),
        ("llama-7f3a", "running", "bob's, private, on n3"),
        ("gpt-0001", "queued", "bob's, private, on n3"),
    ]
    assert "\x1b" not in render_runs(rows)
