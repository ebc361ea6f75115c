"""The hosts that a user can name: those of a profile, those of runs known here, or typed ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from disttui.runner.errors import InputError
from disttui.runner.profile.consent import is_agreed, source_of
from disttui.runner.profile.library import find, list_profiles
from disttui.runner.profile.load import parse
from disttui.runner.profile.nodes import read
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Host, parse_host
from disttui.runner.profile.trust import doubt
from disttui.runner.runs.registry import known_runs


@dataclass(frozen=True)
class Destination:
    """A host, and the ssh configuration for it (None: the viewer's own)."""

    host: Host
    ssh_config: str | None = None
    named: bool = True
    """Whether the user has named it or has a run there; False: only a profile names it, and it may not exist."""

    @property
    def name(self) -> str:
        """The host's name in its profile."""
        return self.host.name


def chosen(words: Sequence[str], profile: Path | None, environ: Mapping[str, str]) -> list[Destination]:
    """The hosts of a command line: names of hosts, or one profile; without words, those of `in_view`.

    Raises:
        InputError: A word is not a host, or the profile is invalid.
    """
    if profile is not None:
        return _of_profile(profile, environ)
    if not words:
        return in_view(environ)
    if len(words) == 1 and words[0] != "local" and (path := _profile(words[0])) is not None:
        return _of_profile(path, environ)
    known = {place.name: place for place in (*of_runs(environ), *_of_profiles(environ))}
    named = {word: known.get(word) or Destination(parse_host(word)) for word in words}
    return list(named.values())


def in_view(environ: Mapping[str, str]) -> list[Destination]:
    """The hosts of all runs known here and of the user's and the team's profiles, and this machine."""
    local = Destination(parse_host("local"))
    unsure = (replace(place, named=False) for place in _of_profiles(environ))
    places = {_way(place): place for place in (*unsure, *of_runs(environ), local)}
    return list(places.values())


def of_runs(environ: Mapping[str, str]) -> list[Destination]:
    """The hosts of all runs known here, newest first, without those of sandboxes, which no longer exist."""
    places: dict[tuple[object, ...], Destination] = {}
    for run in known_runs(environ)[0]:
        if not run.sandbox:
            for host in run.hosts:
                place = Destination(host.as_host(), run.ssh_config)
                places.setdefault(_way(place), place)
    return list(places.values())


def _of_profiles(environ: Mapping[str, str]) -> list[Destination]:
    found = []
    for entry in list_profiles():
        if entry.origin != "built in":  # hosts of examples do not exist
            try:
                found += _of_profile(entry.path, environ)
            except InputError:
                continue
    return found


def _of_profile(path: Path, environ: Mapping[str, str]) -> list[Destination]:
    """The hosts of a profile; if it awaits the user's consent, without their interpreters, which would be run there."""
    source = read(path)
    profile = parse(source.text, path, status=source.status)
    files = [(path, source.status), *((Path(each.path), each.status) for each in profile.read_from)]
    hosts = profile.hosts
    if any(host.python for host in hosts) and _awaits_yes(path, profile, files, environ):
        hosts = tuple(host.model_copy(update={"python": None}) for host in hosts)
    return list({_way(place): place for place in map(Destination, hosts)}.values())


def _awaits_yes(
    path: Path, profile: Profile, files: Sequence[tuple[Path, os.stat_result]], environ: Mapping[str, str]
) -> bool:
    """Whether starting this profile would ask for consent: others may have written one of its files."""
    if any(doubt(*each) for each in files):
        return True
    return any(source_of(file, environ) for file, _ in files) and not is_agreed(path, profile, environ)


def _profile(word: str) -> Path | None:
    try:
        path = find(word)
    except InputError:
        if word.endswith((".yaml", ".yml")):
            raise
        return None
    return path if path.is_file() else None


def _way(place: Destination) -> tuple[object, ...]:
    return place.host.host, place.host.user, place.host.port
