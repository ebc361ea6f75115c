"""The libraries of profiles: what is in them, and how they change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from runner.library.headers import Header, headers
from runner.profile.library import Library, LibraryEntry, libraries, library_named, profiles_in
from runner.runs.registry import known_runs


class LastRun(NamedTuple):
    """The newest run of a profile that is known here."""

    run: str
    state: str
    started: float


class LibraryProfile(NamedTuple):
    """A profile of a library, as a list shows it."""

    entry: LibraryEntry
    header: Header
    shadowed_by: str = ""
    """The full name of the profile that its bare name means; empty: itself."""
    last: LastRun | None = None

    @property
    def used(self) -> bool:
        """Whether its bare name means it."""
        return not self.shadowed_by and not self.entry.problem


class LibraryContent(NamedTuple):
    """A library and its profiles."""

    library: Library
    profiles: tuple[LibraryProfile, ...]
    problem: str = ""
    """Why nothing can be listed."""


def list_library(
    environ: Mapping[str, str] = os.environ, library: str | None = None, *, runs: bool = True
) -> list[LibraryContent]:
    """The profiles of all libraries in their order, or of one.

    Args:
        runs: Look up the last run of each.

    Raises:
        InputError: No library has this name, or the user's config cannot be used.
    """
    if library is not None:
        library_named(library, environ)
    last = _last_runs(environ) if runs else {}
    first: dict[str, str] = {}
    found = []
    for each in libraries(environ):
        profiles = []
        for entry, header in headers(each, profiles_in(each), environ):
            shadow = first.setdefault(entry.name, entry.full_name) if not entry.problem else ""
            shadow = "" if shadow == entry.full_name else shadow
            profiles.append(LibraryProfile(entry, header, shadow, last.get(os.path.realpath(entry.path))))
        if library in (None, each.name):
            found.append(LibraryContent(each, tuple(profiles), _missing(each)))
    return found


def _missing(library: Library) -> str:
    if library.folder.is_dir() or library.origin != "team":
        return ""
    cure = f": disttui library sync {library.name}" if library.url else ""
    return f"its folder is not there{cure}"


def _last_runs(environ: Mapping[str, str]) -> dict[str, LastRun]:
    """Path of a profile → its newest run."""
    found: dict[str, LastRun] = {}
    for run in known_runs(environ)[0]:
        if run.source and not run.adopted and (path := os.path.realpath(run.source)) not in found:
            found[path] = LastRun(run.run, str(run.summary().get("state") or "unknown"), run.started)
    return found
