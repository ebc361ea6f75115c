"""Weights and optimizer moments: whole on rank 0, in parts on all ranks, and the conversions between them.

torch's own full_state_dict with broadcast_from_rank0 does the same, but needs numpy and a second copy of everything.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .group import from_all, from_rank0

MOMENTS = ("exp_avg", "exp_avg_sq")
Tensors = dict[str, Any]
Parameters = Mapping[str, Any]
"""Weights by name, as the optimizer holds them: FSDP shows other objects between a forward pass and resharding."""


@dataclass(frozen=True)
class Box:
    """The part of a tensor that a rank holds."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part as indices into the whole."""
        return tuple(map(slice, self.offsets, map(operator.add, self.offsets, self.sizes)))


@dataclass(frozen=True)
class HeldTensor:
    """The ranks' parts of a tensor: its shape, and the ranks that have each part."""

    shape: tuple[int, ...]
    dtype: str
    holders: Mapping[Box, Sequence[int]]


Shares = dict[tuple[str, Box], Any]
Holdings = Mapping[str, HeldTensor]
"""What the ranks hold of every tensor, by name."""


def tensors(parameters: Parameters, optimizer: Any) -> Tensors:
    """Every weight and moment as `name/key`, as held by this rank; moments of a weight without a step are zeros."""
    found: Tensors = {}
    for name, parameter in parameters.items():
        moments = optimizer.state.get(parameter) or {}
        found[f"{name}/weight"] = parameter.detach()
        for key in MOMENTS:
            found[f"{name}/{key}"] = moments[key] if key in moments else torch.zeros_like(parameter.detach())
    return found


def box(tensor: Any) -> Box:
    """The part of the whole tensor that this rank holds."""
    if not isinstance(tensor, DTensor):
        return Box((0,) * tensor.dim(), tuple(tensor.shape))
    (chunk,) = tensor.__create_chunk_list__()
    return Box(tuple(chunk.offsets), tuple(chunk.sizes))


def local(tensor: Any) -> Any:
    """This rank's part as a plain tensor that shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def holdings(parameters: Parameters, device: Any) -> Holdings:
    """What every rank holds, in the same order on all. A collective."""
    mine = []
    for name, parameter in parameters.items():
        part = box(parameter)
        mine.append([name, list(parameter.shape), str(parameter.dtype)[6:], part.offsets, part.sizes])
    found: dict[str, tuple[tuple[int, ...], str, dict[Box, list[int]]]] = {}
    for rank, parts in enumerate(from_all(mine, device)):
        for name, shape, dtype, offsets, sizes in parts:
            holders = found.setdefault(name, (tuple(shape), dtype, {}))[2]
            holders.setdefault(Box(tuple(offsets), tuple(sizes)), []).append(rank)
    return {
        f"{name}/{key}": HeldTensor(shape, dtype, holders)
        for name, (shape, dtype, holders) in found.items()
        for key in ("weight", *MOMENTS)
    }


def is_spread(where: Holdings, world_size: int) -> bool:
    """Whether some rank lacks a part of some tensor, so that no rank could save everything alone."""
    return any(len(ranks) < world_size for held in where.values() for ranks in held.holders.values())


def share(mine: Tensors, where: Holdings, rank: int, *, evenly: bool) -> Shares:
    """CPU copies of the parts that this rank contributes to a checkpoint; a part that many hold comes from one.

    Args:
        evenly: Whether the holders of parts take turns; otherwise the lowest rank contributes.
    """
    copies: Shares = {}
    for name, part, giver in givers(where, evenly=evenly):
        if giver == rank:
            copies[name, part] = local(mine[name]).detach().to("cpu", copy=True).contiguous()
    return copies


def givers(where: Holdings, *, evenly: bool) -> Iterator[tuple[str, Box, int]]:
    """Every part with the rank that contributes it, in the same order on all ranks."""
    for number, (name, held) in enumerate(where.items()):
        for part, ranks in sorted(held.holders.items(), key=lambda item: item[0].offsets):
            if all(part.sizes):
                yield name, part, ranks[number % len(ranks)] if evenly else ranks[0]


def gather(shares: Shares, where: Holdings, group: Any) -> Shares:
    """Every tensor whole on the CPU of rank 0, from the parts that the lowest ranks share; empty on the others.

    A collective of a gloo group, unless everything comes from rank 0.
    """
    whole: Shares = {}
    rank = dist.get_rank()
    for name, part, giver in givers(where, evenly=False):
        if rank and rank == giver:
            dist.send(shares[name, part], 0, group=group)
        if rank:
            continue
        held = where[name]
        box, dtype = Box((0,) * len(held.shape), held.shape), getattr(torch, held.dtype)
        if giver:
            piece = torch.empty(part.sizes, dtype=dtype)
            dist.recv(piece, giver, group=group)
        else:
            piece = shares[name, part]
        if part == box:
            whole[name, box] = piece
            continue
        if (name, box) not in whole:
            whole[name, box] = torch.empty(held.shape, dtype=dtype)
        whole[name, box][part.slices] = piece
    return whole


def fill(mine: Tensors, read: Callable[[str, Box], Any]) -> None:
    """Fill this rank's parts with the result of `read` for each name and part. No collective."""
    for name, tensor in mine.items():
        part = box(tensor)
        if all(part.sizes):
            local(tensor).copy_(read(name, part))


def fill_from_rank0(mine: Tensors, names: Holdings, read: Callable[[str, Box], Any], device: Any) -> None:
    """Fill every rank's parts with the results of `read` on rank 0, one whole tensor at a time. A collective.

    Raises Problem on every rank if `read` does.
    """
    for name, held in names.items():
        whole = torch.empty(held.shape, dtype=getattr(torch, held.dtype), device=device)

        def load(name: str = name, held: HeldTensor = held, whole: Any = whole) -> None:
            whole.copy_(read(name, Box((0,) * len(held.shape), held.shape)))

        from_rank0(load, device)
        dist.broadcast(whole, src=0)
        if name in mine:
            local(mine[name]).copy_(whole[box(mine[name]).slices])


def begin_moments(parameters: Parameters, optimizer: Any, step: int) -> None:
    """Create AdamW's moments so that they can be filled, after `step` steps."""
    for parameter in parameters.values():
        moments = {key: torch.zeros_like(parameter, requires_grad=False) for key in MOMENTS}
        optimizer.state[parameter] = {"step": torch.tensor(float(step), device=parameter.device), **moments}
