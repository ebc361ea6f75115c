"""A small GPT over bytes: pre-norm blocks, rotary positions, causal attention, no biases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from .layout import VOCABULARY


@dataclass(frozen=True)
class Architecture:
    """The options that determine the shape of the weights, under their command line names."""

    layers: int
    heads: int
    width: int
    context: int
    """Longest sequence in bytes; rotary positions carry no weights, so it may differ between runs."""
    dropout: float = 0.0


class Attention(nn.Module):  # type: ignore[misc]
    """Causal self-attention with rotary positions (Su et al. 2021, arXiv 2104.09864).

    The rows of `qkv` are ordered by head, so that a part of them consists of whole heads.
    """

    group: Any = None
    """Set under context parallel: the ranks that share sequences; the first has their beginnings."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.head_width = architecture.width // architecture.heads
        self.dropout = architecture.dropout
        self.qkv = nn.Linear(architecture.width, 3 * architecture.width, bias=False)
        self.out = nn.Linear(architecture.width, architecture.width, bias=False)

    def forward(self, x: Any, rotation: Any) -> Any:
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, -1, 3, self.head_width)
        if self.group is not None:  # part of the length × all heads → length × part of the heads
            qkv = _AllToAll.apply(qkv, self.group, 2, 1)
        q, k, v = qkv.permute(3, 0, 2, 1, 4)
        q, k = rotate(q, rotation), rotate(k, rotation)
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True).transpose(1, 2)
        if self.group is not None:  # and back
            y = _AllToAll.apply(y, self.group, 1, 2)
        return self.out(y.reshape(batch, length, -1))


class Block(nn.Module):  # type: ignore[misc]
    """One layer: attention, then a GELU network of four times the width, each added to its normalised input."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        width = architecture.width
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.attention = Attention(architecture)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(architecture.dropout)

    def forward(self, x: Any, rotation: Any) -> Any:
        x = x + self.dropout(self.attention(self.norm1(x), rotation))
        return x + self.dropout(self.down(functional.gelu(self.up(self.norm2(x)))))


class ByteGPT(nn.Module):  # type: ignore[misc]
    """Bytes in, logits of each next byte out; a single stage takes or returns the residual stream instead."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, architecture.width)
        # Keyed by the layer's number in the whole model, so that a stage's weights keep their names.
        self.blocks = nn.ModuleDict({str(index): Block(architecture) for index in range(architecture.layers)})
        self.norm = nn.LayerNorm(architecture.width, bias=False)
        self.head = nn.Linear(architecture.width, VOCABULARY, bias=False)
        rotation = rotation_table(architecture.context, architecture.width // architecture.heads)
        self.register_buffer("rotation", rotation, persistent=False)

    def forward(self, x: Any) -> Any:
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x, self.rotation)
        return x if self.head is None else self.head(self.norm(x))

    def cut_to_stage(self, stage: int, stages: int) -> None:
        """Keep the layers of one stage of consecutive layers; the first keeps the embedding, the last the head."""
        layers = len(self.blocks)
        for index in range(layers):
            if not layers * stage // stages <= index < layers * (stage + 1) // stages:
                del self.blocks[str(index)]
        if stage > 0:
            self.embedding = None
        if stage < stages - 1:
            self.norm = self.head = None


def build(architecture: Architecture, seed: int) -> ByteGPT:
    """The model with weights that depend only on `seed`, on the CPU.

    GPT-2's initialisation: 0.02, and the layers that write to the residual stream scaled by its depth.
    """
    generator = torch.Generator().manual_seed(seed)
    model = ByteGPT(architecture)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            residual = name.endswith(("out.weight", "down.weight"))
            scale = 0.02 / math.sqrt(2 * architecture.layers) if residual else 0.02
            nn.init.normal_(parameter, std=scale, generator=generator)
    return model


def rotation_table(length: int, head_width: int) -> Any:
    """Cosines and sines of every position: 2 × length × half the head's width."""
    frequencies = 10000.0 ** (-torch.arange(0, head_width, 2).float() / head_width)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Any, rotation: Any) -> Any:
    """Rotate each pair (first half, second half) of the last dimension by its position's angle."""
    cos, sin = rotation[:, : x.shape[-2]].to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class _AllToAll(torch.autograd.Function):  # type: ignore[misc]
    """Cuts a tensor along one dimension, sends each rank its piece, and joins what arrives along another dimension."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any, cut: int, join: int) -> Any:
        ctx.way = group, join, cut
        sent = torch.stack(x.chunk(dist.get_world_size(group), dim=cut))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        return torch.cat(received.unbind(), dim=join)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _AllToAll.apply(gradient, *ctx.way), None, None, None
