"""The hosts that a user can name: those of a profile, of runs that are known here, or typed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.errors import InputError
from runner.profile import Host, load, parse_host
from runner.profile.library import find, list_profiles
from runner.runs.registry import known_runs


@dataclass(frozen=True)
class Destination:
    """A host, and the ssh configuration for it (None: the viewer's own)."""

    host: Host
    ssh_config: str | None = None

    @property
    def name(self) -> str:
        """The host's name as its profile gives it."""
        return self.host.name


def chosen(words: Sequence[str], profile: Path | None, environ: Mapping[str, str]) -> list[Destination]:
    """The hosts of a command line: names of hosts, or one profile; without words, those of `in_view`.

    Raises:
        InputError: A word is not a host, or the profile is invalid.
    """
    if profile is not None:
        return _of_profile(profile)
    if not words:
        return in_view(environ)
    if len(words) == 1 and words[0] != "local" and (path := _profile(words[0])) is not None:
        return _of_profile(path)
    known = {place.name: place for place in (*of_runs(environ), *_of_profiles())}
    named = {word: known.get(word) or Destination(parse_host(word)) for word in words}
    return list(named.values())


def in_view(environ: Mapping[str, str]) -> list[Destination]:
    """The hosts of all runs that are known here and of the user's and the team's profiles, and this machine."""
    places = {_way(place): place for place in (*of_runs(environ), *_of_profiles(), Destination(parse_host("local")))}
    return list(places.values())


def of_runs(environ: Mapping[str, str]) -> list[Destination]:
    """The hosts of all runs that are known here, of the newest first, without those of sandboxes, which are gone."""
    places: dict[tuple[object, ...], Destination] = {}
    for run in known_runs(environ)[0]:
        if not run.sandbox:
            for host in run.hosts:
                place = Destination(host.as_host(), run.ssh_config)
                places.setdefault(_way(place), place)
    return list(places.values())


def _of_profiles() -> list[Destination]:
    found = []
    for entry in list_profiles():
        if entry.origin != "built in":  # hosts of examples do not exist
            try:
                found += _of_profile(entry.path)
            except InputError:
                continue
    return found


def _of_profile(path: Path) -> list[Destination]:
    return list({_way(place): place for place in map(Destination, load(path).hosts)}.values())


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
