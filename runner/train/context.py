"""Context parallel: ranks that share every sequence, after DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv 2309.14509).

Outside of attention each rank has one part of every sequence and all heads; inside, whole sequences and its part of the
heads. One all-to-all leads from one to the other, so that causal attention is the usual one and equal work for all.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Exchange:
    """The two ways between parts of sequences and parts of heads.

    Args:
        group: The ranks that share sequences, the first of which has their beginnings.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

    def whole_sequences(self, x: Any) -> Any:
        """Batch × part of the length × all heads × … → batch × length × part of the heads × …. A collective."""
        return _AllToAll.apply(x, self._group, 2, 1)

    def own_part(self, x: Any) -> Any:
        """Batch × length × part of the heads × … → batch × part of the length × all heads × …. A collective."""
        return _AllToAll.apply(x, self._group, 1, 2)


class _AllToAll(torch.autograd.Function):  # type: ignore[misc]
    """Cuts a tensor along one dimension, sends each rank its piece, and joins what comes along another dimension."""

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
