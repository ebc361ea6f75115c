"""Counters by psutil and by /proc: the same tests for both."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from disttui.runner.node import system as module
from disttui.runner.node.system import ByProc, ByPsutil, Process, System
from tests.command import running
from tests.unit.waiting import wait_for

_WAYS: dict[str, type[System]] = {"psutil": ByPsutil, "proc": ByProc}


@pytest.fixture(params=list(_WAYS))
def system(request: pytest.FixtureRequest) -> System:
    if request.param == "psutil":
        pytest.importorskip("psutil")
    elif not Path("/proc/self").is_dir():
        pytest.skip("no /proc here")
    return _WAYS[request.param]()


def _cpu(system: System) -> tuple[float, float]:
    found = system.cpu()
    assert found is not None
    return found


def _process(system: System, pid: int) -> Process:
    found = system.process(pid)
    assert found is not None
    return found


def test_cpu_moves_with_the_clock(system: System) -> None:
    busy, total = _cpu(system)
    assert 0 < busy <= total
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    later_busy, later_total = _cpu(system)
    assert later_busy - busy >= 0.15
    assert later_total - total >= 0.15


def test_memory(system: System) -> None:
    memory = system.memory()
    assert memory.total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < memory.available <= memory.total
    assert memory.swap_used is None or memory.swap_used >= 0


def test_process_counts_its_cpu_and_memory(system: System) -> None:
    before = _process(system, os.getpid())
    # Not from the heap, which may have as much left over from other tests.
    ballast = mmap.mmap(-1, 50 << 20, flags=mmap.MAP_PRIVATE)
    ballast.write(b"x" * (1 << 20) * 50)
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    after = _process(system, os.getpid())
    assert 0.15 <= after.cpu - before.cpu < 10
    assert after.rss - before.rss > 40 << 20
    assert abs(after.started - before.started) < 2
    ballast.close()


def test_a_process_with_brackets_in_its_name(system: System, tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    with running([program, "60"]) as child:
        # The kernel counts the pages of a program that has just begun a moment later.
        wait_for(lambda: _process(system, child.pid).rss > 0)
        assert _process(system, child.pid).cpu < 5


def test_zombies_and_strangers_are_none(system: System) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    wait_for(lambda: system.process(child.pid) is None, "its end, though nobody has asked for its status")
    child.wait()
    assert system.process(child.pid) is None


def test_network_counts_up(system: System) -> None:
    counted = system.network()
    assert counted is None or (counted[0] >= 0 and counted[1] >= 0)
    again = system.network()
    assert counted is None or (again is not None and again[0] >= counted[0] and again[1] >= counted[1])


def test_both_ways_agree() -> None:
    pytest.importorskip("psutil")
    proc, psutil = ByProc(), ByPsutil()
    assert proc.memory().total == psutil.memory().total
    assert abs(proc.memory().available - psutil.memory().available) < 1 << 28
    for mine, theirs in zip(_cpu(proc), _cpu(psutil), strict=True):
        assert abs(mine - theirs) < 1
    assert (proc.network() is None) == (psutil.network() is None)


def test_without_psutil_proc_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert isinstance(module.system(), ByProc)


def test_without_proc_there_is_still_an_answer(tmp_path: Path) -> None:
    nothing = ByProc(str(tmp_path))
    assert nothing.cpu() is None
    assert nothing.network() is None
    assert nothing.process(1) is None
    assert nothing.memory().total > 0


def test_an_old_kernel_without_mem_available(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(
        "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 30 kB\nSwapTotal: 50 kB\nSwapFree: 40 kB\n"
    )
    assert ByProc(str(tmp_path)).memory() == (1000 * 1024, 150 * 1024, 10 * 1024)


def test_hardware_interfaces_are_counted_rather_than_bridges() -> None:
    counters = {"lo": (9, 9), "eth0": (1, 2), "br0": (1, 2)}
    assert module._sum(counters, {"eth0"}) == (1, 2)
    assert "lo" not in module._external(counters)
    assert module._external(["lo", "veth-none"]) == {"veth-none"}
