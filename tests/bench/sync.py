"""What `job.sync` adds to a start: `python -m tests.bench.sync`, as root, on hosts of a test cluster.

The times are those of collecting a folder and giving each host its copy: of an unchanged tree, after an edit beside
`rsync -a`, and for the first time of 50 MB to one host beside `tar | ssh`, in turns and over connections that are open.
Between two starts a host makes a spare copy, which is not counted; starts that come too soon for one are measured as
well. All hosts share this machine's cores. All files are in memory: for minutes after a test has removed many files, an
ext4 takes ten times as long to make one, which hides all else.

`python -m tests.bench.sync uplink` sends 50 MB over an uplink of 20 Mbit/s to one and to eight hosts of a
test cluster.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from disttui.runner.hosts.link import Link
from disttui.runner.hosts.survey import open_link
from disttui.runner.node.serve.channel import _LATER
from disttui.runner.profile.sections import parse_host
from disttui.runner.protocol.objects import Store
from disttui.runner.sync.collect import Wanted, collect
from disttui.runner.sync.transfer import TreeParcel, send
from disttui.runner.transport.base import RefusePrompts
from disttui.runner.transport.connector import HostConnector
from tests.cluster.cluster import Cluster
from tests.cluster.slot import viewer_link

FILES, HOSTS, TIMES = 2000, 4, 7


def synced(folder: Path, base: Path, links: list[Link], run: str, store: str = "viewer") -> float:
    """Seconds to give a run its copy on all hosts."""
    begun = time.perf_counter()
    kept = Store(str(base / store))
    found = collect(Wanted(folder, most=1 << 40), kept, base / "cache")
    send(
        TreeParcel(found.sha256, found.manifest, kept, new=found.new), links, run=run, run_dir="~/runs",
        to=f"~/runs/{run}/code", reopen=lambda node: links[node], tell=lambda *_: None,
    )  # fmt: skip
    return time.perf_counter() - begun


def uplink() -> None:
    """Measure and print seconds and sent bytes of 50 MB that one host gets, and eight."""
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(Cluster(8))
        connector = HostConnector(str(cluster.ssh_config), RefusePrompts())
        stack.callback(connector.close)
        name = viewer_link(int(cluster.viewer_address.split(".")[2]))
        shape = ["tc", "qdisc", "add", "dev", name, "root", "tbf", "rate", "20mbit", "burst", "64k", "latency", "50ms"]
        sent = Path(f"/sys/class/net/{name}/statistics/tx_bytes")
        links = [open_link(parse_host(host.name), connector) for host in cluster.hosts]
        subprocess.run(shape, check=True)
        for turn, many in enumerate((1, 8) * 3):
            code = base / f"code{turn}"
            code.mkdir()
            for number in range(50):
                (code / str(number)).write_bytes(os.urandom(1_000_000))
            before = int(sent.read_text())
            seconds = synced(code, base, links[:many], f"r-{turn}", f"viewer{turn}")
            print(f"50 MB to {many}: {seconds:.1f} s, {(int(sent.read_text()) - before) / 1e6:.1f} MB over the uplink")
        for link in links:
            link.close()


def in_turns(ours: Callable[[int], float], other: str, words: Callable[[int], str], times: int) -> str:
    """Both, alternately: medians with their range, and the ratio of each pair."""
    mine, theirs = [], []
    for turn in range(times):
        mine.append(ours(turn))
        command = words(turn)
        begun = time.perf_counter()
        subprocess.run(command, shell=True, check=True)
        theirs.append(time.perf_counter() - begun)
    ratios = [one / two for one, two in zip(mine, theirs, strict=True)]
    return f"{shown(mine)} s; {other}: {shown(theirs)} s; ratio {shown(ratios)}"


def shown(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Measure and print."""
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        cluster = stack.enter_context(Cluster(HOSTS))
        for host in cluster.hosts:
            host.run("mount -t tmpfs tmpfs /root", check=True)
        connector = HostConnector(str(cluster.ssh_config), RefusePrompts())
        stack.callback(connector.close)
        links = [open_link(parse_host(host.name), connector) for host in cluster.hosts]
        for link in links:
            stack.callback(link.close)
        # What is compared has an open connection as well.
        ssh = f"ssh -F {cluster.ssh_config} -o ControlPath={base}/%C -o ControlMaster=auto -o ControlPersist=600"
        first = cluster[0].name
        subprocess.run(f"{ssh} {first} mkdir -p other", shell=True, check=True)
        stack.callback(subprocess.run, f"{ssh} -O exit {first}", shell=True, stderr=subprocess.DEVNULL)
        code = base / "code"
        for number in range(FILES):
            path = code / f"{number % 40}" / f"{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"# {number}\n" * 100)
        subprocess.run(["git", "init", "-q"], cwd=code, check=True)
        time.sleep(2.5)  # files that have just changed are read again
        print(f"first sync, {FILES} files, {HOSTS} hosts: {synced(code, base, links, 'r-first'):.2f} s")
        same = [synced(code, base, links, f"r-same-{turn}") for turn in range(TIMES)]
        print(f"unchanged, {HOSTS} hosts: {shown(same)} s")

        def edited(pause: float, turn: int) -> float:
            time.sleep(pause)
            (code / "0/0.py").write_text(f"{turn} {pause}\n")
            return synced(code, base, links[:1], f"r-edit-{pause}-{turn}")

        rsync = f"rsync -a -e '{ssh}' {code}/ {first}:other/code/"
        if shutil.which("rsync"):
            subprocess.run(rsync, shell=True, check=True)
        for what, pause in (("one file changed", _LATER + 1.0), ("the same, without a spare copy", 0.0)):
            if shutil.which("rsync"):
                print(f"{what}, 1 host: {in_turns(partial(edited, pause), 'rsync -a', lambda _: rsync, TIMES)}")
            else:
                times = [edited(pause, turn) for turn in range(TIMES)]
                print(f"{what}, 1 host: {shown(times)} s; rsync is not installed")
        for turn in range(TIMES):
            for number in range(50):
                path = base / f"large{turn}" / str(number)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(os.urandom(500_000) + bytes(500_000))
        tar = "tar -C {base}/large{turn} -cf - . | {ssh} {first} 'mkdir -p other/{turn}; tar -C other/{turn} -xf -'"
        large = in_turns(
            lambda turn: synced(base / f"large{turn}", base, links[:1], f"r-large-{turn}", f"viewer{turn}"),
            "tar | ssh", lambda turn: tar.format(base=base, turn=turn, ssh=ssh, first=first), TIMES,
        )  # fmt: skip
        print(f"50 MB, half of it zeros, 1 host: {large}")


if __name__ == "__main__":
    uplink() if "uplink" in sys.argv else main()
