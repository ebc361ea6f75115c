"""Keeps the shipped zips intact during a run: launchers and ranks start from them hours after the verification."""

from __future__ import annotations

import errno
import os

from .. import folders, parcel


class Kept:
    """A zip with the content that it had when this process began."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._data = parcel.read(path)

    def restore(self) -> None:
        """Write it again where it was removed (a cleaner of /tmp) or changed. Raises OSError."""
        if self._data is None or parcel.read(self._path) == self._data:
            return
        folder = os.path.dirname(self._path)
        problem = folders.weakness(folder, make=True) or folders.foreign(folder)
        if problem:
            raise OSError(errno.EPERM, problem, self._path)
        parcel.place(self._path, self._data)
