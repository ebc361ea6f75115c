"""Sweeps: which runs a line of settings makes, and what is wrong with others."""

from __future__ import annotations

import pytest

from disttui.runner.api.sweeping import Sweep, SweptRun, combinations
from disttui.runner.cli.run import render_sweep
from disttui.runner.errors import InputError


def test_every_combination_of_values_is_a_run() -> None:
    plain, made = combinations(
        ["job.args.lr=1e-3,3e-4", "job.args.seed=1,2", "launch.restarts=2", "hosts.0.gpus=[0, 1]"]
    )
    assert plain == ("launch.restarts=2", "hosts.0.gpus=[0, 1]")
    assert [list(one.values()) for one in made] == [["1e-3", "1"], ["1e-3", "2"], ["3e-4", "1"], ["3e-4", "2"]]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ([], "nothing to sweep"),
        (["job.args.lr=1"], "nothing to sweep"),
        (["lr"], "expected KEY=VALUE"),
        (["job.args.lr=1,,2"], "an empty value"),
        (["job.args.lr=1,2", "job.args.lr=3,4"], r"job\.args\.lr is given twice"),
        ([f"a{n}=1,2" for n in range(9)], "512 runs: at most 256 are allowed"),
        ([f"a{n}=1,2" for n in range(99)], "runs: at most 256 are allowed"),
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
