"""DDP and FSDP2 behind the few calls in which they differ."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from .state import Parameters, spread_weights


class Replicated:
    """DDP: every rank holds the whole model; bf16 by autocast."""

    def __init__(self, model: Any, device: Any, *, bf16: bool) -> None:
        self._device = device
        self._bf16 = bf16
        self.model = DistributedDataParallel(
            model.to(device),
            device_ids=[device.index] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )
        self.parameters = dict(self.model.module.named_parameters())

    def forward(self, tokens: Any) -> Any:
        """Logits in fp32."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            return self.model(tokens).float()

    def round(self, *, last: bool) -> AbstractContextManager[None]:
        """Surrounds one accumulation round; gradients are exchanged in the last one alone."""
        context: AbstractContextManager[None] = nullcontext() if last else self.model.no_sync()
        return context


class Sharded:
    """FSDP2: each rank holds a shard of every weight; bf16 by FSDP's own policy, gradients summed in fp32."""

    def __init__(self, model: Any, device: Any, *, bf16: bool) -> None:
        weights = {f"{name}/weight": tensor.detach() for name, tensor in model.named_parameters()}
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self.model = fully_shard(model, mesh=mesh, mp_policy=policy)
        self.parameters = dict(self.model.named_parameters())
        spread_weights(self.parameters, weights)

    def forward(self, tokens: Any) -> Any:
        """Logits in fp32."""
        return self.model(tokens).float()

    def round(self, *, last: bool) -> AbstractContextManager[None]:
        """Surrounds one accumulation round; gradients are exchanged in the last one alone."""
        self.model.set_requires_gradient_sync(last)
        return nullcontext()


def distribute(model: Any, device: Any, *, strategy: str, precision: str) -> Any:
    """Spread a model that every rank has built on the CPU; all ranks start from rank 0's weights."""
    kind = Sharded if strategy == "fsdp" else Replicated
    return kind(model, device, bf16=precision == "bf16")


def clip(parameters: Parameters, limit: float) -> float:
    """Scale the gradients down to a norm of `limit` (0: leave them) and return the norm they had, over all shards."""
    norm = nn.utils.clip_grad_norm_(parameters.values(), limit or math.inf)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
