"""The training loop: steps, validation, checkpoints, and what is said of them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from .batching import BatchPlan, SampleOrder
from .clock import ForwardClock
from .corpus import Corpus
from .group import mean
from .keeper import Keeper
from .metrics import MetricsWriter
from .options import Options
from .place import RankIdentity
from .problem import Problem
from .say import say
from .schedule import lr_at
from .strategy import clip


@dataclass
class Training:
    """A training under way; `step` and `samples` are what is finished, resumed ones included."""

    options: Options
    plan: BatchPlan
    place: RankIdentity
    device: Any
    corpus: Corpus
    strategy: Any
    optimizer: Any
    keeper: Keeper
    metrics: MetricsWriter
    peak_lr: float
    step: int
    samples: int
    _timed: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._order = SampleOrder(self.corpus.train, self.options.seed)
        held_out = SampleOrder(self.corpus.validation, self.options.seed)
        count = min(len(self.corpus.validation), self.options.val_batches * self.plan.global_batch)
        self._held_out = held_out.take(0, count)
        self._clock = ForwardClock(self.device)

    def run(self) -> float:
        """Train to the last step and return the final validation loss (nats per byte). A collective."""
        options, val_loss = self.options, math.nan
        while self.step < options.steps:
            record = self._timed_step()
            last = self.step == options.steps
            if last or (options.val_interval and self.step % options.val_interval == 0):
                record["val_loss"] = val_loss = self.validate()
            self._report(record)
            self.keeper.save(self.step, self.samples, self.strategy.parameters, self.optimizer, last=last)
        return val_loss if math.isfinite(val_loss) else self.validate()

    def validate(self) -> float:
        """Mean loss over the held-out blocks, the same whatever the number of ranks.

        Every rank runs as many forward passes as the others, as FSDP needs; what is beyond the end weighs nothing.
        """
        count, size = len(self._held_out), self.plan.batch_size
        total = torch.zeros((), device=self.device)
        self.strategy.model.eval()
        with torch.no_grad():
            for start in range(0, count, self.plan.round_size):
                places = range(start + self.place.rank * size, start + (self.place.rank + 1) * size)
                weights = torch.tensor([float(place < count) for place in places], device=self.device)
                losses = self._losses([self._held_out[place % count] for place in places])
                total += (losses * weights).sum()
        dist.all_reduce(total)
        return float(total) / count

    def _losses(self, blocks: list[int]) -> Any:
        """Mean loss of each block."""
        inputs, targets = self.corpus.batch(blocks)
        logits = self.strategy.forward(inputs)
        losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return losses.view(len(blocks), -1).mean(1)

    def _timed_step(self) -> dict[str, float]:
        began = time.perf_counter()
        lr = lr_at(
            self.step,
            peak=self.peak_lr,
            steps=self.options.steps,
            warmup=self.options.warmup,
            min_ratio=self.options.min_lr_ratio,
        )
        loss, grad_norm = self._train_step(lr)
        seconds = time.perf_counter() - began
        if not math.isfinite(loss):
            raise Problem(f"the loss is {loss} at step {self.step}: lower --lr or raise --warmup", code=1)
        self._timed.append(seconds)
        return {
            "steps": self.options.steps,
            "epoch": self._order.epoch(self.samples - 1),
            "loss": loss,
            "lr": lr,
            "grad_norm": grad_norm,
            "step_time": seconds,
            "forward_time": self._clock.seconds(),
            "tokens_per_s": self.plan.global_batch * self.options.context / seconds,
        }

    def _train_step(self, lr: float) -> tuple[float, float]:
        """One optimizer step; returns the global mean loss and the norm of the gradient before clipping."""
        rounds = self.plan.accumulate
        total = torch.zeros((), device=self.device)
        self.strategy.model.train()
        if self.options.dropout:
            torch.manual_seed(((self.options.seed * 1_000_003 + self.step) * 65_537 + self.place.rank) % 2**63)
        for index in range(rounds):
            start = self.plan.start(self.samples, index, self.place.rank)
            with self.strategy.round(last=index == rounds - 1):
                with self._clock.running():
                    loss = self._losses(self._order.take(start, self.plan.batch_size)).mean() / rounds
                loss.backward()
            total += loss.detach()
        grad_norm = clip(self.strategy.parameters, self.options.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.samples += self.plan.global_batch
        return mean(total), grad_norm

    def _report(self, record: dict[str, float]) -> None:
        if self.place.rank:
            names = ("steps", "step_time", "forward_time")
            self.metrics.write(self.step, **{name: record[name] for name in names})
            return
        self.metrics.write(self.step, **record)
        where = f"step {self.step}/{self.options.steps}"
        if self.step == 1 or self.step % self.options.log_interval == 0 or self.step == self.options.steps:
            tokens = self.plan.global_batch * self.options.context * len(self._timed)
            speed = f"{tokens / sum(self._timed) / 1000:.1f}k tok/s"
            say(f"{where}  loss {record['loss']:.4f}  lr {record['lr']:.1e}  {speed}")
            self._timed.clear()
        if "val_loss" in record:
            say(f"{where}  validation loss {record['val_loss']:.4f}")
