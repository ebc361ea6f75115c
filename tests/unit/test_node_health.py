"""The leader's judgement: stalls by the run's own pace, stragglers; what hosts tell for it; alarms; evidence of OOM."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node.gang.health import AT_LEAST, Health
from disttui.runner.node.gang.membership import Resume
from disttui.runner.node.observe.deaths import OomWatch
from disttui.runner.node.observe.log_limit import GrowthWriter
from disttui.runner.node.observe.signs import Signs
from disttui.runner.node.telemetry.sampler import Pressure
from disttui.runner.node.telemetry.sampling import Alarms, shows
from disttui.runner.protocol.events import OomEvidence, stall_text
from disttui.runner.protocol.gang import SignsOfLife
from disttui.runner.protocol.telemetry import GpuUse, Telemetry
from tests.groups import small_group


class Watched:
    """A gang of two hosts with a rank each, in made-up time."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.asked: list[int] = []
        self.health = Health(self.events.append, self.asked.append)
        self.now = 1000.0
        self.last = {0: self.now, 1: self.now}
        self.times: dict[int, float] = {}
        self.step = 0.0
        """When the first rank made its last step."""

    def live(self, seconds: float, *, every: float | None = None, steps: bool = False, attempt: int = 1) -> None:
        """Let time pass; both ranks log every so often, or not at all, and make a step with each line or not."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            if every and self.now - max(self.last.values()) >= every:
                self.last = dict.fromkeys(self.last, self.now)
                self.step = self.now if steps else self.step
            if self.now % 2 == 0:
                for rank in self.last:
                    times = {str(rank): self.times[rank]} if rank in self.times else {}
                    signs: SignsOfLife = {"silent": {str(rank): self.now - self.last[rank]}, "times": times}
                    if self.step and not rank:
                        signs["stepped"] = {"0": self.now - self.step}
                    self.health.hear(rank, {**signs, "shows": ["load 9 on 2 cores"]}, self.now)
            self.health.look(attempt, self.now)

    def kinds(self) -> list[tuple[str, bool]]:
        return [(event["e"], bool(event.get("over"))) for event in self.events]


def test_a_script_that_printed_one_line_has_no_usual_pause() -> None:
    gang = Watched()
    gang.live(6, every=5)
    gang.live(40)
    assert [event["pace"] for event in gang.events] == [None]


def test_a_run_that_logs_never_stalls() -> None:
    gang = Watched()
    gang.live(600, every=20)
    assert gang.events == []


def test_silence_is_a_stall_once_and_then_over() -> None:
    gang = Watched()
    gang.live(60, every=1)
    gang.live(AT_LEAST + 60)
    [event] = gang.events
    assert (event["e"], event["attempt"], event["stacks"], gang.asked) == ("stall", 1, "stacks-1.json", [1])
    assert set(event["silent"]) == {"0", "1"} and event["silent"]["0"] >= AT_LEAST
    assert stall_text(event).startswith("no rank has shown progress for 3")
    gang.live(10, every=1)
    assert gang.kinds() == [("stall", False), ("stall", True)]


def test_a_late_message_ends_no_stall() -> None:
    """TCP sends a lost packet again after 0.2 s at the earliest."""
    gang = Watched()
    gang.live(60, every=1)
    gang.live(AT_LEAST + 20)
    late: SignsOfLife = {"silent": {"1": gang.now - 0.25 - gang.last[1]}, "times": {}, "shows": []}
    gang.health.hear(1, late, gang.now)
    gang.live(20)
    assert gang.kinds() == [("stall", False)]


def test_output_without_steps_is_a_stall_once_steps_were_seen() -> None:
    gang = Watched()
    gang.live(60, every=1)
    gang.live(60, every=1, steps=True)
    gang.live(AT_LEAST + 60, every=1)
    [event] = gang.events
    assert event["e"] == "stall" and event["silent"].keys() == {"0"} and event["silent"]["0"] >= AT_LEAST
    assert stall_text(event).startswith("no rank has made a step for 3"), "they print, as in a first validation"
    gang.live(10, every=1, steps=True)
    assert gang.kinds() == [("stall", False), ("stall", True)]


def test_a_bar_drawn_again_is_no_step() -> None:
    signs = Signs([0], 0.0)
    signs.steps(0, [{"step": 4, "loss": 1.0}], 10.0)
    signs.steps(0, [{"step": 4, "steps_per_s": 0.1}], 20.0)
    assert signs.message(30.0, [])["stepped"] == {"0": 20.0}
    signs.steps(0, [{"loss": 1.0}], 30.0)
    assert signs.message(30.0, [])["stepped"] == {"0": 0.0}


def test_the_pace_is_the_runs_own() -> None:
    gang = Watched()
    gang.live(600, every=20)
    gang.live(80)
    assert gang.events == []
    gang.live(40)
    assert gang.kinds() == [("stall", False)]
    assert gang.events[0]["pace"] == pytest.approx(20, abs=2)


def test_a_pause_that_has_happened_before_is_no_stall() -> None:
    gang = Watched()
    for _ in range(3):
        gang.live(20, every=1)
        gang.live(28)
    gang.live(20, every=1)
    gang.live(50)
    assert gang.events == []


def test_one_silent_rank_among_others_is_no_stall() -> None:
    gang = Watched()
    for _ in range(60):
        gang.last[0] = gang.now
        gang.live(2)
    assert gang.events == []


def test_stall_timing_restarts_with_each_attempt() -> None:
    gang = Watched()
    gang.live(20, every=1)
    gang.live(200, attempt=0)
    assert gang.events == []
    gang.last = dict.fromkeys(gang.last, gang.now)
    gang.live(20, attempt=2)
    assert gang.events == []


def test_straggler_is_named_with_the_symptoms_of_its_host() -> None:
    gang = Watched()
    gang.times = {0: 0.10, 1: 0.11}
    gang.live(60, every=1)
    assert gang.events == []
    gang.times[1] = 0.25
    gang.live(20, every=1)
    assert gang.events == []
    gang.live(40, every=1)
    [event] = gang.events
    assert (event["e"], event["rank"], event["median"], event["others"]) == ("straggler", 1, 0.25, 0.1)
    assert event["shows"] == ["load 9 on 2 cores"]
    gang.times[1] = 0.1
    gang.live(10, every=1)
    assert gang.kinds() == [("straggler", False), ("straggler", True)]


def test_ranks_that_go_on_from_different_points_are_a_warning() -> None:
    seen: list[Any] = []
    resume = Resume(seen.append)

    def hear(attempt: int, **points: dict[str, float]) -> None:
        signs = Signs([0, 1], 0.0)
        for rank in range(2):
            record = {name: ranks[str(rank)] for name, ranks in points.items() if str(rank) in ranks}
            signs.begins(rank, record)
        resume.hear(attempt, signs.message(1.0, []))

    hear(1, epoch={"0": 0, "1": 0}, step={"0": 100, "1": 10})
    hear(2, epoch={"0": 80}, step={"0": 180, "1": 10})
    assert seen == [], "rank 1 may just log at another pace"
    hear(2, epoch={"0": 80, "1": 0})
    hear(2, epoch={"0": 80, "1": 0})
    (note,) = seen
    assert (note["e"], note["level"]) == ("note", "warning")
    assert "attempt 2 begins with epoch 80 on rank 0 and epoch 0 on rank 1. Checkpoints on local disks" in note["text"]
    hear(3, epoch={"0": 90, "1": 90})
    hear(1, epoch={"0": 1, "1": 2})
    assert len(seen) == 1


def test_signs_tell_silence_and_the_usual_step() -> None:
    signs = Signs([4, 5], 100.0)
    signs.steps(4, [{"step": 1, "step_time": 9.0, "forward_time": 2.0}, {"step": 2, "forward_time": 4.0}], 110.0)
    signs.steps(5, [{"step": 1, "step_time": "nan"}, {"step": 2, "step_time": True}], 111.0)
    both = {"4": 2.0, "5": 1.0}
    assert signs.message(112.0, ["x"]) == {"silent": both, "stepped": both, "times": {}, "shows": ["x"]}
    signs.steps(4, [{"step": 3, "step_time": 3.0}], 112.0)
    assert signs.message(112.0, [])["times"] == {"4": 3.0}
    signs.steps(4, [{"step": step, "step_time": 1.0} for step in (4, 5)], 200.0)
    assert signs.message(200.0, [])["times"] == {"4": 1.0}


def test_one_late_step_of_many_seconds_makes_no_rank_slow() -> None:
    """Each step is the newest for longer than a straggler must be slow."""
    gang = Watched()
    ranks = [Signs([rank], gang.now) for rank in range(2)]
    for step in range(12):
        for rank, signs in enumerate(ranks):
            late = (rank, step) in ((0, 4), (0, 8))
            signs.steps(rank, [{"step": step, "forward_time": 90.0 if late else 40.0}], gang.now)
            gang.times.update({int(name): time for name, time in signs.message(gang.now, [])["times"].items()})
        gang.live(40, every=1)
    assert gang.events == []


def test_growth_is_noted_where_something_grew(tmp_path: Path) -> None:
    growth = GrowthWriter(str(tmp_path), [0, 1])
    assert growth.look() == set()
    (tmp_path / "rank-1.log").write_bytes(b"12345")
    assert growth.look() == {1}
    assert growth.look() == set()
    (tmp_path / "rank-0.log").write_bytes(b"1")
    (tmp_path / "rank-1.log").write_bytes(b"")
    assert growth.look() == {0, 1}
    records = [json.loads(line) for line in (tmp_path / "growth.jsonl").read_text().splitlines()]
    assert [record["sizes"] for record in records] == [{"1": 5}, {"0": 1, "1": 0}]


GPU: GpuUse = {"index": 3, "mem_used": 10, "mem_total": 100}


@pytest.mark.parametrize(
    ("record", "kind", "words"),
    [
        ({"disk_free": 4 << 30, "disk_total": 100 << 30}, "disk", "4.0 of 100 GiB free"),
        ({"swap_rate": 50 << 20}, "swap", "swapping, 50 MiB/s"),
        ({"gpus": [{**GPU, "mem_used": 99}]}, "gpu memory", "GPU 3: memory nearly full"),
        ({"gpus": [{**GPU, "throttle": True, "temp": 91}]}, "throttle", "GPU 3 is throttled by heat at 91 °C"),
        ({"gpus": [{**GPU, "pids": [7, 8, 9]}]}, "foreign gpu", "another program (pid 8)"),
    ],
)
def test_an_alarm_begins_once_and_ends_once(record: Any, kind: str, words: str) -> None:
    ours = {7: True, 8: False, 9: None}
    alarms = Alarms([3], lambda pid: ours[pid])
    assert [alarms.look(record) for _ in range(2)] == [[], []]
    [event] = alarms.look(record)
    assert (event["e"], event["kind"]) == ("alarm", kind) and words in event["text"] and event["value"] is not None
    assert [alarms.look(record) for _ in range(5)] == [[]] * 5
    ends = [event for _ in range(5) for event in alarms.look({"t": 0.0, "gpus": [GPU]})]
    assert [(event["kind"], event["over"], event["text"]) for event in ends] == [(kind, True, ends[0]["text"])]
    assert words in ends[0]["text"]


def test_brief_peaks_and_gpus_of_others_raise_no_alarm() -> None:
    alarms = Alarms([0], lambda pid: False)
    full: Telemetry = {"t": 0.0, "gpus": [{**GPU, "mem_used": 99, "pids": [1]}]}
    assert [alarms.look(full) for _ in range(9)] == [[]] * 9
    assert [alarms.look({"t": 0.0, "swap_rate": 9 << 20} if n % 3 == 0 else {"t": 0.0}) for n in range(12)] == [[]] * 12


def _grown(use: Callable[[float], float]) -> list[tuple[str, str]]:
    """The alarms of half an hour in which a GPU's and the host's memory of 100 GiB are used like this."""
    alarms, found = Alarms([3], lambda pid: True), []
    for second in range(1800):
        memory: Any = {"mem_used": use(second) * 2**30, "mem_total": 100 * 2**30}
        record: Any = {"t": 0.0, **memory, "gpus": [{"index": 3, **memory}]}
        found += alarms.look(record)
    return [(one["kind"], one["text"]) for one in found if not one.get("over")]


def test_memory_that_leaks_is_found_before_it_is_full() -> None:
    host, gpu = _grown(lambda second: 40 + second / 60 + (second % 37) / 10)
    assert host == ("memory", "the host's memory grows steadily, 51.0 of 100.0 GiB: full in 51 min")
    assert gpu == ("memory", "GPU 3: its memory grows steadily, 51.0 of 100.0 GiB: full in 51 min")


@pytest.mark.parametrize(
    "use",
    [
        lambda second: 60.0,
        lambda second: 90 * (1 - math.exp(-second / 400)),
        lambda second: 20 + second % 480 / 8,
        lambda second: 40 + second / 1800,
        lambda second: 96 + random.Random(int(second)).random() / 50,
        lambda second: 30 + 10 * (second // 300),
        lambda second: 95 + second / 1800 / 2,
    ],
    ids=["even", "fills a cache", "is freed", "is full in days", "noise", "in steps", "hardly"],
)
def test_memory_that_is_used_is_no_leak(use: Callable[[float], float]) -> None:
    assert _grown(use) == []


def test_a_stall_may_have_a_time_of_its_own() -> None:
    gang = Watched()
    gang.health = Health(gang.events.append, gang.asked.append, 12.0)
    gang.live(100, every=10)
    gang.live(15)
    assert gang.kinds() == [("stall", False)] and gang.events[0]["silent"]["0"] < 16


def test_what_slows_a_host_down() -> None:
    gpu = GpuUse(index=1, throttle=True, temp=88)
    busy = Telemetry(t=0.0, load=33.0, steal=30.0, swap_rate=8 << 20, io_wait=60.0, gpus=[gpu])
    assert shows([busy], 8) == [
        "load 33 on 8 cores",
        "30 % of its CPU time is stolen by other virtual machines",
        "swapping 8 MiB/s",
        "its processes wait for the disk 60 % of the time",
        "GPU 1 is throttled by heat at 88 °C",
    ]
    assert shows([{"t": 0.0, "load": 3.0, "steal": 0.1, "gpus": [GPU]}], 8) == []
    assert shows([], 8) == []


def test_pressure_is_read_from_the_kernels_counters(tmp_path: Path) -> None:
    pressure = Pressure(str(tmp_path))

    def sampled(seconds: float | None) -> Telemetry:
        record = Telemetry(t=1.0)
        pressure.sample(record, seconds)
        return record

    assert sampled(None) == {"t": 1.0}
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure/io").write_text("some avg10=12.50 avg60=0 avg300=0 total=1\nfull avg10=1 avg60=0\n")
    (tmp_path / "stat").write_text("cpu  100 0 100 800 0 0 0 0 0 0\n")
    (tmp_path / "vmstat").write_text("pswpin 10\npswpout 10\nother 5\n")
    assert sampled(None) == {"t": 1.0, "io_wait": 12.5}
    (tmp_path / "stat").write_text("cpu  150 0 100 800 0 0 0 50 0 0\n")
    (tmp_path / "vmstat").write_text("pswpin 10\npswpout 266\n")
    found = sampled(2.0)
    assert found == {"t": 1.0, "io_wait": 12.5, "steal": 50.0, "swap_rate": 128 * os.sysconf("SC_PAGE_SIZE")}


def _proc(folder: Path, group: int, machine: int) -> str:
    """A /proc of a process in a version 2 control group with a limit of 1 GiB."""
    cgroup = folder / "cgroup" / "job"
    cgroup.mkdir(parents=True, exist_ok=True)
    (folder / "self").mkdir(exist_ok=True)
    (folder / "self/cgroup").write_text("0::/job\n")
    (folder / "self/mountinfo").write_text(f"30 23 0:26 / {folder}/cgroup rw - cgroup2 cgroup2 rw\n")
    (cgroup / "memory.events").write_text(f"low 0\nhigh 0\nmax 9\noom {group}\noom_kill {group}\n")
    (cgroup / "memory.max").write_text("1073741824\n")
    (folder / "vmstat").write_text(f"nr_free_pages 1\noom_kill {machine}\n")
    return str(folder)


def test_only_what_changed_since_speaks_for_the_killer(tmp_path: Path) -> None:
    watch = OomWatch(_proc(tmp_path, 5, 7), str(tmp_path / "none"))
    assert watch.evidence(1) is None
    _proc(tmp_path, 6, 9)
    assert watch.evidence(1) == {"group": 1, "machine": 2, "limit": 1 << 30}
    assert watch.evidence(1) is None
    _proc(tmp_path, 6, 10)
    assert watch.evidence(1) == {"machine": 1}


def test_the_real_killer_leaves_evidence() -> None:
    """A process of ours asks for more than its control group has: the kernel kills it, and the counters tell."""
    watch = OomWatch()
    with small_group() as group:
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read(1); x = b'x' * (300 << 20)"], stdin=-1
        )
        (group / "cgroup.procs").write_text(str(child.pid))
        child.communicate(b"\n", timeout=60)
    assert child.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 5
    found: OomEvidence = {}
    while not found and time.monotonic() < deadline:
        found = watch.evidence(child.pid) or {}
    assert not watch.evidence(child.pid), "it is reported once"
    watch.close()
    assert found.get("machine", 0) >= 1 or f"Killed process {child.pid}" in found.get("kernel", ""), found
