"""Control groups for tests of what the kernel does when memory runs out, and what to do where none can be made."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_HOARD = """
import os, pathlib
pathlib.Path("{group}/cgroup.procs").write_text(str(os.getpid()))
hoard = b"x" * (300 << 20)
"""
_PLAYED = r"""
import os, pathlib, re, signal, subprocess, tempfile
counters = pathlib.Path("/proc/vmstat").read_text()
moved = tempfile.NamedTemporaryFile("w", delete=False)
moved.write(re.sub(r"(?m)^oom_kill (\d+)$", lambda found: f"oom_kill {int(found[1]) + 1}", counters))
moved.close()
subprocess.run(["mount", "--bind", moved.name, "/proc/vmstat"], check=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def small_group() -> Iterator[Path]:
    """Make a control group with 100 MiB of memory; skips the test where we may not make one."""
    group = _make()
    if group is None:
        pytest.skip("no control group can be made here")
    try:
        yield group
    finally:
        _remove(group)


@contextmanager
def memory_killer(played: bool = False) -> Iterator[str]:
    """Yield Python that makes the kernel kill its process for memory, on a host of a test cluster.

    Where no control group can be made, or with `played`, it moves the host's counter of such kills on and kills itself:
    then everything but the kernel is real, and nothing needs to be skipped.
    """
    group = None if played else _make()
    print("the kernel kills" if group else "the kernel is played: no control group can be made or is wanted")
    try:
        yield _HOARD.format(group=group) if group else _PLAYED
    finally:
        if group:
            _remove(group)


def _make() -> Path | None:
    for place, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(place) / f"disttui-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(100 << 20))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        return group
    return None


def _remove(group: Path) -> None:
    deadline = time.monotonic() + 30
    while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    group.rmdir()
