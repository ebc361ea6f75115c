"""Where this user's own files live: under `$XDG_…_HOME` where it is set, else where the system keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from platformdirs import PlatformDirs

Kind = Literal["config", "data", "state", "cache"]


def user_folder(kind: Kind, environ: Mapping[str, str]) -> Path:
    """disttui's folder for one kind of file; nothing is made.

    Linux: ~/.config, ~/.local/share, ~/.local/state, ~/.cache. macOS: ~/Library/Application Support, ~/Library/Caches.
    """
    given = Path(environ.get(f"XDG_{kind.upper()}_HOME", ""))
    # The specification of XDG wants a relative path to be ignored.
    if given.is_absolute():
        return given / "disttui"
    folders = PlatformDirs("disttui", appauthor=False)
    return {
        "config": folders.user_config_path,
        "data": folders.user_data_path,
        "state": folders.user_state_path,
        "cache": folders.user_cache_path,
    }[kind]
