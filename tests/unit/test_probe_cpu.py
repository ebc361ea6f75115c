"""Cores and control groups, from recorded-like trees of /proc, /sys and cgroup mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttui.runner.node.probe import cgroup, cpu


def _group(tmp_path: Path, membership: str, mount: str) -> str:
    """A /proc whose process is in the group `membership`, with one mount line (`@` stands for the mount's folder)."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(membership + "\n")
    (proc / "self" / "mountinfo").write_text(
        f"22 1 8:1 / / rw - ext4 /dev/root rw\n{mount.replace('@', str(tmp_path / 'cg'))}\n"
    )
    return str(proc)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


_V2 = "30 22 0:26 / @ rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"


def test_v2_smallest_quota_on_the_way_up(tmp_path: Path) -> None:
    proc = _group(tmp_path, "0::/user.slice/job/step", _V2)
    _write(tmp_path / "cg/user.slice/cpu.max", "250000 100000")
    _write(tmp_path / "cg/user.slice/job/cpu.max", "max 100000")
    _write(tmp_path / "cg/user.slice/job/step/cpu.max", "400000 100000")
    _write(tmp_path / "cg/user.slice/job/memory.max", str(8 << 30))
    _write(tmp_path / "cg/user.slice/job/step/memory.max", "max")
    assert cgroup.cpu_quota(proc) == 2.5
    assert cgroup.memory_limit(proc) == 8 << 30


def test_v2_without_limit(tmp_path: Path) -> None:
    proc = _group(tmp_path, "0::/", _V2)
    _write(tmp_path / "cg/cpu.max", "max 100000")
    assert cgroup.cpu_quota(proc) is None
    assert cgroup.memory_limit(proc) is None


def test_v2_in_a_container_whose_mount_shows_its_own_part(tmp_path: Path) -> None:
    proc = _group(tmp_path, "0::/docker/abc/inner", _V2.replace(" / @ ", " /docker/abc @ "))
    _write(tmp_path / "cg/cpu.max", "150000 100000")
    _write(tmp_path / "cg/inner/cpu.max", "100000 100000")
    assert cgroup.cpu_quota(proc) == 1.0


def test_v2_in_a_namespace_whose_path_leads_out_of_the_mount(tmp_path: Path) -> None:
    proc = _group(tmp_path, "0::/../../other", _V2)
    _write(tmp_path / "cg/cpu.max", "150000 100000")
    _write(tmp_path / "other/cpu.max", "10000 100000")
    assert cgroup.cpu_quota(proc) == 1.5


def test_v1(tmp_path: Path) -> None:
    mounts = "31 22 0:27 / @/cpu rw - cgroup cgroup rw,cpu,cpuacct\n32 22 0:28 / @/mem rw - cgroup cgroup rw,memory"
    proc = _group(tmp_path, "4:memory:/job\n3:cpuacct,cpu:/job\n0::/", mounts)
    _write(tmp_path / "cg/cpu/job/cpu.cfs_quota_us", "350000")
    _write(tmp_path / "cg/cpu/job/cpu.cfs_period_us", "100000")
    _write(tmp_path / "cg/cpu/cpu.cfs_quota_us", "-1")
    _write(tmp_path / "cg/cpu/cpu.cfs_period_us", "100000")
    _write(tmp_path / "cg/mem/job/memory.limit_in_bytes", str(4 << 30))
    _write(tmp_path / "cg/mem/memory.limit_in_bytes", "9223372036854771712")
    assert cgroup.cpu_quota(proc) == 3.5
    assert cgroup.memory_limit(proc) == 4 << 30


def test_no_groups_at_all(tmp_path: Path) -> None:
    assert cgroup.cpu_quota(str(tmp_path)) is None
    assert cgroup.memory_limit(str(tmp_path)) is None


_SMT = {number: frozenset({number % 4, number % 4 + 4}) for number in range(8)}  # 4 cores, 8 threads


@pytest.mark.parametrize(
    ("affinity", "quota", "expected"),
    [
        (set(range(8)), None, 4),
        ({0, 4}, None, 1),  # two threads of one core
        ({0, 1, 4}, None, 2),
        (set(range(8)), 2.5, 2),
        (set(range(8)), 0.5, 1),
        ({0}, 16.0, 1),
        ({0, 99}, None, 2),  # a CPU without topology counts by itself
    ],
)
def test_available(affinity: set[int], quota: float | None, expected: int) -> None:
    assert cpu.available(_SMT, affinity, 4, quota) == expected


def test_cores_from_sys(tmp_path: Path) -> None:
    base = tmp_path / "devices/system/cpu"
    _write(base / "online", "0-1,3")  # CPU 2 is off
    _write(base / "cpu0/topology/core_cpus_list", "0,3")
    _write(base / "cpu3/topology/core_cpus_list", "0,3")
    _write(base / "cpu1/topology/thread_siblings_list", "1")  # the name before 5.2
    cores = cpu.core_of_cpu("", str(tmp_path))
    assert cores == {0: frozenset({0, 3}), 1: frozenset({1}), 3: frozenset({0, 3})}


def _cpuinfo(*cpus: tuple[int, str]) -> str:
    return "\n\n".join(f"processor\t: {number}\nmodel name\t: Some CPU @ 2.60GHz\n{more}" for number, more in cpus)


def test_cores_from_cpuinfo_with_and_without_core_ids(tmp_path: Path) -> None:
    two_sockets = _cpuinfo(*((number, f"physical id\t: {number % 2}\ncore id\t\t: 0\n") for number in range(4)))
    assert len(set(cpu.core_of_cpu(two_sockets, str(tmp_path)).values())) == 2
    container = _cpuinfo((0, ""), (1, ""))
    assert len(set(cpu.core_of_cpu(container, str(tmp_path)).values())) == 2


def test_facts_without_proc_and_sys(tmp_path: Path) -> None:
    found = cpu.facts(str(tmp_path), str(tmp_path))
    assert found["physical"] >= 1 and found["logical"] >= found["available"] >= 1
    assert found["quota"] is None


def test_model(tmp_path: Path) -> None:
    _write(tmp_path / "cpuinfo", _cpuinfo((0, "")))
    assert cpu.facts(str(tmp_path), str(tmp_path))["model"] == "Some CPU @ 2.60GHz"
