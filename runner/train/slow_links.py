"""Data parallel over slow links: gradients that are compressed, or weights that are averaged once in a while."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .problem import Problem
from .state import MOMENTS, begin_moments

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_RANK = 4
"""Of the matrices that PowerSGD sends in place of a gradient."""
_BUCKET = 32 * 2**20
"""Bytes that are sent together."""


def compress(model: Any, kind: str, warmup: int) -> None:
    """Let DDP send gradients in bf16 or fp16, or as PowerSGD's factors once the warm-up is over."""
    if kind == "powersgd":
        # Seldom wanted.
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # noqa: PLC0415

        try:
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=_RANK, start_powerSGD_iter=max(2, warmup)
            )
        except ImportError:
            raise Problem("--compress powersgd needs numpy beside torch: install it, or take bf16") from None
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif kind != "none":
        # Not torch's bf16_compress_hook, which DDP refuses with gloo; a lambda has no annotations to judge.
        model.register_comm_hook(_DTYPES[kind], lambda dtype, bucket: _send_as(dtype, bucket))  # noqa: PLW0108


def _send_as(dtype: Any, bucket: Any) -> Any:
    """The mean over all ranks of a bucket of gradients, sent as another type."""
    sent = bucket.buffer().to(dtype).div_(dist.get_world_size())

    def back(future: Any) -> Any:
        return bucket.buffer().copy_(future.value()[0])

    return dist.all_reduce(sent, async_op=True).get_future().then(back)


def average(tensors: Iterable[Any]) -> None:
    """Give all ranks the mean of theirs, in place, in few messages: each has the link's delay. A collective."""
    bucket: list[Any] = []
    size = 0
    for tensor in tensors:
        bucket.append(tensor)
        size += tensor.numel() * tensor.element_size()
        if size >= _BUCKET:
            _average_together(bucket)
            bucket, size = [], 0
    if bucket:
        _average_together(bucket)


def _average_together(tensors: Sequence[Any]) -> None:
    whole = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(whole)
    whole.div_(dist.get_world_size())
    for tensor, part in zip(tensors, whole.split([tensor.numel() for tensor in tensors])):  # noqa: B905
        tensor.copy_(part.view_as(tensor))


def average_state(parameters: Iterable[Any], optimizer: Any, *, moments: bool) -> None:
    """Make one model of the ranks' own: the mean of their weights and, for a checkpoint, of their moments."""
    weights = list(parameters)
    if moments:
        # A rank that has left out each step in fp16 so far has none.
        begin_moments(
            {str(index): one for index, one in enumerate(weights) if one not in optimizer.state}, optimizer, 0
        )
    with torch.no_grad():
        average(weight.detach() for weight in weights)
        if moments:
            average(optimizer.state[weight][key] for weight in weights for key in MOMENTS)
