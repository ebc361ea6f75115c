"""Conclusions of `disttui check --train` from the ranks' measurements. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

from disttui.runner.formatting import amount, count
from disttui.runner.planning.checks import Check, HostFigures
from disttui.runner.train import peers
from disttui.runner.untrusted.decode import Shown

SILENT = 5.0
"""Seconds without a heartbeat after which a rank counts as silent; it sends one every second."""
_SLOW_LATENCY = 2.0
"""Multiple of the peers' median latency above which a host is named: switches and racks differ by less."""
_KEPT = 3
"""Least number of earlier measurements of a host to compare it with them."""


@dataclass(frozen=True)
class PairReport:
    """The network between two hosts, as measured by the first rank of one with that of the other."""

    partner: int
    """The rank of the other host."""
    ms: float
    rate: float
    """Bytes per second."""
    noise: float = 0.0
    """Fraction of the rate by which repetitions differ."""


@dataclass(frozen=True)
class RankReport:
    """A rank's reports so far; None for what is not measured yet, or does not exist on its device."""

    step: int = 0
    phase: Annotated[str, Shown(20)] = ""
    world_size: int | None = None
    device: Annotated[str, Shown(60)] = ""
    threads: int | None = None
    wrong_results: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    reduce_rate: float | None = None
    product: float | None = None
    memory: float | None = None
    copy: float | None = None
    """`product` in FLOP/s, the others in bytes per second; the best of several repetitions."""
    product_noise: float = 0.0
    memory_noise: float = 0.0
    copy_noise: float = 0.0
    products: int = 0
    wrong_products: int = 0
    step_seconds: float | None = None
    """Seconds for this rank's part of a step of the built-in job, without communication."""
    step_bytes: float | None = None
    partner: int | None = None
    pairs: Annotated[tuple[PairReport, ...], 64] = ()


@dataclass(frozen=True)
class Placed:
    """A rank's host and report, and the time of its last message."""

    host: str
    report: RankReport
    heard: float = 0.0


_RATES: Mapping[str, tuple[str, str, str, str]] = {
    "product": (
        "train.compute", "FLOP/s", "computes", "Check for other processes, heat, a CPU quota or a power limit",
    ),
    "memory": ("train.memory", "B/s", "copies in memory", "Check for other processes and missing memory modules"),
    "copy": ("train.copy", "B/s", "copies from the host to the GPU", "Check the PCIe lanes of the card (gpu.pcie)"),
    "network": ("train.network", "B/s", "sends", "Check its cable, its switch port and the speed of its interface"),
}  # fmt: skip
_WHY = "every step waits for the slowest rank"


def figures(ranks: Mapping[int, Placed], now: float) -> list[HostFigures]:
    """Return the measurements of each host, in the order of ranks; `now` is their time."""
    rates, times = _rates(ranks, lambda pair: pair.rate), _rates(ranks, lambda pair: 1 / pair.ms if pair.ms else 0.0)
    network, near = peers.best(rates), peers.best(times)
    found = []
    for host in _hosts(ranks):
        own = {rank: one.report for rank, one in ranks.items() if one.host == host}

        def least(name: str, own: Mapping[int, RankReport] = own) -> float | None:
            return min((value for one in own.values() if (value := getattr(one, name))), default=None)

        leader = min(own)
        found.append(
            HostFigures(
                host, own[leader].device, len(own), now, least("product"), least("memory"), least("copy"),
                network.get(leader), 1 / near[leader] if near.get(leader) else None,
            )
        )  # fmt: skip
    return found


def _rates(ranks: Mapping[int, Placed], value: Callable[[PairReport], float]) -> dict[peers.Pair, float]:
    """Return the best measurement of each pair of leaders: the lower of both sides' claims, so none can inflate it."""
    leaders = _leaders(ranks)
    said: dict[tuple[int, int], float] = {}
    for leader in leaders:
        for pair in ranks[leader].report.pairs:
            said[leader, pair.partner] = max(value(pair), said.get((leader, pair.partner), 0.0))
    both = ((one, other) for one in leaders for other in leaders if one < other)
    return {
        frozenset((one, other)): min(said[one, other], said[other, one])
        for one, other in both if said.get((one, other), 0.0) > 0 and said.get((other, one), 0.0) > 0
    }  # fmt: skip


def _hosts(ranks: Mapping[int, Placed]) -> list[str]:
    return list(dict.fromkeys(ranks[rank].host for rank in sorted(ranks)))


def _noise(ranks: Mapping[int, Placed], name: str) -> float:
    """Return the median fraction by which repetitions of a measurement differ."""
    if name == "network":
        found = [pair.noise for one in ranks.values() for pair in one.report.pairs]
    else:
        found = [getattr(one.report, f"{name}_noise") for one in ranks.values()]
    return median(found) if found else 0.0


def _leaders(ranks: Mapping[int, Placed]) -> list[int]:
    first: dict[str, int] = {}
    for rank in sorted(ranks):
        first.setdefault(ranks[rank].host, rank)
    return list(first.values())


def judge(
    ranks: Mapping[int, Placed], world_size: int, earlier: Mapping[str, Sequence[HostFigures]]
) -> Iterator[Check]:
    """Yield wrong results, and hosts that are slower than their peers or than they were.

    Args:
        world_size: The number of ranks in the plan.
        earlier: Host → its earlier measurements; those on another device or with other rank counts are ignored.
    """
    hosts = figures(ranks, 0.0)
    yield from _results(ranks, world_size)
    for name, (check, unit, does, cure) in _RATES.items():
        values = {number: value for number, one in enumerate(hosts) if (value := getattr(one, name))}
        blamed, noise = set(), _noise(ranks, name)
        kinds = dict.fromkeys(hosts[number].device for number in values) if name != "network" else {"": None}
        for kind in kinds:
            alike = {number: value for number, value in values.items() if not kind or hosts[number].device == kind}
            for number in peers.slow(alike, noise=noise):
                blamed.add(number)
                what = f"{does} at {count(values[number])}{unit}, median of its peers: "
                what += f"{count(median(alike.values()))}{unit}"
                yield Check(check, "warning", (hosts[number].host,), what, _WHY, cure)
        for number in values.keys() - blamed:
            host = hosts[number]
            usual = [v for one in earlier.get(host.host, ()) if one.device == host.device and one.ranks == host.ranks
                     and (v := getattr(one, name))]  # fmt: skip
            if len(usual) >= _KEPT and peers.slow({0: values[number]}, usual, noise):
                what = f"{does} at {count(values[number])}{unit}, {count(median(usual))}{unit} before"
                yield Check(check, "warning", (host.host,), what, _WHY, cure)
    yield from _far(hosts)
    yield from _links(ranks)


def _results(ranks: Mapping[int, Placed], world_size: int) -> Iterator[Check]:
    for host in _hosts(ranks):
        own = [one.report for one in ranks.values() if one.host == host]
        seen = {one.world_size for one in own} - {world_size, None}
        if seen:
            yield Check(
                "train.results", "error", (host,), f"its ranks see a world of {seen.pop()} instead of {world_size}",
                "they would train a separate model", "Check that nothing there sets RANK or WORLD_SIZE",
            )  # fmt: skip
        wrong, checked = [one for one in own if one.wrong_products], sum(one.products for one in own)
        if wrong:
            yield Check(
                "train.bits", "error", (host,),
                f"{sum(one.wrong_products for one in wrong)} of {amount(checked, 'matrix product')} had wrong bits on "
                f"{' and '.join(dict.fromkeys(one.device for one in wrong))}",
                "it would silently corrupt the model of all hosts",
                "Exclude the host or GPU, and have its processor and memory tested",
            )  # fmt: skip
    bad = {host.host: host.report.wrong_results for host in ranks.values() if host.report.wrong_results}
    if bad:
        names = ", ".join(dict.fromkeys(name for own in bad.values() for name in own))
        yield Check(
            "train.results", "error", tuple(bad), f"wrong results of {names}", "training would use these results",
            "Compare the versions of torch and NCCL; exclude hosts one by one until the results are right",
        )  # fmt: skip
    if lacking := sorted({name for one in ranks.values() for name in one.report.lacking}):
        yield Check("train.results", "info", (), f"not available with this backend: {', '.join(lacking)}")


def _far(hosts: Sequence[HostFigures]) -> Iterator[Check]:
    known = {number: 1 / one.ms for number, one in enumerate(hosts) if one.ms}
    middle = median(known.values()) if known else 0.0
    for number in peers.slow(known):
        if middle / known[number] > _SLOW_LATENCY:
            yield Check(
                "train.network", "warning", (hosts[number].host,),
                f"a message takes {1 / known[number]:.2f} ms (median of its peers: {1 / middle:.2f} ms)", _WHY,
                "Check the route and the load of its link",
            )  # fmt: skip


def _links(ranks: Mapping[int, Placed]) -> Iterator[Check]:
    rates = _rates(ranks, lambda pair: pair.rate)
    measured = Counter(frozenset((rank, pair.partner)) for rank, one in ranks.items() for pair in one.report.pairs)
    bad = peers.slow(peers.best(rates))
    for pair in peers.slow_links(rates, _noise(ranks, "network")):
        if not pair & bad and measured[pair] > 2:
            first, second = (ranks[rank].host for rank in sorted(pair))
            usual = min(peers.best(rates)[rank] for rank in pair)
            yield Check(
                "train.network", "warning", (first, second),
                f"{count(rates[pair])}B/s between them, {count(usual)}B/s with other hosts",
                "every all-reduce is as slow as the slowest link", "Check the route between these two",
            )  # fmt: skip


def silent(ranks: Mapping[int, Placed], hosts: Sequence[str], now: float, seconds: float) -> Check:
    """Name the hosts that have blocked a measurement for `seconds`: those without heartbeat, or else the slowest."""
    quiet = [
        host for host in hosts
        if not any(one.host == host and now - one.heard < SILENT for one in ranks.values())
    ]  # fmt: skip
    last = min((one.report.step for one in ranks.values()), default=0)
    behind = {one.host for one in ranks.values() if one.report.step == last}
    who = "no response" if quiet else "all ranks wait for each other"
    if not quiet and len(behind) < len(hosts):
        who, quiet = "the other hosts are further", [host for host in hosts if host in behind]
    phase = next((one.report.phase for one in ranks.values() if one.report.step == last), "") or "start"
    return Check(
        "train.silent",
        "error",
        tuple(quiet or hosts),
        f"{who}; no progress for {seconds:.0f} s after '{phase}'",
        "a training would hang in the same place",
        "Check what keeps the host busy, and its network",
    )


@dataclass(frozen=True)
class Prediction:
    """Seconds per step on one host and on all hosts, for the same global batch."""

    hosts: int
    one: float
    compute: float
    exchange: float

    @property
    def every(self) -> float:
        """Seconds per step on all hosts."""
        return self.compute + self.exchange

    def text(self) -> str:
        """Return a sentence on which is faster, with both times."""
        better = "one host is faster" if self.one < self.every else f"{self.hosts} hosts are faster"
        return (
            f"{better}: a step with the same global batch takes {_seconds(self.one)} on one host, and "
            f"{_seconds(self.every)} on {self.hosts} ({_seconds(self.compute)} of computing, {_seconds(self.exchange)} "
            "of exchanging gradients)"
        )


def predict(ranks: Mapping[int, Placed]) -> Prediction | None:
    """Predict the time per step on one host and on all; None if a rank measured none, or there is only one host."""
    hosts = len(_hosts(ranks))
    steps: dict[str, list[float]] = {}
    for one in ranks.values():
        if one.report.step_seconds:
            steps.setdefault(one.host, []).append(one.report.step_seconds)
    sent = exchange(ranks, next((one.report.step_bytes or 0.0 for one in ranks.values()), 0.0))
    if hosts < 2 or sum(map(len, steps.values())) < len(ranks) or sent is None:
        return None
    # Each rank has measured an equal part of the batch; alone, the ranks of one host would compute all parts.
    alone = min(max(own) * len(ranks) / len(own) for own in steps.values())
    return Prediction(hosts, alone, max(map(max, steps.values())), sent)


def exchange(ranks: Mapping[int, Placed], size: float) -> float | None:
    """Return the seconds of a ring all-reduce of `size` bytes over all ranks, or None if its rate was not measured."""
    rates = [one.report.reduce_rate for one in ranks.values() if one.report.reduce_rate]
    return 2 * (len(ranks) - 1) / len(ranks) * size / min(rates) if rates and ranks else None


def break_even(ranks: Mapping[int, Placed], parameters: float) -> str | None:
    """Describe from which step time all hosts are faster than one for a model of this size; None if not measured."""
    hosts = len(_hosts(ranks))
    sent = exchange(ranks, 4 * parameters)
    if hosts < 2 or sent is None:
        return None
    # All ranks compute equal parts, so that the host with most of them takes that share of all hosts' time alone.
    alone = max(Counter(one.host for one in ranks.values()).values()) / len(ranks)
    return (
        f"{count(parameters)} parameters: a step sends {count(4 * parameters)}B of gradients, {_seconds(sent)} here. "
        f"One host is faster if its step takes less than {_seconds(sent / (1 - alone))}, else {hosts} hosts are"
    )


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"
