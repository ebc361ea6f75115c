"""The node program as it lies on a host that has been reached before: compiled, which takes 0.15 s of CPU time."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from unittest.mock import patch

from disttui.runner.hosts.link import Link
from disttui.runner.hosts.ship import node_parcel
from disttui.runner.transport.local import LocalConnection

_CACHE = ".cache/disttui"


def node_program() -> Path:
    """The node program's zip, where it was compiled: by this path it knows which frames of a stack are its own."""
    return _home() / _CACHE / Path(node_parcel().remote_path).name


def has_been_reached(home: Path) -> Path:
    """Let what is kept on a host lie in its home already."""
    shutil.copytree(_home() / _CACHE, home / _CACHE, copy_function=shutil.copy)
    (home / _CACHE).chmod(0o700)
    return home


@cache
def _home() -> Path:
    """The home of a host that has been reached."""
    home = Path(tempfile.mkdtemp(prefix="disttui-kept-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    with patch.dict(os.environ, {"HOME": str(home)}):
        link = Link(LocalConnection("kept"), "kept", sys.executable)
        link.request("list", run_dir="~")  # the first answer comes when the node program is in place
        link.close()
    return home
