"""`job.sync` on real hosts without shared folders: the viewer's folder trains there, each version by itself."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.host import ClusterHost
from tests.cluster.slot import viewer_link
from tests.cluster.typed import User, typed

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

_TRAIN = """\
import json, os, pathlib, time
import helper
rank, attempt = os.environ["RANK"], os.environ["DISTTUI_ATTEMPT"]
print(f"rank {rank} attempt {attempt} version {helper.VERSION}", flush=True)
pathlib.Path("written-by-the-job").write_text("x")
waits = pathlib.Path("wait").exists() and attempt == "1"
with open(os.environ["DISTTUI_METRICS"], "a") as metrics:
    for step in range(600 if waits else 3):
        metrics.write(json.dumps({"step": step, "loss": 1.0}) + "\\n")
        metrics.flush()
        time.sleep(0.1)
"""


def project(me: User, version: int) -> Path:
    """A folder of the viewer's, in git, with a version."""
    folder = me.home / "project"
    if not folder.exists():
        folder.mkdir()
        (folder / "train.py").write_text(_TRAIN)
        (folder / "weights.bin").write_bytes(os.urandom(4 << 20))
        (folder / ".env").write_text("TOKEN=1\n")
        (folder / ".gitignore").write_text("ignored/\n")
        (folder / "ignored").mkdir()
        (folder / "ignored/x").write_text("x")
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / "helper.py").write_text(f"VERSION = {version}\n")
    return folder


def received(host: ClusterHost) -> int:
    """Bytes that a host has received."""
    lines = host.run("cat /proc/net/dev", check=True).stdout.splitlines()[2:]
    return sum(int(line.split(":")[1].split()[0]) for line in lines if not line.strip().startswith("lo:"))


def left(me: User) -> int:
    """Bytes that the viewer's machine has sent to the hosts."""
    link = viewer_link(int(me.cluster.viewer_address.split(".")[2]))
    return int(Path(f"/sys/class/net/{link}/statistics/tx_bytes").read_text())


@contextlib.contextmanager
def slow(me: User) -> Iterator[None]:
    """Let the viewer's uplink carry 20 Mbit/s."""
    link = viewer_link(int(me.cluster.viewer_address.split(".")[2]))
    tc = ["tc", "qdisc", "replace", "dev", link, "root", "tbf", "rate", "20mbit", "burst", "64k", "latency", "50ms"]
    subprocess.run(tc, check=True)
    yield
    subprocess.run(["tc", "qdisc", "del", "dev", link, "root"], check=True)


def versions(said: str) -> set[str]:
    return set(re.findall(r"rank \d attempt \d version \d", said))


def test_synced_folder_trains_and_an_edit_sends_one_file(user: Callable[..., User]) -> None:
    me = user(2, light=True)
    profile = me.profile({"script": "train.py", "sync": {"from": str(project(me, 1))}})
    before = [received(host) for host in me.cluster.hosts]
    first = me.run(profile)
    assert versions(first.stdout) == {f"rank {rank} attempt 1 version 1" for rank in range(2)}
    assert "code: 4 files" in first.stderr and "not sent: .env (8B): looks like a secret" in first.stderr
    middle = [received(host) for host in me.cluster.hosts]
    assert all(after - since > 4 << 20 for since, after in zip(before, middle, strict=True))
    found = me.cluster[1].run("find .disttui/runs -path '*/code/*' -type f", check=True).stdout
    names = {Path(line).name for line in found.splitlines() if line.endswith((".py", ".bin", ".env", "x", "job"))}
    assert names == {"train.py", "helper.py", "weights.bin", "written-by-the-job"}

    project(me, 2)
    second = me.run(profile)
    assert versions(second.stdout) == {f"rank {rank} attempt 1 version 2" for rank in range(2)}
    after = [received(host) for host in me.cluster.hosts]
    assert all(now - since < 2 << 20 for since, now in zip(middle, after, strict=True)), "weights.bin went again"

    runs = [run.mirror.name for run in (first, second)]
    again = typed(me, "rerun", runs[0])
    assert versions(again) == {f"rank {rank} attempt 1 version 1" for rank in range(2)}
    latest = typed(me, "rerun", "--latest", runs[0])
    assert versions(latest) == {f"rank {rank} attempt 1 version 2" for rank in range(2)}


def test_an_edit_reaches_no_run_that_has_started(user: Callable[..., User]) -> None:
    me = user(2)
    folder = project(me, 1)
    (folder / "wait").write_text("")
    profile = me.profile({"script": "train.py", "sync": str(folder)}, launch={"restarts": 1})
    running = me.start(profile)
    running.wait_for(lambda: len(versions(running.stdout)) == 2)

    project(me, 2)
    (folder / "wait").unlink()
    other = me.start(profile)
    assert other.wait() == 0, other.stderr
    assert versions(other.stdout) == {f"rank {rank} attempt 1 version 2" for rank in range(2)}

    ranks = [pid for pid, words in me.cluster[1].processes() if words.rstrip().endswith("train.py")]
    me.cluster[1].kill(ranks[-1], signal.SIGKILL)
    assert running.wait() == 0, running.stderr
    expected = {f"rank {rank} attempt {attempt} version 1" for rank in range(2) for attempt in (1, 2)}
    assert versions(running.stdout) == expected
    running.wait_gone(10)


def test_a_killed_viewer_leaves_what_has_arrived(user: Callable[..., User]) -> None:
    me = user(1, light=True)
    folder = project(me, 1)
    (folder / "weights.bin").write_bytes(os.urandom(90 << 20))
    profile = me.profile({"script": "train.py", "sync": {"from": str(folder), "max": "1GB"}})
    parts = me.cluster[0].home / ".cache/disttui/objects/parts"
    running = me.start(profile)
    running.wait_for(lambda: any(path.stat().st_size > 4 << 20 for path in parts.glob("*.*")))
    running.send(signal.SIGKILL)
    running.wait()
    begun = max(path.stat().st_size for path in parts.glob("*.*"))
    assert 4 << 20 < begun < 90 << 20
    since = received(me.cluster[0])
    assert versions(me.run(profile).stdout) == {"rank 0 attempt 1 version 1"}
    assert received(me.cluster[0]) - since < (100 << 20) - begun, "it has begun anew"
    assert list(parts.iterdir()) == []


def test_new_bytes_cross_the_uplink_once(user: Callable[..., User]) -> None:
    me = user(3)
    folder = project(me, 1)
    (folder / "weights.bin").write_bytes(os.urandom(12 << 20))
    profile = me.profile({"script": "train.py", "sync": str(folder)})
    since = left(me)
    assert len(versions(me.run(profile).stdout)) == 3
    assert 12 << 20 < left(me) - since < 16 << 20, "with the node program and the start itself"


def test_hosts_cut_off_from_each_other_get_code_from_viewer(user: Callable[..., User]) -> None:
    me = user(3)
    folder = project(me, 1)
    (folder / "weights.bin").write_bytes(os.urandom(12 << 20))
    # Of node 0 all ports, and those of node 1 for node 2: as two firewalls would.
    me.cluster[0].run(
        "nft add table inet t && nft add chain inet t in '{ type filter hook input priority 0; }' && "
        f"nft add rule inet t in ip saddr {me.cluster[2].address} tcp dport != 22 drop",
        check=True,
    )
    me.cluster[1].run(
        "nft add table inet t && nft add chain inet t in '{ type filter hook input priority 0; }' && "
        f"nft add rule inet t in ip saddr {me.cluster[2].address} tcp dport != 22 drop",
        check=True,
    )
    since = left(me)
    said = typed(me, "run", me.profile({"script": "train.py", "sync": str(folder)}, launch={"join_timeout": 5}), code=1)
    assert "did not join" in said
    assert 24 << 20 < left(me) - since < 28 << 20
    copies = [
        host.run("cat .disttui/runs/*/code/weights.bin | sha256sum", check=True).stdout for host in me.cluster.hosts
    ]
    assert len(set(copies)) == 1


def test_a_forwarding_host_that_is_killed_costs_no_run(user: Callable[..., User]) -> None:
    me = user(3)
    folder = project(me, 1)
    (folder / "weights.bin").write_bytes(os.urandom(16 << 20))
    profile = me.profile({"script": "train.py", "sync": str(folder)})
    parts = [host.home / ".cache/disttui/objects/parts" for host in me.cluster.hosts]
    with slow(me):
        running = me.start(profile)
        running.wait_for(lambda: all(any(one.stat().st_size > 4 << 20 for one in path.glob("*.*")) for path in parts))
        first, since = me.cluster[0], left(me)
        serving = [pid for pid, words in first.processes() if "readline" in words]
        assert serving
        for pid in serving:
            first.kill(pid, signal.SIGKILL)
        assert running.wait() == 0, running.stderr
    assert left(me) - since < 18 << 20, "the others wait for it"
    assert len(versions(running.stdout)) == 3
    assert [list(path.iterdir()) for path in parts] == [[], [], []]


def test_a_killed_viewer_leaves_what_hosts_have_got_from_others(user: Callable[..., User]) -> None:
    me = user(3)
    folder = project(me, 1)
    (folder / "weights.bin").write_bytes(os.urandom(16 << 20))
    profile = me.profile({"script": "train.py", "sync": str(folder)})
    parts = [host.home / ".cache/disttui/objects/parts" for host in me.cluster.hosts]
    with slow(me):
        running = me.start(profile)
        running.wait_for(lambda: all(any(one.stat().st_size > 8 << 20 for one in path.glob("*.*")) for path in parts))
        running.send(signal.SIGKILL)
        running.wait()
        since = left(me)
        assert len(versions(me.run(profile).stdout)) == 3
    assert left(me) - since < 12 << 20, "it continues where it was"
    assert [list(path.iterdir()) for path in parts] == [[], [], []]
