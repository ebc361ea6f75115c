"""docs/schemas: every command has a schema, and prints what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api.sweeping import Sweep, SweptRun, keep_sweep
from tests.command import disttui
from tests.json_schemas import ERROR, OUTPUTS, PAGE, Lines, commands, flaws, page
from tests.unit.history_kit import environ, kept, lines, mirrored

DEFS = json.loads(PAGE.read_text())["$defs"]
TRACE = 'Traceback (most recent call last):\n  File "/p/train.py", line 41, in step\nValueError: bad batch\n'
PROFILE = f"""disttui: 1
name: tiny
hosts: [local]
python: {sys.executable}
num_processes: 1
job: {{script: train.py}}
"""


def home(folder: Path) -> dict[str, str]:
    return {**os.environ, **environ(folder), "HOME": str(folder)}


def held(done: subprocess.CompletedProcess[str], name: str) -> Any:
    """What a command has printed, which its schema allows."""
    assert "Traceback" not in done.stderr, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()] if isinstance(OUTPUTS[name], Lines) else None
    found = [json.loads(done.stdout)] if found is None else found
    assert found, done.stderr
    wrong = [flaw for one in found for flaw in flaws(one, DEFS[name], DEFS)]
    assert not wrong, (name, wrong[:9])
    return found[0] if len(found) == 1 else found


def test_schemas_are_those_of_the_types() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write them anew: python -m tests.json_schemas"


def test_every_command_has_a_schema() -> None:
    assert {*OUTPUTS} == {"error", *commands()}


def test_other_values_are_found() -> None:
    good = {"type": "error", "code": "input", "what": "w", "cure": "c", "host": "", "place": ""}
    assert not flaws(good, DEFS["error"], DEFS)
    assert flaws({**good, "what": 1}, DEFS["error"], DEFS) == [".what: 1 is not of type string"]
    assert flaws({**good, "more": 1}, DEFS["error"], DEFS) == [".more: not in the schema"]
    assert flaws({**good, "code": "bad"}, DEFS["error"], DEFS) and flaws([good], DEFS["error"], DEFS)
    assert flaws({}, DEFS["error"], DEFS)[0] == ".type: missing"
    assert flaws([{"host": "a"}], DEFS["probe"], DEFS) and ERROR.optional == ("problems",)


def failed(folder: Path, run: str, message: str = "bad batch") -> None:
    """A run whose rank 2 has raised an error, as a viewer has mirrored it."""
    known = kept(folder, run)
    begun = {"t": 1.0, "e": "attempt", "attempt": 1, "master": "a", "port": 1, "world_size": 3}
    end = json.dumps({
        "t": 9.0, "state": "failed", "code": 1, "attempt": 1,
        "cause": {"node": 1, "rank": 2, "kind": "exception", "type": "ValueError", "message": message, "at": 8.0},
    })  # fmt: skip
    error = {
        "t": 8.0, "e": "error", "attempt": 1, "rank": 2, "at": 8.0, "type": "ValueError", "message": message,
        "traceback": TRACE,
    }  # fmt: skip
    metrics = lines(*({"t": 2.0 + step, "step": step, "steps": 300, "loss": float("nan")} for step in range(4)))
    first = {"events.jsonl": lines(begun), "attempt-1/rank-0.metrics.jsonl": metrics, "attempt-1/rank-0.log": "zero\n"}
    spec = {"disttui": 1, "run": run, "node_rank": 0, "profile": {"name": "two"}, "started": 1.0}
    mirrored(known, 0, {**first, "exit.json": end, "spec.json": json.dumps(spec)})
    mirrored(known, 1, {"events.jsonl": lines(begun, error), "exit.json": end, "attempt-1/rank-2.log": "one\ntwo\n"})


@pytest.mark.parametrize(
    "line",
    [
        "ps --local", "ps --local --limit 1", "runs show two-7f3a --local", "runs show two-7f3a two-8f3a --local",
        "runs diff two-7f3a two-8f3a --local", "runs metrics two-7f3a --local", "logs two-7f3a", "diagnose two-7f3a",
        "wait two-7f3a", "attach two-7f3a", "watch --try two-7f3a --local", "runs forget two-7f3a --here",
        "runs gc --older 1d", "lease queue local", "lease list local a.invalid", "lease add local",
        "probe local a.invalid", "exec local -- echo hi", "check --only host local", "check --list",
        "runs orphans local", "top local --once",
        "profile validate 2node nofile --resolved", "profile plan tiny.yaml", "profile bytegpt", "completion bash",
        "skill",
        "profile import hostfile --script train.py", "profile export tiny.yaml --to script -o to",
        "runs metrics --try train.log", "library list", "library show 2node", "library show 2node --text",
        "library add lab {folder}", "library validate", "library sync", "sweep --results sw-1",
        "runs pull two-7f3a two-8f3a",
        "stop two-7f3a two-8f3a --yes",
    ],
)  # fmt: skip
def test_output_matches_its_schema(line: str, tmp_path: Path, leases_of_the_tests: Path) -> None:
    failed(tmp_path, "two-7f3a")
    failed(tmp_path, "two-8f3a")
    (tmp_path / "tiny.yaml").write_text(PROFILE)
    keep_sweep(
        environ(tmp_path), Sweep("sw-1", (SweptRun("two-7f3a", {"job.args.lr": "1"}), SweptRun("gone-1111", {})))
    )
    (tmp_path / "hostfile").write_text("box1 slots=2\n")
    (tmp_path / "train.log").write_text("step: 1 | loss: 2.5\nstep: 2 | loss: 2.4\n")
    words = line.format(folder=tmp_path / "lab").split()
    (tmp_path / "lab").mkdir()
    name = next(one for one in sorted(OUTPUTS, key=len, reverse=True) if words[: len(one.split())] == one.split())
    found = held(disttui("--json", *words, env=home(tmp_path), cwd=tmp_path), name)
    for path in leases_of_the_tests.iterdir():
        path.unlink()  # it would be in the way of other tests
    if name in ("ps", "runs show", "diagnose", "wait"):
        one = found[0] if isinstance(found, list) else found.get("runs", [found])[0]
        assert one["explain"]["cause"].endswith("ValueError: bad batch"), one
        assert one["explain"]["next"].startswith("disttui ")
        if name != "ps":  # which reads summaries
            assert one["explain"]["evidence"] == {
                "place": "train.py:41",
                "rank": 2,
                "host": "b",
                "lines": ["one", "two"],
            }


def test_list_of_runs_is_bounded_and_continues(tmp_path: Path) -> None:
    for number in range(5):
        failed(tmp_path, f"two-{number}f3a")
    seen: list[str] = []
    done = disttui("ps", "--local", "--json", "--limit", "2", env=home(tmp_path))
    while found := json.loads(done.stdout):
        seen += [one["run"] for one in found]
        assert ("more run" in done.stderr) == (len(seen) < 5) and len(found) <= 2
        done = disttui("ps", "--local", "--json", "--limit", "2", "--after", seen[-1], env=home(tmp_path))
    assert sorted(seen) == [f"two-{number}f3a" for number in range(5)]
    done = disttui("ps", "--local", "--json", "--after", "nope", env=home(tmp_path))
    assert done.returncode == 2 and "--after 'nope'" in json.loads(done.stdout)["what"]
