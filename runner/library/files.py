"""The files of a library by their names in it; no link that somebody else puts there meanwhile is followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner import private
from runner.errors import InputError
from runner.library.git import LARGEST
from runner.paths import PathError
from runner.profile.library import OWN, Library, path_in
from runner.profile.save import FOLDER, replace_in, writing
from runner.text import clean


def text_in(library: Library, name: str) -> str | None:
    """The text of a file of a library; None where there is none. Raises InputError where it cannot be read."""
    path = path_in(library, name)
    try:
        with _folder_of(library, path, follow=True) as (folder, last):
            return _text(last, path, folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from None


def text_of(path: Path) -> str | None:
    """The text of a file of the user's; None where there is none. Raises InputError where it cannot be read."""
    try:
        return _text(str(path), path, None)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from None


def put(library: Library, name: str, text: str | None) -> None:
    """Write a file of a library at once or not at all; None removes it. Raises InputError."""
    path = path_in(library, name)
    with writing(path):
        if text is None:
            with suppress(FileNotFoundError), _folder_of(library, path, follow=False) as (folder, last):
                os.unlink(last, dir_fd=folder)
        else:
            with _folder_of(library, path, follow=True, make=True) as (folder, last):
                replace_in(folder, last, text)


@contextmanager
def _folder_of(library: Library, path: Path, *, follow: bool, make: bool = False) -> Iterator[tuple[int, str]]:
    """The folder that a file lies in, opened, and the file's name there. Raises OSError, PathError.

    Args:
        follow: Whether a link with the file's name is followed, as far as it leads to a file of the library.
        make: Make the folders that are missing.
    """
    # Links are resolved here, and from now on there are none: one that is met was put there meanwhile.
    target = Path(os.path.realpath(path)) if follow else Path(os.path.realpath(path.parent), path.name)
    root = target.parent if library.origin == OWN else Path(os.path.realpath(library.folder))
    if root not in target.parents:
        raise PathError("this leads out of the library", place=clean(str(path)))
    if make:
        private.make_folder(root, 0o775)
    *folders, last = target.relative_to(root).parts
    opened = os.open(root, FOLDER)
    try:
        for each in folders:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(each, 0o775, dir_fd=opened)
            inner = os.open(each, FOLDER | os.O_NOFOLLOW, dir_fd=opened)
            os.close(opened)
            opened = inner
        yield opened, last
    finally:
        os.close(opened)


def _text(name: str, path: Path, folder: int | None) -> str:
    content, _ = private.read(name, LARGEST + 1, folder=folder)
    if len(content) > LARGEST:
        raise InputError(f"larger than {LARGEST >> 20} MiB, which no profile is", place=clean(str(path)))
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InputError("no UTF-8 text", "Save it as UTF-8.", place=clean(str(path))) from None


def _unreadable(path: Path, error: OSError) -> InputError:
    special = isinstance(error, private.NoRegularFileError)
    return InputError(str(error.strerror) if special else f"cannot be read: {error.strerror}", place=clean(str(path)))
