"""--json works everywhere: before and after a command, for results and for errors."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from disttui.runner.api.log_lines import LineFilter
from disttui.runner.api.preparing import PreflightError
from disttui.runner.cli.app import cli
from disttui.runner.cli.options import GLOBAL_OPTIONS
from disttui.runner.cli.render.printer import JsonPrinter
from disttui.runner.errors import HostError
from disttui.runner.hosts.survey import HostsError
from disttui.runner.planning.preflight import Finding
from disttui.runner.runs.state import begin
from tests.command import disttui
from tests.unit.history_kit import command, kept, lines, mirrored, printed

PROFILE = "disttui: 1\nhosts: [local]\njob: {builtin: bytegpt, args: [--stepz, 3]}\nlunch: {}\n"


def _commands(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, each in group.commands.items():
        yield (*before, name), each
        if isinstance(each, click.Group):
            yield from _commands(each, (*before, name))


def test_every_command_accepts_global_options() -> None:
    for words, each in _commands(cli):
        assert set(GLOBAL_OPTIONS) <= set(each.params), words
        shown = CliRunner().invoke(cli, [*words, "--help"]).output
        assert "--ssh-config" not in shown and "Global options: disttui --help" in shown, words
    shown = CliRunner().invoke(cli, ["--help"]).output
    assert all(f"  {option.opts[0]}" in shown for option in GLOBAL_OPTIONS)


@pytest.mark.parametrize("before", [False, True])
def test_option_means_the_same_before_the_command(tmp_path: Path, before: bool) -> None:
    words = ["--json", "ps", "--local"] if before else ["ps", "--local", "--json"]
    done = command(tmp_path, *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_ssh_config_after_the_command_wins(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    done = command(tmp_path, "--ssh-config", str(tmp_path / "one"), "ps", "--ssh-config", "/nowhere", "--json")
    assert done.returncode == 2 and "/nowhere" in json.loads(done.stdout)["what"]


@pytest.mark.parametrize(
    ("line", "exit_code", "code", "what", "cure"),
    [
        ("run 2nod --json", 2, "input", "profile '2nod' not found", "Did you mean 2node?"),
        ("--json stop nope", 2, "input", "no run 'nope' is known here", "List runs: disttui ps"),
        ("pss --json", 2, "usage", "No such command 'pss'", "See: disttui --help"),
        ("ps --nope --json", 2, "usage", "No such option '--nope'", "See: disttui ps --help"),
        ("library --json lisst", 2, "usage", "No such command 'lisst'", "See: disttui library --help"),
        ("logs --json", 2, "usage", "Missing argument 'RUN'", "See: disttui logs --help"),
        (
            "lease add a --until 2020-01-01 --json",
            2,
            "input",
            "--until '2020-01-01' is in the past",
            "Give a later time.",
        ),
        ("lease release a.invalid --json", 3, "host", "", ""),
        ("runs replay example --json", 2, "input", "the app prints no JSON", ""),
        ("--json", 2, "input", "the app prints no JSON", "disttui ps"),
    ],
)
def test_error_is_one_object_on_standard_output(
    line: str, exit_code: int, code: str, what: str, cure: str, tmp_path: Path
) -> None:
    done = command(tmp_path, *line.split())
    assert (done.returncode, done.stderr) == (exit_code, "")
    error = json.loads(done.stdout)
    assert {*error} - {"problems"} == {"type", "code", "what", "cure", "host", "place"}
    assert (error["type"], error["code"]) == ("error", code)
    assert what in error["what"] and cure in error["cure"]


@pytest.mark.parametrize("line", ["lease list", "lease queue", "runs orphans local"])
def test_hosts_that_could_not_be_asked_are_errors_in_the_result(line: str, tmp_path: Path) -> None:
    done = command(tmp_path, *line.split(), "a.invalid", "--json")
    assert (done.returncode, done.stderr) == (3, "")
    error = json.loads(done.stdout)["errors"]["a.invalid"]
    assert {*error} == {"code", "what", "cure", "host", "place"} and error["host"] == "a.invalid"


def test_host_that_ps_could_not_ask_is_an_error_object(tmp_path: Path) -> None:
    done = command(tmp_path, "ps", "--host", "a.invalid", "--json")
    error = json.loads(done.stderr)
    assert (done.returncode, done.stdout) == (3, "[]\n")
    assert (error["type"], error["code"], error["host"]) == ("error", "host", "a.invalid") and error["cure"]


def test_error_of_a_profile_lists_every_problem(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(PROFILE.replace("builtin", "builtim"))
    env = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    done = disttui("run", "bad.yaml", "--json", env=env, cwd=tmp_path)
    error = json.loads(done.stdout)
    assert (done.returncode, done.stderr, error["code"]) == (2, "", "profile")
    assert error["what"] == f"{len(error['problems'])} problems"
    assert {problem["place"].rpartition(":")[0] for problem in error["problems"]} == {"bad.yaml:3", "bad.yaml:4"}
    (checked,) = json.loads(disttui("profile", "validate", "bad.yaml", "--json", env=env, cwd=tmp_path).stdout)
    assert checked["errors"] == [{key: value for key, value in error.items() if key != "type"}]


def test_errors_of_several_hosts_are_listed() -> None:
    error = HostsError([HostError("a", "is asleep", "Wake it."), HostError("b", "is asleep", "Wake it.")])
    assert [problem["host"] for problem in _problems(error.as_json())] == ["a", "b"]
    assert str(error) == "a, b: is asleep\n  → Wake it."
    checks = PreflightError([Finding("error", "a", "no GPU", "Plug one in.")])
    (problem,) = _problems(checks.as_json())
    assert (checks.code, problem["host"], problem["cure"]) == ("check", "a", "Plug one in.")


def _problems(data: dict[str, object]) -> list[dict[str, Any]]:
    found = data["problems"]
    assert isinstance(found, list)
    return found


def test_validate_prints_what_a_profile_runs(tmp_path: Path) -> None:
    done = command(tmp_path, "profile", "validate", "2node", "--resolved", "--json")
    (checked,) = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert checked["hosts"] == ["node1", "node2"] and checked["errors"] == []
    assert checked["runs"][0]["key"] == "job.builtin" and {"key", "value", "place"} == {*checked["values"][0]}


def test_question_is_not_asked(tmp_path: Path) -> None:
    for run in ("two-7f3a", "two-8f3a"):
        kept(tmp_path, run)
    done = command(tmp_path, "runs", "forget", "--mine", "--here", "--json")
    assert done.returncode == 2 and "--yes" in json.loads(done.stdout)["cure"]
    done = command(tmp_path, "runs", "forget", "--mine", "--here", "--yes", "--json")
    assert {one["run"] for one in json.loads(done.stdout)} == {"two-7f3a", "two-8f3a"} and done.returncode == 0


def test_library_results_are_data(tmp_path: Path) -> None:
    def typed(*words: str) -> Any:
        done = command(tmp_path, "library", *words, "--json")
        assert (done.returncode, done.stderr) == (0, ""), done
        return json.loads(done.stdout)

    folder = tmp_path / "shelf"
    folder.mkdir()
    assert typed("add", "lab", str(folder)) == {"library": "lab", "synced": None}
    assert typed("save", "2node", "lab/mine")["profile"] == "lab/mine"
    assert typed("show", "lab/mine", "--text")["text"] == (folder / "mine.yaml").read_text().rstrip("\n")
    assert typed("validate", "lab") == [{"library": "lab", "profiles": 1, "problems": []}]
    assert typed("remove", "lab/mine") == {"library": "lab", "profile": "lab/mine"}
    assert typed("sync") == []


def test_import_is_one_object_with_its_notes(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("box1 slots=2\n")
    done = command(tmp_path, "profile", "import", str(tmp_path / "hostfile"), "--script", "train.py", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr, found["missing"], found["file"]) == (0, "", None, None)
    assert "box1" in found["profile"] and {*found["notes"][0]} == {"line", "key", "fate", "what"}


def test_run_that_continues_is_reported_as_detached() -> None:
    out = io.StringIO()
    state = begin("r-1", ("node1",), (1,))
    JsonPrinter(out).end(state, Path("logs"))
    assert json.loads(out.getvalue()) == {"type": "detached", "run": "r-1"}


def _logged(folder: Path) -> Any:
    run = kept(folder, "two-7f3a")
    text = "".join(f"line {number}\n" for number in range(5))
    growth = lines({"t": 1000.0, "sizes": {"0": 14}}, {"t": 1010.5, "sizes": {"0": 28}})
    mirrored(run, 0, {"attempt-1/rank-0.log": text + "unfinished", "attempt-1/growth.jsonl": growth, "exit.json": "{}"})
    mirrored(run, 1, {"attempt-1/rank-1.log": text, "exit.json": "{}"})
    return run


@pytest.mark.parametrize(("tail", "first"), [(0, None), (1, "unfinished"), (2, "line 4"), (100, "line 0")])
def test_tail_prints_the_last_lines_of_each_rank(tmp_path: Path, tail: int, first: str | None) -> None:
    shown = [line.partition(" │ ") for line in printed(_logged(tmp_path), LineFilter(tail=tail)).splitlines()]
    ours = [text for whose, _, text in shown if whose.startswith("a:0")]
    assert ours[:1] == ([first] if first else []) and len(ours) == min(tail, 6)
    assert len(shown) - len(ours) == min(tail, 5)


def test_logs_as_json_have_times_where_recorded(tmp_path: Path) -> None:
    _logged(tmp_path)
    done = command(tmp_path, "logs", "two-7f3a", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    logged = [one for one in found if one["type"] == "log"]
    times = [one["time"] for one in logged if one["rank"] == 0]
    assert times == [1000.0, 1000.0, 1010.5, 1010.5, 1010.5, 1010.5]
    assert logged[0] == {
        "type": "log", "host": "a", "attempt": 1, "rank": 0, "time": 1000.0, "line": "line 0",
    }  # fmt: skip
    assert {one["time"] for one in logged if one["rank"] == 1} == {None}
    (note,) = [one["text"] for one in found if one["type"] == "say" and "times" in one["text"]]
    assert note == "attempt-1/rank-1.log: times were not recorded"


def test_timestamps_precede_the_lines(tmp_path: Path) -> None:
    _logged(tmp_path)
    done = command(tmp_path, "logs", "two-7f3a", "-t", "--tail", "1")
    assert [line[:2] + line[19:] for line in done.stdout.splitlines()] == ["19 a:0 │ unfinished", "-  b:1 │ line 4"]
    assert "disttui: b: attempt-1/rank-1.log: times were not recorded\n" in done.stderr
