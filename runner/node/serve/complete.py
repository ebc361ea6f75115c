"""Completes a path that a user types."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...protocol.requests import Completed


MOST = 100
"""Names in one answer."""
_LOOKED_AT = 5000


def complete(path: str, workdir: str) -> Completed:
    """Return the paths that begin with `path`, folders with a slash at their end. Raises OSError.

    Args:
        path: As typed; a relative one starts at `workdir`, whose `~` is this login's home.
    """
    typed_folder, name = os.path.split(path)
    folder = os.path.join(os.path.expanduser(workdir), os.path.expanduser(typed_folder))
    found = []
    with os.scandir(os.path.join(os.path.expanduser("~"), folder)) as entries:
        for entry in islice(entries, _LOOKED_AT):
            if entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith(".")):
                shown = os.path.join(typed_folder, entry.name)
                found.append((not entry.is_file(), shown + "/" if entry.is_dir() else shown))
    # Scripts before folders before the rest: the path is that of a script.
    found.sort(key=lambda one: (not one[1].endswith(".py"), one[0], one[1]))
    names = [name.encode("utf-8", "replace").decode() for _, name in found]
    return {"names": names[:MOST], "more": len(names) > MOST}
