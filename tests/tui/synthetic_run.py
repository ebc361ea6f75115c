"""Makes a synthetic mirror of a run with any number of ranks, for figures and tests. Nothing in it was ever measured.

`python -m tests.tui.synthetic_run FOLDER [--hosts 128] [--per-host 8] [--steps 60]`
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

BEGIN = 1_790_000_000.0
SLOW = 517
"""A rank that is slow, where there are as many."""


def write(
    folder: Path,
    hosts: int = 128,
    per_host: int = 8,
    steps: int = 60,
    *,
    gpus: bool = True,
    ended: bool = True,
    log_lines: int = 20,
    names: str = "synthetic{:03}",
    of: int | None = None,
    slow: int = SLOW,
) -> Path:
    """Write the mirror of one attempt with a second a step, and the last of `of` steps; returns the folder."""
    chance = random.Random(1)
    world = hosts * per_host
    called = [names.format(node) for node in range(hosts)]
    run = {"disttui": 1, "run": folder.name, "hosts": [], "run_dir": "~", "started": BEGIN, "by": "nobody@nowhere"}
    run["hosts"] = [{"name": name, "host": name, "nproc": per_host} for name in called]
    run["profile"] = {"disttui": 1, "name": "synthetic", "hosts": called, "job": {"script": "train.py"}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(run))
    for node in range(hosts):
        place = folder / str(node)
        (place / "attempt-1").mkdir(parents=True, exist_ok=True)
        spec: dict[str, Any] = {"run": folder.name, "hosts": called, "nproc": [per_host] * hosts, "backend": "nccl"}
        spec["launch"], spec["target"] = {"restarts": 0}, {"args": ["--strategy", "fsdp"]}
        (place / "spec.json").write_text(json.dumps(spec))
        ranks = range(node * per_host, (node + 1) * per_host)
        _lines(place / "events.jsonl", _events(node, hosts, ranks, world))
        _lines(place / "telemetry.jsonl", _telemetry(ranks, steps, chance, gpus=gpus))
        for rank in ranks:
            _lines(
                place / "attempt-1" / f"rank-{rank}.metrics.jsonl",
                _metrics(rank, steps, of or steps, chance, slow=rank == slow),
            )
            text = "".join(f"step {line}/{of or steps}  loss {3 - line / 100:.4f}\n" for line in range(log_lines))
            (place / "attempt-1" / f"rank-{rank}.log").write_text(text)
        if ended:
            end = {"t": BEGIN + 12 + steps, "state": "finished", "code": 0, "cause": None, "attempt": 1, "left": []}
            (place / "exit.json").write_text(json.dumps(end))
        held = {path.relative_to(place).as_posix(): [0, 0] for path in place.rglob("*") if path.is_file()}
        (place / ".mirror.json").write_text(json.dumps(held))
    return folder


def fail(mirror: Path, rank: int, frames: str = "", node: int = 0) -> None:
    """Have a rank of a host raise a ValueError, and the run fail."""
    raised = {"rank": rank, "type": "ValueError", "message": "no such token"}
    traceback = f"Traceback (most recent call last):\n{frames}ValueError: no such token"
    error = {"t": BEGIN + 30, "e": "error", "attempt": 1, **raised, "traceback": traceback, "at": BEGIN + 30}
    with (mirror / f"{node}" / "events.jsonl").open("a") as events:
        events.write(json.dumps(error) + "\n")
    cause = {"node": node, "kind": "exception", **raised}
    end = {"t": BEGIN + 31, "state": "failed", "code": 1, "cause": cause, "attempt": 1, "left": []}
    for place in mirror.glob("[0-9]*"):
        (place / "exit.json").write_text(json.dumps(end))


def _lines(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def _events(node: int, hosts: int, ranks: range, world: int) -> Iterable[Mapping[str, Any]]:
    if node == 0:
        yield from ({"t": BEGIN + 0.01 * other, "e": "join", "node": other} for other in range(hosts))
    go = {"attempt": 1, "master": "10.0.0.1", "port": 29500, "world_size": world}
    yield {"t": BEGIN + 2, "e": "attempt", **go}
    yield {"t": BEGIN + 2, "e": "launch", "attempt": 1, "pid": 1}
    for rank in ranks:
        yield {"t": BEGIN + 5, "e": "rank", "attempt": 1, "rank": rank, "local_rank": rank - ranks[0], "pid": rank}
        yield {"t": BEGIN + 8, "e": "group", "attempt": 1, "rank": rank, "world_size": world, "backend": "nccl"}
    yield {"t": BEGIN + 11, "e": "step", "attempt": 1}


def _metrics(rank: int, steps: int, of: int, chance: random.Random, *, slow: bool) -> Iterable[Mapping[str, Any]]:
    for step in range(1, steps + 1):
        forward = chance.gauss(0.3, 0.01) * (1.6 if slow else 1.0)
        yield {
            "t": BEGIN + 10 + step + chance.random() / 10, "step": step, "steps": of,
            "loss": 2 + 3 * math.exp(-step / 20) + chance.gauss(0, 0.02), "lr": 3e-4 * min(1, step / 20),
            "grad_norm": abs(chance.gauss(0.8, 0.1)), "step_time": 1.0 + chance.gauss(0, 0.01),
            "forward_time": forward, "tokens_per_s": 4.1e6 + chance.gauss(0, 2e4),
        }  # fmt: skip


def _telemetry(ranks: range, steps: int, chance: random.Random, *, gpus: bool) -> Iterable[Mapping[str, Any]]:
    for second in range(steps + 11):
        busy = second > 10
        seen: dict[str, Any] = {"t": BEGIN + second, "cpu": chance.uniform(20, 40), "load": 12.0, "mem_used": 200 << 30}
        seen |= {
            "mem_total": 512 << 30,
            "swap_used": 0,
            "net_rx": 2e9 * busy,
            "net_tx": 2e9 * busy,
            "disk_free": 1 << 40,
        }
        seen["gpus"] = [
            {"index": index, "use": chance.uniform(90, 99) * busy, "mem_used": 60 << 30, "mem_total": 80 << 30,
             "power": chance.gauss(600, 20), "temp": 65}
            for index in range(len(ranks) if gpus else 0)
        ]  # fmt: skip
        yield seen


def main() -> None:
    """Write one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, value in (("hosts", 128), ("per-host", 8), ("steps", 60)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    write(options.folder, options.hosts, options.per_host, options.steps)


if __name__ == "__main__":
    main()
