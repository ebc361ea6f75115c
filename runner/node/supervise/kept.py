"""The shipped zips while a run lasts: launchers and ranks are started from them hours after they were verified."""

from __future__ import annotations

import errno
import os

from .. import folders, parcel


class Kept:
    """A zip as this process found it when it began."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._data = parcel.read(path)

    def restore(self) -> None:
        """Put it back where it was removed (a cleaner of /tmp) or is not the same any more. Raises OSError."""
        if self._data is None or parcel.read(self._path) == self._data:
            return
        folder = os.path.dirname(self._path)
        problem = folders.weakness(folder, make=True) or folders.foreign(folder)
        if problem:
            raise OSError(errno.EPERM, problem, self._path)
        parcel.place(self._path, self._data)
