"""Compares hosts with their peers; no I/O: used by the ranks of a measurement and by the viewer that judges it."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any, Dict, FrozenSet, List, Sequence, Set, Tuple

MOST_ROUNDS = 7
"""Rounds in which all hosts are measured in pairs: with 8 hosts every pair is measured."""
LESS = 0.1
"""The fraction of the usual rate that a slow host lacks at least."""
_TO_SIGMA = 1.4826
"""Converts the median of the deviations to a standard deviation, which a few outliers do not widen."""

Pair = FrozenSet[int]
Rates = Mapping[Pair, float]


def slow(rates: Mapping[int, float], usual: Sequence[float] = (), noise: float = 0.0) -> Set[int]:
    """Those whose rate is below the median by more than one σ, 10 % and the noise; none if there are fewer than three.

    Args:
        usual: Rates to compare with instead of each other.
        noise: The fraction of a rate by which measurements of the same thing differ.
    """
    values = list(usual or rates.values())
    if len(values) < 3:
        return set()
    middle = median(values)
    spread = _TO_SIGMA * median(abs(value - middle) for value in values)
    return {key for key, value in rates.items() if middle - value > max(spread, LESS * middle, noise * middle)}


def pairings(hosts: Sequence[int]) -> List[List[Tuple[int, int]]]:
    """Rounds of pairs in which no host appears twice, and no pair is repeated."""
    ring: List[int] = [*hosts, *([-1] if len(hosts) % 2 else [])]
    rounds = []
    for _ in range(min(len(ring) - 1, MOST_ROUNDS)):
        pairs = [(ring[place], ring[-1 - place]) for place in range(len(ring) // 2)]
        rounds.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def best(rates: Rates) -> Dict[int, float]:
    """The rate of each host's best pair: a good host has one with another good host."""
    found: Dict[int, float] = {}
    for pair, rate in rates.items():
        for host in pair:
            found[host] = max(rate, found.get(host, 0.0))
    return found


def slow_links(rates: Rates, noise: float = 0.0) -> Set[Pair]:
    """Pairs that are slower than both of their hosts are with others."""
    hosts = best(rates)
    quotients = {pair: rate / min(hosts[host] for host in pair) for pair, rate in rates.items()}
    order = list(quotients)
    usual = [1.0, *quotients.values()] if len(hosts) > 2 else []
    return {order[number] for number in slow(dict(enumerate(quotients.values())), usual, noise)}


def again(rates: Rates) -> List[List[Tuple[int, int]]]:
    """Rounds that show which host of a slow pair is to blame: each suspect with two hosts that were fine.

    A slow pair of hosts that are fine with others is measured three times more, while all others wait.
    """
    hosts = best(rates)
    suspects = sorted(slow(hosts))
    fine = sorted((host for host in hosts if host not in suspects), key=lambda host: -hosts[host])
    rounds = [
        [tuple(sorted((suspect, fine[(number + turn) % len(fine)]))) for number, suspect in enumerate(suspects)]
        for turn in range(min(2, len(fine)) if suspects else 0)
    ]
    links = [tuple(sorted(pair)) for pair in slow_links(rates) if not pair & set(suspects)]
    return [*rounds, *([link] for link in sorted(links)[:MOST_ROUNDS] * 3)]  # type: ignore[list-item]


def any_slow(reports: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a rank computes or copies more slowly than others with the same kind of device."""
    return any(
        slow({number: one[name] for number, one in enumerate(reports) if name in one and one["device"] == device})
        for name in ("product", "memory", "copy")
        for device in {one["device"] for one in reports}
    )
