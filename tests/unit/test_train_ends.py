"""How a training of the built-in job ends before its time, and what becomes of its checkpoints; in this process."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from runner.train import checkpoint, clip, job, keeper, loop, termination
from runner.train.division import divide
from runner.train.options import parse
from runner.train.place import RankIdentity
from tests.unit.test_train_run import TINY, Job

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

SLOW_DISK = 0.8
"""Seconds that a checkpoint takes to be written: more than a patience of half a second."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run's folder; a rank that is ended there at once raises in place of it."""
    Job(tmp_path).command()  # makes the text
    for name in ("RANK", "WORLD_SIZE", "DISTTUI_ATTEMPT", "DISTTUI_METRICS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISTTUI_CHECKPOINTS", str(tmp_path / "checkpoints"))
    return tmp_path


def run(folder: Path, *arguments: str) -> None:
    """Train as one rank; a checkpoint after each step."""
    shape = [*TINY, "--val-interval", "0", "--val-batches", "1", "--sample", "0", "--batch-size", "2"]
    options = parse([*shape, "--checkpoint-interval", "1", "--data", str(folder / "text.txt"), *arguments])
    place = RankIdentity()
    layout, plan = divide(options, place.hosts())
    job.run(options, layout, plan, place)


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    write = checkpoint.write

    def slowly(*arguments: Any) -> Path:
        time.sleep(SLOW_DISK)
        return write(*arguments)

    monkeypatch.setattr(checkpoint, "write", slowly)


@pytest.mark.usefixtures("slow_disk")
def test_sigterm_waits_for_a_disk_that_is_slow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when the last step waits for the checkpoint of the one before: both are written."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(termination, "_LEAST_PATIENCE", 0.5)
    monkeypatch.setattr(termination.Termination, "beat", lambda self: None)  # the first step is slow
    save = keeper.Keeper.save

    def asked_to_end(self: keeper.Keeper, step: int, *arguments: Any) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        save(self, step, *arguments)

    monkeypatch.setattr(keeper.Keeper, "save", asked_to_end)
    run(folder, "--steps", "2")
    assert saved(folder) == ["step-000001-a1.pt", "step-000002-a1.pt"]
    assert not ended


@pytest.mark.usefixtures("slow_disk")
@pytest.mark.parametrize("error", [RuntimeError("Connection closed by peer"), KeyboardInterrupt()])
def test_a_checkpoint_that_rank_0_has_begun_outlives_a_peer_and_a_ctrl_c(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    step = loop.Training._train_step

    def fail_in_the_second(self: loop.Training, lr: float) -> clip.StepMeans:
        if self.step == 1:
            raise error
        return step(self, lr)

    monkeypatch.setattr(loop.Training, "_train_step", fail_in_the_second)
    try:
        with pytest.raises(type(error)):
            run(folder, "--steps", "2")
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert saved(folder) == ["step-000001-a1.pt"]


def test_a_rank_that_still_trains_is_not_ended_before_all_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --sync-interval a rank learns after many steps alone what the others want."""
    clock = [0.0]
    monkeypatch.setattr(termination, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    rank = termination.Termination(enabled=False)
    for second in range(1, 31):
        clock[0] = second
        assert rank.left(asked=5.0) > 0
        rank.beat()
    clock[0] = 34.0
    assert rank.left(asked=5.0) < 0
    with rank.writing():
        clock[0] = 1000.0
        assert math.isinf(rank.left(asked=5.0))
    assert rank.left(asked=5.0) == 3.0
