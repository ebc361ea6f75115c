"""How fast a log that is on a host comes into the mirror, against `ssh host cat` into a file."""

from __future__ import annotations

import filecmp
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from disttui.runner.runs.registry import KnownHost, KnownRun
from disttui.runner.runs.remote import fill, reach_hosts, sync
from disttui.runner.runs.store import HostStore
from disttui.runner.transport import RefusePrompts
from disttui.runner.transport.connector import HostConnector
from tests.bench.harness import Comparison, compare
from tests.cluster import Cluster, ClusterHost

SIZE = 300 * 10**6
"""Bytes of the log."""
LINK = "1gbit"
"""Of the second row: what the hosts' link carries, in the words of tc. Without it, two cores do all the work."""
_RUN = "bench-0001"
_LOG = "attempt-1/rank-0.log"


def measure(runs: int, size: int = SIZE, link: str = "") -> Comparison:
    """MB/s of a finished run's log, connecting included; what came is compared byte for byte."""
    with Cluster(1) as cluster, tempfile.TemporaryDirectory() as here:
        log = _finished_run(cluster[0], size)
        if link:
            cluster[0].run(f"tc qdisc add dev eth0 root tbf rate {link} burst 512k latency 50ms", check=True)
        remote = f"/root/{log.relative_to(cluster[0].home)}"

        def rate(fetch: Callable[[Path], Path]) -> float:
            with tempfile.TemporaryDirectory(dir=here) as folder:
                begun = time.perf_counter()
                copy = fetch(Path(folder))
                taken = time.perf_counter() - begun
                if not filecmp.cmp(copy, log, shallow=False):
                    raise RuntimeError(f"{copy} is not what is on the host")
            return size / 1e6 / taken

        def mirror(folder: Path) -> Path:
            return _mirrored(cluster, folder)

        def cat(folder: Path) -> Path:
            copy = folder / "copy"
            with copy.open("wb") as out:
                subprocess.run(cluster.ssh(cluster[0], "cat", remote), stdout=out, check=True)
            return copy

        what = f"a log of {size / 1e6:.0f} MB" + (f" over {link}" if link else "")
        return compare(what, "MB/s", lambda: rate(mirror), lambda: rate(cat), runs=runs)


def _finished_run(host: ClusterHost, size: int) -> Path:
    folder = host.home / ".disttui/runs" / _RUN / "0"
    log = folder / _LOG
    log.parent.mkdir(parents=True)
    line = "step {:>9}  loss 2.{:06}  lr 0.0003  41.2k tokens/s  grad_norm 0.{:06}\n"
    text = "".join(line.format(n, n * 7919 % 10**6, n * 104729 % 10**6) for n in range(50_000)).encode()
    with log.open("wb") as out:
        while (left := size - out.tell()) > 0:
            out.write(text[:left])
    (folder / "spec.json").write_text('{"disttui": 1}')
    (folder / "exit.json").write_text(
        '{"t": 1, "state": "finished", "code": 0, "cause": null, "attempt": 1, "left": []}'
    )
    return log


def _mirrored(cluster: Cluster, folder: Path) -> Path:
    """Do what `disttui logs` does before it prints: the mirror up to date, then the log's beginning."""
    host = cluster[0].name
    run = KnownRun(_RUN, folder, (KnownHost(host, host),), {}, "~/.disttui/runs", 0.0, "bench")
    connector = HostConnector(str(cluster.ssh_config), RefusePrompts())
    try:
        with reach_hosts(dict(enumerate(run.hosts)), connector) as reached:
            reached.refuse_none()
            problems = sync(run, folder, reached)
            if problems:
                raise RuntimeError("\n".join(map(str, problems.values())))
            store = HostStore(folder / "0")
            fill(reached.links[0], run, 0, store, _LOG)
            store.close()
    finally:
        connector.close()
    return folder / "0" / _LOG
