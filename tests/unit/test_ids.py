"""Run ids: 64 random bits where runs lie, four digits where people read and type them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disttui.runner.cli.render.runs import render_runs
from disttui.runner.errors import InputError
from disttui.runner.ids import new_run_id, pick, short
from disttui.runner.profile.load import parse
from disttui.runner.runs.registry import find_run, keep

ONE, OTHER = "2node-7f3a" + "0" * 12, "2node-7f3a" + "1" * 12


def test_short_ids_have_four_digits_or_more_if_ambiguous() -> None:
    assert short(ONE) == short(ONE, [ONE, "2node-7f3b" + "0" * 12]) == "2node-7f3a"
    assert short(ONE, [ONE, OTHER]) == "2node-7f3a0"
    assert short(ONE, ["2node-7f3a"]) == "2node-7f3a0", "an old run has just these digits"


@pytest.mark.parametrize("old", ["2node-7f3a", "t-1", "one-1a2b", "no digits", "-" + "0" * 16])
def test_other_ids_are_shown_whole(old: str) -> None:
    assert short(old, [ONE]) == old


def test_a_new_id_has_a_short_form_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["7f3a" + "1" * 12, "7f3b" + "2" * 12])
    monkeypatch.setattr("secrets.token_hex", lambda count: next(drawn) if count == 8 else "")
    assert new_run_id("2node", [ONE]) == "2node-7f3b" + "2" * 12
    monkeypatch.undo()
    assert len({new_run_id("2node", []) for _ in range(100)}) == 100


def test_commands_take_any_beginning_that_is_one_runs_alone() -> None:
    names = [ONE, "2node-7f3b" + "0" * 12, "old-1a2b"]
    assert [pick(text, names) for text in ("2node-7f3a", ONE, "old-1a2b", "old")] == [ONE, ONE, "old-1a2b", "old-1a2b"]
    with pytest.raises(InputError, match=f"is ambiguous: {ONE}, {OTHER}"):
        pick("2node-7f3a", [ONE, OTHER])
    assert pick("2node-7f3a", ["2node-7f3a", ONE]) == "2node-7f3a"


def test_the_table_shows_few_digits_and_json_all(tmp_path: Path) -> None:
    profile = parse("disttui: 1\nhosts: [local]\njob: {builtin: bytegpt}\n", "p", ())
    run = keep(profile, [1], ONE, {"XDG_DATA_HOME": str(tmp_path)})
    assert find_run("2node-7f3a", {"XDG_DATA_HOME": str(tmp_path)}) == run
    table = render_runs([run.summary()])
    assert "2node-7f3a " in table and ONE not in table
    assert "2node-7f3a0 " in render_runs([run.summary(), {"run": OTHER}])
    assert json.loads(json.dumps(run.summary()))["run"] == ONE
