"""Changes a key of the user's config, and keeps its comments and order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from runner.profile.edit import edit
from runner.profile.save import save
from runner.user_config import config_file, read_config


def change_config(environ: Mapping[str, str], changes: Mapping[str, object]) -> Path:
    """Write some keys into the config; return its path.

    Raises:
        InputError: It cannot be read or written.
    """
    path = config_file(environ)
    text, data = read_config(environ)
    if data:
        new = edit(text, {**data, **changes})
    else:
        new = text + "\n" * (text[-1:] not in ("", "\n")) + yaml.safe_dump(dict(changes), allow_unicode=True)
    save(new, path, replace=True)
    return path
