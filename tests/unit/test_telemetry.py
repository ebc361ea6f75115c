"""Telemetry records, and GPU figures from a stand-in NVML and a stand-in nvidia-smi."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node.host import HostPart
from disttui.runner.node.system import ByProc
from disttui.runner.node.telemetry import sampler as telemetry
from disttui.runner.node.telemetry.gpu_nvml import Nvml
from disttui.runner.node.telemetry.sampler import GpuWatch, Sampler, parse
from disttui.runner.node.telemetry.sampling import Sampling
from tests.command import running
from tests.counting import counted
from tests.unit.waiting import wait_for, wait_for_work

_NVML = r"""
#include <string.h>
struct rates { unsigned gpu, memory; };
struct memory { unsigned long long total, free, used; };
int nvmlInit_v2(void) { return START; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index == 1) return 15; /* NVML_ERROR_GPU_IS_LOST */
    *device = (void *)(unsigned long)(0x700000000000ul + index); /* wider than an int: must pass as a pointer */
    return 0;
}
static unsigned long n(void *device) { return (unsigned long)device - 0x700000000000ul; }
int nvmlDeviceGetUtilizationRates(void *device, struct rates *out) {
    if (n(device) == 2) return 3; /* NVML_ERROR_NOT_SUPPORTED */
    out->gpu = 97; out->memory = 50; return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *out) {
    out->total = 85899345920ull; out->used = 1073741824ull * (n(device) + 1); out->free = out->total - out->used;
    return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatt) { *milliwatt = 312500; return 0; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    if (sensor != 0) return 2; /* NVML_ERROR_INVALID_ARGUMENT */
    *celsius = 61; return 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) { strncpy(name, "Made Up 80GB", length); return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatt) {
    if (n(device) == 2) return 3;
    *milliwatt = 700000; return 0;
}
struct process { unsigned pid; unsigned long long memory; unsigned gpu, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *out) {
    if (n(device) == 2 || *count < 2) return 3;
    *count = 2; out[0].pid = 4711; out[0].memory = 1073741824ull; out[1].pid = 4712; out[1].memory = ~0ull; return 0;
}
"""


@pytest.fixture
def library(tmp_path: Path) -> Callable[[int], str]:
    """Compile a stand-in for libnvidia-ml whose nvmlInit_v2 answers the given status."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")

    def make(status: int = 0) -> str:
        source, built = tmp_path / "nvml.c", tmp_path / f"libnvml{status}.so"
        source.write_text(_NVML)
        subprocess.run(["gcc", "-shared", "-fPIC", f"-DSTART={status}", "-o", built, source], check=True, timeout=120)
        return str(built)

    return make


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A nvidia-smi that notes its pid and arguments, prints two GPUs once a second and ignores TERM."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"""#!/bin/sh
trap '' TERM
echo $$ >> {tmp_path}/pids
echo "$@" > {tmp_path}/arguments
while :; do
  echo "0, 97, 1024, 81920, 312.50, 61"
  echo "warning: something odd"
  echo "1, [N/A], 0, 81920, [N/A], 40"
  sleep 1
done
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return program


def _gone(pid: str) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_record_has_the_fields_of_the_format(tmp_path: Path) -> None:
    sampler = Sampler(str(tmp_path), gpus=False)
    first = sampler.sample({0: os.getpid()})
    assert "cpu" not in first and "net_rx" not in first and "cpu" not in first["ranks"]["0"]
    ranks = {0: os.getpid(), 3: 2**22 + 1}
    found = wait_for(lambda: "cpu" in (last := sampler.sample(ranks)) and last, "a tick of the processors")
    record = json.loads(json.dumps(found))
    assert set(record) <= {
        *("t", "cpu", "load", "mem_used", "mem_total", "swap_used", "net_rx", "net_tx", "disk_free", "ranks"),
        *("gpus", "disk_total", "inodes_free", "inodes_total", "steal", "io_wait", "swap_rate"),
    }
    assert abs(record["t"] - time.time()) < 5
    assert 0 <= record["cpu"] <= 100
    assert 0 < record["mem_used"] < record["mem_total"]
    assert record["disk_free"] > 0
    assert set(record["ranks"]) == {"0"}
    assert record["ranks"]["0"]["rss"] > 1 << 20
    assert record["gpus"] == []
    sampler.close()


def test_cpu_of_a_rank_is_percent_of_one_core(tmp_path: Path) -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    idle = subprocess.Popen(["sleep", "600"])
    sampler = Sampler(str(tmp_path), gpus=False)
    try:
        ranks = {0: busy.pid, 1: idle.pid}
        samples = []

        def is_busy() -> bool:
            samples.append(sampler.sample(ranks)["ranks"])
            return samples[-1]["0"].get("cpu", 0) > 10

        sampler.sample(ranks)
        wait_for_work(busy.pid, 0.5)
        wait_for(is_busy)  # on a machine with much to do it may get little of a second
        assert samples[-1]["0"]["cpu"] <= 115
        assert samples[-1]["1"]["cpu"] < 5
    finally:
        for child in (busy, idle):
            child.kill()
            child.wait()


def test_another_process_with_a_ranks_number_has_no_rate(tmp_path: Path) -> None:
    sampler = Sampler(str(tmp_path), gpus=False)
    with running(["sleep", "600"]) as child:
        sampler.sample({0: os.getpid()})
        assert "cpu" not in sampler.sample({0: child.pid})["ranks"]["0"]


def test_a_run_folder_that_vanishes_costs_one_field(tmp_path: Path) -> None:
    record = Sampler(str(tmp_path / "gone"), gpus=False).sample({})
    assert "disk_free" not in record and record["mem_total"] > 0


def test_without_a_device_nothing_is_started(tmp_path: Path, smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "has_device", lambda: False)
    sampler = Sampler(str(tmp_path))
    assert sampler.sample({})["gpus"] == []
    sampler.close()
    assert not (tmp_path / "pids").exists()


def test_a_sample_of_eight_ranks_is_cheap(tmp_path: Path) -> None:
    sampler = Sampler(str(tmp_path), gpus=False)
    sampler._system = ByProc()
    ranks = dict.fromkeys(range(8), os.getpid())
    sampler.sample(ranks)
    with counted() as calls:
        sampler.sample(ranks)
    assert calls.number < 1000  # measured: 550, in 0.3 ms


def test_nvml_figures(library: Callable[..., str]) -> None:
    nvml = Nvml(library())
    assert nvml.read() == [
        {"index": 0, "use": 97, "mem_used": 1 << 30, "mem_total": 80 << 30, "power": 312.5, "temp": 61,
         "pids": [4711, 4712]},
        {"index": 2, "mem_used": 3 << 30, "mem_total": 80 << 30, "power": 312.5, "temp": 61},
    ]  # fmt: skip
    assert nvml.memory_of() == {0: {4711: 1 << 30, 4712: None}, 2: {}}
    assert nvml.cards() == {0: {"name": "Made Up 80GB", "power_limit": 700.0}, 2: {"name": "Made Up 80GB"}}
    nvml.close()


def test_nvml_that_refuses_raises(library: Callable[..., str]) -> None:
    with pytest.raises(OSError, match="cannot be initialised"):
        Nvml(library(18))
    with pytest.raises(OSError, match="no-such-library"):
        Nvml("no-such-library.so.1")


def test_watch_prefers_nvml(library: Callable[..., str], smi: Path, tmp_path: Path) -> None:
    watch = GpuWatch(library(), interval=0.05)
    assert [gpu["index"] for gpu in wait_for(watch.latest)] == [0, 2]
    watch.close()
    assert not (tmp_path / "pids").exists()


def test_samples_for_top_name_gpus_and_their_processes(
    library: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "has_device", lambda: True)
    monkeypatch.setattr(telemetry, "GpuWatch", lambda **more: GpuWatch(library(), interval=0.05, **more))
    sampler = Sampler(str(tmp_path), processes=10)
    record = wait_for(lambda: record if len((record := sampler.sample({})).get("gpus", [])) == 2 else None)
    assert [(gpu["name"], gpu.get("power_limit")) for gpu in record["gpus"]] == [
        ("Made Up 80GB", 700.0), ("Made Up 80GB", None),
    ]  # fmt: skip
    holders = {row["pid"]: row for row in record["processes"]}
    assert holders[4711]["gpus"] == [0] and holders[4711]["gpu_memory"] == 1 << 30
    assert holders[4712]["gpus"] == [0] and "gpu_memory" not in holders[4712]
    sampler.close()


def test_watch_falls_back_to_one_long_lived_child(library: Callable[..., str], smi: Path, tmp_path: Path) -> None:
    watch = GpuWatch(library(18))
    gpus = wait_for(lambda: (watch.latest() or []) if len(watch.latest() or []) == 2 else None)
    assert gpus == [
        {"index": 0, "use": 97, "mem_used": 1 << 30, "mem_total": 80 << 30, "power": 312.5, "temp": 61},
        {"index": 1, "mem_used": 0, "mem_total": 80 << 30, "temp": 40},
    ]
    assert (tmp_path / "arguments").read_text().split()[-2:] == ["-l", "1"]
    watch.close()
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 1
    wait_for(lambda: _gone(pids[0]))


def test_load_of_amd_gpus_is_read_from_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards by PCI address, not by number; a display output and the chip of a server board are no GPUs."""
    drm, gib = tmp_path / "drm", 1 << 30
    whole: dict[str, object] = {"gpu_busy_percent": 97, "mem_info_vram_used": gib, "mem_info_vram_total": 64 * gib}
    desktop = {"hwmon/hwmon3/power1_average": 312_500_000, "hwmon/hwmon3/temp1_input": 61_000}
    server = {"hwmon/hwmon4/power1_input": 90_000_000, "hwmon/hwmon4/temp2_input": 40_000, "gpu_busy_percent": "N/A"}
    cards: dict[str, tuple[str, dict[str, object]]] = {
        "0000:c1:00.0": ("card0", {**whole, **server}), "0000:03:00.0": ("card1", {**whole, **desktop}),
        "0000:02:00.0": ("card2", {"vendor": "0x1a03"}), "0000:03:00.1": ("card1-DP-1", whole),
    }  # fmt: skip
    for address, (name, files) in cards.items():
        for file, value in files.items():
            path = tmp_path / address / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
        (drm / name).mkdir(parents=True)
        (drm / name / "device").symlink_to(tmp_path / address)
    monkeypatch.setattr("disttui.runner.node.probe.amd.DRM", str(drm))
    monkeypatch.setattr(telemetry, "has_device", lambda: False)
    monkeypatch.setattr(telemetry, "find_smi", lambda: None)
    monkeypatch.setattr(telemetry, "GpuWatch", lambda **_: GpuWatch("no-such-library.so.1"))
    sampler = Sampler(str(tmp_path))
    assert wait_for(lambda: sampler.sample({}).get("gpus")) == [
        {"index": 0, "use": 97, "mem_used": gib, "mem_total": 64 * gib, "power": 312.5, "temp": 61},
        {"index": 1, "mem_used": gib, "mem_total": 64 * gib, "power": 90, "temp": 40},
    ]
    sampler.close()


def test_death_of_the_child_is_survived(smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disttui.runner.node.telemetry.sampler._STALE", 0.5)
    monkeypatch.setattr(telemetry, "has_device", lambda: True)
    monkeypatch.setattr(telemetry, "GpuWatch", lambda **_: GpuWatch("no-such-library.so.1"))
    sampler = Sampler(str(tmp_path))
    wait_for(lambda: sampler.sample({}).get("gpus"))
    os.kill(int((tmp_path / "pids").read_text()), 9)
    wait_for(lambda: "gpus" not in sampler.sample({}))
    assert sampler.sample({})["mem_total"] > 0
    sampler.close()


@pytest.mark.parametrize("line", ["", "garbage", "0, 1", "x, 1, 2, 3, 4, 5", "0, 1, 2, 3, 4, 5, 6, 7", "\x1b[31m,,,,,"])
def test_lines_that_are_no_gpu(line: str) -> None:
    assert parse(line) is None


def test_errors_in_a_line_are_absent() -> None:
    assert parse("3, ERR!, [Unknown Error], 81920, [GPU requires reset], nan") == {"index": 3, "mem_total": 80 << 30}


def test_nothing_is_written_once_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that was under way, on a slow disk say, is dropped: the end of the run has been written since."""
    asked, answer = threading.Event(), threading.Event()

    def sample(_self: Sampler, _pids: object) -> dict[str, float]:
        asked.set()
        assert answer.wait(30)
        return {"t": time.time()}

    monkeypatch.setattr(Sampler, "sample", sample)
    spec: Any = {"gpus": None, "backend": "gloo", "run": "t-1"}
    sampling = Sampling(HostPart(spec, str(tmp_path), "", None, {}, 0o022), dict)
    before = set(threading.enumerate())
    sampling.start()
    assert asked.wait(30)
    sampling.end()
    answer.set()
    wait_for(lambda: set(threading.enumerate()) <= before, "the end of its thread")
    assert not (tmp_path / "telemetry.jsonl").exists()
