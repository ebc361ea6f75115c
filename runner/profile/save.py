"""Writing a profile onto the disk, at once or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner import private
from runner.errors import InputError
from runner.profile.leaks import refuse
from runner.profile.problems import printable

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
"""How a folder is opened."""


def save(text: str, path: Path, *, replace: bool, mode: int = 0o664) -> None:
    """Write a profile of the user's own at once or not at all; a link stays a link, what it leads to is replaced.

    Args:
        replace: Whether a file that is there may be replaced; it keeps its mode.
        mode: Of a new file, less what the umask takes away.

    Raises:
        InputError: It cannot be written, there is one already, or a value in it looks like a secret.
    """
    name = printable(str(path))
    refuse(text, str(path))
    if path.suffix not in (".yaml", ".yml"):
        raise InputError("a profile's file ends in .yaml", f"Write {printable(path.name)}.yaml.", place=name)
    with writing(path):
        target = Path(os.path.realpath(path))
        if target.exists() and not replace:
            raise InputError("there is a file already", "Give another name, or replace it.", place=name)
        private.make_folder(target.parent, 0o775)
        folder = os.open(target.parent, FOLDER)
        try:
            replace_in(folder, target.name, text, mode)
        finally:
            os.close(folder)


def replace_in(folder: int, name: str, text: str, mode: int = 0o664) -> None:
    """Write a file into an open folder, in place of whatever has its name there but a folder. Raises OSError."""
    mode &= ~_umask()
    with suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        mode = status.st_mode & 0o777 if stat.S_ISREG(status.st_mode) else mode
    part = f".{name[:100]}.{secrets.token_hex(8)}"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
        os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of writing a file into InputError."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:
        no_folder = isinstance(error, FileExistsError | NotADirectoryError)
        why = "a part of this path is no folder" if no_folder else getattr(error, "strerror", None) or str(error)
        cure = "Choose another folder, or make this one writable."
        raise InputError(why, cure, place=printable(str(path))) from None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
