"""Made-up hosts for the screen `top`: no such machines exist, and no figure here was measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from disttui.runner.hosts.facts import read_leases
from disttui.runner.hosts.load import load_of
from disttui.runner.node.leases import new_text
from disttui.runner.protocol.leases import Lease
from disttui.runner.runs.watch import HostNow
from disttui.tui.load.feed import TopFeed
from disttui.tui.top.screen import TopScreen
from tests.tui.shelf_kit import Silent


class MadeUpTop(TopScreen):
    """The screen without any real host."""

    def make_feed(self) -> TopFeed:
        """A silent one."""
        return Silent(self, (), None, self.disttui.viewer)


NOW = 1_790_000_000.0
GIB = 2**30


def wave(t: float, phase: float, low: float, high: float) -> float:
    """A number that moves between low and high."""
    return low + (high - low) * (0.5 + 0.5 * math.sin(t / 9 + phase))


def record(number: int, gpus: int, t: float, processes: int = 6) -> dict[str, Any]:
    """The telemetry of one made-up host."""
    rows: list[dict[str, Any]] = [
        {
            "pid": 4100 + number * 100 + index, "user": "alice", "tag": f"made-up-7f3a/{number}/1",
            "command": f"python -u train.py --made-up --local-rank {index}", "cpu": round(wave(t, index, 90, 108), 1),
            "rss": int(wave(t, index, 3.1, 3.4) * GIB), "gpus": [index],
            "gpu_memory": int(wave(t, number + index, 38, 71) * GIB),
        }
        for index in range(gpus)
    ]  # fmt: skip
    rows += [
        {
            "pid": 900 + number * 10 + index, "user": ("root", "bob", "alice")[index % 3],
            "command": ("/usr/bin/dockerd", "python notebook.py", "ssh-agent -D", "bash")[index % 4],
            "cpu": round(wave(t, 3 * index, 0, 30), 1), "rss": (index + 1) * 120 << 20,
        }
        for index in range(processes)
    ]  # fmt: skip
    return {
        "t": t, "cpu": round(wave(t, number, 35, 88), 1), "load": round(wave(t, number, 8, 31), 2), "cpus": 64,
        "mem_used": int(wave(t, number, 90, 210) * GIB), "mem_total": 512 * GIB,
        "net_rx": round(wave(t, number, 2e6, 9.4e8)), "net_tx": round(wave(t, number + 1, 1e6, 9e8)),
        "gpus": [
            {
                "index": index, "name": "MADE-UP 80GB", "use": round(wave(t, number + index, 4, 100)),
                "mem_used": int(wave(t, number + index, 38, 71) * GIB), "mem_total": 80 * GIB,
                "power": round(wave(t, number + index, 120, 698), 1), "power_limit": 700.0,
                "temp": round(wave(t, index, 41, 88)), "throttle": index == 5,
            }
            for index in range(gpus)
        ],
        "processes": rows, "process_count": 400 + number,
    }  # fmt: skip


def host(number: int, gpus: int, t: float = NOW, processes: int = 6) -> HostNow:
    """A made-up host that is seen."""
    load = load_of(record(number, gpus, t, processes))
    return HostNow(f"madeup{number}", "seen", load, t, since=NOW - 300)


def lease(user: str, gpus: list[int] | None, **more: Any) -> Lease:
    """A lease of a made-up run that began an hour ago, and is 41 % done."""
    run = "" if more.get("kind") == "hand" else "llama-7f3a"
    text = {**new_text(run, 0, gpus, f"{user}@desk"), "since": NOW - 3600, "order": 1.0, "uid": 1001,
            "user": user, "step": 41, "steps": 100, **more}  # fmt: skip
    (read,) = read_leases([text])
    return read


def leased(t: float = NOW) -> tuple[HostNow, ...]:
    """Hosts some of whose GPUs are leased: by who computes there, by others, and a host as a whole."""
    one, other, plain = host(0, 4, t), host(1, 2, t), host(2, 0, t)
    whole = (lease("carol", None, kind="hand", until=t + 7200),)
    some = (lease("alice", [0, 1], run="made-up-7f3a"), lease("bob", [2]))
    return replace(one, leases=some), replace(other, leases=whole), replace(plain, leases=whole)


def hosts(count: int, gpus: int, t: float = NOW, processes: int = 6) -> tuple[HostNow, ...]:
    """Several of them."""
    return tuple(host(number, gpus, t, processes) for number in range(count))


def troubled(t: float = NOW) -> tuple[HostNow, ...]:
    """One that is seen, and one in each other state."""
    lost = host(1, 2, t - 8)
    return (
        host(0, 2, t),
        HostNow("madeup1", "not seen", lost.load, t - 8, since=t - 3, problem="silent for 8 s"),
        HostNow("madeup2", since=t - 12),
        HostNow("madeup3", "failed", since=t - 20, problem="connection refused by 192.0.2.7 port 22",
                cure="Is an SSH server running there?"),
    )  # fmt: skip
