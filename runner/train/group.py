"""The process group: device, backend, and broadcasts from rank 0 to all."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .layout import Layout, RankIdentity
from .problem import Problem

TIMEOUT = timedelta(minutes=10)
"""Longest wait in a collective of all ranks: well above a slow disk or a network interruption.

The groups of a mesh have torch's own limits, 10 minutes with NCCL and 30 with gloo: old versions accept no others.
"""


def choose_device(place: RankIdentity, backend: str) -> Any:
    """The GPU of this local rank, or the CPU. Raises Problem if this host has too few GPUs."""
    gpus = torch.cuda.device_count() if backend != "gloo" and torch.cuda.is_available() else 0
    if gpus == 0:
        if backend == "nccl":
            raise Problem(f"--backend nccl: torch sees no GPU on {platform.node()}: use gloo", host_only=True)
        return torch.device("cpu")
    if place.local_world_size > gpus:
        raise Problem(
            f"{place.local_world_size} processes on {platform.node()}, where torch sees {gpus} GPUs: start at most "
            "one process per GPU, or train on CPUs by --backend gloo",
            host_only=True,
        )
    return torch.device("cuda", place.local_rank)


def join(place: RankIdentity, device: Any, layout: Layout, timeout: timedelta = TIMEOUT) -> None:
    """Form the process group of all ranks, once they agree that they can; a single process forms its own."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if place.launched:
        store, _, _ = next(dist.rendezvous("env://", timeout=timeout))
        _compare(store, place, backend, layout)
        store = dist.PrefixStore("group", store)
    else:
        store = dist.HashStore()
    dist.init_process_group(
        backend,
        store=store,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timeout,
        device_id=device if device.type == "cuda" else None,
    )


def _compare(store: Any, place: RankIdentity, backend: str, layout: Layout) -> None:
    """Raise Problem if ranks chose different backends or layouts: each would wait for the others for minutes."""
    store.set(f"bytegpt/{place.rank}", json.dumps([backend, platform.node(), f"{layout.strategy} {layout}"]))
    chosen = [json.loads(store.get(f"bytegpt/{rank}")) for rank in range(place.world_size)]
    hosts = {backend: host for backend, host, _ in reversed(chosen)}
    if len(hosts) > 1:
        raise Problem(
            f"{hosts['nccl']} would train on GPUs and {hosts['gloo']} has none: train on CPUs by --backend gloo, "
            "or leave out the hosts without GPUs"
        )
    layouts = {layout: host for _, host, layout in reversed(chosen)}
    if len(layouts) > 1:
        shown = " and ".join(f"{layout} on {host}" for layout, host in sorted(layouts.items()))
        raise Problem(f"hosts divide the ranks differently, {shown}: give --dp-replicate and --dp-shard")


def from_rank0(work: Callable[[], Any], device: Any) -> Any:
    """Do something on rank 0 only, and give every rank its result (JSON) or the Problem that it raised. A collective.

    broadcast_object_list is not used, since it needs numpy and unpickles.
    """
    message = b""
    if dist.get_rank() == 0:
        try:
            message = json.dumps({"value": work()}).encode()
        except Problem as problem:
            message = json.dumps({"problem": str(problem)}).encode()
    length = torch.tensor(len(message), device=device)
    dist.broadcast(length, src=0)
    data = torch.tensor(list(message) or [0] * int(length), dtype=torch.uint8, device=device)
    dist.broadcast(data, src=0)
    answer = json.loads(bytes(data.tolist()))
    if "problem" in answer:
        raise Problem(answer["problem"])
    return answer["value"]


def from_all(value: Any, device: Any, group: Any = None) -> list[Any]:
    """Give every rank the JSON values of all ranks of a group, in order of ranks. A collective."""
    message = bytearray(json.dumps(value).encode())
    world = dist.get_world_size(group)
    lengths = [torch.zeros((), dtype=torch.int64, device=device) for _ in range(world)]
    dist.all_gather(lengths, torch.tensor(len(message), device=device), group=group)
    longest = int(max(lengths))
    data = torch.frombuffer(message.ljust(longest), dtype=torch.uint8).to(device)
    parts = [torch.empty_like(data) for _ in range(world)]
    dist.all_gather(parts, data, group=group)
    answers = []
    for part in parts:
        text = bytearray(longest)
        torch.frombuffer(text, dtype=torch.uint8).copy_(part)
        answers.append(json.loads(text))
    return answers
