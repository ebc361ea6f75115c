"""Builds paths from untrusted text, which must stay inside their folder."""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from disttui.runner.errors import InputError
from disttui.runner.text import clean

LONGEST = 1024
"""Most characters of all names together."""
DEEPEST = 32
"""Most parts of a path: folders and the file."""
_PART = 255
"""Most bytes of one name, as in file systems (NAME_MAX)."""


class PathError(InputError, ValueError):
    """A name that leads out of its folder, or is not a valid file name."""


def inside(folder: Path, *names: str) -> Path:
    """The path of `names` under `folder`; each is one name or several joined by `/`.

    All paths from text of a host, a run's files or a profile are built here. Links are resolved to check that the path
    stays inside.

    Raises:
        PathError: A name is absolute, empty, ".", "..", too long, has invalid characters, or leads out of the folder.
    """
    parts = [part for name in names for part in name.split("/")]
    if sum(map(len, parts)) > LONGEST or len(parts) > DEEPEST:
        raise _refused(folder, names, "is too long for a file name")
    if not parts or any(part in ("", ".", "..") or not _is_name(part) for part in parts):
        raise _refused(folder, names, "is not a valid file name")
    path = folder.joinpath(*parts)
    if not _has_link(folder, parts):
        return path
    try:
        leads = path.resolve(strict=True)  # without strict, Python 3.13 accepts a loop of links
    except (FileNotFoundError, NotADirectoryError):
        leads = path.resolve()
    except PermissionError:
        raise _refused(folder, names, "cannot be read: Permission denied") from None
    except (OSError, RuntimeError):  # a loop of links
        raise _refused(folder, names, "is a broken link") from None
    if not leads.is_relative_to(folder.resolve()):
        raise _refused(folder, names, "leads out of this folder")
    return path


def _has_link(folder: Path, parts: Sequence[str]) -> bool:
    """Whether a part below `folder` is a link, or cannot be looked at; costs far less than resolving the whole path."""
    at = str(folder)
    for part in parts:
        at = os.path.join(at, part)  # noqa: PTH118 - half the cost of Path
        try:
            if stat.S_ISLNK(os.lstat(at).st_mode):
                return True
        except FileNotFoundError:
            return False
        except OSError:
            return True
    return False


def typed(text: str) -> Path:
    """The path that a user typed, with `~` expanded. Raises InputError for the home of an unknown user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InputError(f"no such user: {clean(text.partition('/')[0].removeprefix('~'))}") from None


def expanded(text: str) -> Path:
    """A path with `~` expanded; unlike Path.expanduser, leaves the home of an unknown user unchanged."""
    return Path(os.path.expanduser(text))  # noqa: PTH111


def here() -> Path:
    """The current folder, or the home folder if the current one has been deleted."""
    try:
        return Path.cwd()
    except OSError:
        return Path.home()


def to_send(script: Path, within: Path | None = None) -> tuple[Path, str]:
    """What `job.sync` sends for a local script, and the script's path in it.

    The current folder (or `within`) if the script lies in it, since imports and data are written for it; else its own
    folder. Of the home folder, or one above it, only the script.
    """
    path, current, home = script.resolve(), (within or here()).resolve(), Path.home().resolve()
    folder = current if path.is_relative_to(current) and not home.is_relative_to(current) else path.parent
    return path if home.is_relative_to(folder) else folder, str(path.relative_to(folder))


def _is_name(part: str) -> bool:
    # Cc: control characters, including NUL; Cs: lone surrogates, which represent bytes that are not UTF-8.
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in part):
        return False
    return len(part.encode()) <= _PART


def _refused(folder: Path, names: tuple[str, ...], why: str) -> PathError:
    text = "/".join(names)
    shown = clean(repr(text[:100])) + ("…" if len(text) > 100 else "")
    return PathError(f"{clean(str(folder))}: {shown} {why}")
