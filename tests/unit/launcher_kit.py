"""A launcher of one host as its supervisor starts it, without the supervisor."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from disttui.runner.node.rank import mpi_world
from tests.kept import node_program
from tests.unit.waiting import wait_for


def plain() -> dict[str, str]:
    """The environment of the tests without variables of Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # before it is opened, or before it is read
        return False


_OPTIONS = (
    *("--nnodes", "1", "--nproc-per-node", "2", "--node-rank", "0", "--rdzv-backend", "static", "--max-restarts", "0"),
)


class Launch:
    """One launcher of a host, with two ranks."""

    def __init__(
        self,
        folder: Path,
        *job: str,
        part: str = "torchrun",
        options: Sequence[str] = _OPTIONS,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
        keep: tuple[int, ...] = (),
        preload: bool = False,
    ) -> None:
        self.attempt = folder / "attempt-1"
        self.attempt.mkdir()
        program = str(node_program())
        with (self.attempt / "launcher.log").open("wb") as log:
            self.process = subprocess.Popen(
                [python, "-u", program, part, *options, program, "shim", *job],
                cwd=folder, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                env={**plain(), "DISTTUI_DIR": str(self.attempt), "DISTTUI_RUN": folder.name, "DISTTUI_NODE": "0",
                     "DISTTUI_ATTEMPT": "1",
                     **({"DISTTUI_PRELOAD": "torch"} if preload else {"OMP_NUM_THREADS": "1"}),
                     **(env or {})}, pass_fds=keep,
            )  # fmt: skip

    def ready(self) -> None:
        wait_for(lambda: (self.attempt / "launcher.ready").exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log("launcher")

    def go(self, port: int | None = None, listener: int | None = None, **env: str) -> None:
        """Send the start line of torchrun."""
        args = ["--master-addr", "127.0.0.1", "--master-port", str(port or free_port()), "--rdzv-id", "test-1"]
        self.send(args, env, {} if listener is None else {"listener": listener})

    def send(self, args: Sequence[str], env: dict[str, str], more: dict[str, int] | None = None) -> None:
        """Send a start line, unless the launcher has already ended: `end` says why."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"args": args, "env": env, **(more or {})}).encode() + b"\n")
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def end(self) -> dict[str, Any]:
        """Wait for the end; launcher.json, whose code must be the exit code."""
        code = self.process.wait(200)
        said: dict[str, Any] = json.loads((self.attempt / "launcher.json").read_text())
        assert said["code"] == code, self.log("launcher")
        return said

    def log(self, name: str) -> str:
        return (self.attempt / f"{name}.log").read_text()

    def reports(self, kind: str) -> dict[int, dict[str, Any]]:
        path = self.attempt / "ranks.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return {r["rank"]: r for r in map(json.loads, lines) if r["e"] == kind}

    def close(self) -> None:
        """End what a failed test has left."""
        for pid in [r["pid"] for r in self.reports("start").values()]:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        mpi_world.remove_session(str(self.attempt))


def script(folder: Path, text: str) -> str:
    """Write the job's script."""
    (folder / "job.py").write_text(text)
    return "job.py"
