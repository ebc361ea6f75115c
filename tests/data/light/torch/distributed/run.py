"""torchrun with a static rendezvous and without restarts: the ranks, their environment and their ends."""

import argparse
import os
import signal
import subprocess
import sys
import time

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import static_tcp_rendezvous


def main(args):
    parser = argparse.ArgumentParser()
    for name in ("nnodes", "nproc-per-node", "node-rank", "master-port"):
        parser.add_argument("--" + name, type=int, required=True)
    for name in ("rdzv-backend", "rdzv-conf", "rdzv-id", "max-restarts", "master-addr", "log-dir"):
        parser.add_argument("--" + name)
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("--no-python", action="store_true")
    parser.add_argument("target")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    it = parser.parse_args(args)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, _raise)
    first = it.node_rank == 0
    store = static_tcp_rendezvous.TCPStore(it.master_addr, it.master_port, it.nnodes, first)
    base, world = store.meet(it.node_rank, it.nproc_per_node)
    words = [*([] if it.no_python else [sys.executable, "-u", *["-m"] * it.module]), it.target, *it.words]
    shared = {
        "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": it.nproc_per_node, "GROUP_RANK": it.node_rank,
        "GROUP_WORLD_SIZE": it.nnodes, "MASTER_ADDR": it.master_addr, "MASTER_PORT": it.master_port,
        "TORCHELASTIC_RUN_ID": it.rdzv_id or "none", "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    ranks = []
    try:
        for local in range(it.nproc_per_node):
            own = {**shared, "RANK": base + local, "ROLE_RANK": base + local, "LOCAL_RANK": local}
            env = {**os.environ, **{name: str(value) for name, value in own.items()}}
            ranks.append(subprocess.Popen(words, env=env, start_new_session=True))
        while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
            time.sleep(0.05)
        failed = [(local, rank) for local, rank in enumerate(ranks) if rank.poll()]
        failures = [ProcessFailure(local, rank.pid, rank.returncode) for local, rank in failed]
        _end(ranks, signal.SIGTERM)
        if failures:
            raise ChildFailedError(failures)
    except SignalException as caught:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        _end(ranks, caught.sigval)
        raise


def _raise(number, frame):
    raise SignalException("Process got signal: %d" % number, number)


def _end(ranks, number):
    """As torchrun does: the signal, and SIGKILL after 30 s."""
    for rank in ranks:
        if rank.poll() is None:
            os.killpg(rank.pid, number)
    end = time.monotonic() + 30
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < end:
        time.sleep(0.05)
    for rank in ranks:
        if rank.poll() is None:
            os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
