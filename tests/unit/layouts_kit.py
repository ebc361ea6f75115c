"""Many runs of the built-in job in few process groups: torch is imported once, ranks are forked, groups are kept.

    python layouts_kit.py FOLDER < JSON       {"8": {"name": [argument, …], …}, …}: world size → runs

Each run goes through the job's own code, from its arguments on. Metrics go to FOLDER/NAME.RANK.jsonl, what is printed
to FOLDER/ranks-of-SIZE.RANK.log. Checkpoints go to FOLDER/NAME.checkpoints; if there are folders FOLDER/NAME.RANK,
each rank has its own in its folder and works there, as on hosts without shared storage.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch.distributed.checkpoint  # before the ranks are forked: half a second each
import torch.distributed.pipelining  # noqa: F401

from disttui.runner.train import job
from disttui.runner.train.group import choose_device, join
from disttui.runner.train.layout import Layout, RankIdentity
from disttui.runner.train.options import divide, parse


def run_rank(place: RankIdentity, runs: Mapping[str, Sequence[str]], folder: Path) -> None:
    """Train every run, one after the other, as one rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    device = choose_device(place, "gloo")
    join(place, device, Layout(dp_replicate=place.world_size))
    for name, arguments in runs.items():
        os.environ["DISTTUI_METRICS"] = str(folder / f"{name}.{place.rank}.jsonl")
        home, shared = folder / f"{name}.{place.rank}", folder / f"{name}.checkpoints"
        os.chdir(home if home.is_dir() else folder)
        os.environ["DISTTUI_CHECKPOINTS"] = str(home / "checkpoints" if home.is_dir() else shared)
        print(f"=== {name}", flush=True)
        options = parse(arguments)
        layout, plan = divide(options, place.hosts())
        job.train(options, layout, plan, place, device)
    dist.destroy_process_group()


def run_world(size: int, runs: Mapping[str, Sequence[str]], folder: Path) -> bool:
    """Fork the ranks of one world and wait for them; whether all ended well."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", WORLD_SIZE=str(size))
    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            status = 1
            try:
                log = os.open(folder / f"ranks-of-{size}.{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
                run_rank(RankIdentity(rank, size, rank, size, launched=True), runs, folder)
                status = 0
            except BaseException:  # a forked child must not go on as the parent
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return not any(statuses)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    done = [run_world(int(size), runs, place) for size, runs in json.load(sys.stdin).items()]
    sys.exit(0 if all(done) else 1)
