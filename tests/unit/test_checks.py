"""What a check concludes from the reports of hosts, and the node program's measurements."""

from __future__ import annotations

import hmac
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api.checking import check
from disttui.runner.api.viewer import Viewer
from disttui.runner.node.probe import network
from disttui.runner.node.probe.health import inspect, read_health
from disttui.runner.planning import checks
from disttui.runner.planning.checks import Way
from disttui.runner.protocol.checks import Dialled, Inspected
from tests.unit.planning import facts

_GIB = 1 << 30
_SMI = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><gpu id="00000000:17:00.0"><product_name>NVIDIA A100-SXM4-80GB</product_name>
<mig_mode><current_mig>Disabled</current_mig></mig_mode>
<pci><pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width>
<current_link_width>{width}x</current_link_width></link_widths></pci_gpu_link_info></pci>
<clocks_event_reasons><clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle>
<clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
<clocks_event_reason_hw_thermal_slowdown>{hot}</clocks_event_reason_hw_thermal_slowdown></clocks_event_reasons>
<fb_memory_usage><total>81920 MiB</total><used>{used} MiB</used></fb_memory_usage>
<ecc_errors><volatile><sram_correctable>5</sram_correctable><sram_uncorrectable_parity>0</sram_uncorrectable_parity>
<dram_uncorrectable>{errors}</dram_uncorrectable></volatile></ecc_errors>
<remapped_rows><remapped_row_pending>{pending}</remapped_row_pending>
<remapped_row_failure>No</remapped_row_failure></remapped_rows>
<gpu_power_readings><current_power_limit>{limit} W</current_power_limit>
<default_power_limit>400.00 W</default_power_limit></gpu_power_readings>
<processes><process_info><used_memory>1000 MiB</used_memory></process_info></processes></gpu></nvidia_smi_log>"""
_HEALTHY = {"width": 16, "hot": "Not Active", "used": 1200, "errors": 0, "pending": "No", "limit": "400.00"}


def room(**changes: Any) -> Any:
    return {"path": "runs", "kind": "ext4", "free": 90 * _GIB, "total": 99 * _GIB, "inodes_free": 1 << 20, **changes}


def report(**changes: Any) -> Inspected:
    whole: Inspected = {
        "shm": {"path": "shm", "kind": "tmpfs", "free": 8 * _GIB, "total": 8 * _GIB, "inodes_free": 1 << 20},
        "rooms": [room()],
        "nofile": 65536, "nofile_most": 65536, "memlock": None, "nproc": None, "processes": 40, "tasks_left": None,
        "governor": "performance", "throttled": None, "interfaces": [{"name": "eth0", "mtu": 1500}], "fabric": [],
        "variables": {}, "gpus": [], "problems": [],
    }  # fmt: skip
    return {**whole, **changes}  # type: ignore[typeddict-item]


def test_a_healthy_host_gives_no_conclusion() -> None:
    assert list(checks.of_host("a", facts("cpu_desk"), report(), 0)) == []


@pytest.mark.parametrize(
    ("changes", "name", "level"),
    [
        ({"shm": None}, "host.shm", "error"),
        ({"shm": {"path": "shm", "kind": "tmpfs", "free": 60 << 20, "total": 64 << 20}}, "host.shm", "warning"),
        ({"shm": {"path": "shm", "kind": "tmpfs", "free": 1 << 20, "total": 8 * _GIB}}, "host.shm", "error"),
        ({"nofile": 64}, "host.nofile", "error"),
        ({"nofile": 512}, "host.nofile", "warning"),
        ({"nproc": 100, "processes": 90}, "host.nproc", "error"),
        ({"tasks_left": 50}, "host.nproc", "warning"),
        ({"throttled": 0.4}, "host.cpu", "warning"),
        ({"governor": "powersave"}, "host.cpu", "info"),
        ({"rooms": [room(kind="nfs4", free=1 << 20, inodes_free=None)]}, "host.disk", "error"),
        ({"rooms": [room(inodes_free=7)]}, "host.inodes", "error"),
        ({"problems": ["x: no answer"]}, "host.report", "warning"),
    ],
)  # fmt: skip
def test_a_flaw_is_named(changes: dict[str, Any], name: str, level: str) -> None:
    [found] = checks.of_host("a", facts("cpu_desk"), report(**changes), 0)
    assert (found.id, found.level, found.hosts) == (name, level, ("a",))
    assert found.why
    assert found.id in checks.IDS


def test_locked_memory_matters_with_infiniband_only() -> None:
    port = {"device": "mlx5_0", "port": 1, "state": "ACTIVE", "link": "InfiniBand", "rate": "200 Gb/sec"}
    assert not list(checks.of_host("a", facts("cpu_desk"), report(memlock=1 << 16), 0))
    [found] = checks.of_host("a", facts("cpu_desk"), report(memlock=1 << 16, fabric=[port]), 0)
    assert found.id == "host.memlock"
    [found] = checks.of_host("a", facts("cpu_desk"), report(fabric=[{**port, "state": "DOWN"}]), 0)
    assert found.id == "network.fabric"
    assert "mlx5_0 port 1" in found.what


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"errors": 3}, "gpu.memory-errors"),
        ({"pending": "Yes"}, "gpu.memory-errors"),
        ({"hot": "Active"}, "gpu.slowdown"),
        ({"width": 4}, "gpu.pcie"),
        ({"limit": "250.00"}, "gpu.power"),
        ({"used": 30000}, "gpu.hidden-memory"),
    ],
)
def test_a_faulty_gpu_is_named(changes: dict[str, Any], name: str) -> None:
    problems: list[str] = []
    found = read_health(_SMI.format(**{**_HEALTHY, **changes}), problems)
    [check] = checks.of_host("a", facts("cpu_desk"), report(gpus=found), 0)
    assert (check.id, problems) == (name, [])
    assert "GPU 0 (NVIDIA A100-SXM4-80GB)" in check.what


def test_a_gpu_that_the_profile_leaves_out_is_not_judged() -> None:
    found = read_health(_SMI.format(**{**_HEALTHY, "errors": 3}), [])
    assert not list(checks.of_host("a", facts("cpu_desk"), report(gpus=found), 0, gpus=[1, 2]))
    assert list(checks.of_host("a", facts("cpu_desk"), report(gpus=found), 0, gpus=[0]))


def test_memory_that_the_driver_does_not_tell_is_not_hidden() -> None:
    text = _SMI.format(**{**_HEALTHY, "used": 30000}).replace("1000 MiB", "N/A")
    assert not list(checks.of_host("a", facts("cpu_desk"), report(gpus=read_health(text, [])), 0))


def test_an_unreachable_host_counts_whatever_is_checked() -> None:
    with Viewer({}) as viewer:
        found = check(viewer, ["a.invalid"], only=["network"])
    assert [one.id for one in found.checks] == ["host.reach"] and not found.passed


def test_a_healthy_gpu_and_one_that_is_lost() -> None:
    problems: list[str] = []
    found = read_health(_SMI.format(**_HEALTHY), problems)
    assert not list(checks.of_host("a", facts("cpu_desk"), report(gpus=found), 0))
    assert not problems
    lost = "Unable to determine the device handle for GPU 0000:17:00.0: GPU is lost.  Reboot the system\n"
    assert read_health(lost, problems) == []
    assert problems
    assert "GPU is lost" in problems[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("No devices were found\n", []),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.120\n",
         ["nvidia-smi says: Failed to initialize NVML: Driver/library version mismatch"]),
        ("<nvidia_smi_log><gpu>", ["nvidia-smi -q -x cannot be read: no element found: line 1, column 21"]),
    ],
)  # fmt: skip
def test_a_driver_that_answers_in_words_is_quoted(text: str, said: list[str]) -> None:
    problems: list[str] = []
    assert read_health(text, problems) == [] and problems == said


def test_this_machine_is_measured(tmp_path: Path) -> None:
    found = inspect([str(tmp_path / "new" / "folder")], gpus=False)
    assert found["problems"] == []
    [room] = found["rooms"]
    assert 0 < room["free"] <= room["total"]
    assert found["processes"] > 0
    assert {"name": "lo", "mtu": 65536} in found["interfaces"]


@pytest.fixture
def door() -> Iterator[tuple[list[int], bytes]]:
    doors, key, over = network.open_ports([29700, 29799]), os.urandom(32), threading.Event()
    ports = [one.getsockname()[1] for one in doors]
    thread = threading.Thread(target=network.prove, args=(doors, key, over, 60))
    thread.start()
    yield ports, key
    over.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_host_proves_that_it_was_reached(door: tuple[list[int], bytes]) -> None:
    ports, key = door
    nonce = os.urandom(network.NONCE)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as shut:
        shut.bind(("127.0.0.1", 0))
        asked = [*ports, silent.getsockname()[1], shut.getsockname()[1]]
        found = network.dial([{"address": "127.0.0.1", "port": port} for port in asked], nonce, 1.0)
    assert [one["proof"] for one in found[:2]] == [hmac.new(key, nonce, "sha256").hexdigest()] * 2
    assert "does not answer" in found[2]["error"]
    assert "refused" in found[3]["error"]
    assert found[3]["ms"] is None


def test_callers_that_say_nothing_do_not_keep_others_out(door: tuple[list[int], bytes]) -> None:
    ports, key = door
    silent = [socket.create_connection(("127.0.0.1", ports[0])) for _ in range(100)]
    nonce = os.urandom(network.NONCE)
    [found] = network.dial([{"address": "127.0.0.1", "port": ports[1]}], nonce, 5.0)
    assert found["proof"] == hmac.new(key, nonce, "sha256").hexdigest()
    for one in silent:
        one.close()


def way(source: str, target: str, error: str = "", *, fixed: bool = True, address: str = "", **more: Any) -> Way:
    return Way(
        source,
        target,
        address or f"10.0.0.{target}",
        29500 if fixed else 40000,
        fixed,
        None if error else 0.2,
        error,
        **more,
    )


def whole(names: str) -> list[Way]:
    return [way(a, b, fixed=fixed) for a in names for b in names if a != b for fixed in (True, False)]


def conclude(names: str, found: list[Way]) -> list[checks.Check]:
    return list(checks.of_network(list(names), {name: facts("cpu_desk") for name in names}, found, {}))


def test_hosts_that_reach_each_other_give_no_conclusion() -> None:
    assert conclude("123", whole("123")) == []
    assert checks.common_address(list("123"), whole("123"), "1") == "10.0.0.1"


def test_a_filtered_port_between_two_workers_is_named() -> None:
    found = [
        way(one.source, one.target, "timed out") if (one.source, one.target, one.fixed) == ("2", "3", True) else one
        for one in whole("123")
    ]
    [check] = conclude("123", found)
    assert (check.id, check.hosts, check.level) == ("network.reach", ("2", "3"), "error")
    assert "29500" in check.what
    assert "timed out" in check.what


def test_a_master_that_one_host_does_not_reach_is_named() -> None:
    found = [
        way(one.source, one.target, "timed out", fixed=one.fixed) if (one.source, one.target) == ("3", "1") else one
        for one in whole("123")
    ]
    assert {check.id for check in conclude("123", found)} == {"network.reach", "network.master"}


def test_a_bridge_that_every_host_has_is_not_used() -> None:
    strange = [
        way(a, b, "1 answered", fixed=fixed, address="172.31.0.1", stranger=True)
        for a, b in ("12", "21")
        for fixed in (True, False)
    ]
    [check] = conclude("12", [*strange, *whole("12")])
    assert (check.id, check.level) == ("network.same-address", "info")
    assert "172.31.0.1" in check.what


def test_a_public_master_is_a_warning() -> None:
    found = [way(a, b, fixed=fixed, address=f"8.8.8.{b}") for a, b in ("12", "21") for fixed in (True, False)]
    [check] = conclude("12", found)
    assert (check.id, check.level) == ("network.public", "warning")


def test_lying_host_affects_only_its_own_row() -> None:
    """It says that it was reached by all, or reached all: without the key of the others it cannot prove it."""
    names, proofs = ["1", "2", "3"], {a: {b: f"{a}->{b}" for b in "123"} for a in "123"}
    targets = {a: [(b, f"10.0.0.{b}", 29500, True) for b in "123" if b != a] for a in "123"}

    def honest(a: str) -> list[Dialled]:
        return [{"ms": 0.1, "proof": f"{a}->{b}", "error": ""} for b in "123" if b != a]

    lies: list[Dialled] = [{"ms": 0.1, "proof": "00" * 32, "error": ""}]
    found = checks.ways(names, targets, {"1": honest("1"), "2": lies, "3": honest("3")}, proofs)
    assert {one.source for one in found if one.error} == {"2"}


def test_differences_are_a_table() -> None:
    both = [report(variables={"NCCL_IB_DISABLE": "1"}), report(interfaces=[{"name": "eth0", "mtu": 9000}])]
    found = {
        one.name: one
        for one in checks.differences(["a", "b"], [facts("cpu_desk"), facts("cpu_desk")], both, [None, None])
    }
    assert found["NCCL_IB_DISABLE"].values == ("1", "")
    assert "torch" not in found


def test_packages_of_environments_are_compared() -> None:
    desk = facts("cpu_desk")
    one, other = replace(desk, packages={"a": "1", "b": "2"}), replace(desk, packages={"a": "1", "b": "3", "c": "4"})
    both = [report(), report()]
    found = {each.name: each.values for each in checks.differences(["a", "b"], [one, other], both, [None, None])}
    assert found == {"b": ("2", "3"), "c": ("", "4")}
    assert list(checks.differences(["a", "b"], [one, desk], both, [None, None])) == []


def test_ids_are_selected_by_name_or_group() -> None:
    assert checks.selected("host.shm", ["host"], [])
    assert not checks.selected("host.shm", ["network"], [])
    assert not checks.selected("host.shm", [], ["host.shm"])
