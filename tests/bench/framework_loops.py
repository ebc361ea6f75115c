"""bytegpt's model under torchrun, trained by bytegpt itself, by a framework or by the shortest loop.

`framework_loops.py WAY STEPS` prints `rate N`: tokens per second of all ranks.
"""
# mypy: ignore-errors
# The frameworks have an environment of their own.

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from disttui.runner.train.model import Architecture, build

BATCH, CONTEXT = 8, 128
WARM = 20
LR, CLIP = 3e-3, 1.0
WORLD, RANK = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])


class Rate:
    """Takes the time between the ends of steps."""

    def __init__(self, steps: int) -> None:
        self.steps, self.step, self._ends = steps, 0, []

    def ended(self) -> None:
        """A step has ended."""
        self.step += 1
        self._ends.append(time.perf_counter())
        if self.step == self.steps:
            say(self._ends)


def say(ends: list[float]) -> None:
    """Print the rate of the quarter of the steps that the rest of the machine disturbed least."""
    if RANK == 0:
        seconds = statistics.quantiles([after - before for before, after in itertools.pairwise(ends[WARM:])])[0]
        print(f"rate {WORLD * BATCH * CONTEXT / seconds:.1f}", flush=True)


class Blocks(Dataset):
    """Random bytes; a sample and what follows it."""

    def __init__(self) -> None:
        self.data = torch.randint(256, (1 << 20,), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data) // CONTEXT - 1

    def __getitem__(self, index):
        block = self.data[index * CONTEXT : (index + 1) * CONTEXT + 1]
        return {"x": block[:-1], "y": block[1:]}


class WithLoss(nn.Module):
    """The model as Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build(Architecture(4, 4, 128, CONTEXT), 0)

    def forward(self, x, y):
        return {"loss": functional.cross_entropy(self.model(x).flatten(0, 1), y.flatten())}


def adamw(model):
    """bytegpt's optimizer."""
    weights = list(model.parameters())
    decayed = [p for p in weights if p.ndim >= 2]
    groups = [
        {"params": decayed, "weight_decay": 0.1},
        {"params": [p for p in weights if p.ndim < 2], "weight_decay": 0},
    ]
    return torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), fused=True)


def bytegpt(rate: Rate, strategy: str) -> None:
    """The built-in job, whose metrics tell the time of every step."""
    from disttui.runner.train.main import main

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "metrics.jsonl")
        os.environ.update(DISTTUI_METRICS=str(path), DISTTUI_CHECKPOINTS=folder)
        sys.argv[1:] = (
            f"--steps {rate.steps + 1} --batch-size {BATCH} --context {CONTEXT} --lr {LR} --clip {CLIP} "
            f"--strategy {strategy} --val-interval 0 --val-batches 1 --checkpoint-interval 0 --sample 0"
        ).split()
        with contextlib.redirect_stdout(sys.stderr):
            main()
        times = {record["step"]: record["t"] for record in map(json.loads, path.read_text().splitlines())}
    say([times[step] for step in range(1, rate.steps + 1)])


def trainer(rate: Rate) -> None:
    """Hugging Face's Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Watch(TrainerCallback):
        def on_step_end(self, *_, **__):
            rate.ended()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=rate.steps, per_device_train_batch_size=BATCH, learning_rate=LR,
            weight_decay=0.1, adam_beta2=0.95, optim="adamw_torch_fused", max_grad_norm=CLIP, logging_steps=10,
            save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, ddp_find_unused_parameters=False,
            remove_unused_columns=False, dataloader_pin_memory=False,
        )  # fmt: skip
        model = WithLoss()
        Trainer(model=model, args=arguments, train_dataset=Blocks(), callbacks=[Watch()]).train()


def accelerate(rate: Rate) -> None:
    """A loop with Accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = WithLoss()
    model, optimizer, loader = accelerator.prepare(
        model, adamw(model), DataLoader(Blocks(), batch_size=BATCH, shuffle=True)
    )
    for batch in loader:
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        rate.ended()
        if rate.step % 10 == 0:
            accelerator.print(f"step {rate.step} loss {loss.item():.4f}", file=sys.stderr)
        if rate.step == rate.steps:
            return


def lightning(rate: Rate) -> None:
    """Lightning."""
    import lightning as framework

    class Module(framework.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = WithLoss()

        def training_step(self, batch, _):
            loss = self.inner(**batch)["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return adamw(self)

    class Watch(framework.Callback):
        def on_train_batch_end(self, *_):
            rate.ended()

    with tempfile.TemporaryDirectory() as folder:
        framework.Trainer(
            accelerator="cpu", strategy="ddp", devices=WORLD, max_steps=rate.steps, gradient_clip_val=CLIP,
            log_every_n_steps=10, callbacks=[Watch()], enable_progress_bar=False, enable_checkpointing=False,
            enable_model_summary=False, default_root_dir=folder,
        ).fit(Module(), DataLoader(Blocks(), batch_size=BATCH, shuffle=True))  # fmt: skip


def fully_shard(rate: Rate) -> None:
    """The shortest loop with FSDP2."""
    from torch import distributed
    from torch.distributed.fsdp import fully_shard as shard
    from torch.utils.data import DistributedSampler

    distributed.init_process_group("gloo")
    distributed.device_mesh.init_device_mesh("cpu", (WORLD,))
    model = build(Architecture(4, 4, 128, CONTEXT), 0)
    for block in model.blocks.values():
        shard(block)
    shard(model)
    optimizer = adamw(model)
    data = Blocks()
    for batch in DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data)):
        loss = functional.cross_entropy(model(batch["x"]).flatten(0, 1), batch["y"].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        rate.ended()
        if rate.step % 10 == 0 and RANK == 0:
            print(f"step {rate.step} loss {loss.item():.4f}", file=sys.stderr)
        if rate.step == rate.steps:
            break
    distributed.destroy_process_group()


def main() -> None:
    """Train one way."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    way, rate = sys.argv[1], Rate(int(sys.argv[2]))
    ways = {"trainer": trainer, "accelerate": accelerate, "lightning": lightning, "fully_shard": fully_shard}
    if way in ways:
        ways[way](rate)
    else:
        bytegpt(rate, way)


if __name__ == "__main__":
    main()
