"""`disttui` as a user types it on a machine that reaches a test cluster by ssh."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.cluster import Cluster
from tests.command import ran
from tests.files import new_file, new_folder
from tests.light import light_python

COMMAND = str(Path(sys.executable).with_name("disttui"))
POLL = 0.02


@dataclass
class Running:
    """A `disttui run` that was started."""

    cluster: Cluster
    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self.out.read_text()

    @property
    def stderr(self) -> str:
        """Its own words so far; empty where both streams go to one place."""
        return self.err.read_text() if self.err != self.out else ""

    @property
    def mirror(self) -> Path:
        """Where it keeps the run's files, one folder per host."""
        words = re.findall(r"^logs: (.+)$", self.stdout + self.stderr, re.MULTILINE)
        return Path(words[-1])

    def records(self, name: str) -> list[dict[str, Any]]:
        """Every record of a JSON-lines file of the run, host after host; `name` may hold wildcards."""
        paths = sorted(self.mirror.glob(f"[0-9]*/{name}"))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    def wait(self, timeout: float = 120) -> int:
        """Wait for its end; returns the exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout:g} s:\n{self.stdout}\n{self.stderr}") from None

    def send(self, number: int) -> float:
        """Send it a signal; returns the time."""
        self.process.send_signal(number)
        return time.time()

    def wait_file(self, path: Path, timeout: float = 100) -> str:
        """Wait until a file is there that a rank writes; returns its text."""
        self.wait_for(path.exists, timeout)
        return path.read_text()

    def wait_for(self, condition: Callable[[], bool], timeout: float = 100) -> None:
        """Wait while it runs until something is so."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, f"it has ended:\n{self.stdout}\n{self.stderr}"
            assert time.monotonic() < deadline, f"it does not happen:\n{self.stdout}\n{self.stderr}"
            time.sleep(POLL)

    def wait_gone(self, timeout: float = 60) -> float:
        """Wait until no host has a process of its own left; returns the time."""
        return wait_gone(self.cluster, timeout)


class User:
    """Somebody with a home, profiles and the cluster's ssh configuration."""

    def __init__(self, cluster: Cluster, home: Path, *, light: bool = False) -> None:
        self.cluster = cluster
        self.home = home
        self.python = light_python(cluster.shared / "light") if light else sys.executable
        """The interpreter of the user's profiles; a light one has no torch but its torchrun."""
        self.started: list[Running] = []

    def profile(self, job: Mapping[str, Any], hosts: Sequence[Any] | None = None, **keys: Any) -> Path:
        """Write a profile: by default one process on each host of the cluster, with the user's interpreter."""
        data = {
            "disttui": 1,
            "name": "t",
            "hosts": list(hosts if hosts is not None else [host.name for host in self.cluster.hosts]),
            "num_processes": 1,
            "python": self.python,
            "job": dict(job),
            **keys,
        }
        return new_file(self.home / f"profile-{len(list(self.home.glob('profile-*')))}.yaml", yaml.safe_dump(data))

    def script(self, text: str, name: str = "job.py") -> Path:
        """Write a script that all hosts see."""
        return new_file(self.cluster.shared / name, text)

    def command(self, verb: str, *words: str | Path) -> list[str]:
        """The command line, with the cluster's ssh configuration."""
        return [COMMAND, *verb.split(), "--ssh-config", str(self.cluster.ssh_config), *map(str, words)]

    def environment(self, **more: str) -> dict[str, str]:
        """The environment that the command is typed in."""
        path = os.environ["PATH"]
        return {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", "TERM": "xterm", **more}

    def start(
        self, profile: Path, *options: str, merged: bool = False, env: Mapping[str, str] | None = None
    ) -> Running:
        """Type `disttui run`; with `merged`, both streams go to one place as on a terminal."""
        number = len(self.started)
        out = self.home / f"{number}.out"
        err = out if merged else self.home / f"{number}.err"
        with out.open("ab") as to_out, err.open("ab") as to_err:
            process = subprocess.Popen(
                self.command("run", *options, profile),
                stdin=subprocess.DEVNULL,
                stdout=to_out,
                stderr=to_err,
                env=self.environment(**(env or {})),
                cwd=self.home,
                start_new_session=True,
            )
        running = Running(self.cluster, process, out, err)
        self.started.append(running)
        return running

    def run(self, profile: Path, *options: str, code: int | None = 0, timeout: float = 120, **how: Any) -> Running:
        """Type it and wait for its end, and for the end of everything on the hosts; checks the exit code."""
        running = self.start(profile, *options, **how)
        ended = running.wait(timeout)
        assert code is None or ended == code, f"exit code {ended}:\n{running.stdout}\n{running.stderr}"
        running.wait_gone(10)
        return running

    def close(self) -> None:
        """End what a failed test has left running."""
        for running in self.started:
            if running.process.poll() is None:
                running.process.send_signal(signal.SIGKILL)
                running.process.wait()


class Viewer:
    """An attached viewer: `disttui attach`, its output in files."""

    def __init__(self, me: User, *words: str) -> None:
        self.out, self.err = me.home / f"{time.monotonic_ns()}.out", me.home / f"{time.monotonic_ns()}.err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                me.command("attach", *words), stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=me.home,
                env=me.environment(), start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509 - as without nohup
            )  # fmt: skip

    def wait_line(self, text: str, timeout: float = 60) -> None:
        """Wait while it runs until it has printed something."""
        deadline = time.monotonic() + timeout
        while text not in self.out.read_text():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def end(self, timeout: float = 60) -> int:
        """Wait for its end; returns the exit code."""
        try:
            return self.process.wait(timeout)
        finally:
            self.process.kill()

    def said(self) -> str:
        """Both its streams so far."""
        return f"{self.out.read_text()}\n{self.err.read_text()}"


def typed(me: User, verb: str, *words: str | Path, code: int = 0, timeout: float = 120) -> str:
    """Type a command where lists have room, check its exit code; returns both its streams."""
    done = ran(me.command(verb, *words), cwd=me.home, env={**me.environment(), "COLUMNS": "300"}, timeout=timeout)
    assert done.returncode == code, f"{verb}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def elsewhere(me: User) -> User:
    """The same person at another machine: an empty home, the same way to the hosts."""
    home = new_folder(me.home / "elsewhere")
    return User(me.cluster, home)


def wait_gone(cluster: Cluster, timeout: float = 60) -> float:
    """Wait until no host has a process left; returns the time, exact to 20 ms."""
    deadline = time.monotonic() + timeout
    while left := [one for host in cluster.hosts for one in host.processes()]:
        assert time.monotonic() < deadline, f"left: {left}"
        time.sleep(POLL)
    return time.time()
