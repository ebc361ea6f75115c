"""A second user of a host, as a process that takes names and ports (neighbour.py)."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

UID = 65534
PROGRAM = Path(__file__).with_name("neighbour.py")
_CLONE_NEWNET = 0x40000000
Enter = Callable[[Sequence[str]], Sequence[str]]


def here(words: Sequence[str]) -> Sequence[str]:
    """The command that runs these words on this machine."""
    return words


@contextlib.contextmanager
def squatting(
    *names: str, ports: tuple[int, int] | None = None, seed: int | None = None, enter: Enter = here
) -> Iterator[subprocess.Popen[str]]:
    """Have user 65534 hold abstract names, all that it can see and those given, and ports while the block runs."""
    assert os.getuid() == 0, "only root can act as another user"
    given = json.dumps({"names": names, "ports": ports, "seed": seed})
    words = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups",
             "/usr/bin/python3", "-c", PROGRAM.read_text(), given]  # fmt: skip
    with subprocess.Popen(enter(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        assert process.stdin and process.stdout
        try:
            assert process.stdout.readline() == "there\n", "the neighbour did not come"
            yield process
            assert process.poll() is None, "the neighbour left early"
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait(30)


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """Have this thread, and what it starts, live in a network of its own: names and ports there are nobody else's."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as before:
        assert libc.unshare(_CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            assert libc.setns(before.fileno(), _CLONE_NEWNET) == 0
