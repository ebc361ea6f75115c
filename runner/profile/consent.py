"""The version of each team library profile that this user last agreed to run, kept to show later changes."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from disttui.runner import private
from disttui.runner.paths import inside
from disttui.runner.profile.library import Library, library_of
from disttui.runner.profile.load import parse
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.profile.save import render
from disttui.runner.profile.schema import Profile
from disttui.runner.untrusted.records import json_object
from disttui.runner.user.folders import user_folder

_LARGEST = 8 * 1024 * 1024
"""Bytes of a record: fits a profile of 1 MiB as JSON text."""


class Agreed(NamedTuple):
    """A profile that the user agreed to, and when (Unix time)."""

    profile: Profile
    when: float


def source_of(path: Path, environ: Mapping[str, str] = os.environ) -> Library | None:
    """The team library that a profile comes from, or None for the user's own files."""
    # Checked without resolving links as well: the path may have become a link out of the library after the read.
    found = (library_of(path, environ), library_of(path, environ, as_given=True))
    return next((library for library in found if library and library.origin == "team"), None)


def _kept(path: Path, environ: Mapping[str, str]) -> Mapping[str, object]:
    """The stored record of a profile, or empty or it cannot be read."""
    try:
        with _record(path, environ).open("rb") as file:
            return json_object(file.read(_LARGEST)) or {}
    except OSError:
        return {}


def last_agreed(path: Path, environ: Mapping[str, str]) -> Agreed | None:
    """The version that this user agreed to last, or None without one, or if its record cannot be read."""
    data = _kept(path, environ)
    text, when = data.get("text"), data.get("agreed")
    if not isinstance(text, str) or not isinstance(when, int | float):
        return None
    try:
        return Agreed(parse(text, str(path)), float(when))
    except ProfileErrors:
        return None


def is_agreed(path: Path, profile: Profile, environ: Mapping[str, str]) -> bool:
    """Whether the user agreed to exactly this version of a profile."""
    return _kept(path, environ).get("sha256") == _digest(profile)


def agree(path: Path, profile: Profile, environ: Mapping[str, str]) -> None:
    """Record that the user agreed to a profile; if that fails, the user is asked again next time."""
    record = _record(path, environ)
    text = render(profile.as_written())
    data = {"disttui": 1, "path": str(path), "sha256": _digest(profile), "agreed": time.time(), "text": text}
    with suppress(OSError):
        private.make_folder(record.parent)
        private.replace(record, json.dumps(data))


def _digest(profile: Profile) -> str:
    return hashlib.sha256(json.dumps(profile.as_written(), sort_keys=True).encode()).hexdigest()


def _record(path: Path, environ: Mapping[str, str]) -> Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return inside(user_folder("state", environ) / "agreed", f"{name}.json")
