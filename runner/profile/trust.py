"""Who can write a profile: one that other users can change is not run without asking."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from disttui.runner.profile.library import OWN, library_of
from disttui.runner.profile.problems import printable


def doubt(path: Path, status: os.stat_result) -> str:
    """Why a profile may be another user's; empty where it is the user's own, root's or the team's.

    Being writable by a group is not a reason: the group's administrator decides who is in it. In a library
    of the team, files belong to the colleague who saved them.

    Args:
        status: Of the file that was read.
    """
    if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IWOTH:
        return "every user of this machine can write it"
    if folder := _open_to_all(path):
        return f"every user of this machine can replace files in {printable(folder)}"
    found = library_of(path)
    if status.st_uid in _ourselves() or (found and found.name != OWN):  # in a folder that the user has named, or ours
        return ""
    return f"it belongs to {_name(status.st_uid)}"


def _open_to_all(path: Path) -> str:
    """A folder above the file in which every user may replace the files of others; empty: none."""
    for folder in _folders(path):
        try:
            mode = folder.stat().st_mode
        except OSError:
            continue
        # In a sticky folder such as /tmp a file can be replaced by its owner only.
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return str(folder)
    return ""


def _folders(path: Path) -> Iterator[Path]:
    """Every folder above the file, by its path as it was given and without symbolic links."""
    yield from dict.fromkeys((*path.absolute().parents, *Path(os.path.realpath(path)).parents))


def _ourselves() -> tuple[int, ...]:
    """Users whose files are trusted like one's own; under sudo also the user who called it."""
    caller = os.environ.get("SUDO_UID", "")
    also = (int(caller),) if os.geteuid() == 0 and caller.isdecimal() and len(caller) < 11 else ()
    return (0, os.geteuid(), *also)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
