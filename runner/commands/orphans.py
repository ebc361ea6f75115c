"""`disttui orphans`: what ended runs have left behind on hosts, and its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.cli.render.orphans import render_orphans
from runner.errors import DisttuiError, HostError
from runner.hosts.survey import open_link, side_by_side
from runner.runs.find import known_runs
from runner.runs.places import Place, chosen, of_runs
from runner.transport import Connector

PATIENCE = 60.0
"""Seconds that a host may take to look, and to end what it finds."""


def orphans(
    hosts: Sequence[str],
    connect: Callable[[str | None], Connector],
    environ: Mapping[str, str],
    *,
    end: bool = False,
    run: str = "",
    as_json: bool = False,
) -> tuple[str, list[str], int]:
    """The table of orphans, what went wrong, and the exit code: 1 when something could not be ended.

    Args:
        hosts: Where to look; none: on the hosts of all runs that are known here, or on this machine.
        connect: The way to hosts by the ssh configuration that leads to them.
        run: Of this run only.

    Raises:
        InputError: A host is none.
        HostError: No host can be asked.
    """
    places = chosen(hosts, None, environ) if hosts else of_runs(environ) or chosen(["local"], None, environ)
    asked = {"end": end, "run": run, "run_dirs": sorted({known.run_dir for known in known_runs(environ)[0]})}
    answers = side_by_side(lambda place: _ask(place, connect, asked), places)
    found = {place.name: answer for place, answer in zip(places, answers, strict=True) if isinstance(answer, list)}
    problems = [answer for answer in answers if isinstance(answer, DisttuiError)]
    if not found:
        raise problems[0]
    left = end and any(not one.get("ended") for ones in found.values() for one in ones)
    code = 1 if left else 3 if problems else 0
    if as_json:
        errors = {error.host: error.sentence for error in problems if isinstance(error, HostError)}
        return json.dumps({"hosts": found, "errors": errors}, indent=2), [], code
    return render_orphans(found, end=end, unasked=len(problems)), [error.sentence for error in problems], code


def _ask(
    place: Place, connect: Callable[[str | None], Connector], asked: Mapping[str, Any]
) -> list[dict[str, Any]] | DisttuiError:
    try:
        link = open_link(place.host, connect(place.ssh_config))
        try:
            told = link.request("orphans", timeout=PATIENCE, **asked).get("found")
        finally:
            link.close()
    except DisttuiError as error:
        return error
    return [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []
