"""Whether the ranks of a host have saved anything: new files in the job's folder or in that of checkpoints."""

from __future__ import annotations

import os
import stat
import time

from ..host import HostPart

_DEEPEST = 3
"""Levels of folders that are searched below those two, such as `out/step-100/`."""
_PATIENCE = 0.3
"""Seconds that the search may take: the supervisor must send beats meanwhile, and the folder may hold a data set."""


def since(host: HostPart, when: float) -> bool:
    """Whether such a file was written since `when` (unix time); also True where the folder is too large to search."""
    deadline = time.monotonic() + _PATIENCE
    folders = [(host.checkpoints, _DEEPEST), (host.workdir, _DEEPEST)]
    while folders:
        folder, deeper = folders.pop(0)  # the nearest first
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if time.monotonic() > deadline or _is_new_file(entry, when):
                        return True
                    if deeper and _may_hold_checkpoints(entry, host):
                        folders.append((entry.path, deeper - 1))
        except OSError:
            continue
    return False


def _is_new_file(entry: "os.DirEntry[str]", when: float) -> bool:
    found = entry.stat(follow_symlinks=False)
    return stat.S_ISREG(found.st_mode) and found.st_size > 0 and found.st_mtime >= when


def _may_hold_checkpoints(entry: "os.DirEntry[str]", host: HostPart) -> bool:
    ours = entry.path == host.run_dir
    return entry.is_dir(follow_symlinks=False) and not entry.name.startswith((".", "__pycache__")) and not ours
