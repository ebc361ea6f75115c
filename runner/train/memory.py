"""Less memory for more time: activations that are computed again, weights that wait in the host's memory."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy
from torch.utils.checkpoint import checkpoint


def recompute_activations(blocks: Any) -> None:
    """Keep of each block's forward pass its input alone, and run it again in the backward pass.

    Within the block's own call, so that what FSDP does before and after it is not done twice.
    """
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def offload_policy(device: Any, *, wanted: bool) -> OffloadPolicy:
    """Where FSDP keeps weights, gradients and moments between uses."""
    return CPUOffloadPolicy(pin_memory=device.type == "cuda") if wanted else OffloadPolicy()
