"""The training loop: steps, validation, checkpoints, and what is said of them."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from .batching import BatchPlan, SampleOrder
from .clip import StepMeans, reduce_and_clip
from .clock import ForwardClock
from .corpus import Corpus
from .keeper import Keeper
from .metrics import MetricsWriter
from .options import Options
from .place import RankIdentity
from .problem import Problem
from .say import say
from .schedule import lr_at
from .strategy import Batch, Strategy


@dataclass
class Training:
    """A training under way; `step` and `samples` are what is finished, resumed ones included."""

    options: Options
    plan: BatchPlan
    place: RankIdentity
    device: Any
    corpus: Corpus
    strategy: Strategy
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
        self._data_index = self.strategy.mesh.layout.data_index(self.place.rank)

    def run(self) -> float:
        """Train to the last step and return the final validation loss (nats per byte). A collective."""
        try:
            return self._run()
        finally:
            if not isinstance(sys.exc_info()[1], (RuntimeError, KeyboardInterrupt)):
                self.keeper.close()  # else peers may be gone, for which its threads would wait

    def _run(self) -> float:
        options, val_loss = self.options, math.nan
        while self.step < options.steps:
            record = self._timed_step()
            last = self.step == options.steps
            if last or (options.val_interval and self.step % options.val_interval == 0):
                record["val_loss"] = val_loss = self.validate()
            self._report(record)
            if self.keeper.is_due(self.step, last=last):
                self.keeper.save(self.step, self.samples, self.strategy.parameters, self.optimizer, {})
        return val_loss if math.isfinite(val_loss) else self.validate()

    def validate(self) -> float:
        """Mean loss over the held-out blocks, the same whatever the number of ranks.

        Every rank runs as many forward passes as the others, as FSDP needs; what is beyond the end weighs nothing.
        Ranks that share samples each have a part of their losses, or the same.
        """
        count, size = len(self._held_out), self.plan.batch_size
        total = torch.zeros((), device=self.device)
        self.strategy.model.eval()
        with torch.no_grad():
            for start in range(0, count, self.plan.round_size):
                places = range(start + self._data_index * size, start + (self._data_index + 1) * size)
                weights = torch.tensor([float(place < count) for place in places], device=self.device)
                losses = self.strategy.losses(*self.corpus.batch([self._held_out[place % count] for place in places]))
                total += (losses * weights).sum()
        dist.all_reduce(total)
        return float(total) / (count * self.strategy.mesh.layout.copies)

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
            "tokens_per_s": self.plan.global_batch * self.options.context / seconds,
            **({"forward_time": forward} if (forward := self._clock.seconds()) else {}),
        }

    def _train_step(self, lr: float) -> StepMeans:
        """One optimizer step; returns the global mean loss and the norm of the gradient before clipping."""
        self.strategy.model.train()
        if self.options.dropout:
            torch.manual_seed(((self.options.seed * 1_000_003 + self.step) * 65_537 + self.place.rank) % 2**63)
        part = self.strategy.gradients(self._batches(), self.plan.accumulate, self._clock)
        means = reduce_and_clip(self.strategy.parameters, part, self.options.clip, self.strategy.mesh.layout)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.samples += self.plan.global_batch
        return means

    def _batches(self) -> Iterator[Batch]:
        """What this rank trains on in the rounds of the step."""
        for index in range(self.plan.accumulate):
            start = self.plan.start(self.samples, index, self._data_index)
            yield self.corpus.batch(self._order.take(start, self.plan.batch_size))

    def _report(self, record: dict[str, float]) -> None:
        if self.place.rank:
            names = ("steps", "step_time", "forward_time")
            self.metrics.write(self.step, **{name: record[name] for name in names if name in record})
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
