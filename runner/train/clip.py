"""The gradient of a step: its norm over all ranks, however weights are divided, and the loss scale of fp16.

torch's own clip_grad_norm_ rejects weights of different meshes, and handles only one pipeline stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from .layout import Layout
from .state import Parameters, local


class StepMeans(NamedTuple):
    """Results of a step's backward passes, over all ranks, or of this rank if it trains alone."""

    loss: float
    grad_norm: float
    ends: bool
    """Whether a rank wants to end."""
    saves: bool
    """Whether a rank wants a checkpoint."""


def reduce_and_clip(
    parameters: Parameters,
    loss: Any,
    limit: float,
    layout: Layout,
    *,
    scale: float = 1.0,
    ends: bool = False,
    saves: bool = False,
) -> StepMeans:
    """Scale the gradients down to a norm of `limit` (0: leave them); returns their norm before. A collective.

    With a layout of one rank it is not collective: the norm and the loss are this rank's own.

    Args:
        scale: The factor of the gradients, which are divided by it here.
        ends: Whether this rank wants to end.
        saves: Whether this rank wants a checkpoint.
        loss: This rank's part of the mean loss: ranks that share samples have a part of it or the same, stages before
            the last have 0.
    """
    by_copies: dict[int, list[Any]] = {}
    for parameter in parameters.values():
        if parameter.grad is not None:
            by_copies.setdefault(_copies(parameter, layout), []).append(local(parameter.grad))
    squares = sum(nn.utils.get_total_norm(gradients) ** 2 / copies for copies, gradients in by_copies.items())
    totals = torch.stack(
        [
            loss / (layout.dp * layout.copies),
            torch.as_tensor(squares, device=loss.device),
            torch.full_like(loss, float(ends)),
            torch.full_like(loss, float(saves)),
        ]
    )
    if layout.world_size > 1:
        dist.all_reduce(totals)
    mean, square, *requests = totals.tolist()
    norm = math.sqrt(square) / scale
    factor = (min(1.0, limit / (norm + 1e-6)) if limit else 1.0) / scale
    if factor != 1:
        for gradients in by_copies.values():
            torch._foreach_mul_(gradients, factor)
    return StepMeans(mean, norm, *(request > 0 for request in requests))


def _copies(parameter: Any, layout: Layout) -> int:
    """The number of ranks that hold each element of this rank's part of a weight."""
    ranks = layout.world_size // layout.pp
    if isinstance(parameter, DTensor):
        for dimension, placement in enumerate(parameter.placements):
            ranks //= 1 if placement.is_replicate() else parameter.device_mesh.size(dimension)
    return ranks


_GROWTH_INTERVAL = 2000
"""Steps without an overflow after which the factor is doubled."""
_LEAST = 1.0
"""Smallest factor: gradients that overflow even without one are too large for the training, not just for fp16."""


class LossScale:
    """A factor that halves at each overflow and doubles after many steps without one; 1 for other precisions.

    It works like torch.amp.GradScaler, but judges the norm of the whole gradient, which all ranks know: of a sharded
    gradient only one rank may hold the part that overflowed.

    Args:
        saved: The value of `state` when the checkpoint was written.
    """

    def __init__(self, *, enabled: bool, saved: Mapping[str, float]) -> None:
        self._enabled = enabled
        self.factor = float(saved.get("factor", 2.0**16)) if enabled else 1.0
        self._streak = int(saved.get("streak", 0))
        self.skipped = int(saved.get("skipped", 0))
        """Steps that changed no weight."""

    def accepts(self, *, finite: bool) -> bool:
        """Whether the optimizer may make this step, whose gradient is `finite` or not; adapts the factor."""
        if not self._enabled:
            return True
        self._streak = self._streak + 1 if finite else 0
        if not finite:
            self.factor = max(self.factor / 2, _LEAST)
            self.skipped += 1
        elif self._streak == _GROWTH_INTERVAL:
            self.factor *= 2
            self._streak = 0
        return finite

    @property
    def may_halve(self) -> bool:
        """Whether a smaller factor can still be tried after an overflow."""
        return self._enabled and self.factor > _LEAST

    def state(self) -> dict[str, float]:
        """The values that a checkpoint keeps; empty for other precisions."""
        return {"factor": self.factor, "streak": self._streak, "skipped": self.skipped} if self._enabled else {}
