"""The folders of the user's files: below `$XDG_…_HOME` if it is set, or else the system's default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from platformdirs import PlatformDirs

Kind = Literal["config", "data", "state", "cache"]


def user_folder(kind: Kind, environ: Mapping[str, str]) -> Path:
    """Return disttui's folder for one kind of file, without creating it.

    Linux: ~/.config, ~/.local/share, ~/.local/state, ~/.cache. macOS: ~/Library/Application Support, ~/Library/Caches.
    """
    given = Path(environ.get(f"XDG_{kind.upper()}_HOME", ""))
    # The XDG specification requires that a relative path is ignored.
    if given.is_absolute():
        return given / "disttui"
    folders = PlatformDirs("disttui", appauthor=False)
    if kind == "config":
        return folders.user_config_path
    if kind == "data":
        return folders.user_data_path
    return folders.user_state_path if kind == "state" else folders.user_cache_path
