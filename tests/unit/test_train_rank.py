"""The built-in job as one rank in this process: how it ends before its time, and what becomes of its checkpoints."""

from __future__ import annotations

import math
import os
import re
import resource
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from disttui.runner.train import checkpoint, clip, index, job, keeper, loop, model, strategy, termination
from disttui.runner.train.group import TIMEOUT
from disttui.runner.train.layout import Layout, RankIdentity
from disttui.runner.train.options import divide, parse
from disttui.runner.train.problem import Problem
from disttui.runner.train.state import Box
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
    write = checkpoint.write_parts

    def slowly(*arguments: Any) -> list[checkpoint.Entry]:
        time.sleep(SLOW_DISK)
        return write(*arguments)

    monkeypatch.setattr(checkpoint, "write_parts", slowly)


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
    assert saved(folder) == ["step-000001-a1", "step-000002-a1"]
    assert not ended


def test_sigterm_ends_a_rank_whose_checkpoint_waits_for_a_peer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    gone = threading.Event()

    def exit_(code: int) -> None:
        ended.append(code)
        gone.set()

    def barrier() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert gone.wait(10)

    monkeypatch.setattr(os, "_exit", exit_)
    monkeypatch.setattr(termination, "_DISK_PATIENCE", 0.5, raising=False)
    monkeypatch.setattr(termination.Termination, "beat", lambda self: None)  # the first step is slow
    monkeypatch.setattr(keeper, "dist", SimpleNamespace(**{**vars(torch.distributed), "barrier": barrier}))
    run(folder, "--steps", "1")
    assert set(ended) == {128 + signal.SIGTERM}


def test_sigterm_spares_a_rank_once_the_ranks_have_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They agree while it waits for the checkpoint that it has begun: one of the last step follows then."""
    ended: list[int] = []
    waits, agreed = threading.Event(), threading.Event()

    def finish() -> None:
        waits.set()
        agreed.wait(30)

    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(termination, "_LEAST_PATIENCE", 0.1)
    others = threading.enumerate()
    with termination.Termination(enabled=True, finish=finish) as rank:
        (watch,) = (thread for thread in threading.enumerate() if thread not in others)
        os.kill(os.getpid(), signal.SIGTERM)
        assert waits.wait(30)
        rank.agree()
        agreed.set()
        watch.join(30)
    assert not watch.is_alive()
    assert not ended


@pytest.mark.usefixtures("slow_disk")
@pytest.mark.parametrize("error", [RuntimeError("Connection closed by peer"), KeyboardInterrupt()])
def test_begun_checkpoint_survives_a_failed_peer_and_ctrl_c(
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
    assert saved(folder) == ["step-000001-a1"]


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


@pytest.mark.parametrize(("precision", "value", "step"), [("fp32", "inf", 2), ("bf16", "inf", 2), ("fp16", "nan", 18)])
def test_a_gradient_without_bounds_gets_into_no_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, precision: str, value: str, step: int
) -> None:
    """The loss is finite still. In fp16 the factor on the loss is halved before, down to 1."""
    plain = strategy.Replicated.gradients

    def without_bounds(self: strategy.Replicated, *arguments: Any) -> Any:
        loss = plain(self, *arguments)
        if any((folder / "checkpoints").iterdir()):
            self.parameters["norm.weight"].grad[0] = math.inf
        return loss

    class AtOnce(threading.Thread):
        start = threading.Thread.run

        def join(self, timeout: float | None = None) -> None:
            """It has ended."""

    monkeypatch.setattr(keeper, "threading", SimpleNamespace(Thread=AtOnce))
    monkeypatch.setattr(strategy.Replicated, "gradients", without_bounds)
    with pytest.raises(Problem, match=f"the norm of the gradient is {value} at step {step}: lower --lr"):
        run(folder, "--steps", "20", "--precision", precision)
    newest, notes = checkpoint.newest(folder / "checkpoints")
    assert newest is not None and not notes
    shapes = {name: stored.shape for name, stored in newest.tensors.items()}
    weights = {name: newest.read(name, Box((0,) * len(shape), shape)) for name, shape in shapes.items()}
    assert newest.progress["step"] == step - 1
    assert all(weight.isfinite().all() for weight in weights.values())


def test_a_full_disk_costs_the_new_checkpoint_and_no_old_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    course = ["--batch-size", "8", "--checkpoint-interval", "2"]
    run(folder, "--steps", "2", *course, "--checkpoint-format", "sharded")
    before = sorted((folder / "checkpoints").rglob("*"))
    for form in ("file", "sharded"):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        try:
            run(folder, "--steps", "4", *course, "--checkpoint-format", form, "--resume", "auto")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert f"note: no checkpoint of step 4 in {folder / 'checkpoints'}: File too large" in capsys.readouterr().out
        assert sorted((folder / "checkpoints").rglob("*")) == before


def test_bit_flip_in_a_checkpoint_resumes_from_the_one_before(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(folder, "--steps", "2", "--checkpoint-format", "sharded")
    resumed = ["--steps", "2", "--checkpoint-interval", "0", "--resume"]
    first, second = (folder / "checkpoints" / name for name in saved(folder))
    flip_a_bit(second)
    capsys.readouterr()
    run(folder, *resumed, "auto")
    said = [line for line in capsys.readouterr().out.splitlines() if "step-00000" in line]
    assert re.fullmatch(rf"note: checkpoint {second}: \S+ in rank-0.bin is damaged: skipped", said[0])
    assert said[1:] == [f"note: resumed from {first} after step 1"]
    flip_a_bit(first)
    with pytest.raises(Problem, match=rf"{second}.* damaged: skipped.*{first}.* damaged: skipped\. .*no complete"):
        run(folder, *resumed, "auto")
    with pytest.raises(Problem, match=rf"^checkpoint {first}: \S+ in rank-0.bin is damaged$"):
        run(folder, *resumed, str(first))


def flip_a_bit(path: Path) -> None:
    """In the middle of the largest tensor of a checkpoint."""
    parts = [part for one in index.read(path)[1].values() for part in one.parts]
    part = max(parts, key=lambda part: part.length)
    with part.path.open("r+b") as file:
        file.seek(part.begin + part.length // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def test_compile_without_a_compiler_is_refused_with_its_cure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(Problem, match=r"--compile yes needs g\+\+, which \S+ does not have: install it"):
        run(folder, "--compile", "yes")


def test_a_forward_pass_under_ddp_waits_for_no_other_rank(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    monkeypatch.setattr(DistributedDataParallel, "_sync_buffers", lambda self: sent.append(self))  # noqa: PLW0108
    run(folder, "--steps", "2", "--checkpoint-interval", "0")
    assert not sent


def test_activation_checkpointing_runs_each_block_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    forward = model.Block.forward

    def counted(self: model.Block, x: Any, rotation: Any) -> Any:
        ran.append(torch.is_grad_enabled())
        return forward(self, x, rotation)

    monkeypatch.setattr(model.Block, "forward", counted)
    run(folder, "--steps", "3", "--checkpoint-interval", "0", "--activation-checkpointing", "yes")
    assert ran.count(True) == 3 * 2 * 2, "3 steps, 2 layers, forward and again in the backward pass"


def test_cpu_offload_reaches_fsdp(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs it moves nothing, so that a course alone would not show whether it is on."""
    policies: list[object] = []

    def watched(*arguments: Any, **how: Any) -> Any:
        policies.append(type(how["offload_policy"]))
        return fully_shard(*arguments, **how)

    monkeypatch.setattr(strategy, "fully_shard", watched)
    run(folder, "--steps", "1", "--checkpoint-interval", "0", "--strategy", "fsdp", "--cpu-offload", "yes")
    assert policies == [CPUOffloadPolicy] * 3, "2 layers and the whole"


def test_an_infinite_gradient_of_one_rank_is_known_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """This rank's own is finite; what it adds up to with the other's is not."""

    def all_reduce(totals: Any) -> None:
        totals += torch.tensor([2.0, math.inf, 1.0, 0.0])

    monkeypatch.setattr(clip, "dist", SimpleNamespace(all_reduce=all_reduce))
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    found = clip.reduce_and_clip({"w": weight}, torch.tensor(6.0), 1.0, Layout(dp_replicate=2))
    assert found == (5.0, math.inf, True, False)


def test_an_average_of_many_small_tensors_is_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs the delay of the slow link: weights and moments of a hundred layers are sent together."""
    sent: list[int] = []

    def all_reduce(tensor: Any) -> None:
        sent.append(tensor.numel())
        tensor.mul_(3)  # this rank's 1 and the other's 2

    monkeypatch.setattr(strategy, "dist", SimpleNamespace(all_reduce=all_reduce, get_world_size=lambda: 2))
    monkeypatch.setattr(strategy, "_BUCKET", 4 * 1000)
    weights = [torch.nn.Parameter(torch.full((size, 2), 1.0)) for size in [5] * 99 + [600, 7]]
    optimizer = torch.optim.AdamW(weights)
    for weight in weights[1:]:
        moments = {key: torch.ones(weight.shape) for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[weight] = {"step": torch.tensor(3.0), **moments}
    strategy.average_state(weights, optimizer, moments=False)
    assert sent == [990 + 1200, 14]
    strategy.average_state(weights, optimizer, moments=True)
    assert sum(sent) == 2204 * 4 and len(sent) < 10
    assert all((weight == 2.25).all() for weight in weights)
    assert [float(optimizer.state[weight]["exp_avg"].mean()) for weight in weights] == [0.0] + [1.5] * 100


def test_checkpoint_group_has_the_timeout_of_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[object] = []
    new_group = torch.distributed.new_group

    def watched(*arguments: Any, **how: Any) -> Any:
        group = new_group(*arguments, **how)
        limits.append(group._get_backend(torch.device("cpu")).options._timeout)
        return group

    monkeypatch.setattr(torch.distributed, "new_group", watched)
    run(folder, "--steps", "1", "--checkpoint-format", "sharded")
    assert limits == [TIMEOUT]
