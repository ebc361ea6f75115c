"""The reference: torchrun typed by hand, one terminal per host, as a user without disttui does it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.cluster import Cluster


def command(
    cluster: Cluster,
    node_rank: int,
    script: Path | str,
    args: Sequence[str] = (),
    *,
    nproc: Sequence[int],
    master: str | None = None,
    port: int = 29500,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the ssh command line that is typed in the terminal of host `node_rank`.

    Args:
        script: A path that the host sees, such as one in `cluster.shared`; relative to its home.
        nproc: Processes of each host; as many hosts take part as there are numbers.
        master: Address of the rendezvous; by default that of the first host.
        env: Besides OMP_NUM_THREADS=1 and GLOO_SOCKET_IFNAME=eth0, without which gloo takes the loopback address
            that the hosts' names resolve to.
    """
    words = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", **(env or {})}
    torchrun = [
        *(f"{name}={value}" for name, value in words.items()),
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--nnodes={len(nproc)}", f"--nproc-per-node={nproc[node_rank]}", f"--node-rank={node_rank}"),
        *(f"--master-addr={master or cluster[0].address}", f"--master-port={port}"),
        *(str(script), *args),
    ]
    return cluster.ssh(cluster[node_rank], f"exec env {shlex.join(torchrun)}")


def by_hand(
    cluster: Cluster,
    script: Path | str,
    args: Sequence[str] = (),
    *,
    nproc: Sequence[int],
    master: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 200,
) -> list[subprocess.CompletedProcess[str]]:
    """Type all of them together and return how each host's ended; see `command`."""
    terminals = [
        subprocess.Popen(
            command(cluster, node_rank, script, args, nproc=nproc, master=master, env=env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node_rank in range(len(nproc))
    ]
    try:
        return [_finish(terminal, timeout) for terminal in terminals]
    finally:
        for terminal in terminals:
            terminal.kill()
            terminal.communicate()


def _finish(terminal: subprocess.Popen[str], timeout: float) -> subprocess.CompletedProcess[str]:
    output, errors = terminal.communicate(timeout=timeout)
    return subprocess.CompletedProcess(terminal.args, terminal.returncode, output, errors)
