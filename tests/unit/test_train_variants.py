"""The built-in job in fp16, with less memory and over slow links: its course stays that of plain fp32, or near it."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from disttui.runner.train import strategy
from disttui.runner.train.clip import LossScale
from disttui.runner.train.options import divide, parse
from disttui.runner.train.problem import Problem
from tests import frameworks
from tests.unit.test_train_checkpoints import train
from tests.unit.test_train_run import TINY, Job, close

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

EXACT = {
    "recomputed": ["--activation-checkpointing", "yes"],
    "recomputed-fsdp": ["--activation-checkpointing", "yes", "--strategy", "fsdp"],
    "recomputed-tp": ["--activation-checkpointing", "yes", "--tp", "2"],
    "recomputed-pp": ["--activation-checkpointing", "yes", "--pp", "2"],
    "recomputed-cp": ["--activation-checkpointing", "yes", "--cp", "2"],
    "offload": ["--cpu-offload", "yes", "--strategy", "fsdp"],
}
NEAR = {
    "bf16": ["--precision", "bf16"],
    "bf16-fsdp": ["--precision", "bf16", "--strategy", "fsdp"],
    "fp16": ["--precision", "fp16"],
    "fp16-fsdp": ["--precision", "fp16", "--strategy", "fsdp"],
    "fp16-tp": ["--precision", "fp16", "--tp", "2"],
    "fp16-pp": ["--precision", "fp16", "--pp", "2"],
    "compressed-bf16": ["--compress", "bf16"],
    "compressed-fp16": ["--compress", "fp16"],
    "local-sgd": ["--sync-interval", "3"],
}
RESUMED = {"local-sgd": NEAR["local-sgd"], "fp16-fsdp": NEAR["fp16-fsdp"]}


def course(folder: Path) -> list[str]:
    """Eight steps of eight samples."""
    Job(folder).command()  # makes the text
    shape = [*TINY, "--heads", "4", "--global-batch", "8", "--steps", "8", "--val-interval", "0", "--val-batches", "1"]
    return [*shape, "--sample", "0", "--data", str(folder / "text.txt")]


def test_variants_follow_the_plain_fp32_curve_and_resume_on_it(tmp_path: Path) -> None:
    base, never, fourth = course(tmp_path), ["--checkpoint-interval", "0"], ["--checkpoint-interval", "4"]
    runs = {name: [*base, *how, *(fourth if name in RESUMED else never)] for name, how in {**EXACT, **NEAR}.items()}
    train(tmp_path, {"2": {"plain": [*base, *never], **runs}})
    again = {}
    for name, how in RESUMED.items():
        (source,) = (tmp_path / f"{name}.checkpoints").glob("step-000004-*")
        again[f"{name}-again"] = [*base, *how, *fourth, "--resume", str(source)]
    train(tmp_path, {"2": again})
    curves = {path.name.split(".")[0]: Job.curve_of(path) for path in tmp_path.glob("*.0.jsonl")}
    assert not [name for name in EXACT if not close(curves[name], curves["plain"], 1e-4)]
    off = {
        name: max(
            abs((mine[0] or 0) - (plain[0] or 0)) for mine, plain in zip(curves[name], curves["plain"], strict=True)
        )
        for name in NEAR
    }
    assert all(0 < far < (0.05 if name == "local-sgd" else 0.01) for name, far in off.items()), off
    for name in RESUMED:
        assert close(curves[f"{name}-again"], curves[name][4:], 1e-6), name
    assert {record["loss_scale"] for record in Job.records(tmp_path / "fp16.0.jsonl") if "loss" in record} == {2.0**16}


@pytest.mark.frameworks
def test_powersgd_follows_once_the_warm_up_is_over(tmp_path: Path) -> None:
    never = [*course(tmp_path), "--checkpoint-interval", "0"]
    runs = {"plain": never, "powersgd": [*never, "--compress", "powersgd"]}
    train(tmp_path, {"2": runs}, python=str(frameworks.PYTHON))
    plain, powersgd = (Job.curve_of(tmp_path / f"{name}.0.jsonl") for name in runs)
    assert close(powersgd[:4], plain[:4], 1e-4)
    assert not close(powersgd, plain, 1e-4)
    assert close(powersgd, plain, 0.5)


def test_powersgd_without_numpy_is_refused_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(Problem, match="needs numpy beside torch: install it, or take bf16"):
        strategy.compress(SimpleNamespace(), "powersgd", 4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (
            "--compress bf16 --strategy fsdp",
            "--compress: compress is for copies of the whole model, which fsdp divides",
        ),
        ("--sync-interval 4 --tp 2", "--sync-interval: .* which tp 2 divides"),
        ("--sync-interval 4 --dp-replicate 2 --dp-shard 2", "--sync-interval: .* which hsdp divides"),
        ("--sync-interval 4 --compress fp16", "nothing to compress with sync_interval"),
    ],
)
def test_slow_links_are_for_whole_models(arguments: str, named: str) -> None:
    with pytest.raises(Problem, match=named):
        divide(parse(arguments.split()), [4])


@pytest.mark.parametrize(
    ("arguments", "named"), [("", "ddp"), ("--dp-shard 2 --tp 2", "tp 2"), ("--dp-shard 2 --pp 2", "pp 2")]
)
def test_offload_without_fsdp_is_refused_before_the_start(arguments: str, named: str) -> None:
    with pytest.raises(Problem, match=f"--cpu-offload: yes is not for {named}: expected fsdp or hsdp without tp, pp"):
        divide(parse(["--cpu-offload", "yes", *arguments.split()]), [4])


def test_recomputed_blocks_run_again_in_the_backward_pass() -> None:
    runs = 0

    def forward(x: Any) -> Any:
        nonlocal runs
        runs += 1
        return (x * x).sum()

    block = SimpleNamespace(forward=forward)
    strategy.recompute_activations([block])
    x = torch.ones(3, requires_grad=True)
    block.forward(x).backward()
    assert runs == 2
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3


def test_loss_scale_halves_on_overflow_and_doubles_later() -> None:
    scale = LossScale(enabled=True, saved={})
    assert (scale.factor, scale.accepts(finite=False)) == (2.0**16, False)
    assert (scale.factor, scale.skipped) == (2.0**15, 1)
    for _ in range(1999):
        assert scale.accepts(finite=True)
    saved: Mapping[str, float] = scale.state()
    assert LossScale(enabled=True, saved=saved).state() == saved
    scale.accepts(finite=True)
    assert scale.factor == 2.0**16
    plain = LossScale(enabled=False, saved=saved)
    assert (plain.factor, plain.accepts(finite=math.isfinite(math.inf)), plain.state()) == (1.0, True, {})
