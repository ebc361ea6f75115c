"""The recorded example run: two hosts, four ranks, one of them killed at step 249, and the attempt after that."""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from runner import private
from runner.errors import InputError
from runner.paths import inside
from runner.user.folders import user_folder

PACKED = Path(__file__).with_name("example.zip")


def unpacked(environ: Mapping[str, str]) -> Path:
    """The example's mirror, unpacked once into the user's cache. Raises InputError if that cannot be written."""
    data = PACKED.read_bytes()
    home = user_folder("cache", environ)
    folder = inside(home, f"example-{hashlib.sha256(data).hexdigest()[:12]}")
    if folder.is_dir():
        return folder
    try:
        private.make_folder(home)
        made = Path(tempfile.mkdtemp(dir=home))
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            packed.extractall(made)
        try:
            made.rename(folder)
        except OSError:
            # Another disttui has just unpacked it.
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise InputError(f"{home}: {error.strerror}", "Make room, or set XDG_CACHE_HOME elsewhere.") from None
    return folder
