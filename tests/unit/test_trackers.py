"""`disttui runs metrics` sends a run's metrics to trackers: read back with the trackers' own packages."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api.tracking import hyperparameters
from disttui.runner.node.observe.scalar_formats import ScalarFile
from disttui.runner.text import masking
from disttui.runner.trackers import MetricPoint, Tracked, points, to_tensorboard
from tests.command import ran
from tests.frameworks import PYTHON
from tests.unit.history_kit import command, environ, kept, lines, mirrored

ROOT = Path(__file__).parents[2]
_FIRST = [
    {"t": 1000.0, "step": 1, "steps": 3, "loss": 4.0, "lr": 1e-3, "sample": "once upon"},
    {"t": 1001.0, "step": 2, "steps": 3, "loss": "nan", "lr": 1e-3, "eval/f1 (%)": 0.5},
]
_SECOND = [{"t": 1000.5, "step": 1, "loss": 2.0}]
_RESTARTED = [{"t": 1010.0, "step": 2, "loss": 1.5}, {"t": 1011.0, "step": 3, "loss": 1.25}]


def _run(folder: Path) -> None:
    """Keep a run of three ranks and two attempts, in which ranks 0 and 1 have reported."""
    made = kept(folder)
    ended = lines({"t": 12, "state": "finished", "code": 0})
    mirrored(made, 0, {
        "attempt-1/rank-0.metrics.jsonl": lines(*_FIRST), "attempt-2/rank-0.metrics.jsonl": lines(*_RESTARTED),
        "exit.json": ended,
    })  # fmt: skip
    mirrored(made, 1, {"attempt-1/rank-1.metrics.jsonl": lines(*_SECOND), "exit.json": ended})


@pytest.fixture(autouse=True)
def _installed(request: pytest.FixtureRequest) -> None:
    """Skip, which CI does not allow, where the packages of the trackers are missing."""
    if request.node.get_closest_marker("frameworks") and not any(PYTHON.parents[1].glob("lib/*/site-packages/wandb")):
        pytest.skip("wandb, trackio and mlflow-skinny are not installed: make .venv/dev")


def _by(folder: Path, code: str, **env: str) -> Any:
    """What a few lines of Python print as JSON, in the environment of the trackers' packages."""
    done = ran([PYTHON, "-c", code], cwd=folder, env={**os.environ, "HOME": str(folder), **env})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _sent(folder: Path, env: Mapping[str, str], *words: str, code: int = 0) -> str:
    """Type `disttui runs metrics` where the trackers' packages are installed; returns both its streams."""
    done = ran(
        [PYTHON, "-c", "from disttui.runner.cli import main; main()", "runs", "metrics", "two", *words],
        cwd=folder,
        env={**os.environ, **environ(folder), "HOME": str(folder), "PYTHONPATH": str(ROOT), **env},
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_values_are_means_of_the_ranks_that_reported() -> None:
    records = [(0, record) for record in _FIRST] + [(1, record) for record in _SECOND]
    first, second = points(records, 0.0, by_rank=True)
    assert first == MetricPoint(
        1, 1000.5, {"loss": 3.0, "lr": 1e-3, "rank-0/loss": 4.0, "rank-1/loss": 2.0, "rank-0/lr": 1e-3}
    )
    assert math.isnan(second.values["loss"]) and second.values["eval/f1 ___"] == 0.5
    assert points(records, 0.0)[0].values == {"loss": 3.0, "lr": 1e-3}


@pytest.mark.parametrize("t", [-1, 1e300, "nan", "soon", None])
def test_a_time_that_cannot_be_is_the_runs_own(t: object) -> None:
    assert points([(0, {"t": t, "step": 1, "loss": 2.0})], 5.0) == [MetricPoint(1, 5.0, {"loss": 2.0})]


@pytest.mark.parametrize(
    ("record", "values"),
    [
        ({"loss": True, "x": 10**400, "y": None, "z": "text", "": 1, "..": 2, "/": 3}, None),
        ({"../../a": 1, "/etc//b": 2, "a\x1b[2J": 3}, {"a": 1, "etc/b": 2, "a__2J": 3}),
        ({"x" * 1000: 1.0, "t": "soon", "step": -1}, {"x" * 200: 1.0}),
    ],
)
def test_a_scripts_names_and_values_cannot_harm_a_tracker(
    record: dict[str, object], values: dict[str, float] | None
) -> None:
    assert [point.values for point in points([(0, record)], 5.0)] == ([] if values is None else [values])


def test_an_event_file_is_read_back_by_our_own_reader(tmp_path: Path) -> None:
    """Also values that 32 bits do not hold, and a run that is sent twice, its first step with another time."""
    one = MetricPoint(1, 1000.5, {"loss": 1e300, "lr": -1e300, "grad_norm": math.nan, "rank-1/loss": 0.1})
    for made in ([one._replace(t=999.0)], [one, MetricPoint(1 << 40, 1001.0, {"loss": 2.5})]):
        folder = Path(to_tensorboard(str(tmp_path), Tracked("two-7f3a", 2, 3), made))
    [path] = folder.iterdir()
    assert folder.name == "two-7f3a.2"
    file = ScalarFile(str(path), str(path))
    first, second = file.read(1 << 20)
    file.close()
    assert (first.step, first.t, second.values, second.step) == (1, 1000.5, {"loss": 2.5}, 1 << 40)
    assert first.values == {"loss": "inf", "lr": "-inf", "grad_norm": "nan", "rank_1_loss": 0.1}


def test_unfinished_event_file_is_hidden_from_tensorboard(tmp_path: Path) -> None:
    names: list[str] = []

    class Watched(dict[str, float]):
        def items(self) -> Any:
            names.extend(path.name for path in tmp_path.rglob("*") if path.is_file())
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        to_tensorboard(str(tmp_path), Tracked("two-7f3a", 1, 3), [MetricPoint(1, 1000.5, Watched())])
    assert names == [".two-7f3a.part"]
    assert not list((tmp_path / "two-7f3a").iterdir())


def test_hyperparameters_are_the_arguments_of_the_job(tmp_path: Path) -> None:
    """With secrets masked, by the names that every tracker takes."""
    args = [
        "--lr",
        "1e-3",
        "--steps=300",
        "--compile",
        "--shift",
        "-3",
        "model.depth=12",
        "out",
        "--token",
        "hunter2hunter2",
    ]
    made = replace(kept(tmp_path), profile={"job": {"args": args}, "var": {"seed": "7"}})
    masking.learn("hunter2hunter2")
    found = hyperparameters(made)
    assert found == {
        "lr": 0.001, "steps": 300, "compile": "true", "shift": -3.0, "model.depth": 12, "token": "***", "seed": 7,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--to", "wandb", "--tensorboard", "x"], "--tensorboard and --to exclude each other"),
        (["--to", "comet"], "'comet' is not one of"),
        (["--project", "p"], "--project needs --to"),
        (["--by-rank"], "--by-rank needs"),
        (["--try", "pyproject.toml", "--tensorboard", "x"], "--try reads a file"),
        (["--tensorboard", "/dev/null/x"], "/dev/null"),
        (["--to", "mlflow"], "pip install 'disttui[mlflow]'"),
    ],
)
def test_what_cannot_be_sent_is_one_clear_error(tmp_path: Path, words: list[str], problem: str) -> None:
    _run(tmp_path)
    done = command(tmp_path, "runs", "metrics", *([] if "--try" in words else ["two"]), *words)
    assert done.returncode == 2 and problem in done.stderr and "Traceback" not in done.stderr
    assert not done.stdout


def test_a_run_without_metrics_is_not_sent(tmp_path: Path) -> None:
    made = kept(tmp_path)
    for node in (0, 1):
        mirrored(made, node, {"exit.json": lines({"t": 12, "state": "finished", "code": 0})})
    done = command(tmp_path, "runs", "metrics", "two", "--tensorboard", str(tmp_path / "tb"))
    assert done.returncode == 1 and "no metrics yet" in done.stderr and not (tmp_path / "tb").exists()


@pytest.mark.frameworks
def test_tensorboard_shows_the_metrics_of_a_run(tmp_path: Path) -> None:
    _run(tmp_path)
    done = command(tmp_path, "runs", "metrics", "two", "--tensorboard", str(tmp_path / "tb"))
    assert done.stdout.splitlines() == [
        f"attempt 1: 3 metrics, 2 steps → {tmp_path}/tb/two-7f3a",
        f"attempt 2: 1 metric, 2 steps → {tmp_path}/tb/two-7f3a.2",
    ], done.stderr
    seen = _by(tmp_path, """
import json
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
found = EventMultiplexer().AddRunsFromDirectory("tb").Reload()
print(json.dumps({
    f"{run} {tag}": [(one.wall_time, one.step, repr(round(one.value, 6))) for one in found.Scalars(run, tag)]
    for run, tags in found.Runs().items() for tag in tags["scalars"]
}))
""")  # fmt: skip
    assert _by(tmp_path, """
import json
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
found = EventMultiplexer().AddRunsFromDirectory("tb").Reload()
content = found.PluginRunToTagToContent("hparams")["two-7f3a"]["_hparams_/session_start_info"]
session = HParamsPluginData.FromString(content).session_start_info
print(json.dumps({name: value.number_value or value.string_value for name, value in session.hparams.items()}))
""") == {"disttui_run": "two-7f3a", "attempt": 1, "processes": 3}  # fmt: skip
    assert seen == {
        "two-7f3a loss": [[1000.5, 1, "3.0"], [1001.0, 2, "nan"]],
        "two-7f3a lr": [[1000.5, 1, "0.001"], [1001.0, 2, "0.001"]],
        "two-7f3a eval/f1 ___": [[1001.0, 2, "0.5"]],
        "two-7f3a.2 loss": [[1010.0, 2, "1.5"], [1011.0, 3, "1.25"]],
    }


@pytest.mark.frameworks
def test_wandb_has_an_offline_run_for_each_attempt(tmp_path: Path) -> None:
    _run(tmp_path)
    said = _sent(tmp_path, {"WANDB_MODE": "offline"}, "--to", "wandb", "--project", "p", "--by-rank")
    assert said.count("wandb sync wandb/offline-run-") == 2
    first, second = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: len(path.name))
    assert (first.name, second.name) == ("run-two-7f3a.wandb", "run-two-7f3a.2.wandb")
    tried = command(tmp_path, "runs", "metrics", "--try", str(first), "--json").stdout
    assert [json.loads(line)["record"] for line in tried.splitlines()] == [
        {"step": 1, "loss": 3.0, "lr": 0.001, "rank_0_loss": 4.0, "rank_1_loss": 2.0, "rank_0_lr": 0.001},
        {"step": 2, "loss": "nan", "lr": 0.001, "eval_f1": 0.5, "rank_0_loss": "nan", "rank_0_lr": 0.001,
         "rank_0_eval_f1": 0.5},
    ]  # fmt: skip
    refused = _sent(tmp_path, {"WANDB_MODE": "online"}, "--to", "wandb", code=2)
    assert "No API key configured" in refused and "WANDB_MODE=offline" in refused


@pytest.mark.frameworks
def test_trackio_has_a_run_for_each_attempt(tmp_path: Path) -> None:
    _run(tmp_path)
    said = _sent(tmp_path, {}, "--to", "trackio", "--project", "p")
    assert said.splitlines() == [
        "attempt 1: 3 metrics, 2 steps → trackio show --project p",
        "attempt 2: 1 metric, 2 steps → trackio show --project p",
    ]
    seen = _by(tmp_path, """
import json
from trackio.sqlite_storage import SQLiteStorage
print(json.dumps({run: [
    [repr(one.get(name)) for name in ("step", "loss", "lr")] for one in SQLiteStorage.get_logs("p", run)
] for run in SQLiteStorage.get_runs("p")}))
""")  # fmt: skip
    assert seen == {
        "two-7f3a": [["1", "3.0", "0.001"], ["2", "nan", "0.001"]],
        "two-7f3a.2": [["2", "1.5", "None"], ["3", "1.25", "None"]],
    }
    (tmp_path / "full").write_text("in its place")
    refused = _sent(tmp_path, {"TRACKIO_DIR": str(tmp_path / "full")}, "--to", "trackio", code=2)
    assert "trackio did not accept the metrics" in refused and "could not be persisted" in refused


@pytest.mark.frameworks
def test_mlflow_has_a_run_for_each_attempt(tmp_path: Path) -> None:
    _run(tmp_path)
    env = {
        "MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }  # fmt: skip
    said = _sent(tmp_path, env, "--to", "mlflow")
    assert said.count(f"file:{tmp_path}/mlruns, experiment disttui, run ") == 2
    seen = _by(tmp_path, """
import json
from mlflow import MlflowClient
client = MlflowClient()
runs = client.search_runs([client.get_experiment_by_name("disttui").experiment_id])
print(json.dumps({run.info.run_name: [
    run.data.tags["disttui.run"], run.info.status, run.info.start_time,
    [[one.timestamp, one.step, repr(one.value)] for one in client.get_metric_history(run.info.run_id, "loss")],
] for run in runs}))
""", **env)  # fmt: skip
    assert seen == {
        "two-7f3a": ["two-7f3a", "FINISHED", 1000500, [[1000500, 1, "3.0"], [1001000, 2, "nan"]]],
        "two-7f3a.2": ["two-7f3a", "FINISHED", 1010000, [[1010000, 2, "1.5"], [1011000, 3, "1.25"]]],
    }
    refused = _sent(tmp_path, {**env, "MLFLOW_TRACKING_URI": "ftp://x"}, "--to", "mlflow", code=2)
    assert "Set MLFLOW_TRACKING_URI" in refused
