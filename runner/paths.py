"""Paths that are made of text which others wrote: inside their folder, or none at all."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from runner.errors import InputError
from runner.text import clean

LONGEST = 1024
"""Characters of all names together."""
DEEPEST = 32
"""Folders and the file."""
_PART = 255
"""Bytes of one name: what file systems allow."""


class PathError(InputError, ValueError):
    """A name that leads out of its folder, or is no name of a file."""


def inside(folder: Path, *names: str) -> Path:
    """The path of what `names` call under `folder`; each is a file's or folder's name, or several with `/` between.

    Every path that is made of text from a host, a run's files or a profile comes from here. Links are followed to see
    where the path really leads.

    Raises:
        PathError: A name is absolute, empty, ".", "..", too long, holds what no name holds, or it leads out.
    """
    parts = [part for name in names for part in name.split("/")]
    if sum(map(len, parts)) > LONGEST or len(parts) > DEEPEST:
        raise _refused(folder, names, "is too long for the name of a file")
    if not parts or any(part in ("", ".", "..") or not _is_name(part) for part in parts):
        raise _refused(folder, names, "is no name of a file")
    path = folder.joinpath(*parts)
    try:
        leads = path.resolve()
    except (OSError, RuntimeError):  # a loop of links
        raise _refused(folder, names, "leads nowhere") from None
    if not leads.is_relative_to(folder.resolve()):
        raise _refused(folder, names, "leads out of this folder")
    return path


def _is_name(part: str) -> bool:
    # Cc: controls, NUL among them; Cs: lone surrogates, which stand for bytes that are no UTF-8.
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in part):
        return False
    return len(part.encode()) <= _PART


def _refused(folder: Path, names: tuple[str, ...], why: str) -> PathError:
    text = "/".join(names)
    shown = clean(repr(text[:100])) + ("…" if len(text) > 100 else "")
    return PathError(f"{clean(str(folder))}: {shown} {why}")
