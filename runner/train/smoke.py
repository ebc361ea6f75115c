"""Measures the ranks of a run, and the network between its hosts, instead of training: `disttui check --train`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Dict, List, Tuple

import torch
import torch.distributed as dist
from torch.nn import functional

from . import peers
from .batching import BatchPlan
from .group import from_all
from .layout import RankIdentity
from .metrics import MetricsWriter
from .model import Architecture, build
from .options import Options
from .strategy import DTYPES

TIMEOUT = timedelta(minutes=1)
"""Longest wait in a collective; the viewer gives up before."""
_WINDOW = 0.25
"""Seconds of one measurement: several periods of a CPU quota."""
_TURNS = 3
"""How often everything is measured again while a rank seems slow: another process may have disturbed it."""
_SLOW = 3.0
"""Seconds of a part of a step that is not run again."""
_LARGEST = 32 << 20
"""Largest message between two hosts in bytes."""


def measure(options: Options, plan: BatchPlan, place: RankIdentity, device: Any) -> None:
    """Report every phase in the metrics file of this rank. A collective."""
    writer, phases = MetricsWriter(os.environ.get("DISTTUI_METRICS", "")), count(1)

    def report(phase: str, **found: Any) -> None:
        writer.write(next(phases), phase=phase, **found)

    over = threading.Event()
    alive = threading.Thread(target=_stay_seen, args=(writer, over), daemon=True)
    alive.start()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    report("joined", world_size=dist.get_world_size(), device=name, threads=torch.get_num_threads())
    report("collectives", **_collectives(place, device))
    report("reduced", reduce_rate=_reduce_rate(device))
    figures = _Figures(device)
    report("computed", **figures.measured())
    if options.measure == "job" and _is_whole(options):
        report("stepped", **_step(options, plan, device, report))
    leaders = [rank for rank, local in enumerate(from_all(place.local_rank, device)) if local == 0]
    pairs = _tournament(leaders, place.rank, device, lambda other: report("pairing", partner=other))
    report("paired", pairs=pairs)
    for _ in range(_TURNS):
        found = figures.measured()
        if not peers.any_slow(from_all({"device": name, **found}, device)):
            break
    report("done", **found)
    over.set()
    alive.join()


def _is_whole(options: Options) -> bool:
    """Whether each rank has the whole model."""
    sizes = options.sizes._replace(dp_replicate=None)
    return options.strategy in ("auto", "ddp") and all(size in (None, 1) for size in sizes)


def _stay_seen(writer: MetricsWriter, over: threading.Event) -> None:
    while not over.wait(1.0):
        writer.write(0, phase="")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def _collectives(place: RankIdentity, device: Any) -> Dict[str, Any]:
    """The names of collectives with a wrong result, and of those that the backend lacks."""
    world, rank = dist.get_world_size(), dist.get_rank()
    whole = torch.arange(4096, device=device)
    own = whole + rank
    wanted_sum = whole * world + world * (world - 1) // 2

    def all_reduce() -> bool:
        own_sum = own.clone()
        dist.all_reduce(own_sum)
        return bool(torch.equal(own_sum, wanted_sum))

    def all_gather() -> bool:
        parts = [torch.empty_like(own) for _ in range(world)]
        dist.all_gather(parts, own)
        return all(torch.equal(part, whole + number) for number, part in enumerate(parts))

    def reduce_scatter() -> bool:
        part = torch.empty_like(own)
        dist.reduce_scatter(part, [own + number for number in range(world)])
        return bool(torch.equal(part, wanted_sum + world * rank))

    def broadcast() -> bool:
        last = own.clone()
        dist.broadcast(last, src=world - 1)
        return bool(torch.equal(last, whole + world - 1))

    wrong, missing = [], []
    for collective in (all_reduce, all_gather, reduce_scatter, broadcast):
        try:
            right = collective()
        except RuntimeError as error:
            if "support" not in str(error):
                raise
            missing.append(collective.__name__)
        else:
            if not right:
                wrong.append(collective.__name__)
    right = (world, rank) == (place.world_size, place.rank)
    return {"wrong_results": wrong if right else [*wrong, "world size"], "lacking": missing}


def _reduce_rate(device: Any) -> float:
    """Bytes per second that each rank of a ring would send for the all_reduce of a large tensor."""
    world = dist.get_world_size()

    def seconds(size: int) -> float:
        data = torch.zeros(size // 4, device=device)
        taken: List[float] = []
        for _ in range(3):
            dist.barrier()
            begun = time.perf_counter()
            dist.all_reduce(data)
            _wait(device)
            longest = torch.tensor(time.perf_counter() - begun, device=device)
            dist.all_reduce(longest, op=dist.ReduceOp.MAX)
            taken.append(float(longest))
        return min(taken[1:])  # the first one connects

    size = 1 << 16
    size = max(size, min(_LARGEST, int(size * _WINDOW / max(seconds(size), 1e-6))) & ~0xFFF)
    return float(2 * (world - 1) / world * size / seconds(size))


class _Figures:
    """A rank's compute and copy rates; the best of several measurements counts, since noise only slows."""

    def __init__(self, device: Any) -> None:
        self._device = device
        side = 4096 if device.type == "cuda" else 512
        row, column = torch.arange(side)[:, None], torch.arange(side)
        # Whole numbers below 2^24 at every point: any order of additions, on any device, gives the same bits.
        self._a, self._b = (row * 31 + column * 17) % 251 - 125, (row * 13 + column * 29) % 31 - 15
        self._weights = (row % 1021 + 1), (column % 1019 + 1)
        rows, columns = self._weights
        self._right = int(((self._a * rows).sum(0) * (self._b * columns).sum(1)).sum())
        self._work = self._a.float().to(device), self._b.float().to(device)
        self._copied = torch.zeros(1 << 24, device=device), torch.ones(1 << 24, device=device)
        self._rates: Dict[str, List[float]] = {}
        self._wrong = self._checked = 0

    def measured(self) -> Dict[str, Any]:
        """Rates in operations and bytes per second, and the number of products with wrong bits. A collective."""
        (a, b), (to, source) = self._work, self._copied
        on_gpu = self._device.type == "cuda"
        product = torch.empty(len(a), len(a), device=self._device)
        here = torch.zeros(1 << 24, pin_memory=True) if on_gpu else None
        work: Dict[str, Tuple[float, Callable[[], object]]] = {
            "product": (2.0 * len(a) ** 3, lambda: torch.mm(a, b, out=product)),
            "memory": (2.0 * 4 * len(to), lambda: to.copy_(source)),
        }
        if here is not None:
            work["copy"] = 4.0 * len(to), lambda: to.copy_(here)
        for name, (amount, action) in work.items():
            for _ in range(2):
                dist.barrier()
                self._rates.setdefault(name, []).append(amount * _per_second(action, self._device))
                if name == "product":
                    self._checked += 1
                    self._wrong += not self._is_right(product.cpu())
        best = {name: max(rates) for name, rates in self._rates.items()}
        noise = {f"{name}_noise": 1 - median(rates) / max(rates) for name, rates in self._rates.items()}
        return {**best, **noise, "products": self._checked, "wrong_products": self._wrong}

    def _is_right(self, product: Any) -> bool:
        rows, columns = self._weights
        whole = product.to(torch.int64)
        found = int((whole * rows * columns).sum())
        return found == self._right and torch.equal(whole.float(), product)


def _per_second(action: Callable[[], object], device: Any) -> float:
    action()
    _wait(device)
    begun, times = time.perf_counter(), 0
    while True:
        action()
        _wait(device)
        times += 1
        if (taken := time.perf_counter() - begun) > _WINDOW:
            return times / taken


def _wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _step(options: Options, plan: BatchPlan, device: Any, report: Callable[[str], None]) -> Dict[str, float]:
    """Seconds for one rank's part of a step without communication, and the bytes of its gradients; empty: no room."""
    shape = Architecture(options.layers, options.heads, options.width, options.context, options.dropout)
    model, dtype = build(shape, options.seed).to(device), DTYPES[options.precision]
    tokens = torch.randint(256, (plan.batch_size, options.context + 1), device=device)

    def train() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            logits = model(tokens[:, :-1]).float()
        functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()

    dist.barrier()
    report("built")
    try:
        begun = time.perf_counter()
        train()
        _wait(device)
        first = time.perf_counter() - begun
    except torch.cuda.OutOfMemoryError:
        return {}
    report("begun")
    # A slow step is measured by its first run, so that the ranks keep telling where they are.
    seconds = plan.accumulate * (first if first > _SLOW else 1 / _per_second(train, device))
    size = sum(parameter.numel() for parameter in model.parameters())
    sent = size * (4 if options.compress == "none" else 2) / options.sync_interval
    return {"step_seconds": seconds, "step_bytes": sent}


def _tournament(leaders: List[int], rank: int, device: Any, begin: Callable[[int], None]) -> List[Dict[str, float]]:
    """Measure pairs of hosts, then suspects again; returns this rank's measurements. A collective."""
    own: List[Dict[str, float]] = []

    def play(rounds: List[List[Tuple[int, int]]]) -> Dict[peers.Pair, float]:
        for pairs in rounds:
            for first, second in pairs:
                if rank in (first, second):
                    partner = second if rank == first else first
                    begin(partner)
                    own.append({"partner": partner, **_Pair(partner, rank == first, device).measured()})
            dist.barrier()
        return dict(_rates(from_all(own, device)))

    rates = play(peers.pairings(leaders))
    play(peers.again(rates))
    return own


def _rates(reports: List[List[Dict[str, float]]]) -> Iterator[Tuple[peers.Pair, float]]:
    for rank, pairs in enumerate(reports):
        for one in pairs:
            yield frozenset((rank, int(one["partner"]))), one["rate"]


class _Pair:
    """Two ranks that send each other messages; `first` sends first and sets the pace."""

    def __init__(self, other: int, first: bool, device: Any) -> None:
        self._other, self._first, self._device = other, first, device

    def measured(self) -> Dict[str, float]:
        """Milliseconds one way for a few bytes, bytes per second of large messages, and the noise of the latter."""
        few = torch.zeros(1, dtype=torch.int64, device=self._device)
        latency = min([self._exchange(few) for _ in range(30)][5:]) / 2
        rates: List[float] = []
        size, ends = 1 << 16, time.perf_counter() + _WINDOW
        while size:
            seconds = self._exchange(torch.zeros(size, dtype=torch.uint8, device=self._device))
            rates.append(2 * size / seconds)
            if time.perf_counter() > ends and len(rates) > 6:
                size = 0
            elif seconds < _WINDOW / 8:
                size = min(2 * size, _LARGEST)
            few[0] = size
            self._tell(few)
            size = int(few)
        last = rates[-5:]
        return {"ms": latency * 1000, "rate": max(last), "noise": 1 - median(last) / max(last)}

    def _exchange(self, data: Any) -> float:
        begun = time.perf_counter()
        for sends in (self._first, not self._first):
            dist.send(data, self._other) if sends else dist.recv(data, self._other)
        _wait(self._device)
        return time.perf_counter() - begun

    def _tell(self, data: Any) -> None:
        dist.send(data, self._other) if self._first else dist.recv(data, self._other)
