"""Who is named after a measurement of all hosts: simulated, with noise as real machines have it.

The noise of a simulated measurement, drawn from a seed:

* Hosts of the same kind differ permanently by 1.5 % (one σ): silicon, temperature, placement of memory.
* Every measurement is slower than it could be by 2 % on average (exponential): interrupts and caches.
* In one moment of twenty, another process or stream takes 10 to 60 %, for all repetitions of that moment.

A bad host computes, or sends, at 10 to 80 % of the usual rate, or one of its products has wrong bits.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import pytest

from disttui.runner.api.checking import measurement
from disttui.runner.api.preparing import plan_run
from disttui.runner.planning import tournament
from disttui.runner.planning.checks import Check, HostFigures
from disttui.runner.planning.tournament import PairReport, Placed, RankReport
from disttui.runner.profile.load import parse
from disttui.runner.profile.sections import Notify
from disttui.runner.runs.measured import Measurements
from disttui.runner.train import peers
from tests.unit.planning import facts


@dataclass
class Cluster:
    """Hosts of one rank each, whose measurement is simulated as `runner/train/smoke.py` makes it."""

    draw: random.Random
    count: int = 8
    slow_cpu: Mapping[int, float] = field(default_factory=dict)
    slow_link: Mapping[int, float] = field(default_factory=dict)
    slow_pair: Mapping[frozenset[int], float] = field(default_factory=dict)
    wrong: Sequence[int] = ()

    def rates(self, usual: float, repetitions: int) -> list[float]:
        """Repetitions in one moment."""
        taken = self.draw.uniform(0.1, 0.6) if self.draw.random() < 0.05 else 0.0
        return [usual * (1 - taken) / (1 + self.draw.expovariate(50)) for _ in range(repetitions)]

    def measured(self) -> dict[int, Placed]:
        """What the ranks report in the end."""
        own = {name: [usual * self.draw.gauss(1, 0.015) for _ in range(self.count)]
               for name, usual in (("product", 1e11), ("memory", 1e10), ("network", 1e9))}  # fmt: skip
        seen: dict[str, list[list[float]]] = {name: [[] for _ in range(self.count)] for name in ("product", "memory")}
        for turn in range(4):
            for name, rows in seen.items():
                for number in range(self.count):
                    rows[number] += self.rates(own[name][number] * self.slow_cpu.get(number, 1.0), 2)
            best = [{"device": "x", **{name: max(rows[number]) for name, rows in seen.items()}}
                    for number in range(self.count)]  # fmt: skip
            if turn and not peers.any_slow(best):
                break
        pairs: dict[int, list[PairReport]] = {number: [] for number in range(self.count)}
        first = self.play(peers.pairings(range(self.count)), own["network"], pairs)
        self.play(peers.again(first), own["network"], pairs)
        return {
            number: Placed(f"h{number}", RankReport(
                7, "done", self.count, "x", 1, reduce_rate=1e9,
                product=max(seen["product"][number]), memory=max(seen["memory"][number]),
                product_noise=1 - median(seen["product"][number]) / max(seen["product"][number]),
                products=4, wrong_products=int(number in self.wrong), pairs=tuple(pairs[number]),
            ))
            for number in range(self.count)
        }  # fmt: skip

    def play(
        self, rounds: list[list[tuple[int, int]]], own: list[float], pairs: dict[int, list[PairReport]]
    ) -> dict[frozenset[int], float]:
        found = {}
        for a, b in (pair for pairs_of_round in rounds for pair in pairs_of_round):
            key = frozenset((a, b))
            usual = min(own[one] * self.slow_link.get(one, 1.0) for one in key) * self.slow_pair.get(key, 1.0)
            rates = self.rates(usual, 5)
            found[key] = max(rates)
            for one, other in ((a, b), (b, a)):
                pairs[one].append(PairReport(other, 0.05, max(rates), 1 - median(rates) / max(rates)))
        return found


def accused(ranks: Mapping[int, Placed]) -> dict[str, set[str]]:
    """Host, or the two of a link → the ids of what they are accused of."""
    found: dict[str, set[str]] = {}
    for check in tournament.judge(ranks, len(ranks), {}):
        assert check.why
        found.setdefault(" ".join(check.hosts), set()).add(check.id)
    return found


def test_wrong_products_name_the_gpu_that_made_them() -> None:
    def rank(device: str, wrong: int) -> Placed:
        return Placed("h0", RankReport(7, "done", 2, device, 1, products=4, wrong_products=wrong))

    found = tournament.judge({0: rank("A100", 0), 1: rank("H100", 3)}, 2, {})
    assert [check.what for check in found if check.id == "train.bits"] == [
        "3 of 8 matrix products had wrong bits on H100"
    ]


@pytest.mark.parametrize("seed", range(20))
def test_one_or_two_bad_hosts_of_eight_are_named(seed: int) -> None:
    draw = random.Random(seed)
    bad = draw.sample(range(8), draw.choice((1, 2)))
    kinds = [draw.choice(("train.compute", "train.network", "train.bits")) for _ in bad]
    rate = {number: draw.uniform(0.1, 0.8) for number in bad}
    by = {kind: [number for number, own in zip(bad, kinds, strict=True) if own == kind] for kind in kinds}
    ranks = Cluster(
        draw,
        slow_cpu={number: rate[number] for number in by.get("train.compute", ())},
        slow_link={number: rate[number] for number in by.get("train.network", ())},
        wrong=by.get("train.bits", ()),
    ).measured()
    found = accused(ranks)
    assert found.keys() == {f"h{number}" for number in bad}
    for number, kind in zip(bad, kinds, strict=True):
        assert kind in found[f"h{number}"]


def test_nobody_of_a_hundred_clean_clusters_is_accused() -> None:
    found = {seed: own for seed in range(100) if (own := accused(Cluster(random.Random(1000 + seed)).measured()))}
    assert found == {}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("count", [3, 4, 5, 12])
def test_slow_link_between_two_good_hosts_is_not_blamed_on_one(seed: int, count: int) -> None:
    draw = random.Random(seed)
    pair = frozenset(draw.sample(range(count), 2))
    rounds = {frozenset(one) for own in peers.pairings(range(count)) for one in own}
    cluster = Cluster(draw, count, slow_pair={pair: 0.5})
    both = " ".join(f"h{number}" for number in sorted(pair))
    expected = {both: {"train.network"}} if pair in rounds else {}
    assert accused(cluster.measured()) == expected


def test_two_hosts_cannot_be_told_apart() -> None:
    assert accused(Cluster(random.Random(1), 2, slow_cpu={1: 0.3}, slow_link={1: 0.3}).measured()) == {}


def test_a_host_is_compared_with_its_own_past() -> None:
    ranks = Cluster(random.Random(1), 2, slow_cpu={1: 0.6}).measured()
    past = [HostFigures("h1", "x", 1, 0.0, product=1e11 * rate) for rate in (1, 1.02, 0.98)]
    [check] = list(tournament.judge(ranks, 2, {"h1": past}))
    assert (check.id, check.hosts) == ("train.compute", ("h1",))
    assert "100.0GFLOP/s before" in check.what
    other_device = [replace(one, device="y") for one in past]
    assert not list(tournament.judge(ranks, 2, {"h1": other_device}))
    assert not list(tournament.judge(ranks, 2, {"h1": past[:2]}))


def test_hosts_with_other_devices_are_no_peers() -> None:
    ranks = Cluster(random.Random(1), 6, slow_cpu={4: 0.3, 5: 0.3}).measured()
    mixed = {n: replace(one, report=replace(one.report, device="y")) if n > 3 else one for n, one in ranks.items()}
    assert accused(mixed) == {}


@pytest.mark.parametrize("rate", [1.0, 1e30])
def test_a_lying_host_changes_its_own_row_alone(rate: float) -> None:
    ranks = Cluster(random.Random(2), 5, slow_link={4: 0.3}).measured()
    assert accused(ranks).keys() == {"h4"}
    lies = tuple(PairReport(partner, 1 / rate, rate) for partner in (0, 1, 2, 3, 4, 99, -1)) * 5
    liar = replace(ranks[1].report, pairs=lies, product=rate, wrong_results=("broadcast",), world_size=9)
    found = accused({**ranks, 1: Placed("h1", liar)})
    assert {"h1", "h4"} <= found.keys()
    assert {who for who in found if "h1" not in who.split()} == {"h4"}


def test_wrong_results_and_a_wrong_world_are_errors() -> None:
    ranks = Cluster(random.Random(3), 3).measured()
    ranks[2] = Placed("h2", replace(ranks[2].report, world_size=1, wrong_results=("all_reduce",), lacking=("x",)))
    found = [check for check in tournament.judge(ranks, 3, {}) if check.id == "train.results"]
    assert [(check.level, check.hosts) for check in found] == [("error", ("h2",)), ("error", ("h2",)), ("info", ())]


def test_pairings_meet_everyone_once() -> None:
    for count in range(2, 9):
        rounds = peers.pairings(range(count))
        assert all(len({*sum(pairs, ())}) == 2 * len(pairs) for pairs in rounds)
        met = [pair for pairs in rounds for pair in pairs]
        assert len(met) == len({*met}) == count * (count - 1) // 2
    assert len(peers.pairings(range(64))) == peers.MOST_ROUNDS


def silenced(ranks: Mapping[int, Placed]) -> Check:
    return tournament.silent(ranks, [f"h{number}" for number in range(3)], 100.0, 20.0)


def test_a_silent_host_is_named() -> None:
    alive = {number: Placed(f"h{number}", RankReport(3, "collectives"), 99.0) for number in range(3)}
    assert silenced(alive).hosts == ("h0", "h1", "h2")
    assert silenced({**alive, 1: replace(alive[1], heard=80.0)}).hosts == ("h1",)
    assert silenced({number: alive[number] for number in (0, 2)}).hosts == ("h1",)
    behind = {**alive, 2: Placed("h2", RankReport(2, "joined"), 99.0)}
    assert silenced(behind).hosts == ("h2",)
    assert silenced(behind).what == "the other hosts are further; no progress for 20 s after 'joined'"


def test_a_rate_of_zero_is_no_measurement() -> None:
    pairs = tuple(PairReport(number, 0.0, 0.0) for number in range(3))
    ranks = {number: Placed(f"h{number}", RankReport(7, "done", 3, pairs=pairs)) for number in range(3)}
    assert [*tournament.judge(ranks, 3, {})] == []
    assert [one.network for one in tournament.figures(ranks, 0.0)] == [None] * 3


def test_one_host_is_faster_on_a_slow_network() -> None:
    def ranks(rate: float) -> dict[int, Placed]:
        report = RankReport(7, "done", 4, reduce_rate=rate, step_seconds=0.2, step_bytes=4e6)
        return {number: Placed(f"h{number // 2}", report) for number in range(4)}

    slow, fast = tournament.predict(ranks(1e7)), tournament.predict(ranks(1e9))
    assert slow and fast
    assert math.isclose(slow.exchange, 2 * 3 / 4 * 4e6 / 1e7)
    assert (slow.one, slow.every) == (0.4, 0.2 + slow.exchange)
    assert "one host is faster" in slow.text()
    assert "400 ms on one host, and 800 ms on 2" in slow.text()
    assert "2 hosts are faster" in fast.text()
    words = tournament.break_even(ranks(1e8), 124e6)
    assert words and "7.44 s here" in words and "less than 14.9 s" in words
    assert tournament.predict({0: ranks(1e8)[0]}) is None
    uneven = {number: replace(one, host="h0" if number else "h1") for number, one in ranks(1e8).items()}
    found, words = tournament.predict(uneven), tournament.break_even(uneven, 124e6)
    assert found and math.isclose(found.one, 0.2 * 4 / 3), "three of four ranks are on one host"
    assert words and "less than 29.8 s" in words


def test_measurements_are_kept_and_shown_in_the_plan(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    text = "{disttui: 1, name: x, hosts: [a, b], num_processes: 2, job: {builtin: bytegpt, args: [--steps, '%s']}}"
    profile = parse(text % 3, "x.yaml")
    found = [HostFigures(name, "x", 2, 1e9, product=1e9) for name in "ab"]
    step = tournament.Prediction(2, 0.1, 0.05, 3.0)
    for _ in range(10):
        Measurements.load(environ).save(environ, profile, found, step)
    Measurements.load(environ).save(environ, profile, found, None)
    known = Measurements.load(environ)
    assert len(known.of_host("a")) == 8
    assert known.of_host("a")[0] == found[0]
    hosts = [replace(facts("cpu_desk"), boot_id=name) for name in "ab"]
    planned = plan_run(parse(text % 99, "x.yaml"), hosts, environ)
    assert any("ago, one host is faster" in one.text for one in planned.recommendation.warnings)
    for other in (text.replace("num_processes: 2", "num_processes: 1") % 3, (text % 3).replace("steps", "width")):
        planned = plan_run(parse(other.replace("'3'", "'64'"), "x.yaml"), hosts, environ)
        assert not any("measured" in one.text for one in planned.recommendation.warnings)
    (tmp_path / "disttui/measured.json").write_text("[1")
    assert Measurements.load(environ) == Measurements()


def test_the_measurement_takes_the_place_of_any_job() -> None:
    text = "{disttui: 1, name: x, hosts: [a], launch: {restarts: 3}, job: %s}"
    mine = measurement(
        parse(text % "{script: train.py, args: [--a], workdir: /w, outputs: [o], setup: [make]}", "x"), of_job=True
    )
    assert mine.job.target == ("builtin", "bytegpt", ("--measure", "hosts"))
    assert (mine.job.workdir, mine.job.outputs, mine.job.setup, mine.launch.restarts) == ("/w", (), (), 0)
    assert mine.resolved_notify(Notify(webhook="https://example.org/x"), str) == []
    built_in = parse(text % "{builtin: bytegpt, args: [--width, '64']}", "x")
    assert measurement(built_in, of_job=True).job.args == ("--width", "64", "--measure", "job")
    assert measurement(built_in, of_job=False).job.args[-1] == "hosts"
