"""Weights and optimizer moments, whole on rank 0 and in their shards on all: the two ways between.

torch's own full_state_dict with broadcast_from_rank0 does the same, but needs numpy and a second copy of everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, distribute_tensor

MOMENTS = ("exp_avg", "exp_avg_sq")
Tensors = dict[str, Any]
Parameters = Mapping[str, Any]
"""By name, as the optimizer holds them: FSDP shows other objects between a forward pass and the next resharding."""


def gather(parameters: Parameters, optimizer: Any) -> Tensors:
    """Every weight and moment as a whole tensor on the CPU of rank 0; empty on the others. A collective."""
    whole: Tensors = {}
    for name, parameter in parameters.items():
        state = optimizer.state[parameter]
        for key, tensor in (("weight", parameter), *((key, state[key]) for key in MOMENTS)):
            full = tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
            if dist.get_rank() == 0:
                whole[f"{name}/{key}"] = full.cpu().clone()
    return whole


def spread_weights(parameters: Parameters, whole: Tensors) -> None:
    """Fill every rank's weights with those that rank 0 holds as `name/weight`. A collective."""
    for name, parameter in parameters.items():
        _fill(parameter, whole.get(f"{name}/weight"))


def spread_moments(parameters: Parameters, optimizer: Any, whole: Tensors, step: int) -> None:
    """Give every rank's AdamW the moments that rank 0 holds, `step` steps having been made. A collective."""
    for name, parameter in parameters.items():
        state = {key: torch.zeros_like(parameter, requires_grad=False) for key in MOMENTS}
        for key, tensor in state.items():
            _fill(tensor, whole.get(f"{name}/{key}"))
        optimizer.state[parameter] = {"step": torch.tensor(float(step), device=parameter.device), **state}


def _fill(target: Any, source: Any) -> None:
    if source is None:
        source = torch.empty(target.shape, dtype=target.dtype)
    source = source.to(target.device)
    if isinstance(target, DTensor):
        source = distribute_tensor(source, target.device_mesh, target.placements)
    else:
        dist.broadcast(source, src=0)
    with torch.no_grad():
        target.copy_(source)
