"""Changes the user's config, and keeps its comments and order."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from runner import private
from runner.errors import InputError
from runner.profile.edit import edit
from runner.profile.load import plain
from runner.profile.nodes import compose
from runner.profile.problems import ProfileErrors, ProfileProblem, printable
from runner.profile.render import render
from runner.profile.save import save
from runner.user.config import config_file, read_config

_PATIENCE = 60.0
"""Seconds for which another process may change it."""
_NOTHING = re.compile(r"^(?:---[ \t]+)?[ \t]*(?:~|null|Null|NULL)[ \t]*\n?", re.MULTILINE)
"""The word of a config that holds nothing else, to which no key can be added."""
Change = Callable[[Mapping[str, object]], Mapping[str, object]]
"""What the config holds, as `plain` has it → the keys that are to be written, each with its new value."""


def change_config(environ: Mapping[str, str], change: Change) -> Path:
    """Write some keys into the config; return its path. Of several processes one after the other does so.

    Raises:
        InputError: It cannot be read or written.
    """
    path = config_file(environ)
    with _locked(path.parent):
        text, before = read_config(environ)
        problems: list[ProfileProblem] = []
        root = compose(text, str(path), problems)
        if problems:
            raise ProfileErrors(problems)
        data = plain(root) if root else {}
        changes = change(data)
        if root:
            new = edit(text, {**data, **changes})
        else:
            text = _NOTHING.sub("", text, count=1)
            new = text + "\n" * (text[-1:] not in ("", "\n")) + render(changes)
        if not _keeps(before, new, changes):
            cure = f"Write it there by hand: {render(changes).strip()}"
            raise InputError("this cannot be changed without its other keys", cure, place=printable(str(path)))
        # Others who could write it could allow themselves commands.
        save(new, path, replace=True, mode=0o600)
    return path


def _keeps(before: Mapping[str, object], new: str, changes: Mapping[str, object]) -> bool:
    """Whether a new text says the same of all other keys, as the config is read."""
    try:
        after = yaml.safe_load(new)
    except yaml.YAMLError:
        return False
    old, kept = ({key: each[key] for key in each if key not in changes} for each in (before, after))
    return old == kept


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a file beside the config; where its file system has no locks, go on without.

    Other users can read the folder, and could hold a lock of it for ever.
    """
    try:
        private.make_folder(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(folder / ".config.lock", flags, 0o600)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", place=printable(str(folder))) from None
    try:
        locked = True
        with suppress(OSError):
            locked = private.lock(descriptor, _PATIENCE)
        if not locked:
            raise InputError("another disttui changes the config", "Try again.", place=printable(str(folder)))
        yield
    finally:
        os.close(descriptor)
