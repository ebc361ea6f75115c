"""Writing a profile onto the disk, at once or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from runner import private
from runner.errors import InputError
from runner.profile.leaks import refuse
from runner.profile.problems import printable


def save(text: str, path: Path, *, replace: bool) -> None:
    """Write a profile at once or not at all.

    Args:
        replace: Whether a file that is there may be replaced.

    Raises:
        InputError: It cannot be written, there is one already, or a value in it looks like a secret.
    """
    name = printable(str(path))
    refuse(text, str(path))
    if path.suffix not in (".yaml", ".yml"):
        raise InputError("a profile's file ends in .yaml", f"Write {printable(path.name)}.yaml.", place=name)
    # A link stays a link: what it leads to is replaced.
    target = Path(os.path.realpath(path))
    part = ""
    try:
        if target.exists() and not replace:
            raise InputError("there is a file already", "Give another name, or replace it.", place=name)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o664 & ~_umask()
        private.make_folder(target.parent, 0o775)
        descriptor, part = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(part).chmod(mode)
        Path(part).replace(target)
    except (OSError, ValueError) as error:
        with suppress(OSError):
            if part:
                Path(part).unlink()
        no_folder = isinstance(error, FileExistsError | NotADirectoryError)
        why = "a part of this path is no folder" if no_folder else getattr(error, "strerror", None) or str(error)
        raise InputError(why, "Choose another folder, or make this one writable.", place=name) from None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
