"""The training loop: steps, validation, checkpoints, and their log lines."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist

from .batching import BatchPlan, SampleOrder
from .clip import LossScale, StepMeans, reduce_and_clip
from .corpus import Corpus
from .keeper import Keeper
from .layout import Layout, RankIdentity
from .metrics import ForwardClock, MetricsWriter
from .options import Options
from .problem import Problem, say
from .strategy import Batch, Strategy, average, average_state
from .termination import Terminated, Termination


@dataclass
class Training:
    """A training in progress; `step` and `samples` count what is finished, including what was resumed."""

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
    scaling: InitVar[Mapping[str, float]] = MappingProxyType({})
    """The state of LossScale in the checkpoint that it resumes from."""
    _timed: list[float] = field(default_factory=list)

    def __post_init__(self, scaling: Mapping[str, float]) -> None:
        self._scale = LossScale(enabled=self.options.precision == "fp16", saved=scaling)
        self._termination = Termination(enabled=False)
        self._ends = False
        self._asked = False
        """Whether the ranks have agreed on a requested checkpoint."""
        self._is_common = True
        """Whether the loss of the last step is that of all ranks, so that all detect the same errors in it."""
        self._order = SampleOrder(self.corpus.train, self.options.seed)
        held_out = SampleOrder(self.corpus.validation, self.options.seed)
        count = min(len(self.corpus.validation), self.options.val_batches * self.plan.global_batch)
        self._held_out = held_out.take(0, count)
        self._clock = ForwardClock(self.device)
        self._data_index = self.strategy.mesh.layout.data_index(self.place.rank)

    def run(self) -> float:
        """Train to the last step and return the final validation loss (nats per byte). A collective.

        Raises Terminated if the ranks were asked to end before; they then have a checkpoint of their last step.
        """
        keeper = self.keeper
        with Termination(enabled=keeper.enabled, finish=keeper.close_alone) as self._termination:
            try:
                return self._run()
            except Problem:
                with self._termination.writing():
                    keeper.close_alone()
                with self._termination.writing(together=True):
                    keeper.close()
                raise
            except (RuntimeError, KeyboardInterrupt) as error:
                with self._termination.writing():
                    keeper.close_alone()
                if self._termination.requested and isinstance(error, RuntimeError):
                    raise Terminated from None  # ranks that were asked to end are gone
                raise

    def _run(self) -> float:
        options, val_loss = self.options, math.nan
        while self.step < options.steps:
            record = self._timed_step()
            if self._validates:
                record["val_loss"] = val_loss = self.validate()
            self._report(record)
            self._termination.beat()
            if self._saves:
                self._save()
            if self._ends:
                self._end()
        if not math.isfinite(val_loss):
            val_loss = self.validate()
        self._termination.agree()  # nothing is left to be requested
        self.keeper.close()
        return val_loss

    @property
    def _is_last(self) -> bool:
        return self.step == self.options.steps

    @property
    def _validates(self) -> bool:
        """Whether a validation follows the step that was just made."""
        interval = self.options.val_interval
        return not self._ends and (self._is_last or (interval > 0 and self.step % interval == 0))

    @property
    def _saves(self) -> bool:
        return self._ends or self._asked or self.keeper.is_due(self.step, last=self._is_last)

    def _save(self) -> None:
        self._asked = False
        with self._termination.writing():
            self.keeper.close_alone()
        with self._termination.writing(together=True):
            self.keeper.save(self.step, self.samples, self.strategy.parameters, self.optimizer, self._scale.state())

    def _end(self) -> None:
        """Wait for the checkpoint of this step and raise Terminated."""
        self.keeper.close()
        if not self.place.rank:
            done = (
                f"with a checkpoint of step {self.step}" if self.keeper.newest == self.step else "without a checkpoint"
            )
            say(f"SIGTERM: ended after step {self.step} {done}")
        raise Terminated

    def validate(self) -> float:
        """The mean loss over the held-out blocks, independent of the number of ranks.

        Every rank runs the same number of forward passes, as FSDP requires; blocks beyond the end have no weight.
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
                self._termination.beat()
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
        means = self._train_step(lr)
        seconds = time.perf_counter() - began
        if self._is_common:
            self._check(means)
        self._timed.append(seconds)
        return {
            "steps": self.options.steps,
            "epoch": self._order.epoch(self.samples - 1),
            "loss": means.loss,
            "lr": lr,
            "grad_norm": means.grad_norm,
            **({"loss_scale": self._scale.factor} if self.options.precision == "fp16" else {}),
            "step_time": seconds,
            "tokens_per_s": self.plan.global_batch * self.options.context / seconds,
            **({"forward_time": forward} if (forward := self._clock.seconds()) else {}),
        }

    def _check(self, means: StepMeans) -> None:
        """Raise Problem if the training has diverged: such weights are not worth a checkpoint."""
        skipped = self.options.precision == "fp16" and means.grad_norm == math.inf
        for what, value in (("loss", means.loss), ("norm of the gradient", 0.0 if skipped else means.grad_norm)):
            if not math.isfinite(value):
                raise Problem(f"the {what} is {value} at step {self.step}: lower --lr or raise --warmup", code=1)

    def _train_step(self, lr: float) -> StepMeans:
        """One optimizer step; returns the global mean loss and the norm of the gradient before clipping."""
        self.strategy.model.train()
        if self.options.dropout:
            torch.manual_seed(((self.options.seed * 1_000_003 + self.step) * 65_537 + self.place.rank) % 2**63)
        scale, layout = self._scale.factor, self.strategy.mesh.layout
        self.strategy.loss_scale = scale
        part = self.strategy.gradients(self._batches(), self.plan.accumulate, self._clock)
        alone = self.options.sync_interval > 1
        means = reduce_and_clip(
            self.strategy.parameters,
            part,
            self.options.clip,
            Layout() if alone else layout,
            scale=scale,
            ends=self._termination.requested,
            saves=self._checkpoint_requested,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        may_halve = self._scale.may_halve
        if self._scale.accepts(finite=math.isfinite(means.grad_norm)):
            self.optimizer.step()
        else:
            # Ranks that train alone each have their own factor: the mean of these norms tells all what to do.
            means = means._replace(grad_norm=math.inf if may_halve else math.nan)
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.samples += self.plan.global_batch
        return self._average(means) if alone else self._agree(means)

    def _average(self, means: StepMeans) -> StepMeans:
        """Average the ranks' own models if that is due; only then is anything known in common."""
        due = self.step % self.options.sync_interval == 0 or self._validates or self._saves
        self._is_common = due or self.place.world_size == 1
        if not self._is_common:
            return means
        requests = (float(self._termination.requested), float(self._checkpoint_requested))
        totals = torch.tensor([means.loss, means.grad_norm, *requests], device=self.device)
        average([totals])
        loss, norm, ends, saves = totals.tolist()
        common = self._agree(StepMeans(loss, norm, ends > 0, saves > 0))
        average_state(self.strategy.parameters.values(), self.optimizer, moments=self._saves)
        return common

    def _agree(self, means: StepMeans) -> StepMeans:
        """Determine from what all ranks have in common whether they end, and whether they save."""
        if means.saves:
            self._asked, self._termination.snapshot = True, False
        if means.ends:
            self._ends = True
            self._termination.agree()
        return means

    @property
    def _checkpoint_requested(self) -> bool:
        """Whether rank 0 was asked for a checkpoint: all ranks are asked, but each at a slightly different time."""
        return self._termination.snapshot and not self.place.rank

    def _batches(self) -> Iterator[Batch]:
        """The batches that this rank trains on in the rounds of the step."""
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


def scale_lr(lr: float, rule: str, ranks: int) -> float:
    """Scale a learning rate found on one rank to `ranks` ranks, each of which adds its own batch.

    `linear` is Goyal et al. 2017 (arXiv 1706.02677), derived for SGD; `sqrt` is Malladi et al. 2022
    (arXiv 2205.10287), derived for Adam.
    """
    return lr * {"none": 1.0, "linear": float(ranks), "sqrt": math.sqrt(ranks)}[rule]


def lr_at(step: int, *, peak: float, steps: int, warmup: int, min_ratio: float) -> float:
    """Learning rate of the step after `step` finished ones: linear warm-up, then cosine to `min_ratio` × peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return peak * (min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
