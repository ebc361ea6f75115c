"""What disttui reads in the output of other people's training scripts (tests/data/foreign)."""

from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.cli.render.live import TextPrinter
from disttui.runner.diagnose.cause import find
from disttui.runner.diagnose.hints import hint
from disttui.runner.node.observe import deaths
from disttui.runner.node.observe.harvest import Harvest
from disttui.runner.protocol.limits import MOST_METRICS
from disttui.runner.protocol.watch import Judge, RuleName, WatchRule
from disttui.runner.render.status import eta, metric_words, progress, status_line
from disttui.runner.render.story import attempt_words, ending
from disttui.runner.runs.state import RunState, begin
from tests.unit.state_kit import fold

_DATA = Path(__file__).parents[1] / "data" / "foreign"


def harvested(name: str, folder: Path) -> list[dict[str, Any]]:
    harvest = Harvest(str(folder), [0], None)
    shutil.copy(_DATA / f"{name}.log", folder / "rank-0.log")
    harvest.poll({})
    metrics = folder / "rank-0.metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


@pytest.mark.parametrize(
    ("name", "first", "newest"),
    [
        ("nanogpt", 3.2987, {"step": 60, "loss": 3.1199, "val_loss": 3.0945, "step_time": 0.50059}),
        ("nanogpt_end", 5.4665, {"step": 60, "loss": 5.4358, "val_loss": 5.453, "step_time": 1.71905}),
        ("imagenet", 7.4625, {"step": 86, "epoch": 0, "loss": 4881.6, "step_time": 0.352}),
        ("imagenet_end", 6.9555, {"step": 36, "epoch": 1, "loss": 7.0298, "val_loss": 1221.2, "step_time": 0.32}),
        ("trainer", 4.033, {"step": 150, "steps": 150, "epoch": 3, "val_loss": 4.03}),
        ("run_clm", 5.596, {"step": 465, "steps": 465, "epoch": 3, "loss": 4.739, "val_loss": 4.7265}),
        ("lightning_tqdm", 0.693, {"step": 50, "epoch": 1, "loss": 0.682, "val_loss": 0.689}),
        ("lightning_rich", 0.734, {"step": 100, "steps": 100, "loss": 0.734, "val_loss": 0.694}),
        ("lightning_rich_tty", 0.674, {"step": 150, "steps": 150, "epoch": 2, "loss": 0.658}),
        ("uneven", 2.0, {"step": 4, "loss": 2.0}),
    ],
)
def test_metrics_are_read_from_third_party_logs(
    tmp_path: Path, name: str, first: float, newest: dict[str, Any]
) -> None:
    records = harvested(name, tmp_path)
    assert next(record["loss"] for record in records if "loss" in record) == first
    merged = {key: value for record in records for key, value in record.items()}
    assert {key: merged.get(key) for key in newest} == newest


@pytest.mark.parametrize("path", sorted(_DATA.glob("*.log")), ids=lambda path: path.stem)
def test_rules_ignore_recorded_logs_and_find_a_planted_nan(tmp_path: Path, path: Path) -> None:
    def fired(records: list[dict[str, Any]]) -> set[str]:
        names: tuple[RuleName, ...] = ("nonfinite", "spike", "slow", "plateau")
        judge = Judge([WatchRule(rule=name, do="notify") for name in names])
        for number, record in enumerate(records):
            judge.hear(0, {**record, "t": 1000.0 + number})
        return {one["rule"] for one in judge.take()}

    records = harvested(path.stem, tmp_path)
    assert fired(records) == ({"nonfinite"} if path.stem == "imagenet_nan" else set())
    losses = sum("loss" in record for record in records)
    if losses > 2:
        assert fired([{**one, "loss": "nan"} if "loss" in one else one for one in records]) == {"nonfinite"}


def started() -> RunState:
    """A run of one rank, in its first attempt."""
    launch = {"t": 1.0, "e": "launch", "attempt": 1, "pid": 9, "command": [], "interface": "eth0"}
    return fold(begin("t-1", ("node1",), (1,)), 0, "events.jsonl", launch)


def test_a_loss_printed_in_the_place_of_a_bar_has_its_own_step(tmp_path: Path) -> None:
    """Trainer logs every 10 steps, while the bar is redrawn only now and then: it stood at 9, 19, 29, …"""
    found = harvested("run_clm", tmp_path)
    losses = [(one["step"], one["loss"]) for one in found if "loss" in one]
    assert losses == [(10, 5.596), (20, 5.554), (30, 5.504), (40, 5.448), (440, 4.74), (450, 4.738), (460, 4.739)]
    assert [(one["step"], one["val_loss"]) for one in found if "val_loss" in one] == [(465, 4.727), (465, 4.7265)]


def test_resumed_trainer_counts_only_steps_after_its_checkpoint(tmp_path: Path) -> None:
    """Its bar goes from 0 to 182, and calls that 1572 steps a second for the rest of the run; here it makes 20."""
    state = started()
    for record in harvested("run_clm_resumed", tmp_path):
        t = 1.0 + max(0, record["step"] - 180) / 20
        state = fold(state, 0, "attempt-1/rank-0.metrics.jsonl", {**record, "t": t})
        if record["step"] == 220:
            assert eta(state) == pytest.approx(16 / 20)
    state = fold(state, 0, "exit.json", {"state": "finished", "code": 0})
    assert ending(state, 34.0, tmp_path, {})[0] == "✓ t-1 finished in 0:34: 1 rank on 1 host  loss 5.122 → 5.103"


@pytest.mark.parametrize("name", ["imagenet", "imagenet_end"])
def test_the_batches_of_an_epoch_are_not_the_steps_of_the_run(tmp_path: Path, name: str) -> None:
    """`Epoch: [0][16/20]` does not say how many epochs there are: no share of the run, no eta."""
    assert not any("steps" in record for record in harvested(name, tmp_path))


def test_a_total_that_the_step_has_passed_is_dropped() -> None:
    """An epoch's total may be printed with every step of the run: 59/10 is no progress."""
    state = started()
    for step, more in ((100, {"steps": 100}), (101, {}), (102, {"steps": 100}), (103, {"loss": 1.5})):
        state = fold(state, 0, "attempt-1/rank-0.metrics.jsonl", {"t": 1.0 + step, "step": step, **more})
        assert (progress(state) is None) == (step > 100)
    assert state.metrics["loss"] == 1.5


def test_a_script_that_invents_names_of_metrics_keeps_its_first() -> None:
    state = started()
    for step in range(3 * MOST_METRICS):
        record = {"t": 1.0 + step, "step": step, "loss": 2.0, f"m{step}": 1.0}
        state = fold(state, 0, "attempt-1/rank-0.metrics.jsonl", record)
    (_, _, series), *_ = state.ranks()
    assert series.latest["step"] == 3 * MOST_METRICS - 1 and "m0" in series.latest
    assert max(len(series.latest), len(series.first)) <= MOST_METRICS


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ((0, 1, 2), "attempt 2 started at step 0 (attempt 1 had reached 70); see launch.resume_args"),
        ((10, 20), "attempt 2 started at step 10 (attempt 1 had reached 70); see launch.resume_args"),
        ((0, 61, 62), "attempt 2 continued from step 61 (attempt 1 had reached 70)"),  # a bar set to a checkpoint's
        ((61, 62), "attempt 2 continued from step 61 (attempt 1 had reached 70)"),
        ((20, 30), None),  # its first line may have been lost
        ((0,), None),  # no step was made
    ],
)
def test_where_another_attempt_began_is_reported(tmp_path: Path, second: tuple[int, ...], told: str | None) -> None:
    state = started()
    state = fold(
        state, 0, "events.jsonl", {"t": 50.0, "e": "launch", "attempt": 2, "pid": 9, "command": [], "interface": "eth0"}
    )
    for attempt, steps in ((1, (0, 10, 40, 70)), (2, second)):
        for step in steps:
            state = fold(
                state, 0, f"attempt-{attempt}/rank-0.metrics.jsonl", {"t": 100.0 * attempt + step, "step": step}
            )
    err = StringIO()
    printer = TextPrinter(StringIO(), err, ("node1",), 1, colour=False)
    for _ in range(3):
        printer.refresh(state)
        printer._drawn_at = -100.0
    state = fold(state, 0, "exit.json", {"state": "finished", "code": 0})
    live = [line.removeprefix("disttui: ") for line in err.getvalue().splitlines()]
    for lines in (live, [line.strip() for line in ending(state, 34.0, tmp_path, {})]):
        assert [line for line in lines if "had reached" in line] == ([told] if told else [])


def test_the_closing_line_has_the_newest_accuracy(tmp_path: Path) -> None:
    state = started()
    for record in harvested("nlp_example", tmp_path):
        state = fold(state, 0, "attempt-1/rank-0.metrics.jsonl", record)
    state = fold(state, 0, "exit.json", {"state": "finished", "code": 0})
    line = ending(state, 34.0, tmp_path, {})[0]
    assert line == "✓ t-1 finished in 0:34: 1 rank on 1 host  accuracy 0.5156"


def test_loss_that_became_nan_is_reported(tmp_path: Path) -> None:
    """Without a word of it, such a run looks like one that has never printed a loss."""
    state = started()
    for record in harvested("imagenet_nan", tmp_path):
        state = fold(state, 0, "attempt-1/rank-0.metrics.jsonl", record)
    assert "loss nan  val loss nan" in status_line(state, 9.0, 120)
    assert "▲ the loss is nan" in status_line(state, 9.0, 120)
    state = fold(state, 0, "exit.json", {"state": "finished", "code": 0})
    line, *more = ending(state, 34.0, tmp_path, {})
    assert line == "✓ t-1 finished in 0:34: 1 rank on 1 host  loss 6.88 → nan  validation loss nan  val Acc@1 0"
    assert any(one.startswith("! the loss is nan") for one in more), more


def test_validation_accuracy_is_not_shown_as_training_accuracy() -> None:
    assert metric_words({"val_loss": 4.417, "eval_accuracy": 0.02581}) == ["val loss 4.417", "val accuracy 0.02581"]
    assert metric_words({"val_accuracy": 0.5, "accuracy": 0.75}) == ["accuracy 0.75"]
    assert metric_words({"val_acc1": 0.125, "acc1": 1.56}) == ["val Acc@1 0.125"]


def test_the_evaluations_of_accelerates_example(tmp_path: Path) -> None:
    values = [(one["epoch"], one["accuracy"], one["f1"]) for one in harvested("nlp_example", tmp_path)]
    assert values == [(epoch, 0.515625, 0.5) for epoch in range(3)]


def test_the_epochs_of_pytorchs_multinode_example(tmp_path: Path) -> None:
    assert {one["epoch"] for one in harvested("multinode", tmp_path)} == {*range(6)}


@pytest.mark.parametrize("name", ["argparse", "no_program", "no_module", "no_cuda", "no_nccl"])
def test_no_metrics_where_there_are_none(tmp_path: Path, name: str) -> None:
    assert harvested(name, tmp_path) == []


def ended(name: str, rank: int, code: int) -> RunState:
    """A run of two hosts, one rank of which has ended with this log and says nothing by itself."""
    state = begin("t-1", ("node1", "node2"), (1, 1))
    path = str(_DATA / f"{name}.log")
    words, seen = deaths.read(path, code), {"attempt": 1, "rank": rank, "at": 9.0, "t": 9.0}
    if words:
        state = fold(state, rank, "events.jsonl", {"e": "error", **seen, **words})
    said = "" if words else deaths.said(path, code)
    return fold(state, rank, "events.jsonl", {"e": "death", **seen, "code": code, **({"said": said} if said else {})})


@pytest.mark.parametrize(
    ("name", "code", "words", "hinted"),
    [
        ("argparse", 2, "ended with exit code 2: multinode_cpu.py: error: unrecognized arguments: --nope", None),
        (
            "no_program",
            127,
            "ended with exit code 127: disttui: accelerate: No such file or directory",
            "program missing",
        ),
        (
            "no_cuda",
            1,
            "raised AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
            "torch without CUDA",
        ),
        ("no_nccl", 1, "raised RuntimeError: Distributed package doesn't have NCCL built in", "torch without NCCL"),
    ],
)
def test_why_scripts_that_nobody_here_wrote_have_failed(name: str, code: int, words: str, hinted: str | None) -> None:
    state = ended(name, 0, code)
    assert attempt_words(state, 1) == f"rank 0 on node1 {words}"
    cause = find(state)
    assert cause
    known = hint(state, cause)
    assert (known.name if known else None) == hinted


def test_who_had_ended_while_the_other_still_waited() -> None:
    state = ended("uneven", 1, 1)
    state = fold(state, 0, "attempt-1/ranks.jsonl", {"t": 8.5, "e": "exit", "rank": 0, "code": 0})
    words = "rank 0 on node1 had ended (exit code 0) while rank 1 on node2 still waited in all_reduce (uneven.py:5)"
    assert attempt_words(state, 1).startswith(words)
