"""The folders for the temporary files of mpirun or its daemon: for this user alone, and gone with the launcher.

By itself Open MPI takes names that other users of the host know before, and could make first.
"""

from __future__ import annotations

import os
import stat
from typing import Dict, Optional

_SESSION = "OMPI_MCA_orte_tmpdir_base"
_SHARED = tuple("OMPI_MCA_%s_backing_directory" % part for part in ("btl_vader", "osc_sm", "osc_rdma"))
"""The settings for memory that ranks of one host share."""
_SHARED_MEMORY = "/dev/shm"
_LINKS = ("mpirun.tmp", "mpirun.shm")
"""The links in the attempt's folder to the two folders."""
_PREFIX = "disttui-mpi-"
_GATE = "gate"
WAIT = f'read -r DISTTUI_GATE < "$DISTTUI_DIR/{_LINKS[0]}/{_GATE}" || exit 1; '
"""What the shell above a rank does until the gate is open: it takes one line out of it."""


def make() -> Dict[str, str]:
    """Make them; returns the settings. Raises OSError.

    Not in the run's own folder, which may be on a file system that hosts share: ranks map these files.
    """
    made = {_SESSION: _make(_LINKS[0], os.environ.get(_SESSION))}
    shared = [name for name in _SHARED if name not in os.environ]
    if shared and os.access(_SHARED_MEMORY, os.W_OK):
        made.update(dict.fromkeys(shared, _make(_LINKS[1], _SHARED_MEMORY)))
    return made


def _make(link: str, parent: Optional[str]) -> str:
    import tempfile  # every supervisor imports this module, and few make such folders

    path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    try:
        os.symlink(path, os.path.join(os.environ["DISTTUI_DIR"], link))
    except OSError:
        os.rmdir(path)
        raise
    return path


def make_gate() -> int:
    """Make a gate for the ranks of this host, after the folders; returns its descriptor. Raises OSError.

    While we have that, who waits there waits; when we have ended, it is let go without a line.
    """
    path = os.path.join(os.environ["DISTTUI_DIR"], _LINKS[0], _GATE)
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def open_gate(gate: int, ranks: int) -> None:
    """Let them go, those that come later, too."""
    os.write(gate, b"\n" * ranks)


def remove(attempt_folder: str) -> None:
    """Remove what an attempt on this host has made; for its supervisor, too: the launcher may have been killed."""
    for link in _LINKS:
        _remove(os.path.join(attempt_folder, link))


def _remove(link: str) -> None:
    try:
        path = os.readlink(link)
        os.unlink(link)
        found = os.lstat(path)
    except OSError:
        return
    # The job's own code may have put another link there.
    if os.path.basename(path).startswith(_PREFIX) and stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
        import shutil

        shutil.rmtree(path, ignore_errors=True)
