"""Runs on one machine that plays several hosts: every host has a run folder of its own, the gang meets on loopback."""

from __future__ import annotations

import json
import os
import random
import shlex
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from disttui.runner.node import procs
from disttui.runner.node.serve import runs
from disttui.runner.protocol.files import Secrets
from disttui.runner.protocol.requests import Started, Stopped
from tests.files import new_file
from tests.kept import node_program
from tests.unit.waiting import PATIENCE, wait_for

STUB = Path(__file__).with_name("stub_torchrun.py")

JOB = """
import json, os, sys, time
rank = int(os.environ["RANK"])
attempt = int(os.environ["DISTTUI_ATTEMPT"])
def step(n, **more):
    with open(os.environ["DISTTUI_METRICS"], "a") as f:
        f.write(json.dumps({"t": time.time(), "step": n, "loss": 1.0, **more}) + "\\n")
"""


class Cluster:
    """One run on `nproc` hosts, all of them this machine."""

    def __init__(self, base: Path, nproc: list[int], job: str, **changes: Any) -> None:
        self.base = base
        self.nproc = nproc
        self.run = "t" + uuid.uuid4().hex[:12]
        self.key = os.urandom(32).hex()
        self.gang: Any = None
        self.zip = node_program()
        # A file for each: the ranks of another run may not have read theirs yet.
        self.job = base / "job.py" if not (base / "job.py").exists() else base / self.run / "job.py"
        new_file(self.job, JOB + job)
        self.python = base / "python"
        new_file(self.python, f'#!/bin/sh\nexec {shlex.join([sys.executable, str(STUB)])} "$@"\n', 0o755)
        first = random.randrange(20000, 30000)
        self.launch: dict[str, Any] = {"ports": [first, first + 30], "join_timeout": 30, "host_timeout": 30,
                                       "rejoin_timeout": 0, "restarts": 0, "grace": 5, "instrument": True}  # fmt: skip
        self.launch.update(changes.pop("launch", {}))
        self.changes = changes

    def spec(self, node: int) -> Any:
        first = sum(self.nproc[:node])
        spec = {
            "disttui": 1, "run": self.run, "node_rank": node, "nproc": self.nproc,
            "hosts": [f"host{number}" for number in range(len(self.nproc))],
            "run_dir": str(self.run_dir(node)), "workdir": str(self.base), "python": str(self.python),
            "activate": "", "wrap": [], "target": {"kind": "script", "value": str(self.job), "args": []},
            "launcher_args": [str(self.nproc[node]), str(first), str(sum(self.nproc))],
            "env": {}, "gpus": None, "backend": "gloo", "precision": "fp32", "launch": self.launch,
            "master": "127.0.0.1", "interface": None, "leader": self.gang if node else None,
            "metrics_pattern": None, "profile": {},
        }  # fmt: skip
        return {**spec, **self.changes}

    def run_dir(self, node: int) -> Path:
        return self.base / f"runs{node}"

    def folder(self, node: int) -> str:
        return runs.run_folder(str(self.run_dir(node)), self.run, node)

    def path(self, node: int, name: str) -> Path:
        return Path(self.folder(node)) / name

    def start(self, *nodes: int) -> Cluster:
        for node in nodes or range(len(self.nproc)):
            self.ask(node)
        return self

    def ask(self, node: int = 0) -> Started:
        """Start it on one host, for the answer."""
        answer = runs.start({"spec": self.spec(node), "secrets": self.secrets()}, str(self.zip), None)
        self.gang = answer["gang"] or self.gang
        return answer

    def secrets(self) -> Secrets:
        return {"key": self.key, "env": {"SECRET": "s3cret ☃ $(x)"}}

    def events(self, node: int, kind: str = "") -> list[dict[str, Any]]:
        try:
            # The last line may be half written.
            lines = self.path(node, "events.jsonl").read_bytes().rpartition(b"\n")[0].splitlines()
        except FileNotFoundError:
            return []
        records = [json.loads(line) for line in lines]
        return [record for record in records if not kind or record["e"] == kind]

    def wait_event(self, at: int, kind: str, count: int = 1, **fields: Any) -> dict[str, Any]:
        def look() -> Any:
            found = [e for e in self.events(at, kind) if all(e.get(n) == v for n, v in fields.items())]
            return found[count - 1] if len(found) >= count else None

        return dict(wait_for(look, f"{count} event {kind} {fields} on node {at}: {self.events(at)}"))

    def wait_ranks(self, attempt: int = 1) -> Cluster:
        for node, count in enumerate(self.nproc):
            for _ in range(count):
                self.wait_event(node, "rank", count, attempt=attempt)
        return self

    def exit(self, node: int, timeout: float = PATIENCE) -> dict[str, Any]:
        def look() -> Any:
            try:
                return json.loads(self.path(node, "exit.json").read_text())
            except FileNotFoundError:
                return None

        return dict(wait_for(look, f"exit of node {node}: {self.events(node)} {self.log(node)}", timeout))

    def exits(self) -> list[dict[str, Any]]:
        return [self.exit(node) for node in range(len(self.nproc))]

    def log(self, node: int) -> str:
        path = self.path(node, "supervisor.log")
        return path.read_text() if path.exists() else ""

    def stop(self, node: int = 0, now: bool = False) -> Stopped:
        return runs.request_stop(self.folder(node), now, "user")

    def supervisor(self, node: int) -> dict[str, Any]:
        return dict(json.loads(self.path(node, "supervisor.json").read_text()))

    def living(self, *nodes: int) -> dict[int, str]:
        """Everything of this run that lives: by tag, and the supervisors."""
        table = procs.table()
        found = set()
        for node in nodes or range(len(self.nproc)):
            found |= procs.tagged(table, self.run, node)
        return {pid: procs.command(pid) for pid in found if not table[pid].dead}

    def clean_up(self) -> None:
        for node in range(len(self.nproc)):
            if not self.path(node, "supervisor.json").exists():
                continue
            up = self.supervisor(node)
            for who in (up["warden"], up):
                if procs.alive(who):
                    with suppress(ProcessLookupError):
                        os.kill(who["pid"], 9)
            for who in (up["warden"], up):
                wait_for(lambda: not procs.alive(who), "the supervisor's death")  # noqa: B023 - called at once
            runs.status(self.folder(node))


Make = Callable[..., Cluster]
SLEEP = "time.sleep(600)\n"


def same(run: Cluster) -> dict[str, Any]:
    """The end of every host, which must be the same."""
    ends = [{name: end[name] for name in ("state", "code", "cause", "attempt")} for end in run.exits()]
    assert all(end == ends[0] for end in ends), ends
    return ends[0]


def making(base: Path) -> Iterator[Make]:
    """For fixtures: makes clusters by job and processes per host, and sees to it that none leaves a process."""
    made: list[Cluster] = []

    def make(job: str, nproc: int | list[int] = 1, **changes: Any) -> Cluster:
        made.append(Cluster(base, [nproc] if isinstance(nproc, int) else nproc, job, **changes))
        return made[-1]

    yield make
    for one in made:
        one.clean_up()
        assert one.living() == {}
