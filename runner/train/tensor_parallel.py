"""Tensor parallel with sequence parallel (Korthikanti et al. 2022, arXiv 2205.05198).

Each rank has some of the heads and some of the network; between these, where every rank would do the same, some of the
sequence.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

_SEQUENCE = Shard(1)


def cut_layers(model: Any, mesh: Any) -> None:
    """Divide the weights of the model, or of a stage of it, over a one-dimensional mesh. A collective."""
    plan: dict[str, ParallelStyle] = {
        "blocks.*.norm1": SequenceParallel(),
        "blocks.*.attention.qkv": ColwiseParallel(input_layouts=_SEQUENCE),
        "blocks.*.attention.out": RowwiseParallel(output_layouts=_SEQUENCE),
        "blocks.*.norm2": SequenceParallel(),
        "blocks.*.up": ColwiseParallel(input_layouts=_SEQUENCE),
        "blocks.*.down": RowwiseParallel(output_layouts=_SEQUENCE),
    }
    if model.embedding is not None:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=_SEQUENCE)
    if model.head is not None:
        plan["norm"] = SequenceParallel()
        plan["head"] = ColwiseParallel(input_layouts=_SEQUENCE, output_layouts=Replicate())
    parallelize_module(model, mesh, plan)
