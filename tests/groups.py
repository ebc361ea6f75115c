"""Control groups for tests of what the kernel does when memory runs out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_group() -> Iterator[Path]:
    """Make a control group with 100 MiB of memory; skips the test where we may not make one."""
    for place, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(place) / f"disttui-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(100 << 20))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        try:
            yield group
        finally:
            _remove(group)
        return
    pytest.skip("no control group can be made here")


def _remove(group: Path) -> None:
    deadline = time.monotonic() + 30
    while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    group.rmdir()
