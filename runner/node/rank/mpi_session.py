"""The folder for the temporary files of mpirun or its daemon: for this user alone, and gone with the launcher.

By itself Open MPI takes a name that other users of the host know before, and could make first.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile

VARIABLE = "OMPI_MCA_orte_tmpdir_base"
"""Where Open MPI makes its folders."""
_LINK = "mpirun.tmp"
_PREFIX = "disttui-mpi-"


def make() -> str:
    """Make it, below the folder that the environment names, with a link in the attempt's. Raises OSError.

    Not in the run's own folder, which may be on a file system that hosts share: ranks map these files.
    """
    path = tempfile.mkdtemp(prefix=_PREFIX, dir=os.environ.get(VARIABLE))
    try:
        os.symlink(path, os.path.join(os.environ["DISTTUI_DIR"], _LINK))
    except OSError:
        os.rmdir(path)
        raise
    return path


def remove(attempt_folder: str) -> None:
    """Remove what an attempt on this host has made; for its supervisor, too: the launcher may have been killed."""
    link = os.path.join(attempt_folder, _LINK)
    try:
        path = os.readlink(link)
        os.unlink(link)
        found = os.lstat(path)
    except OSError:
        return
    # The job's own code may have put another link there.
    if os.path.basename(path).startswith(_PREFIX) and stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
        shutil.rmtree(path, ignore_errors=True)
