"""Metrics are read from what ranks print, at a bounded cost, and never where the script writes its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from disttui.runner.node.observe.harvest import Harvest, _Guard, _TooSlowError
from disttui.runner.node.observe.patterns import LONGEST
from disttui.runner.node.observe.recogniser import Bars, Recogniser, may_tell
from disttui.runner.protocol.watch import Judge, WatchRule
from tests.counting import counted
from tests.unit.waiting import wait_for

FORMS = (Path(__file__).parents[1] / "data" / "logs" / "forms.txt").read_text().splitlines()


class Rank:
    """A log that grows, and the metrics that come of it."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        self.log = folder / f"rank-{number}.log"
        self.metrics = folder / f"rank-{number}.metrics.jsonl"

    def print(self, text: str | bytes) -> None:
        with self.log.open("ab") as file:
            file.write(text if isinstance(text, bytes) else text.encode())

    def records(self) -> list[dict[str, Any]]:
        lines = self.metrics.read_text().splitlines() if self.metrics.exists() else []
        return [{name: value for name, value in json.loads(line).items() if name != "t"} for line in lines]


def read(line: str) -> dict[str, Any] | None:
    return Recogniser().read(line.encode()) or None if may_tell(line.encode()) else None


@pytest.mark.parametrize("form", FORMS)
def test_the_forms(form: str) -> None:
    line, _, expected = form.rpartition(" => ")
    assert read(line) == json.loads(expected)


def test_a_line_above_says_what_those_below_it_are_of() -> None:
    """As Coqui prints them."""
    known = Recogniser()
    lines = [
        "\x1b[1m   --> TIME: 2024-01-01 10:01:05 -- STEP: 24/406 -- GLOBAL_STEP: 25\x1b[0m",
        "     | > loss: 30.1  (33.1)",
        "\x1b[1m > EVALUATION \x1b[0m",
        "     | > loss: 29.0  (29.0)",
        "Step 30:",
        "  loss: 28.5",
        "Validation:",
        "  loss: 28.0",
        "step 31 loss 27.5",
    ]
    found = [known.read(line.encode()) for line in lines if may_tell(line.encode())]
    assert [one for one in found if one] == [
        {"loss": 30.1, "step": 25}, {"val_loss": 29.0}, {"loss": 28.5, "step": 30}, {"val_loss": 28.0},
        {"step": 31, "loss": 27.5},
    ]  # fmt: skip


def test_a_line_of_10_000_characters_is_read() -> None:
    """As verl prints them."""
    others = " - ".join(f"actor/metric_{number}:{number / 7:.5f}" for number in range(350))
    found = read(f"step:12 - actor/loss:0.25 - {others} - training/loss:1.5")
    assert found and len(others) > 9_000
    assert (found["step"], found["actor_loss"], found["actor_metric_349"]) == (12, 0.25, 49.85714)


def test_an_evaluations_train_loss_is_not_the_loss_of_a_step() -> None:
    known = Recogniser()
    lines = [
        "step 0: train loss 10.9, val loss 11.0",
        "iter 0: loss 10.8, time 9ms",
        "step 5: train loss 2.4, val loss 2.5",
    ]
    assert [known.read(line.encode()) for line in lines] == [
        {"step": 0, "loss": 10.9, "val_loss": 11.0},
        {"step": 0, "loss": 10.8, "step_time": 0.009},
        {"step": 5, "eval_train_loss": 2.4, "val_loss": 2.5},
    ]


def test_repeated_val_loss_does_not_hide_the_loss() -> None:
    """NeMo repeats the newest one on every line."""
    known = Recogniser()
    line = "Training epoch 0, iteration {0}/149 | lr: 3e-05 | consumed_samples: {0} | global_step: {0}"
    line += " | reduced_train_loss: 1.25 | train_step_timing in s: 0.5"
    found = [known.read((line.format(at) + more).encode()) for at, more in ((9, ""), (10, " | val_loss: 4.1"))]
    assert [(one or {}).get("loss") for one in found] == [1.25, 1.25]
    assert found[1] and found[1]["val_loss"] == 4.1


SEQUENCES = [
    (["Epoch 1: 50/50 loss 2.0", "Epoch 2: 50/50 loss 1.5"], [50, 100]),
    (["[1, 2000] loss: 2.2", "[1, 12000] loss: 1.3", "[2, 2000] loss: 1.2"], [2000, 12000, 14000]),
    ([f"Epoch {epoch}/3 step 50/50 loss 2.0" for epoch in (1, 2, 3)], [50, 100, 150]),
    (["Epoch 1 step 50 loss 0.5", "Epoch 2 step 50 loss 0.4"], [50, 100]),
    ([f"Epoch [{epoch}/10], Step [600/6000], Loss: 2.0" for epoch in (1, 2)], [600, 600]),
    ([f"Epoch(train) [{epoch}][50/73]  lr: 1.0e-02  loss: 1.9" for epoch in (1, 2)], [50, 123]),
    ([f"Epoch: [{epoch}/100]  [  10/2502]  loss: 11.0 (11.1)  lr: 0.1" for epoch in (0, 1)], [10, 2512]),
    ([f"Epoch {epoch}: 100%|███| 100/100 [00:10<00:00, 9.8it/s, loss=2.0]" for epoch in (0, 1, 2)], [100, 200, 300]),
    ([f"Epoch {epoch}:  10%|#  | 10/100 [00:01<00:09, 9.8it/s, loss=2.0]" for epoch in (1, 2)], [10, 10]),
    (["Epoch 1 step 50 loss 0.5", "Epoch 2 step 100 loss 0.4"], [50, 100]),
    (["Epoch 0, batch 50, loss 1.0", "Epoch 1, batch 0, loss 1.0", "Epoch 1, batch 50, loss 1.0"], [50, 50, 100]),
    (["{'loss': 0.5, 'epoch': 0.99, 'step': 100}", "{'eval_loss': 0.5, 'epoch': 1.0, 'step': 100}",
      "{'loss': 0.5, 'epoch': 1.1, 'step': 110}"], [100, 100, 110]),
    (["Epoch 1 | iter 40 step 20 | loss train: 6.1, val: n/a | iter time: 200.0 ms (step)",
      "iter 40: val loss 6.00, val time: 174.08 ms",
      "Epoch 1 | iter 41 step 20 | loss train: 6.0, val: n/a | iter time: 200.0 ms"], [20, 20, 20]),
    # A counter without a name, once it has counted: it may be that of the ranks.
    ([f"[{at}/100] loss 0.5" for at in (10, 20, 100, 10)], [None, 20, 100, 110]),
    ([f"INFO: {at}/100 | train loss: 0.5" for at in (10, 20)], [None, 20]),
    (["[1/2] loss 0.5", "[1/2] loss 0.4"], [None, None]),
    ([f"Epoch [{at}/100] loss 0.5" for at in (10, 20)], [None, None]),
    (["iter 40: loss 6.00, time 174.08ms", "iter 41: loss 6.00, time 174.08ms"], [40, 41]),
    ([f"Epoch {epoch} [{at}/100] Loss 0.5" for epoch, at in ((1, 10), (1, 90), (2, 10))], [10, 90, 110]),
    ([f"Epoch: [{epoch}/10], iter: [{at}/100], loss: 0.5" for epoch, at in ((1, 50), (2, 50))], [50, 150]),
    ([f"Train: {epoch} [ {at}/100 ({at}%)]  Loss: 6.9 (6.9)" for epoch, at in ((0, 0), (1, 50))], [0, 150]),
    ([f"Epoch[{epoch}] Batch [50]\tSpeed: 12.5 samples/sec\taccuracy=0.1" for epoch in (0, 1)], [50, 100]),
    ([f"epoch {epoch} - iter {at}/100 - loss 2.3" for epoch, at in ((1, 10), (1, 100), (2, 10))], [10, 100, 110]),
    (["Epochs:  10%|#  | 1/10 [00:10<01:30,  9.0s/it, loss=2.0]",
      "Epoch 1: 100%|#  | 100/100 [00:10<00:00, 9.8it/s, loss=2.0]",
      "Epochs:  20%|#  | 2/10 [00:20<01:20,  9.0s/it, loss=2.0]",
      "Epoch 2:  50%|#  | 50/100 [00:10<00:09, 9.8it/s, loss=2.0]"], [None, 100, None, 150]),
    ([f" 0:   1%|#  | {at}/1000 [00:01<00:10, 9.8it/s]" for at in (10, 20)], [10, 20]),
    ([f"Epoch [{epoch}/2], Step [2000/2500], Loss: 0.5" for epoch in (1, 2)], [2000, 4500]),
    ([f"Epoch[{epoch}/10] Iteration[100/600] Loss: 0.5" for epoch in (1, 2, 3)], [100, 700, 1300]),
    (["train:  10%|#  | 1.20k/12.0k [00:10<01:30, 120it/s, loss=2.3]"], [None]),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "steps"), SEQUENCES, ids=[lines[0] for lines, _ in SEQUENCES])
def test_the_steps_of_lines_that_follow_each_other(lines: list[str], steps: list[int]) -> None:
    known = Recogniser()
    found = [known.read(line.encode()) for line in lines]
    assert [record and record.get("step") for record in found] == steps
    assert all("val loss" not in line or "step_time" not in (one or {}) for line, one in zip(lines, found, strict=True))


def test_the_report_that_ends_a_run_is_not_its_training(tmp_path: Path) -> None:
    """timm prints the best epoch's losses as JSON over several lines."""
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], None)
    report = {"epoch": 3, "train": {"loss": 0.3}, "validation": {"loss": 0.47, "top1": 80.1}}
    rank.print(f"Step 9 | Loss: 0.25\n--result\n{json.dumps(report, indent=4)}\nStep 10 | Loss: 0.2\n")
    rank.print(f"{json.dumps({'step': 11, 'loss': 0.1}, indent=2)}\n")
    harvest.poll({})
    assert rank.records() == [{"step": 9, "loss": 0.25}, {"step": 10, "loss": 0.2}, {"loss": 0.1}]


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0, 1], None)
    harvest.poll({})
    assert not rank.metrics.exists()
    rank.print("hello\nStep 1 | Loss: 0.5\nStep 2 | Lo")
    harvest.poll({})
    rank.print("ss: 0.25\n")
    before = time.time()
    harvest.poll({})
    harvest.poll({})
    assert rank.records() == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    assert before <= json.loads(rank.metrics.read_text().splitlines()[1])["t"] <= time.time()
    assert rank.metrics.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("pattern", [None, r"(?P<t>\d+): loss (?P<loss>\S+)"])
def test_the_time_of_a_record_is_never_a_value_of_the_script(tmp_path: Path, pattern: str | None) -> None:
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], pattern)
    rank.print("7: loss 0.5\n" if pattern else '{"t": 7, "loss": 0.5}\n')
    before = time.time()
    harvest.poll({})
    assert rank.records() == [{"loss": 0.5}]
    assert before <= json.loads(rank.metrics.read_text())["t"] <= time.time()


def test_ranks_do_not_mix(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path, 4), Rank(tmp_path, 5)]
    harvest = Harvest(str(tmp_path), [4, 5], None)
    for number, rank in enumerate(ranks):
        rank.print(f"Step {number} | Loss: {number}.5\n")
    harvest.poll({})
    assert [rank.records() for rank in ranks] == [[{"step": 0, "loss": 0.5}], [{"step": 1, "loss": 1.5}]]


@pytest.mark.parametrize("content", ["", '{"t": 1, "step": 1, "loss": 9}\n'])
def test_a_script_that_writes_its_own_metrics_is_left_alone(tmp_path: Path, content: str) -> None:
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], None)
    rank.metrics.write_text(content)
    rank.print("Step 1 | Loss: 0.5\n")
    harvest.poll({})
    assert rank.metrics.read_text() == content


def test_script_that_starts_writing_metrics_is_left_alone(tmp_path: Path) -> None:
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], None)
    rank.print("Step 1 | Loss: 0.5\n")
    harvest.poll({})
    with rank.metrics.open("a") as file:
        file.write('{"t": 1, "step": 2}\n')
    rank.print("Step 2 | Loss: 0.5\n")
    harvest.poll({})
    assert rank.records() == [{"step": 1, "loss": 0.5}, {"step": 2}]


def test_a_trainers_losses_get_the_step_of_its_bar(tmp_path: Path) -> None:
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], None)
    rank.print("\r  0%|          | 0/20 [00:00<?, ?it/s]\r 50%|█████     | 10/20 [00:01<00:01,  9.80it/s]\n")
    rank.print("{'loss': 1.5, 'epoch': 0.5}\n\r 20%|██        | 1/5 [00:00<00:00, 9.0it/s]\n{'eval_loss': 1.25}\n")
    harvest.poll({})
    assert rank.records() == [
        {"step": 0, "steps": 20},
        {"step": 10, "steps": 20},
        {"loss": 1.5, "epoch": 0.5, "step": 10},
        {"val_loss": 1.25, "step": 10},
    ]


def test_a_bar_counts_when_it_is_drawn(tmp_path: Path) -> None:
    """tqdm begins its lines with \\r and ends none; what ends one later is the next bar, or a line of the script."""
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], None)
    seen = []
    for text in (
        "\r  0%|          | 0/20 [00:00<?, ?it/s]",
        "\r 50%|█████     | 10/20 [00:01<00:01,  9.80it/s, los",
        "s=1.5]",
        " \n",
        "\r 55%|█████▌    | 11/20 [00:02<00:01,  9.80it/s, loss=1.25]\r 60%|██████    | 12/20 [00:02<",
        "00:01,  9.80it/s, loss=1]",
    ):
        rank.print(text)
        harvest.poll({})
        seen.append([(one["step"], one.get("loss")) for one in rank.records()])
    bars = [(0, None), (10, 1.5), (11, 1.25), (12, 1)]
    assert seen == [bars[:1], bars[:1], bars[:2], bars[:2], bars[:3], bars]


def test_bar_drawn_twice_for_a_step_gives_one_loss(tmp_path: Path) -> None:
    """Lightning draws it when the step is made, and once more when the loss is known."""
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], None)
    for step, losses in ((56, (0.65, 0.694)), (57, (0.694, 0.607))):
        for loss in losses:
            rank.print(f"\rEpoch 0:  56%|█████▌    | {step}/100 [00:32<00:25,  1.71it/s, v_num=1, train_loss={loss}]")
    harvest.poll({})
    assert [(one["step"], one["loss"]) for one in rank.records()] == [(56, 0.694), (57, 0.607)]


def test_steps_per_second_of_a_bar_count_this_attempt_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tqdm divides all steps by the time since it was made, also those that a checkpoint has made before."""
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], None)
    rates = {}
    for now, step in [(0, 0), (1, 500), (2, 501), (3, 504), (5, 508), *((t, 2 * t + 498) for t in range(6, 100))]:
        monkeypatch.setattr("disttui.runner.node.observe.harvest.time.monotonic", lambda now=now: 1e6 + now)
        rank.print(f"\r 50%|#####     | {step}/1000 [00:01<00:01, 250.00it/s]")
        harvest.poll({})
        rates[now] = rank.records()[-1].get("steps_per_s")
    assert [rates[now] for now in (0, 1, 2, 3, 5, 99)] == [None, None, None, 2, 2, 2]


@pytest.mark.parametrize(("epoch", "step"), [(0, 5), (1, 5), (3, 65)])
def test_lightning_that_goes_on_from_a_checkpoint_counts_on(epoch: int, step: int) -> None:
    """Its first bar names the epoch alone; in a first bar, epoch 1 may also be the first one."""
    bars = Bars()
    for line in (
        "Training: |          | 0/? [00:00<?, ?it/s]",
        f"Epoch {epoch}:   0%|          | 0/20 [00:00<?, ?it/s]",
        f"Epoch {epoch}:  25%|██▌       | 5/20 [00:00<00:00, 16.70it/s, loss=0.012]",
    ):
        found = bars.recognise(line)
    assert found == {"loss": 0.012, "step": step, "epoch": epoch}


def test_preparation_bar_is_not_taken_for_training() -> None:
    bars = Bars()
    for title in ("Loading train data", "Tokenizing train split"):
        assert bars.recognise(f"{title}: 100%|###| 50/50 [00:01<00:00, 40.00it/s]") == {}
    assert bars.recognise("  1%|#  | 10/1000 [00:01<00:10, 9.8it/s]") == {"step": 10, "steps": 1000}


@pytest.mark.parametrize("first", ["100%|###| 50/50 [00:01<00:00, 40.0it/s]", "12it [00:01, 8.1it/s]"])
@pytest.mark.parametrize("loss", ["", ", loss=2.5"])
def test_bar_over_files_is_forgotten_once_training_begins(first: str, loss: str) -> None:
    known = Recogniser()
    known.read(first.encode())
    found = [known.read(f" 10%|#  | {at}/300 [00:01<00:10, 9.8it/s{loss}]".encode()) for at in (0, 30)]
    assert [(one and one["step"], one and one["steps"]) for one in found] == [(0, 300), (30, 300)]


@pytest.mark.parametrize("line", ["{'loss': 2.5, 'epoch': 1.0}", "{'train_runtime': 9.5, 'train_loss': 2.5}"])
def test_a_training_that_is_over_is_not_an_evaluation(line: str) -> None:
    known = Recogniser()
    known.read(b"100%|###| 300/300 [00:30<00:00, 9.8it/s]")
    known.read(line.encode())
    assert not known.read(b"100%|###| 50/50 [00:01<00:00, 40.0it/s]")
    assert known.bar_step == 300


def test_a_bar_per_epoch_counts_on() -> None:
    bars = Bars()
    for epoch in (1, 2):
        for done in (0, 4, 8):
            line = f"Epoch {epoch}/2: 10%|#| {done}/8 [00:01<00:02, 2.00it/s, loss=1]"
            found = bars.recognise(line)
            assert found is not None
            assert (found["step"], found["steps"]) == (done + 8 * (epoch - 1), 16)


@pytest.mark.parametrize(
    ("above", "steps"),
    [
        ("Epochs:   0%|          | 0/3 [00:00<?, ?it/s]", 300),
        ("Epoch 1/3", 300),
        ("Epochs:  33%|###    | 1/3 [00:10<00:20, 10s/it]", 200),  # continues from a checkpoint
        ("Epoch 2/3", 200),
        ("Epoch 0/3", None),  # the total may be the number of the last epoch
    ],
)
@pytest.mark.parametrize("title", ["", "Batches: ", "Training: "])
def test_a_bar_below_the_number_of_epochs_is_one_of_them(above: str, steps: int | None, title: str) -> None:
    known = Recogniser()
    lines = [above, *(f"{title}50%|#  | {done}/100 [00:25<00:25, 1.7it/s, loss=0.5]" for done in (50, 100, 10))]
    found = [known.read(line.encode()) or {} for line in lines]
    assert [(one.get("step"), one.get("steps")) for one in found] == [
        (None, None),
        (50, None),
        (100, None),
        (110, steps),
    ]


def test_a_bar_that_goes_on_below_another_epoch_is_the_runs() -> None:
    known = Recogniser()
    lines = ["Epoch 1/3", "{50/300", "{100/300", "Epoch 2/3", "{101/300", "Epoch 1/1", "{0/300"]
    found = [known.read(line.replace("{", "33%|#  | ").encode() + b" [00:25<00:25, 1.7it/s, loss=0.5]" * ("{" in line))
             for line in lines]  # fmt: skip
    assert [(one or {}).get("steps") for one in found] == [None, None, None, None, 300, None, None]
    known = Recogniser()
    lines = ["Epoch 1/1", "50%|#  | 50/100 [00:25<00:25, 1.7it/s, loss=0.5]"]
    assert [(known.read(line.encode()) or {}).get("steps") for line in lines] == [None, 100]


def test_a_counter_of_each_epoch_counts_on() -> None:
    known = Recogniser()
    lines = [f"Epoch: [{epoch}][{step:3}/200]\tTime 0.1 (0.2)\tLoss 6.9 (7.0)" for epoch in (0, 1) for step in (0, 100)]
    found = [known.read(line.encode()) or {} for line in lines]
    assert [record["step"] for record in found] == [0, 100, 200, 300]
    lines = [f"Epoch [{epoch}/3], Step [{step}/600], Loss: 0.5" for epoch in (1, 2) for step in (300, 600)]
    known = Recogniser()
    found = [known.read(line.encode()) or {} for line in lines]
    assert [(record["step"], record["steps"]) for record in found] == [
        (300, 1800),
        (600, 1800),
        (900, 1800),
        (1200, 1800),
    ]


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("Epoch: [3][ 10/200]\tTime 0.1 (0.2)\tLoss 6.9 (7.0)", {"step": 610}),
        ("Epoch: [1][ 10/200]\tTime 0.1 (0.2)\tLoss 6.9 (7.0)", {"step": 10}),
        ("Epoch [3][50/7330]\tlr: 1.978e-03, eta: 1 day, 1:11:50, time: 1.031, loss: 1.8", {"step": 14710}),
        ("Epoch [3/5], Step [100/600], Loss: 0.5", {"step": 1300, "steps": 3000}),
        ("Epoch: 3/5, Step: 100/600, Loss: 0.5", {"step": 1300, "steps": 3000}),
        ("Epoch: [3/10][ 10/200] Loss 6.9 (7.0)", {"step": 610, "steps": 2000}),
        ("| epoch   3 |   200/ 1000 batches | loss  7.63", {"step": 2200}),
        ("Epoch 3/5:  50%|█████     | 4/8 [00:01<00:10,  2.00it/s, loss=1]", {"step": 20, "steps": 40}),
        ("epoch 3 | step 500/1000 | loss 1.5", {"step": 500, "steps": 1000}),
        ("Epoch 3/10 | Step 1500/5000 | loss 0.5", {"step": 1500, "steps": 5000}),
        ("Epoch 5/10:  50%|█████     | 5/10 [00:01<00:10,  2.00it/s, loss=1]", {"step": 5, "steps": 10}),
    ],
)
def test_attempt_resumed_in_a_later_epoch_counts_earlier_ones(line: str, step: dict[str, int]) -> None:
    """Its counter starts anew in every epoch, unless it shows this epoch's part of the run; epoch 1 alone may also be
    the first one."""
    found = read(line) or {}
    assert {name: value for name, value in found.items() if name in ("step", "steps")} == step


def test_counter_of_an_epoch_is_not_taken_for_that_of_the_run() -> None:
    known = Recogniser()
    lines = [(2, 150), (2, 200), (2, 210), (2, 1000), (3, 50), (3, 250)]
    found = [known.read(b"Epoch %d/10 | Step %d/1000 | loss 0.5" % line) for line in lines]
    assert [one and one["step"] for one in found] == [150, 200, 1210, 2000, 2050, 2250]
    known = Recogniser()
    lines = [(2, 150), (3, 50), (3, 250)]
    found = [known.read(b"Epoch %d/10 | Step %d/1000 | loss 0.5" % line) for line in lines]
    assert [one and one["step"] for one in found] == [150, 2050, 2250]
    known = Recogniser()
    lines = [(2, 334), (2, 667), (3, 668), (3, 1000)]
    found = [known.read(b"Epoch %d/3 | Step %d/1000 | loss 0.5" % line) for line in lines]
    assert [(one and one["step"], one and one.get("steps")) for one in found] == [(step, 1000) for _, step in lines]


def test_epoch_1_counts_epoch_0_only_if_an_attempt_had_one(tmp_path: Path) -> None:
    (tmp_path / "attempt-1").mkdir()
    (tmp_path / "attempt-2").mkdir()
    first, second = str(tmp_path / "attempt-1"), str(tmp_path / "attempt-2")
    silent = str(tmp_path / "attempt-0")  # it ended before its first line
    for folder, earlier, epoch, steps in ((first, [silent], 0, [10, 20]), (second, [silent, first], 1, [210, 220])):
        rank, harvest = Rank(Path(folder)), Harvest(folder, [0], None, earlier=earlier)
        for step in (10, 20):
            rank.print(f"Epoch: [{epoch}][{step}/200]\tTime 0.1 (0.2)\tLoss 6.9 (7.0)\n")
        harvest.poll({})
        assert [record["step"] for record in rank.records()] == steps
    assert [bar["step"] for bar in map(Bars(from_0=True).recognise, LIGHTNING) if bar] == [20, 25]


LIGHTNING = [f"Epoch 1:   0%|          | {done}/20 [00:00<00:00, 16.70it/s, loss=0.012]" for done in (0, 5)]


YOLO = "  Epoch    GPU_mem   box_loss   cls_loss  Instances       Size"
TABLES = [
    ("epoch,lr,step,train_loss,val_loss\n0,0.001,9,0.693,\n0,,9,,0.689\n1,,19,0.5,",
     [{"epoch": 0, "lr": 0.001, "step": 9, "loss": 0.693}, {"epoch": 0, "step": 9, "val_loss": 0.689},
      {"epoch": 1, "step": 19, "loss": 0.5}]),
    ("step\tloss\tlr\n10\tnan\t1e-3", [{"step": 10, "loss": "nan", "lr": 0.001}]),
    ("epoch;loss\n1;2,5", []),
    ("[rank0]: epoch,loss\n[rank0]: 1,0.5", [{"epoch": 1, "loss": 0.5}]),
    ("epoch,loss\n1,2,5\n2,1.5", [{"epoch": 2, "loss": 1.5}]),
    ("  epoch    train_loss    valid_acc    valid_loss    cp     dur\n-------  ----\n"
     "      1        \x1b[36m0.6905\x1b[0m       0.6150        0.6749     +  0.0437\n"
     "      2        0.6648       0.6150        0.6633        0.0198",
     [{"epoch": 1, "loss": 0.6905, "val_accuracy": 0.615, "val_loss": 0.6749, "dur": 0.0437},
      {"epoch": 2, "loss": 0.6648, "val_accuracy": 0.615, "val_loss": 0.6633, "dur": 0.0198}]),
    ("epoch     train_loss  valid_loss  time    \n0         0.540289    0.404287    00:05     ",
     [{"epoch": 0, "loss": 0.540289, "val_loss": 0.404287}]),
    ("| Step | Training Loss | Accuracy |\n|------|---|---|\n| 500  | 0.4321 | 81% |",
     [{"step": 500, "loss": 0.4321, "accuracy": 81}]),
    ("Epoch\tTraining Loss\tValidation Loss\n1\tNo log\t0.3987", [{"epoch": 1, "val_loss": 0.3987}]),
    ("┏━━━┳━━━┓\n┃ epoch ┃ loss   ┃\n│ 1     │ 0.6931 │", [{"epoch": 1, "loss": 0.6931}]),
    ("| **step** | **loss** | **lr** |\n| --- | --- | --- |\n| **10** | **2.31** | 1e-4 |",
     [{"step": 10, "loss": 2.31, "lr": 0.0001}]),
    ("| step | loss | val_loss |\n|---|---|---|\n| 10 | **2.31** | 2.5 |",
     [{"step": 10, "loss": 2.31, "val_loss": 2.5}]),
    ('"step","loss","lr"\n"10","2.31","0.001"', [{"step": 10, "loss": 2.31, "lr": 0.001}]),
    ('step,loss,note\n10,2.31,"a, b"', [{"step": 10, "loss": 2.31}]),
    ('"step","loss"\n"10","2.31"\0\n20,\r"2.3"\n"30","2.1"', [{"step": 30, "loss": 2.1}]),
    ('"step";"train/loss"\n"10";"2.31"', [{"step": 10, "loss": 2.31}]),
    ("epoch, loss of each, and time\n1, 2, 3", []),
    ("1 0.5 2\nstep loss lr\n1 0.5\n1 0.5 x", []),
    (f"{YOLO}\n  2/100  2.36G  1.185  2.345  32  640: 100%|####| 8/8 [00:02<00:00, 3.5it/s]",
     [{"box_loss": 1.185, "cls_loss": 2.345, "step": 8, "epoch": 2, "steps": 800}]),
    (f"{YOLO}\n  2/100  2.36G  1.185  2.345  32  640: 50% ━━━━━━────── 4/8 2.1it/s 1.8s<2.0s\n"
     "   Class   Images  Box(P   R: 100% ━━━━━━━━━━━━ 4/4 5.1it/s 0.8s",
     [{"box_loss": 1.185, "cls_loss": 2.345, "step": 4, "epoch": 2, "steps": 800}]),
    (f"{YOLO}\n  0/9  2.36G  1.185  2.345  32  640: 100%|####| 10/10 [00:02<00:00, 3.5it/s]",
     [{"box_loss": 1.185, "cls_loss": 2.345, "step": 10, "epoch": 0, "steps": 100}]),
    ("[step=10/700,epoch=0]\n    train/CrossEntropyLoss=10.91\n    throughput/tokens=5\nloss 2.0",
     [{"loss": 10.91, "step": 10, "steps": 700}, {"loss": 2.0}]),
    ("[batch=2/480]:\n\t Train loss/train/total: 11.5", [{"loss": 11.5, "step": 2, "steps": 480}]),
    ("[epoch=1][batch=90/100]:\n\t Train loss/train/total: 11.5\n"
     "[epoch=2][batch=10/100]:\n\t Train loss/train/total: 11",
     [{"loss": 11.5, "step": 90, "epoch": 1}, {"loss": 11, "step": 110, "epoch": 2}]),
    ("step 9 loss 2.0\n=== Evaluation ===\nloss: 0.6\nstep 10 loss 1.9",
     [{"step": 9, "loss": 2.0}, {"val_loss": 0.6}, {"step": 10, "loss": 1.9}]),
    ("***** Validation results *****\naccuracy: 0.8, loss: 0.6\nloss: 1.9",
     [{"val_loss": 0.6, "val_accuracy": 0.8}, {"loss": 1.9}]),
    ("=== Evaluation ===\n=== Training ===\nloss: 0.6", [{"loss": 0.6}]),
    ("step 10 | loss 2.3 | 35,149 tok/s", [{"step": 10, "loss": 2.3, "tokens_per_s": 35149}]),
    ("step 10 | loss 2.3, 12,345.6 tokens/sec", [{"step": 10, "loss": 2.3, "tokens_per_s": 12345.6}]),
    ("step 17/1000 | loss 2.3 | 1,234.5 ms", [{"step": 17, "steps": 1000, "loss": 2.3, "step_time": 1.2345}]),
    ("--- eval ---\ntrain loss: 0.6", [{"loss": 0.6}]),
    ("INFO - trainer - Epoch 0/9\nINFO - trainer - Training\nINFO - trainer - Batch 1/80: loss: 6.6 ||\n"
     "INFO - trainer - Validating\nINFO - trainer - Batch 7/8: loss: 1.0 ||\n"
     "INFO - trainer - Batch 8/8: loss: 1.2 ||\n"
     "Training loss : 0.9  Validation loss : 1.1\n"
     "INFO - trainer - Epoch 1/9\nINFO - trainer - Batch 1/80: loss: 0.8 ||",
     [{"loss": 6.6, "step": 1, "epoch": 0}, {"val_loss": 1.0, "epoch": 0}, {"val_loss": 1.2, "epoch": 0},
      {"val_loss": 1.1, "eval_train_loss": 0.9, "epoch": 0}, {"loss": 0.8, "step": 81, "epoch": 1}]),
    ("Training\nepoch 1 loss 0.5\nValidating\nloss 0.7\nepoch 2 loss 0.4",
     [{"loss": 0.5, "epoch": 1}, {"val_loss": 0.7}, {"loss": 0.4, "epoch": 2}]),
    ("Evaluating\nloss: 0.6\nloss: 0.5", [{"val_loss": 0.6}, {"loss": 0.5}]),
    ("Validating\nTRAINING\nloss: 0.6", [{"loss": 0.6}]),
    ("Validating\nBatch 1: loss 1.0", [{"val_loss": 1.0}]),
    ("step 9 loss 0.6\nValidating\nstep 10 loss 0.5\nValidating\nEpoch 2\nstep 1 loss 0.4",
     [{"step": 9, "loss": 0.6}, {"step": 10, "loss": 0.5}, {"step": 1, "loss": 0.4}]),
    ("Batch 80/80: loss 0.6\nValidating\nBatch 1/80: loss 0.5",
     [{"loss": 0.6, "step": 80, "steps": 80}, {"loss": 0.5, "step": 1, "steps": 80}]),
    ("Epoch 1\nloss: 0.9\nEvaluating...\naccuracy: 0.8\nloss: 0.85", [{"loss": 0.9}, {"loss": 0.85}]),
    ("Epoch 1\nINFO - Split: validation\nloss: 0.9", [{"loss": 0.9}]),
    ("INFO - Validating\nloss: 0.9", [{"val_loss": 0.9}]),
    ("Namespace:\n  lr: 0.01\n  epoch: 100\nBatch 10/938, loss: 2.31", [{"loss": 2.31, "step": 10, "steps": 938}]),
    ("INFO - epoch: 100\nLR milestone: epoch 30\nStep 10/100, Loss: 1.0", [{"step": 10, "steps": 100, "loss": 1.0}]),
    ("Epoch 5/10\n[10/100] loss 0.9\n[20/100] loss 0.8\nEpoch 6/10\n[10/100] loss 0.7",
     [{"loss": 0.9, "step": 410, "steps": 1000, "epoch": 5}, {"loss": 0.8, "step": 420, "steps": 1000, "epoch": 5},
      {"loss": 0.7, "step": 510, "steps": 1000, "epoch": 6}]),
    ("Epoch 1/2\nBatch 10/100: loss 1\nBatch 100/100: loss 0.9\nEpoch 2/2\nBatch 10/100: loss 0.8",
     [{"loss": 1, "step": 10, "steps": 200, "epoch": 1}, {"loss": 0.9, "step": 100, "steps": 200, "epoch": 1},
      {"loss": 0.8, "step": 110, "steps": 200, "epoch": 2}]),
    ("[train.py:88] Validating\n[train.py:90] loss: 0.7", [{"val_loss": 0.7}]),
    ("x - train - INFO - Validating\nx - train - INFO - loss: 0.7", [{"val_loss": 0.7}]),
    ("INFO:root:Validating\nINFO:root:loss: 0.7", [{"val_loss": 0.7}]),
    ("10:00:00 INFO Validating\n10:00:01 INFO loss: 0.7", [{"val_loss": 0.7}]),
    ("Batch 100, loss: 0.5\nEvaluating\nBatch 0, loss: 0.7\nBatch 10, loss: 0.8",
     [{"loss": 0.5, "step": 100}, {"val_loss": 0.7}, {"val_loss": 0.8}]),
    ("Epoch 1: 100%|##| 100/100 [00:10<00:00, 8.1it/s, loss=0.5]\nValidation\n"
     "100%|##| 10/10 [00:10<00:00, 8.1it/s, loss=0.7]", [{"loss": 0.5, "step": 100, "epoch": 1}]),
    ("Train:    5/80 ( 33%) [  49/323 ( 15%)]  Loss: 36.77 (81.7)", [{"epoch": 5, "step": 1341, "loss": 36.77}]),
    ("step 0 loss 4.2\n 10%|#  | 100/1000 [00:10<01:00, 8.1it/s]\nloss: 3.0",
     [{"step": 0, "loss": 4.2}, {"step": 100, "steps": 1000}, {"loss": 3.0, "step": 100}]),
    ("Epoch: [2][8/80]  Loss 2.5 (2.9)\nEpoch: [2][9/80]  Loss 2.5 (2.9)\n 50%|##  | 10/20 [00:10<00:12, 1.6it/s]\n"
     "Epoch: [3][0/80]  Loss 2.4 (2.9)",
     [{"epoch": 2, "step": 168, "loss": 2.5}, {"epoch": 2, "step": 169, "loss": 2.5},
      {"epoch": 3, "step": 240, "loss": 2.4}]),
    ("Train Epoch    #1: 100% 80/80 [00:37<00:00, 1.4it/s, loss=0.9]\n"
     "Train Epoch    #2:  50% 40/80 [00:37<00:00, 1.4it/s]",
     [{"loss": 0.9, "step": 80, "epoch": 1}, {"step": 120, "epoch": 2}]),
    ("Validation:\n-----------\n  loss: 28.0", [{"val_loss": 28.0}]),
    ("=== Evaluation ===\n{'loss': 0.6, 'grad_norm': 1.0, 'learning_rate': 1e-3, 'epoch': 2}",
     [{"loss": 0.6, "grad_norm": 1.0, "lr": 0.001, "epoch": 2}]),
    ("Epoch: 1/2\n 50/100 [==>..] - ETA: 9s - loss: 2.0\n100/100 [===] - 1s 5ms/step - loss: 1.9 - val_loss: 1.8\n"
     "Epoch: 2/2\n 50/100 [==>..] - ETA: 9s - loss: 1.5\n20/20 [===] - 0s 2ms/step - loss: 1.4",
     [{"loss": 2.0, "step": 50, "epoch": 1, "steps": 200},
      {"loss": 1.9, "val_loss": 1.8, "step": 100, "epoch": 1, "steps": 200},
      {"loss": 1.5, "step": 150, "epoch": 2, "steps": 200}]),
    ("Epoch 1/2\n100/100 - 1s - loss: 1.9\nEpoch 2/2\n100/100 - 1s - loss: 1.8\n"
     "  1/100 [....] - ETA: 9s - loss: 1.7\n100/100 - 1s - loss: 1.7",
     [{"loss": 1.9, "step": 100, "epoch": 1, "steps": 200}, {"loss": 1.8, "step": 200, "epoch": 2, "steps": 200}]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "records"), TABLES, ids=[text[:40] for text, _ in TABLES])
def test_numbers_whose_names_are_in_another_line(text: str, records: list[dict[str, Any]]) -> None:
    known = Recogniser()
    lines = [line.encode() for line in text.split("\n")]
    assert [found for line in lines if may_tell(line) and (found := known.read(line))] == records


def test_a_link_in_a_line_is_no_metric() -> None:
    link = "\x1b]8;id=704;file:///home/a/train.py#42\x1b\\train.py\x1b]8;;\x1b\\ step 3 loss 0.5"
    assert read(link) == {"step": 3, "loss": 0.5}


def test_the_profiles_pattern_wins(tmp_path: Path) -> None:
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], r"^@(?P<step>\d+) (?P<loss>\S+)(?: (?P<lr>\S+))?$")
    rank.print("Step 1 | Loss: 0.5\n@12 0.25\n@13 nan 1e-3\n@14 oops\n")
    harvest.poll({})
    assert rank.records() == [{"step": 12, "loss": 0.25}, {"step": 13, "loss": "nan", "lr": 0.001}, {"step": 14}]
    assert harvest.notes == []


def test_a_pattern_that_never_ends_is_given_up(tmp_path: Path) -> None:
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], r"^(a+)+(?P<loss>\d)$")
    rank.print("a" * 80 + "!\n")
    harvest.poll({})
    assert len(harvest.notes) == 1 and "metrics.pattern took more than 0.2 s" in harvest.notes[0]
    rank.print("Step 1 | Loss: 0.5\n")
    harvest.poll({})
    assert rank.records() == [{"step": 1, "loss": 0.5}]


def _found(judge: Judge) -> list[tuple[int, str]]:
    return [(one["rank"], one["text"]) for one in judge.take()]


def test_log_rule_also_reads_logs_of_scripts_with_metrics(tmp_path: Path) -> None:
    judge = Judge([WatchRule(rule="log", do="notify", pattern=r"^CUDA error: (?!none)")])
    ranks, harvest = [Rank(tmp_path, number) for number in (0, 1)], Harvest(str(tmp_path), [0, 1], None, judge=judge)
    ranks[0].print("CUDA error: none\n a CUDA error: 700\n")
    ranks[1].metrics.write_text('{"step": 1, "loss": 2.0}\n')
    ranks[1].print("loss: 0.5\n" * 1000 + "CUDA error: 700\n" + "loss: 0.5\n" * 1000)
    harvest.poll({0: 1})
    assert _found(judge) == [(1, "its log matches ^CUDA error: (?!none)")]
    assert ranks[1].records() == [{"step": 1, "loss": 2.0}]
    ranks[1].print("CUDA error: 700\n")
    harvest.poll({0: 1, 1: 2})
    assert _found(judge) == [], "for ten minutes"


def test_silence_counts_for_rank_0_and_ranks_with_the_line() -> None:
    judge = Judge([WatchRule(rule="log", do="notify", pattern="alive", absent=60.0)])
    for now in range(200):
        for rank in (0, 1, 2):
            judge.hear_log(rank, rank == 1 and now < 100 and now % 50 == 0, 1000.0 + now)
    assert _found(judge) == [
        (0, "no line of its log has matched alive for 61 s"), (1, "no line of its log has matched alive for 61 s"),
    ]  # fmt: skip


def test_an_expression_for_the_log_that_never_ends_is_given_up(tmp_path: Path) -> None:
    judge = Judge([WatchRule(rule="log", do="notify", pattern="^(a+)+$", absent=1.0)])
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], None, judge=judge)
    rank.print("Step 1 | Loss: 0.5\n" + "a" * 80 + "!\n")
    harvest.poll({0: 1})
    assert harvest.notes == ["watch.log.pattern took more than 0.2 s for new lines of a rank and is no longer used"]
    assert rank.records() == [{"step": 1, "loss": 0.5}] and _found(judge) == []


def test_both_timers_of_a_slow_pattern_may_expire() -> None:
    """The second signal of a match is handled after it, and must not end what calls it."""
    with closing(_Guard()) as guard:
        with pytest.raises(_TooSlowError), guard:
            signal.raise_signal(signal.SIGALRM)
        signal.raise_signal(signal.SIGPROF)
        guard.__enter__()
    assert signal.getitimer(signal.ITIMER_REAL)[0] == signal.getitimer(signal.ITIMER_PROF)[0] == 0


@pytest.mark.slow
def test_a_slow_pattern_is_given_up_in_any_thread(tmp_path: Path) -> None:
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], r"^(a+)+(?P<loss>\d)$")
    rank.print("a" * 26 + "!\n")
    thread = threading.Thread(target=harvest.poll, args=({},))
    thread.start()
    thread.join(120)
    assert len(harvest.notes) == 1


_BUSY = """
import os, sys
from disttui.runner.node.observe.harvest import Harvest

folder = sys.argv[1]
harvest = Harvest(folder, [0], r"^(a+)+(?P<loss>[0-9])$")
while not os.path.exists(folder + "/enough"):
    with open(folder + "/rank-0.log", "a") as log:
        log.write("a" * 18 + "!\\n")
    harvest.poll({})
print(harvest.notes)
"""


def test_a_pattern_is_not_blamed_for_a_host_that_has_no_time(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    with subprocess.Popen([sys.executable, "-c", _BUSY, tmp_path], stdout=subprocess.PIPE, text=True) as child:
        wait_for(lambda: log.exists() and log.stat().st_size > 100, "the first matches")
        for _ in range(5):
            child.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            before = log.stat().st_size
            child.send_signal(signal.SIGCONT)
            wait_for(lambda: log.stat().st_size > before, "the next matches")  # noqa: B023 (called here)
        (tmp_path / "enough").touch()
        assert child.communicate(timeout=60)[0] == "[]\n"


def test_invalid_pattern_is_reported(tmp_path: Path) -> None:
    assert "is not a regular expression" in Harvest(str(tmp_path), [0], "(").notes[0]


def test_a_flood_is_sampled_at_a_bounded_cost(tmp_path: Path) -> None:
    ranks = [Rank(tmp_path, number) for number in range(4)]
    harvest = Harvest(str(tmp_path), [0, 1, 2, 3], None)
    for rank in ranks:
        rank.print(b"".join(b"Step %d | Loss: 0.5 | LR: 1e-3\n" % step for step in range(500_000)))
        rank.print("é" * 3000)
    with counted() as calls:
        harvest.poll({})
    assert calls.number < 300_000, "of two million lines a few hundred of each rank are read"
    for rank in ranks:
        assert rank.records()[-1]["step"] == 499_999
        assert 0 < len(rank.records()) <= 400
        rank.print("\nStep 500000 | Loss: 1\n")
    harvest.poll({})
    assert all(rank.records()[-1] == {"step": 500_000, "loss": 1} for rank in ranks)


def test_the_first_loss_of_a_rank_that_prints_much_is_kept(tmp_path: Path) -> None:
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], None)
    for begin in (0, 1000):
        rank.print(b"".join(b"Step %d | Loss: 0.5\n" % step for step in range(begin, begin + 1000)))
        harvest.poll({})
    steps = [record["step"] for record in rank.records()]
    assert steps == [0, *range(601, 1000), *range(1600, 2000)]


def test_a_line_whose_beginning_was_skipped_does_not_count(tmp_path: Path) -> None:
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], None)
    rank.print("x" * (3 << 20) + " Loss: 0.5\n")
    harvest.poll({})
    assert rank.records() == []


def test_bytes_that_are_no_text_do_not_matter(tmp_path: Path) -> None:
    rank, harvest = Rank(tmp_path), Harvest(str(tmp_path), [0], None)
    rank.print(b"\xff\xfe\x00 loss\n\x1b[32mStep 1\x1b[0m | Loss: 0.5\n")
    harvest.poll({})
    assert rank.records() == [{"step": 1, "loss": 0.5}]


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="loss step=:[]{}'\"|/ 0123456789.,-+eE%<it\t(", max_size=LONGEST))
@example("loss " * 400)
@example("a: " * 600)
@example("a " * 1000)
@example("loss = " + "[" * 1900)
@example("loss INFO " + "a:1 " * 490)
@example("1/" * 900 + " [" + "0" * 90)
@example("loss: 1e999")
@example("loss: " + "9" * 1900)
def test_no_line_is_expensive_and_every_record_is_plain(line: str) -> None:
    with counted() as calls:
        record = read(line)
    assert calls.number < 20 * LONGEST
    json.loads(json.dumps(record), parse_constant=pytest.fail)
