"""Checks who can write a profile: one that other users can change is not run without confirmation."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from disttui.runner.profile.library import OWN, library_of
from disttui.runner.profile.problems import printable


def doubt(path: Path, status: os.stat_result) -> str:
    """Why another user may have written a profile; empty if it is this user's, root's or the team's.

    Being writable by a group is not a reason: the administrator decides who is in it. Files in a team library
    belong to the colleague who saved them.

    Args:
        status: Status of the file that was read.
    """
    if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IWOTH:
        return "every user of this machine can write it"
    if folder := _open_to_all(path):
        return f"every user of this machine can replace files in {printable(folder)}"
    found = library_of(path)
    if status.st_uid in _ourselves() or (found and found.name != OWN):  # team libraries and examples are trusted
        return ""
    return f"it belongs to {_name(status.st_uid)}"


def _open_to_all(path: Path) -> str:
    """The first parent folder in which every user can replace the files of others, or empty.

    Both of the path as given and with symbolic links resolved.
    """
    for folder in dict.fromkeys((*path.absolute().parents, *Path(os.path.realpath(path)).parents)):
        try:
            mode = folder.stat().st_mode
        except OSError:
            continue
        # In a sticky folder such as /tmp, only its owner can replace a file.
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return str(folder)
    return ""


def _ourselves() -> tuple[int, ...]:
    """Uids whose files are trusted: root, this user and, under sudo, the user who called it."""
    caller = os.environ.get("SUDO_UID", "")
    also = (int(caller),) if os.geteuid() == 0 and caller.isdecimal() and len(caller) < 11 else ()
    return (0, os.geteuid(), *also)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
