"""A small GPT over bytes: pre-norm blocks, rotary positions, causal attention, no biases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256


@dataclass(frozen=True)
class Architecture:
    """What decides the shape of the weights, under the names of the command line's options."""

    layers: int
    heads: int
    width: int
    context: int
    """Longest sequence in bytes; rotary positions carry no weights, so it may differ between runs."""
    dropout: float = 0.0


class Attention(nn.Module):  # type: ignore[misc]
    """Causal self-attention with rotary positions (Su et al. 2021, arXiv 2104.09864)."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.heads = architecture.heads
        self.dropout = architecture.dropout
        self.qkv = nn.Linear(architecture.width, 3 * architecture.width, bias=False)
        self.out = nn.Linear(architecture.width, architecture.width, bias=False)

    def forward(self, x: Any, rotation: Any) -> Any:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = rotate(q, rotation), rotate(k, rotation)
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


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
    """Bytes in, logits of each next byte out."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, architecture.width)
        self.blocks = nn.ModuleList(Block(architecture) for _ in range(architecture.layers))
        self.norm = nn.LayerNorm(architecture.width, bias=False)
        self.head = nn.Linear(architecture.width, VOCABULARY, bias=False)
        rotation = rotation_table(architecture.context, architecture.width // architecture.heads)
        self.register_buffer("rotation", rotation, persistent=False)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        rotation = self.rotation[:, : tokens.shape[1]]
        for block in self.blocks:
            x = block(x, rotation)
        return self.head(self.norm(x))


def build(architecture: Architecture, seed: int) -> ByteGPT:
    """The model with weights that depend on `seed` alone, on the CPU.

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
    """Turn each pair (first half, second half) of the last dimension by its position's angle."""
    cos, sin = rotation.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
