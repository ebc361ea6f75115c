"""Run commands and functions with a time limit, without waiting for those that exceed it."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence

if TYPE_CHECKING:
    import subprocess


class Answer(NamedTuple):
    """A command's exit code and output. `code` is None when it was killed at one of its limits."""

    code: Optional[int]
    out: str
    err: str


def ask(argv: Sequence[str], limit: float, cwd: str = "/", env: Optional[Mapping[str, str]] = None) -> Answer:
    """Run a command in the folder `cwd`, for `limit` seconds and 4 MiB of output at most, in a session of its own.

    Its environment is `env`, or ours. A child that KILL does not end (a driver's uninterruptible sleep) is left behind
    rather than waited for, and so is a background process that keeps the output open after the command has ended.

    Raises:
        OSError: The command cannot be started.
    """
    import subprocess

    deadline = time.monotonic() + limit
    child = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=env,
        start_new_session=True,
    )
    assert child.stdout is not None and child.stderr is not None
    pipes = (child.stdout.fileno(), child.stderr.fileno())
    texts: Dict[int, bytearray] = {pipe: bytearray() for pipe in pipes}
    try:
        ended = _read(child, texts, deadline)
        if not ended:
            _kill(child)
        return Answer(child.returncode if ended else None, *(texts[pipe].decode("utf-8", "replace") for pipe in pipes))
    finally:
        child.stdout.close()
        child.stderr.close()


def _read(child: subprocess.Popen[bytes], texts: Dict[int, bytearray], deadline: float) -> bool:
    """Collect output; True when the child has ended, False when it must be killed."""
    with selectors.DefaultSelector() as selector:
        for pipe in texts:
            os.set_blocking(pipe, False)
            selector.register(pipe, selectors.EVENT_READ)
        while True:
            # Status and time are read before the output, so that all output before them is read.
            ended = child.poll() is not None
            left = deadline - time.monotonic()
            open_pipes = bool(selector.get_map())
            ready = selector.select(0 if ended else max(0, min(left, 0.05))) if open_pipes else []
            if ended and not ready:
                return True
            if not open_pipes:
                time.sleep(0.005)
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fd)
                texts[key.fd] += data
                if len(texts[key.fd]) > (4 << 20):
                    return False
            if left <= 0 and not ended:
                return False


def _kill(child: subprocess.Popen[bytes]) -> None:
    import subprocess

    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(0.3)
    except (OSError, subprocess.TimeoutExpired):
        pass


def together(tasks: Mapping[str, Callable[[], Any]], limit: float) -> Dict[str, Any]:
    """Run every task in a thread of its own and return the results by name.

    A task that raised has its exception as its result, one that did not end within `limit` seconds a TimeoutError; the
    thread of the latter (a dead NFS server, a silent DNS) is abandoned and does not keep the program from ending.
    """
    results: Dict[str, Any] = {}

    def run(name: str, task: Callable[[], Any]) -> None:
        try:
            results[name] = task()
        except Exception as error:
            results[name] = error

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in tasks.items()]
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = TimeoutError(f"no answer in {limit:g} s")
    return {name: results.get(name, late) for name in tasks}
