"""What a user sees, with the time of every line: `disttui run` and the hand-typed reference behind one interface."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from queue import Queue

from tests.cluster import Cluster
from tests.cluster.by_hand import command

Line = tuple[float, str]
"""Unix time at which it was read, and the text without disttui's prefix."""

Way = Callable[[Cluster, Path, Sequence[str], Sequence[int]], AbstractContextManager[Iterator[Line]]]
"""`disttui` or `hand`: cluster, script, arguments, processes per host → the lines as they are read."""

_PREFIX = re.compile(r"^\S+:\d+ +│ ")

TRAIN = """\
import argparse, gc, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--quiet", action="store_true")
args = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(64, args.width), torch.nn.ReLU(), torch.nn.Linear(args.width, 64)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
begun = time.perf_counter()
for step in range(args.steps):
    optimizer.zero_grad()
    model(torch.ones(64, 64)).square().mean().backward()
    optimizer.step()
    if step == 0:
        begun = time.perf_counter()
    if not args.quiet or step == 0:
        sys.stdout.write(f"step {step}\\n")  # whole: mpirun mixes what its ranks write
        sys.stdout.flush()
print("rate", (args.steps - 1) / (time.perf_counter() - begun), flush=True)
del model, optimizer
gc.collect()  # DDP holds the group: one run in twenty ended with SIGABRT, whatever had started it
dist.destroy_process_group()
"""

LINES = """\
import os, sys, time
import torch.distributed as dist
count, size, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
dist.init_process_group("gloo")
dist.barrier()
rank = os.environ["RANK"]
for number in range(count):
    head = f"L {rank} {number} {time.time():.6f} "
    sys.stdout.write(head + "x" * (size - len(head) - 1) + "\\n")
    if pause:
        sys.stdout.flush()
        time.sleep(pause)
sys.stdout.flush()
dist.barrier()
dist.destroy_process_group()
"""


@contextmanager
def disttui(
    cluster: Cluster, script: Path, args: Sequence[str], nproc: Sequence[int], **keys: object
) -> Iterator[Iterator[Line]]:
    """Start `disttui run` on the first hosts of the cluster, with further keys of the profile; yields the lines of its
    standard output."""
    profile = cluster.shared / "bench.yaml"
    profile.write_text(
        json.dumps(
            {
                "disttui": 1,
                "name": "bench",
                "python": sys.executable,
                "env": {"OMP_NUM_THREADS": "1"},
                "hosts": [{"host": cluster[n].name, "num_processes": count} for n, count in enumerate(nproc)],
                "job": {"script": str(script), "args": list(args)},
                **keys,
            }
        )
    )
    program = Path(sys.executable).with_name("disttui")
    argv = [str(program), "run", str(profile), "--ssh-config", str(cluster.ssh_config)]
    with lines([argv]) as read:
        yield read


@contextmanager
def hand(cluster: Cluster, script: Path, args: Sequence[str], nproc: Sequence[int]) -> Iterator[Iterator[Line]]:
    """Type torchrun into one ssh per host, all started together; yields the lines of all terminals."""
    with lines([command(cluster, n, script, args, nproc=nproc) for n in range(len(nproc))]) as read:
        yield read


@contextmanager
def lines(commands: Sequence[Sequence[str]]) -> Iterator[Iterator[Line]]:
    """Start commands together; yields the lines of their standard outputs."""
    news: Queue[Line | None] = Queue()
    children = [
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for argv in commands
    ]

    def read(child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            news.put((time.time(), _PREFIX.sub("", line.decode("utf-8", "replace").rstrip("\n"))))
        news.put(None)

    def drain(child: subprocess.Popen[bytes], kept: list[bytes]) -> None:
        assert child.stderr is not None
        kept.append(child.stderr.read())

    errors: list[bytes] = []
    threads = [threading.Thread(target=read, args=(child,), daemon=True) for child in children]
    threads += [threading.Thread(target=drain, args=(child, errors), daemon=True) for child in children]
    for thread in threads:
        thread.start()

    def come() -> Iterator[Line]:
        for _ in children:
            while True:
                line = news.get(timeout=120)
                if line is None:
                    break
                yield line

    try:
        yield come()
        for child in children:
            if child.wait(120):
                raise RuntimeError(f"{child.args!r} ended with {child.returncode}: {b''.join(errors)[-2000:]!r}")
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait(60)
