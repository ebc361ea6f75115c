"""A run that something happens to, and what must be true of it afterwards."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.host import ClusterHost
from tests.cluster.typed import Running, User, typed, wait_gone
from tests.unit.waiting import Patience

COUNT = """
import json, os, pathlib, sys, time

enough = pathlib.Path(__file__).parent / sys.argv[1]
rank, attempt = os.environ["RANK"], os.environ["DISTTUI_ATTEMPT"]
step = 0
with open(os.environ["DISTTUI_METRICS"], "a") as metrics:
    while not enough.exists():
        step += 1
        print(f"rank {rank} of attempt {attempt} counts {step}", flush=True)
        metrics.write(json.dumps({"t": time.time(), "step": step, "loss": 1 / step}) + "\\n")
        metrics.flush()
        time.sleep(0.02)
print(f"rank {rank} is done", flush=True)
"""
"""A job without torch that counts until a file is there; it takes the file's name."""

NASTY = """
import os, pathlib, signal, sys, time

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    print("daemon", flush=True)
    time.sleep(900)
for _ in range(3):
    if os.fork() == 0:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            os.setsid() if os.getsid(0) != os.getpid() else None
            if os.fork():
                os._exit(0)
            time.sleep(0.01)
        os._exit(0)
with open(os.environ["DISTTUI_METRICS"], "a") as metrics:
    metrics.write('{"step": 1}\\n')
time.sleep(900)
"""
"""Ranks deaf to TERM, each with a daemon that has left session and parent, and with a storm of forks in sessions of
their own, where a parent ends as soon as it has a child."""

LATE = 60.0
"""Seconds that a busy machine may add to a limit of the hosts' own; how soon they act is measured by tests/bench."""
Until = Callable[[], object]


@dataclass
class Fault:
    """A run of one process on each host of a cluster."""

    me: User
    running: Running
    name: str
    enough: Path
    mounted: str | None = None
    """A folder of root's home that the hosts have mounted, in which the run lives."""

    @classmethod
    def begin(
        cls,
        me: User,
        text: str = COUNT,
        *,
        args: tuple[str, ...] = (),
        wait: bool = True,
        mounted: str | None = None,
        **keys: Any,
    ) -> Fault:
        """Type `disttui run` for a script; with `wait`, return once every rank has made a step."""
        number = len(me.started)
        enough = me.cluster.shared / f"enough-{number}"
        script = me.script(text, f"job-{number}.py")
        name = f"t{number}"
        if mounted:
            keys["launch"] = {"run_dir": f"~/{mounted}", **keys.get("launch", {})}
        profile = me.profile({"script": str(script), "args": [enough.name, *args]}, **{"name": name, **keys})
        fault = cls(me, me.start(profile), name, enough, mounted)
        if wait:
            fault.wait_steps(1)
        return fault

    @property
    def run(self) -> str:
        """The run's id."""
        return next(self._mirrors()).name

    @property
    def hosts(self) -> list[ClusterHost]:
        """The hosts, by node rank."""
        return self.me.cluster.hosts

    def folder(self, node: int) -> Path:
        """The run directory on a host."""
        host = self.hosts[node]
        base = host.root / "root" / self.mounted if self.mounted else host.home / ".disttui/runs"
        return base / self.run / str(node)

    def events(self, node: int, kind: str) -> list[dict[str, Any]]:
        """The events of one kind that a host reports, complete lines only."""
        path = self.folder(node) / "events.jsonl"
        lines = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["e"] == kind]

    def wait_event(self, host: int, kind: str, timeout: float = 60, **fields: Any) -> dict[str, Any]:
        """Wait until a host tells something."""
        found: list[dict[str, Any]] = []

        def seen() -> bool:
            found[:] = [one for one in self.events(host, kind) if fields.items() <= one.items()]
            return bool(found)

        wait_until(seen, timeout, self.story)
        return found[0]

    def wait_steps(self, steps: int, attempt: int = 1, timeout: float = 100) -> None:
        """Wait until every rank has made so many steps in an attempt."""

        def made() -> bool:
            names = [f"attempt-{attempt}/rank-{node}.metrics.jsonl" for node in range(len(self.hosts))]
            paths = [self.folder(node) / name for node, name in enumerate(names)]
            return all(path.exists() and path.read_bytes().count(b"\n") >= steps for path in paths)

        self.running.wait_for(lambda: bool(self.started()) and made(), timeout)

    def steps(self, node: int, attempt: int = 1) -> int:
        """How many steps a rank has made by now."""
        return (self.folder(node) / f"attempt-{attempt}/rank-{node}.metrics.jsonl").read_bytes().count(b"\n")

    def started(self) -> bool:
        """Whether the run has an id."""
        return any(self._mirrors())

    def _mirrors(self) -> Iterator[Path]:
        return self.me.home.glob(f".local/share/disttui/runs/{self.name}-*")

    def kill(self, node: int, *who: str, sends: str = "KILL") -> None:
        """Signal the `supervisor`, `warden`, `launcher` or `rank` of a host, in this order, in one go."""
        up = json.loads((self.folder(node) / "supervisor.json").read_text())
        pids = {"supervisor": up["pid"], "warden": up["warden"]["pid"]}
        if "launcher" in who or "rank" in who:
            launch = self.events(node, "launch")[-1]
            pids["launcher"] = launch["pid"]
            pids["rank"] = self.wait_event(node, "rank", attempt=launch["attempt"])["pid"]
        self.hosts[node].run(f"kill -{sends} " + " ".join(str(pids[one]) for one in who), check=True)

    def finish(self) -> None:
        """Let the job come to its end."""
        self.enough.touch()

    def end(self, code: int, timeout: float = 60) -> float:
        """Check that the command ends with a code and that nothing is left; returns the time of the last process."""
        assert self.running.wait(timeout) == code, self.story()
        return wait_gone(self.me.cluster, 15)

    def ended_at(self, *nodes: int) -> float:
        """When the last of these hosts (of all) had come to its end, by its own word; the viewer's time is left out."""
        paths = [self.folder(node) / "exit.json" for node in nodes or range(len(self.hosts))]
        return max(float(json.loads(path.read_text())["t"]) for path in paths)

    def exits(self, state: str, nodes: tuple[int, ...] | None = None) -> None:
        """Check the word that every host (or these) keeps of the run's end."""
        for node in nodes if nodes is not None else range(len(self.hosts)):
            path = self.folder(node) / "exit.json"
            assert path.exists(), f"node {node} has no exit.json\n{self.story()}"
            end = json.loads(path.read_text())
            assert (end["state"], end["left"]) == (state, []), f"node {node}: {end}\n{self.story()}"

    def whole(self, me: User | None = None, *words: str, fetch: bool = True) -> None:
        """Check that a viewer's mirror holds every byte of every rank's log; `fetch` asks for what it skipped."""
        me = me or self.me
        if fetch:
            typed(me, "logs", self.run, *words)
        mirror = me.home / ".local/share/disttui/runs" / self.run
        logs = [(node, path) for node in range(len(self.hosts)) for path in self.folder(node).glob("*/rank-*.log")]
        assert logs, self.story()
        for node, path in logs:
            copy = mirror / str(node) / path.relative_to(self.folder(node))
            assert _digest(copy) == _digest(path), f"{copy} is not {path}\n{self.story()}"

    def verdict(self) -> str:
        """What the command says of the cause at the end: from its last line with a ✗ on."""
        return self.running.stderr.rpartition("✗")[2]

    def story(self) -> str:
        """All that can be said when a check fails."""
        said = [
            f"--- {path}\n{path.read_text(errors='replace')[-4000:]}" for path in (self.running.out, self.running.err)
        ]
        if self.started():
            for node in range(len(self.hosts)):
                for name in ("events.jsonl", "supervisor.log", "exit.json"):
                    path = self.folder(node) / name
                    said.append(f"--- {path}\n{path.read_text()[-4000:] if path.exists() else 'missing'}")
        return "\n".join(said)


def shown(output: str, rank: int) -> int:
    """How far a rank of the counting job has come, as a viewer shows it."""
    counts = re.findall(rf"rank {rank} of attempt \d+ counts (\d+)$", output, re.MULTILINE)
    return int(counts[-1]) if counts else 0


def wait_until(so: Until, timeout: float = 60, story: Callable[[], str] = str) -> None:
    """Poll until something is so."""
    patience = Patience(timeout)
    while not so():
        assert not patience.ended, f"it does not happen in {timeout:g} s\n{story()}"
        time.sleep(0.02)


def _digest(path: Path) -> str:
    # A log that is empty has no copy.
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()
