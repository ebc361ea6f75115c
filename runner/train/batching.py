"""The sizes of a step and the order of samples, both the same on every rank. No I/O."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from .problem import Problem

DEFAULT_BATCH_SIZE = 8


@dataclass(frozen=True)
class BatchPlan:
    """How one step's samples are divided over ranks and accumulation rounds."""

    batch_size: int
    """Samples of one rank in one round (the micro batch)."""
    accumulate: int
    dp: int
    """The number of ranks that train on samples of their own (the data-parallel degree)."""

    @property
    def round_size(self) -> int:
        """Samples of all ranks in one round."""
        return self.batch_size * self.dp

    @property
    def global_batch(self) -> int:
        """Samples of all ranks and rounds in one step."""
        return self.round_size * self.accumulate

    def start(self, samples: int, round_index: int, index: int) -> int:
        """Position in the sample order where the data-parallel rank `index` begins after `samples` consumed samples."""
        return samples + round_index * self.round_size + index * self.batch_size

    def micro_batches(self, stages: int) -> int:
        """The number of equal parts into which a pipeline cuts the samples of one step: four per stage, if possible.

        A pipeline of p stages idles for (p - 1) / (parts + p - 1) of the time.
        """
        wanted = max(1, 4 * stages // self.accumulate)
        return self.accumulate * max(n for n in range(1, wanted + 1) if self.batch_size % n == 0)


def plan_batches(
    batch_size: Optional[int], accumulate: Optional[int], global_batch: Optional[int], dp: int
) -> BatchPlan:
    """Derive the sizes that were not given. Raises Problem if a global batch cannot be divided evenly."""
    if global_batch is None:
        return BatchPlan(batch_size or DEFAULT_BATCH_SIZE, accumulate or 1, dp)
    given = accumulate is not None
    if batch_size and not accumulate:
        size, accumulate = batch_size, global_batch // (batch_size * dp)
    else:
        accumulate = accumulate or 1
        size = batch_size or global_batch // (accumulate * dp)
    plan = BatchPlan(size, accumulate, dp)
    if plan.global_batch != global_batch:
        parts = f"{dp} rank{'s' if dp > 1 else ''}"
        parts += f" × --batch-size {batch_size}" if batch_size else ""
        parts += f" × --accumulate {accumulate}" if given else ""
        raise Problem(f"--global-batch {global_batch} cannot be divided over {parts}: choose a matching size")
    return plan


class SampleOrder:
    """An endless order of samples: seeded permutations of all of them, one per epoch.

    Python's own shuffle gives the same order with every version of Python and torch: ranks with different orders would
    train on each other's samples.
    """

    def __init__(self, samples: Sequence[int], seed: int) -> None:
        self._samples = samples
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []

    def take(self, start: int, count: int) -> list[int]:
        """The samples at positions start … start + count - 1."""
        return [self._at(position) for position in range(start, start + count)]

    def epoch(self, position: int) -> int:
        """The epoch that a position belongs to, from 0."""
        return position // len(self._samples)

    def _at(self, position: int) -> int:
        epoch, index = divmod(position, len(self._samples))
        if epoch != self._epoch:
            self._order = list(self._samples)
            random.Random(f"{self._seed}/{epoch}").shuffle(self._order)
            self._epoch = epoch
        return self._order[index]
