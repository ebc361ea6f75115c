"""Folders in which only this user and root can replace an entry.

A path is safe if every folder above it belongs to root or this user and no other user can write to it. In a folder that
everyone may write to (/tmp), the sticky bit protects each owner's entries. sshd checks authorized_keys the same way.
Others cannot change a path that has passed this check: from then on names are as good as descriptors.

The loader runs this file before the node program is available, so it imports nothing of ours.
"""

import errno
import os
import stat
import struct
import sys
from typing import List

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NAMED_USER, _NAMED_GROUP, _WRITE = 2, 8, 2
"""Values in an access control list entry (linux/posix_acl_xattr.h)."""


def weakness(path: str, make: bool = False) -> str:
    """Describe what would let another user replace `path` or a folder above it; "" if nothing does.

    Args:
        path: An absolute path.
        make: Create missing levels with mode 0700. Levels below a weak folder are neither created nor checked.

    Raises:
        OSError: A level is missing and must not be created, cannot be created, or is not a folder.
    """
    at, todo, links = os.sep, _names(path), 0
    found = _weakness_of(at, os.lstat(at))
    while todo and not found:
        step = os.path.normpath(os.path.join(at, todo.pop()))
        seen = _look(step, make)
        if stat.S_ISLNK(seen.st_mode):
            links += 1
            if links > 40:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), step)
            target = os.readlink(step)
            at = os.sep if target.startswith(os.sep) else at
            todo += _names(target)
        elif not stat.S_ISDIR(seen.st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), step)
        else:
            at = step
        found = _weakness_of(step, seen)
    return found


def foreign(path: str) -> str:
    """Explain why a folder is not this user's alone; "" if it is. Raises OSError if it does not exist."""
    seen = os.lstat(path)
    if not stat.S_ISDIR(seen.st_mode):
        return "%s is not a folder" % path
    if seen.st_uid != os.getuid():
        return "%s belongs to %s" % (path, user_name(seen.st_uid))
    if seen.st_mode & 0o077:
        return "%s is open to other users (mode %04o)" % (path, stat.S_IMODE(seen.st_mode))
    return ""


def user_name(uid: int) -> str:
    """A user's name, or `uid 1234` if it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        return "uid %d" % uid


def _names(path: str) -> List[str]:
    return [name for name in reversed(path.split(os.sep)) if name not in ("", ".")]


def _look(path: str, make: bool) -> os.stat_result:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # a umask may have taken away even our own rights
    except FileExistsError:
        pass  # another process was faster; its folder is checked below
    return os.lstat(path)


def _weakness_of(path: str, seen: os.stat_result) -> str:
    if seen.st_uid not in (0, os.getuid(), _nobody()):
        return "%s belongs to %s" % (path, user_name(seen.st_uid))
    mode = seen.st_mode
    if stat.S_ISLNK(mode) or mode & stat.S_ISVTX or not mode & _OTHERS_WRITE:
        return ""
    if mode & stat.S_IWOTH:
        return "every user can write to %s, which is not sticky" % path
    if not _is_ours(seen.st_gid):
        return "the group %s can write to %s" % (_group_name(seen.st_gid), path)
    return "an access control list lets others write to %s" % path if _is_shared_by_list(path) else ""


def _is_ours(gid: int) -> bool:
    """Whether a group has no other members: root's, or the per-user group that many systems create."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except (KeyError, OSError):
        return gid == 0
    alone = set(group.gr_mem) <= {user.pw_name}
    return gid == 0 or (alone and gid == user.pw_gid and group.gr_name == user.pw_name)


def _is_shared_by_list(path: str) -> bool:
    """Whether a folder's access control list (acl(5)) grants write access to other users or groups."""
    if not hasattr(os, "getxattr"):
        return False
    try:
        entries = os.getxattr(path, "system.posix_acl_access")[4:]
    except OSError:
        return False  # it has none
    for kind, rights, who in struct.iter_unpack("<HHI", entries):
        if rights & _WRITE and (kind == _NAMED_GROUP or (kind == _NAMED_USER and who not in (0, os.getuid()))):
            return True
    return False


def _group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except (KeyError, OSError):
        return "%d" % gid


def _nobody() -> int:
    """The uid that owns system folders in a user namespace without root (Apptainer); otherwise root's."""
    if sys.platform != "linux":
        return 0
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            if any(line.split()[1] == "0" for line in file):
                return 0
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError, IndexError):
        return 0
