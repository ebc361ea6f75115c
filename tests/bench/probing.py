"""Probing 16 hosts against running one `true` on each by clush and by parallel ssh."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.harness import Comparison, compare
from tests.cluster import Cluster

HOSTS = 16
ALLOWANCE = 0.5
"""Seconds that the probe may take longer."""


def measure(runs: int) -> list[Comparison]:
    """Seconds for all 16 hosts, the node program being there already after the warm-up."""
    with Cluster(HOSTS) as cluster:
        names = [host.name for host in cluster.hosts]
        program = str(Path(sys.executable).with_name("disttui"))
        probe = [program, "probe", *names, "--ssh-config", str(cluster.ssh_config)]

        def ssh_all() -> float:
            begun = time.perf_counter()
            children = [subprocess.Popen(cluster.ssh(host, "true")) for host in cluster.hosts]
            codes = [child.wait() for child in children]
            if any(codes):
                raise RuntimeError("ssh failed")
            return time.perf_counter() - begun

        def timed(argv: list[str]) -> float:
            begun = time.perf_counter()
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
            return time.perf_counter() - begun

        found = [compare("probe 16 hosts / parallel ssh true", "s", lambda: timed(probe), ssh_all, runs=runs)]
        if shutil.which("clush"):
            clush = ["clush", "-w", ",".join(names), "-o", f"-F {cluster.ssh_config}", "true"]
            found.append(
                compare("probe 16 hosts / clush true", "s", lambda: timed(probe), lambda: timed(clush), runs=runs)
            )
        return found
