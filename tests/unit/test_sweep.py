"""Sweeps: which runs a line of settings makes, and what is wrong with others."""

from __future__ import annotations

import json

import pytest

from runner.api.sweeping import Sweep, SweptRun, combinations, overrides
from runner.errors import InputError
from runner.render.sweep import render_sweep


def test_every_combination_of_the_values_is_a_run_with_these_arguments() -> None:
    plain, made = combinations(
        ["job.args.lr=1e-3,3e-4", "job.args.seed=1,2", "launch.restarts=2", "hosts.0.gpus=[0, 1]"]
    )
    assert plain == ("launch.restarts=2", "hosts.0.gpus=[0, 1]")
    assert [list(one.values()) for one in made] == [["1e-3", "1"], ["1e-3", "2"], ["3e-4", "1"], ["3e-4", "2"]]
    for before in (["--lr", "1", "x"], ["--lr=1", "x"]):
        (words,) = overrides({"job.args.lr": "3e-4"}, before)
        assert "3e-4" in words
        assert "x" in words
        assert '"1"' not in words
    (words,) = overrides({"job.args.lr": "3e-4"}, ["--steps", "9"])
    assert json.loads(words.removeprefix("job.args=")) == ["--steps", "9", "--lr", "3e-4"]
    assert overrides({"launch.restarts": "1"}, [])[0] == "launch.restarts=1"


def test_a_sweep_of_other_keys_leaves_the_jobs_arguments_to_the_job() -> None:
    """A command has none: its words are its own."""
    assert overrides({"env.SEED": "1"}, ["--lr", "1"]) == ("env.SEED=1",)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["--lr", "--steps", "9"], ["--lr", "5", "--steps", "9"]),  # a flag takes no word from the option behind it
        (["--lr", "1", "--lr", "2"], ["--lr", "1", "--lr", "5"]),  # the last one counts
        (["--lr", "-1"], ["--lr", "5"]),
        (["--lr", "-.5"], ["--lr", "5"]),
        (["--lr", "-x", "1"], ["--lr", "5", "-x", "1"]),
        (["--lr"], ["--lr", "5"]),
    ],
)
def test_the_option_that_counts_gets_the_value_and_no_other_loses_its_word(before: list[str], after: list[str]) -> None:
    (words,) = overrides({"job.args.lr": "5"}, before)
    assert json.loads(words.removeprefix("job.args=")) == after


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ([], "nothing to sweep"),
        (["job.args.lr=1"], "nothing to sweep"),
        (["lr"], "no KEY=VALUE"),
        (["job.args.lr=1,,2"], "an empty value"),
        (["job.args.lr=1,2", "job.args.lr=3,4"], r"gives values of job\.args\.lr twice"),
        ([f"a{n}=1,2" for n in range(9)], "512 runs is more than 256"),
        ([f"a{n}=1,2" for n in range(99)], "runs is more than 256"),
    ],
)
def test_what_is_no_sweep_is_refused_with_its_reason(settings: list[str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        combinations(settings)


def test_the_table_has_the_values_and_the_results() -> None:
    done = SweptRun("mine-7f3a000011112222", {"job.args.lr": "1e-3"}, {"state": "finished", "step": 300, "loss": 1.25})
    shown = render_sweep(Sweep("s", (done, SweptRun("mine-1234000011112222", {"job.args.lr": "3e-4"}))))
    assert [line.split() for line in shown.splitlines()] == [
        ["RUN", "lr", "STATE", "STEP", "LOSS"],
        ["mine-7f3a", "1e-3", "finished", "300", "1.25"],
        ["mine-1234", "3e-4", "-", "-", "-"],
    ]
