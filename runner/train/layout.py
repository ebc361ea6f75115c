"""How the ranks divide one model and its data: five sizes whose product is the world size. No I/O, no torch.

Ranks are counted with tp innermost, then cp, dp_shard, dp_replicate and pp: ranks that communicate most are closest
together, in one host if the hosts' process counts allow it.
"""

from __future__ import annotations

import bisect
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional, Union

from .problem import Problem

ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Dimensions of the mesh, from the outermost to the innermost."""
VOCABULARY = 256
STRATEGIES = ("auto", "ddp", "fsdp", "hsdp")


class Sizes(NamedTuple):
    """The requested sizes; None: derived from the others."""

    dp_replicate: Optional[int] = None
    dp_shard: Optional[int] = None
    tp: Optional[int] = None
    pp: Optional[int] = None
    cp: Optional[int] = None


class Flaw(NamedTuple):
    """Why a layout is impossible: the size that is wrong, what is wrong with it, and the cure."""

    key: str
    what: str
    cure: str


class Coordinates(NamedTuple):
    """A rank's position along every dimension."""

    pp: int
    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int


@dataclass(frozen=True)
class Layout:
    """A complete layout. `strategy` is ddp, fsdp or hsdp."""

    strategy: str = "ddp"
    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1

    @property
    def world_size(self) -> int:
        """The number of all ranks."""
        return self.dp * self.copies * self.pp

    @property
    def dp(self) -> int:
        """The data-parallel degree: the number of ranks that train on samples of their own."""
        return self.dp_replicate * self.dp_shard

    @property
    def copies(self) -> int:
        """The number of ranks of one pipeline stage that work on the same samples."""
        return self.tp * self.cp

    def coordinates(self, rank: int) -> Coordinates:
        """The position of a rank in the mesh."""
        found = []
        for name in reversed(ORDER):
            rank, index = divmod(rank, getattr(self, name))
            found.append(index)
        return Coordinates(*reversed(found))

    def data_index(self, rank: int) -> int:
        """The index, below `dp`, of the part of a round's samples that a rank trains on."""
        place = self.coordinates(rank)
        return place.dp_replicate * self.dp_shard + place.dp_shard

    def __str__(self) -> str:
        """The sizes above 1, as in `dp_replicate 2 × dp_shard 2 × tp 2`, or `1 rank`."""
        parts = [f"{name} {size}" for name in Sizes._fields if (size := getattr(self, name)) > 1]
        return " × ".join(parts) or "1 rank"


def settle(sizes: Sizes, strategy: str, hosts: Sequence[int]) -> Union[Layout, Flaw]:
    """The layout for hosts with these process counts, or why none fits.

    Open sizes are derived: dp_replicate under ddp, dp_shard under fsdp; hsdp shards inside hosts.
    """
    if flaw := next(strategy_flaws(sizes, strategy), None):
        return flaw
    if strategy == "ddp":
        sizes = sizes._replace(dp_shard=1)
    elif strategy == "fsdp":
        sizes = sizes._replace(dp_replicate=1)
    if flaw := _product_flaw(sizes, sum(hosts)):
        return flaw
    tp, pp, cp = sizes.tp or 1, sizes.pp or 1, sizes.cp or 1
    dp = sum(hosts) // (tp * pp * cp)
    replicate, shard = sizes.dp_replicate, sizes.dp_shard
    if replicate is None and shard is None:
        shard = math.gcd(dp, math.gcd(*hosts) // (tp * cp)) if strategy == "hsdp" else 1
    if shard is None:
        shard = dp // (replicate or 1)
    replicate = dp // shard
    if strategy == "auto":
        strategy = "ddp" if shard == 1 else "fsdp" if replicate == 1 else "hsdp"
    return Layout(strategy, replicate, shard, tp, pp, cp)


def strategy_flaws(sizes: Sizes, strategy: str) -> Iterator[Flaw]:
    """Sizes that contradict the strategy."""
    if strategy == "ddp" and (sizes.dp_shard or 1) > 1:
        yield Flaw("dp_shard", f"dp_shard {sizes.dp_shard}, but ddp shards nothing", "expected strategy fsdp or hsdp")
    if strategy == "fsdp" and (sizes.dp_replicate or 1) > 1:
        what = f"dp_replicate {sizes.dp_replicate}, but fsdp keeps one copy"
        yield Flaw("dp_replicate", what, "expected strategy hsdp or ddp")


def link_flaws(sizes: Sizes, strategy: str, *, sync_interval: int, compress: str) -> Iterator[Flaw]:
    """Options for slow links that do not apply to a layout: they need copies of the whole model."""
    divided = [f"{name} {size}" for name, size in sizes._asdict().items() if name != "dp_replicate" and (size or 1) > 1]
    if strategy in ("fsdp", "hsdp"):
        divided.insert(0, strategy)
    for key, used in (("sync_interval", sync_interval > 1), ("compress", compress != "none")):
        if used and divided:
            what = f"{key} is for copies of the whole model, which {divided[0]} divides"
            yield Flaw(key, what, "expected ddp without tp, pp, cp")
    if sync_interval > 1 and compress != "none":
        what = "compress has nothing to compress with sync_interval, which sends weights"
        yield Flaw("compress", what, "expected one of the two")


def offload_flaw(layout: Layout) -> Optional[Flaw]:
    """The flaw of a layout whose weights FSDP cannot keep in the host's memory."""
    divided = [f"{name} {size}" for name, size in (("tp", layout.tp), ("pp", layout.pp)) if size > 1]
    if layout.strategy == "ddp":
        divided.append("ddp")
    if not divided:
        return None
    return Flaw("cpu_offload", f"yes is not for {divided[0]}", "expected fsdp or hsdp without tp, pp")


def model_flaws(sizes: Sizes, *, layers: int, heads: int, context: int) -> Iterator[Flaw]:
    """Sizes that a model of this shape cannot be divided by."""
    tp, pp, cp = sizes.tp or 1, sizes.pp or 1, sizes.cp or 1
    common = math.gcd(heads, VOCABULARY, context)
    cuts = [size for size in _divisors(heads) if heads % (size * tp) == context % (size * tp) == 0]
    if heads % tp:
        yield Flaw("tp", f"{_count(heads, 'head')} cannot be divided by tp {tp}", _choices(_divisors(common)))
    elif VOCABULARY % tp:
        what = f"the table of {VOCABULARY} bytes cannot be divided by tp {tp}"
        yield Flaw("tp", what, _choices(_divisors(common)))
    elif context % tp:
        what = f"a sequence of {context} bytes cannot be divided by tp {tp}"
        yield Flaw("tp", what, _choices(_divisors(common)))
    elif heads % (tp * cp):
        what = f"{_count(heads // tp, 'head')}{f' of each of tp {tp}' if tp > 1 else ''} cannot be divided by cp {cp}"
        yield Flaw("cp", what, _choices(cuts))
    elif context % (tp * cp):
        what = f"a sequence of {context} bytes cannot be divided by {f'tp {tp} × ' if tp > 1 else ''}cp {cp}"
        yield Flaw("cp", what, _choices(cuts))
    if pp > layers:
        yield Flaw("pp", f"pp {pp} stages, but only {_count(layers, 'layer')}", f"expected 1 to {layers}")


def micro_batch_flaw(pp: int, count: int) -> Optional[Flaw]:
    """Fewer micro batches than stages: some stages would never have work."""
    if pp <= max(count, 1):
        return None
    what = f"pp {pp} stages need as many micro batches in a step, and there {'is' if count == 1 else 'are'} {count}"
    return Flaw("pp", what, f"expected a larger --batch-size, or --accumulate {pp}")


def _product_flaw(sizes: Sizes, world: int) -> Optional[Flaw]:
    given = {name: size for name, size in sizes._asdict().items() if size and size > 1}
    product = math.prod(given.values())
    exact = sizes.dp_replicate is not None and sizes.dp_shard is not None
    if product == world or (not exact and world % product == 0):
        return None
    shown = " × ".join(f"{name} {size}" for name, size in given.items())
    equals = f" = {product}" if len(given) > 1 else ""
    what = f"{shown}{equals} does not {'make' if exact else 'divide'} the {_count(world, 'process')}"
    fits = []
    for name, size in given.items():
        others = product // size
        values = [n for n in _divisors(world) if n * others == world or (not exact and world % (n * others) == 0)]
        if values and values != [size]:
            fits.append(f"{name} {_either(values)}")
    key = next((name for name in reversed(list(given)) if world % given[name]), list(given)[-1])
    cure = f"expected {'; or '.join(fits)}" if fits else f"expected sizes that multiply to {world}"
    return Flaw(key, what, cure)


def crossings(layout: Layout, name: str, hosts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The groups of ranks along one dimension that span more than one host."""
    ends = list(itertools.accumulate(hosts))
    stride = math.prod(getattr(layout, inner) for inner in ORDER[ORDER.index(name) + 1 :])
    block = stride * getattr(layout, name)
    for start in sorted({end // block * block for end in ends[:-1] if end % block}):
        for first in range(start, start + stride):
            ranks = tuple(range(first, first + block, stride))
            if bisect.bisect(ends, ranks[0]) != bisect.bisect(ends, ranks[-1]):
                yield ranks


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, min(number, 4096) + 1) if number % size == 0]


def _choices(values: Sequence[int]) -> str:
    return f"expected {_either(values)}"


def _either(values: Sequence[int]) -> str:
    shown = [str(value) for value in values]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"


def _count(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"


@dataclass(frozen=True)
class RankIdentity:
    """A process's place in the run; the defaults are those of a single process without a launcher."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    launched: bool = False
    """Whether a launcher started it, so that there is a rendezvous to join."""

    def hosts(self) -> list[int]:
        """The process count of every host, assumed to equal this one's: ranks report a mismatch when they meet."""
        alike, rest = divmod(self.world_size, self.local_world_size)
        return [1] * self.world_size if rest else [self.local_world_size] * alike

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> RankIdentity:
        """Read torch's variables. Raises Problem if a launcher has set only some of them."""
        if "RANK" not in env:
            return cls()
        missing = [name for name in ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in env]
        if missing:
            raise Problem(f"RANK is set but {', '.join(missing)} is not: start it with torchrun, or unset RANK")
        try:
            local_rank = int(env["LOCAL_RANK"])
            return cls(
                rank=int(env["RANK"]),
                world_size=int(env["WORLD_SIZE"]),
                local_rank=local_rank,
                local_world_size=int(env.get("LOCAL_WORLD_SIZE", local_rank + 1)),
                launched=True,
            )
        except ValueError as error:
            raise Problem(f"RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE must be numbers: {error}") from None
