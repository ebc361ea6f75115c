"""Delay of a line from a rank to the user's terminal, and how fast a flood of lines arrives whole."""

from __future__ import annotations

from tests.bench.harness import Comparison, compare, percentile
from tests.bench.terminals import LINES, Line, Way, disttui, hand
from tests.cluster import Cluster

FLOOD = 100_000
"""Lines of each of two ranks, 100 bytes each."""


def delays(runs: int) -> dict[str, list[float]]:
    """Milliseconds from print to read, 20 lines a second and rank, of both ways."""
    taken: dict[str, list[float]] = {"disttui": [], "by hand": []}
    with Cluster(2) as cluster:
        script = cluster.shared / "lines.py"
        script.write_text(LINES)
        for _ in range(runs):
            for name, way in (("disttui", disttui), ("by hand", hand)):
                with way(cluster, script, ["100", "60", "0.05"], [1, 1]) as lines:
                    taken[name] += [(when - _written(text)) * 1000 for when, text in lines if text.startswith("L ")]
    return taken


def flood(runs: int) -> Comparison:
    """Seconds from the first line written to the last one read, all complete and untorn."""
    with Cluster(2) as cluster:
        script = cluster.shared / "lines.py"
        script.write_text(LINES)

        def until_all(way: Way) -> float:
            with way(cluster, script, [str(FLOOD), "100", "0"], [1, 1]) as lines:
                seen = [line for line in lines if line[1].startswith("L ")]
            _check(seen)
            return max(when for when, _ in seen) - min(_written(text) for _, text in seen)

        return compare("200,000 lines", "s", lambda: until_all(disttui), lambda: until_all(hand), runs=runs)


def summary(taken: dict[str, list[float]]) -> str:
    """Median and 99th percentile of both ways."""
    return "\n".join(
        f"| {name} | {percentile(figures, 0.5):.1f} ms | {percentile(figures, 0.99):.1f} ms | {max(figures):.1f} ms "
        f"| {len(figures)} |"
        for name, figures in taken.items()
    )


def _written(text: str) -> float:
    return float(text.split(" ", 4)[3])


def _check(lines: list[Line]) -> None:
    for rank in ("0", "1"):
        numbers = [int(text.split(" ", 3)[2]) for _, text in lines if text.split(" ", 2)[1] == rank]
        if numbers != list(range(FLOOD)):
            raise RuntimeError(f"rank {rank}: {len(numbers)} lines of {FLOOD}, or out of order")
    if any(len(text) != 99 for _, text in lines):
        raise RuntimeError("a line is torn")
