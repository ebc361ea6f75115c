"""`disttui check` on real hosts: each fault is caused, and host, fault and cure are named."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.typed import User, typed, wait_gone
from tests.files import new_folder
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.timeout(240)
Make = Callable[..., User]


def checked(me: User, *words: str, code: int = 0) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """The conclusions by id, and the end."""
    lines = [json.loads(line) for line in typed(me, "check", *words, "--json", code=code).splitlines()]
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines[:-1]:
        found.setdefault(line["id"], []).append(line)
    return found, lines[-1]


def test_healthy_hosts_pass(user: Make) -> None:
    me = user(3)
    found, end = checked(me, "node1", "node2", "node3")
    assert end["passed"]
    assert not [one for own in found.values() for one in own if one["level"] == "error"]
    assert len(end["connections"]) >= 12
    assert not [one for one in end["connections"] if one["error"]]
    text = typed(me, "check", "node1", "node2", "node3")
    assert "✓ 3 hosts checked" in text
    assert "from node1" in text


def test_a_port_filtered_between_two_workers_is_named(user: Make) -> None:
    me = user(3)
    rules = "add table inet t; add chain inet t c { type filter hook input priority 0; }; "
    rules += "add rule inet t c ip saddr %s tcp dport 29500-29599 drop"
    me.cluster[2].run(f"nft '{rules % me.cluster[1].address}'", check=True)
    found, end = checked(me, "node1", "node2", "node3", code=3)
    [one] = found["network.reach"]
    assert one["hosts"] == ["node2", "node3"]
    assert "timed out" in one["what"]
    assert "firewall of node3" in one["cure"]
    assert not end["passed"]


def test_hosts_with_faults_are_named_each_with_its_own(user: Make) -> None:
    me = user(3)
    (me.cluster[0].home / ".bashrc").write_text("ulimit -n 128\nexport NCCL_IB_DISABLE=1\n")
    me.cluster[1].run("mount -t tmpfs -o size=8m none /dev/shm", check=True)
    for host in me.cluster.hosts:
        host.run(
            "ip link add sw0 type veth peer name sw1; ip link set sw1 up; "
            "ip addr add 172.31.7.1/24 dev sw0; ip link set sw0 up",
            check=True,
        )
    me.cluster[2].cut()
    config = me.cluster.ssh_config
    config.write_text(config.read_text() + "  ConnectTimeout 2\n")
    found, end = checked(me, "node1", "node2", "node3", code=3)
    assert [one["hosts"] for one in found["host.nofile"]] == [["node1"]]
    assert [one["hosts"] for one in found["host.shm"]] == [["node2"]]
    assert [one["hosts"] for one in found["host.reach"]] == [["node3"]]
    assert "172.31.7.1" in found["network.same-address"][0]["what"]
    [row] = [one for one in end["differences"] if one["name"] == "NCCL_IB_DISABLE"]
    assert row["values"] == ["1", ""]


def test_taken_ports_and_a_full_run_folder_are_named(user: Make) -> None:
    me = user(2)
    profile = me.profile({"command": ["true"]}, launch={"ports": [29500, 29501]})
    me.cluster[0].run("mkdir -p .disttui && mount -t tmpfs -o size=4m,nr_inodes=50 none .disttui", check=True)
    line = "import socket,time; held=[socket.create_server(('', p)) for p in (29500, 29501)]; "
    line += "print('', flush=True); time.sleep(300)"
    with subprocess.Popen(me.cluster[0].enter(f'exec python3 -c "{line}"'), stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        found, _ = checked(me, str(profile), code=3)
        me.cluster[0].run("pkill -f create_server", check=False)
        holder.kill()
    assert found["network.port"][0]["hosts"] == ["node1"]
    assert {one["hosts"][0] for one in (*found["host.disk"], *found["host.inodes"])} == {"node1"}
    assert any("no port from 29500 to 29501 is free" in one["what"] for one in found["plan"])


def test_bad_input_is_one_clear_error(user: Make) -> None:
    me = user(1)
    assert "unknown check 'hosts'" in typed(me, "check", "node1", "--only", "hosts", code=2)
    assert "no host or profile" in typed(me, "check", code=2)
    assert "network.reach" in typed(me, "check", "--list")


def measured(me: User, *words: str, code: int = 0) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """The conclusions of the measurement by id, and the end; its run leaves nothing behind."""
    found, end = checked(me, *words, "--train", code=code)
    wait_gone(me.cluster)
    return {name: own for name, own in found.items() if name.startswith("train.")}, end


def test_the_ranks_of_a_profile_are_measured(user: Make) -> None:
    me = user(2)
    found, end = measured(me, str(me.profile({"builtin": "bytegpt"}, num_processes=2)))
    assert not [one for own in found.values() for one in own if one["level"] == "error"]
    assert [(one["host"], one["ranks"]) for one in end["figures"]] == [("node1", 2), ("node2", 2)]
    for one in end["figures"]:
        assert min(one["product"], one["memory"], one["network"]) > 1e6
        assert 0 < one["ms"] < 1000
    assert "on one host" in end["advice"]
    assert typed(me, "ps").startswith("no runs")


def slow_node2(user: Make) -> tuple[User, dict[str, Any]]:
    """Three hosts, the second behind 5 Mbit/s, and a job that sends 0.5 MB a step."""
    me = user(3)
    me.cluster[1].run("tc qdisc add dev eth0 root tbf rate 5mbit burst 32k latency 400ms", check=True)
    args = "--layers 2 --width 64 --context 64 --global-batch 12 --steps 4 --checkpoint-interval 0 --sample 0"
    return me, {"builtin": "bytegpt", "args": [*args.split(), "--val-batches", "1"], "env": {"OMP_NUM_THREADS": "1"}}


def test_a_slow_link_is_named_and_one_host_is_faster(user: Make) -> None:
    me, job = slow_node2(user)
    profile = str(me.profile(job))
    found, end = measured(me, profile)
    assert ["node2"] in [one["hosts"] for one in found["train.network"]]
    assert not [one for one in found["train.network"] if "node2" not in one["hosts"]]
    assert end["advice"].startswith("one host is faster: ")
    assert f"ago, {end['advice']}" in " ".join(typed(me, "profile plan", profile).split())


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_the_predicted_step_is_that_of_real_runs(user: Make) -> None:
    me, job = slow_node2(user)
    _, end = measured(me, str(me.profile(job)))
    predicted = re.search(r"and ([\d.]+) s on 3", end["advice"])
    assert predicted, end["advice"]

    def step(*hosts: str) -> float:
        records = me.run(me.profile(job, hosts)).records("attempt-1/rank-0.metrics.jsonl")
        times: list[float] = [one["t"] for one in records if "loss" in one]
        return (times[-1] - times[0]) / (len(times) - 1)

    one, every = step("node1"), step("node1", "node2", "node3")
    assert one < every
    assert 0.4 < float(predicted[1]) / every < 2.5


def test_the_break_even_of_another_model_is_printed(user: Make) -> None:
    me = user(2)
    text = typed(me, "check", str(me.profile({"script": str(me.script("pass"))})), "--train", "--params", "124M")
    assert "124.0M parameters: a step sends 496.0MB of gradients" in text
    assert "--params needs --train" in typed(me, "check", "node1", "--params", "1M", code=2)
    assert "not a number of parameters" in typed(me, "check", "node1", "--train", "--params", "many", code=2)


def test_code_that_cannot_be_sent_is_an_error(user: Make) -> None:
    me = user(1)
    folder = me.home / "gone"
    found, _ = checked(me, str(me.profile({"script": "train.py", "sync": str(folder)})), code=3)
    assert [one["what"] for one in found["plan"] if one["level"] == "error"] == [
        f"{folder}: cannot be read: No such file or directory"
    ]


_SHIM = """
import sys
if "--measure" in sys.argv or any("train-" in word for word in sys.argv):
    import torch
    right = torch.mm
    def flipped(a, b, *, out):
        right(a, b, out=out)
        {fault}
        return out
    torch.mm = flipped
"""


@pytest.mark.parametrize(
    ("fault", "name", "code"),
    [
        ("out.view(torch.int32)[5, 7] ^= 1 << 3", "train.bits", 3),
        ("[right(a, b, out=out) for _ in range(9)]", "train.compute", 0),
    ],
)
def test_a_processor_with_a_fault_is_named(user: Make, fault: str, name: str, code: int) -> None:
    me = user(3)
    folder = new_folder(me.cluster.shared / "shim")
    (folder / "sitecustomize.py").write_text(_SHIM.format(fault=fault))
    hosts = ["node1", {"host": "node2", "env": {"PYTHONPATH": str(folder)}}, "node3"]
    for _ in range(3):  # on a busy machine its own noise may hide the slow host
        found, end = measured(me, str(me.profile({"builtin": "bytegpt"}, hosts)), code=code)
        if name in found:
            break
    assert [one["hosts"] for one in found[name]] == [["node2"]]
    assert end["passed"] is (code == 0)


def reports(me: User) -> set[Path]:
    """What ranks of node2 have reported."""
    return {*me.cluster[1].home.glob(".disttui/runs/*/1/attempt-1/rank-*.metrics.jsonl")}


def limit_cpu(me: User, quota: Path, over: threading.Event, earlier: set[Path]) -> None:
    """Give node2 a tenth of a core as soon as its rank reports."""
    node = me.cluster[1]
    while not over.wait(0.05):
        if reports(me) - earlier:
            (quota / "cpu.cfs_quota_us").write_text("10000")
            for pid, _ in node.processes():
                with contextlib.suppress(OSError):  # it has ended
                    (quota / "cgroup.procs").write_text(str(pid))
            return


def removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def test_a_host_with_a_cpu_quota_is_named(user: Make) -> None:
    quota = Path(f"/sys/fs/cgroup/cpu/disttui-test-{os.getpid()}")
    try:
        quota.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroups of version 1 here: {error}")
    me = user(3)
    try:
        for _ in range(3):  # on a busy machine its own noise may hide the slow host
            over = threading.Event()
            limiting = threading.Thread(target=limit_cpu, args=(me, quota, over, reports(me)))
            limiting.start()
            try:
                found, _ = measured(me, str(me.profile({"builtin": "bytegpt"})))
            finally:
                over.set()
                limiting.join()
                (quota / "cpu.cfs_quota_us").write_text("-1")
            if ["node2"] in [one["hosts"] for one in found.get("train.compute", [])]:
                return
    finally:
        wait_for(lambda: removed(quota), "the kernel takes ended processes out of the cgroup")
    raise AssertionError(found)


def test_a_host_that_falls_silent_is_named(user: Make) -> None:
    me = user(3)
    folder = new_folder(me.cluster.shared / "shim")
    (folder / "sitecustomize.py").write_text(
        _SHIM.format(fault="import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    )
    hosts = ["node1", {"host": "node2", "env": {"PYTHONPATH": str(folder)}}, "node3"]
    found, _ = measured(me, str(me.profile({"builtin": "bytegpt"}, hosts)), code=3)
    assert [one["hosts"] for one in found["train.silent"]] == [["node2"]]


def test_ctrl_c_leaves_no_rank_behind(user: Make) -> None:
    me = user(2)
    words = me.command("check", str(me.profile({"builtin": "bytegpt"})), "--train")
    with subprocess.Popen(words, cwd=me.home, env=me.environment(), stderr=subprocess.PIPE, text=True) as checking:
        ranks = ".disttui/runs/*/1/attempt-1/rank-*.metrics.jsonl"
        wait_for(lambda: [*me.cluster[1].home.glob(ranks)] or checking.poll() is not None, "the ranks", 110)
        checking.send_signal(signal.SIGINT)
        _, errors = checking.communicate(timeout=60)
        assert checking.returncode == 130, errors
    wait_gone(me.cluster, 20)
