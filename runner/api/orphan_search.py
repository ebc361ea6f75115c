"""What ended runs have left behind on hosts, and its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.api.viewer import Viewer
from runner.errors import DisttuiError
from runner.hosts.survey import side_by_side
from runner.runs.places import Destination, chosen, of_runs
from runner.runs.registry import known_runs

PATIENCE = 60.0
"""Seconds that a host may take to look, and to end what it finds."""


@dataclass(frozen=True)
class Orphans:
    """What hosts have answered."""

    found: Mapping[str, Sequence[Mapping[str, Any]]]
    """Host → its orphans (docs/formats.md, op `orphans`)."""
    problems: tuple[DisttuiError, ...]
    """Why the other hosts could not be asked."""

    @property
    def left(self) -> bool:
        """Whether an orphan lives."""
        return any(not one.get("ended") for ones in self.found.values() for one in ones)


def orphans(viewer: Viewer, hosts: Sequence[str] = (), *, end: bool = False, run: str = "") -> Orphans:
    """Find the processes, ports and GPU memory that ended runs have left.

    Args:
        hosts: Where to look; none: on the hosts of all runs that are known here, or on this machine.
        end: End them.
        run: Of this run only.

    Raises:
        InputError: A host is none.
        HostError: No host can be asked.
    """
    environ = viewer.environ
    places = chosen(hosts, None, environ) if hosts else of_runs(environ) or chosen(["local"], None, environ)
    asked = {"end": end, "run": run, "run_dirs": sorted({known.run_dir for known in known_runs(environ)[0]})}
    answers = side_by_side(lambda place: _ask(viewer, place, asked), places)
    found = {place.name: answer for place, answer in zip(places, answers, strict=True) if isinstance(answer, list)}
    problems = tuple(answer for answer in answers if isinstance(answer, DisttuiError))
    if not found:
        raise problems[0]
    return Orphans(found, problems)


def _ask(viewer: Viewer, place: Destination, asked: Mapping[str, Any]) -> list[dict[str, Any]] | DisttuiError:
    try:
        link = viewer.open_link(place.host, place.ssh_config)
        try:
            told = link.request("orphans", timeout=PATIENCE, **asked).get("found")
        finally:
            link.close()
    except DisttuiError as error:
        return error
    return [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
