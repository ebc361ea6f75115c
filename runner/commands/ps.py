"""`disttui ps`: every run that is known here or on given hosts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from runner.cli.render.runs import render_runs
from runner.errors import DisttuiError, InputError
from runner.formatting import number
from runner.profile import parse_host
from runner.runs.find import known_runs
from runner.runs.history import KnownHost, KnownRun
from runner.runs.remote import reach_hosts
from runner.runs.summary import Summary, summaries
from runner.text import clean
from runner.transport import Connector

LIMIT = 3.0
"""Seconds that hosts may take to tell how their runs are."""

Place = tuple[str, str | None, int | None]
Connect = Callable[[str | None], Connector]
"""The way to hosts, by the ssh configuration of a run."""


def ps(
    hosts: Sequence[str], connect: Connect, environ: Mapping[str, str], *, local: bool, as_json: bool, run_dir: str
) -> tuple[str, list[str], int]:
    """The table of runs, what went wrong, and the exit code: 3 when one of `hosts` could not be asked.

    Args:
        hosts: Further hosts to ask for all their runs.
        local: Answer from what is here, without asking any host.
        run_dir: Where runs lie on `hosts`.

    Raises:
        InputError: No host is to be asked, and one is named.
    """
    if local and hosts:
        raise InputError("--local asks no host, and --host names one", "Leave out one of them.")
    runs, problems = known_runs(environ)
    rows = {run.run: {**run.summary(), "note": "sandbox" if run.sandbox else ""} for run in runs}
    if not local:
        open_runs = [run for run in runs if not (rows[run.run].get("ended") or run.sandbox or run.problem)]
        _refresh_all(open_runs, connect, rows)
    silent = _others(hosts, connect(None), run_dir, rows) if hosts else []
    problems += silent
    newest = sorted(rows.values(), key=lambda row: -(number(row.get("started")) or 0.0))
    return json.dumps(newest, indent=2) if as_json else render_runs(newest), problems, 3 if silent else 0


def refresh(runs: Sequence[KnownRun], connect: Connect) -> dict[str, str]:
    """Ask the hosts of runs how these are, and keep what they tell; run → why nothing is known anew."""
    rows: dict[str, dict[str, Any]] = {run.run: {"note": ""} for run in runs}
    _refresh_all(runs, connect, rows)
    return {run: str(row["note"]) for run, row in rows.items() if row["note"]}


def _refresh_all(runs: Sequence[KnownRun], connect: Connect, rows: dict[str, dict[str, Any]]) -> None:
    for config in dict.fromkeys(run.ssh_config for run in runs):
        _refresh([run for run in runs if run.ssh_config == config], connect(config), rows)


def _refresh(runs: Sequence[KnownRun], connector: Connector, rows: dict[str, dict[str, Any]]) -> None:
    """Ask all hosts of the runs at once; the word of node 0 counts, then that of the others."""
    told, failed = _ask(
        {_place(host): host for run in runs for host in run.hosts},
        {(_place(host), run.run_dir) for run in runs for host in run.hosts},
        connector,
    )
    for run in runs:
        answers = [
            summary
            for node, host in enumerate(run.hosts)
            for summary in told.get((_place(host), run.run_dir), ())
            if summary["run"] == run.run and summary.get("node_rank") == node
        ]
        if answers:
            seen, note = _unless_unseen(answers[0], [host.name for host in run.hosts if _place(host) in failed])
            run.note_seen(seen)
            rows[run.run].update(seen)
            rows[run.run]["name"] = run.name
            rows[run.run]["note"] = note or rows[run.run]["note"]
        elif _place(run.hosts[0]) in failed:
            rows[run.run]["note"] = f"not refreshed: {failed[_place(run.hosts[0])]}"
        else:
            rows[run.run].update(state="gone", note=f"{run.hosts[0].name} has no such run any more")


def _unless_unseen(seen: Summary, unreached: list[str]) -> tuple[Summary, str]:
    """A stop is over when the leader says so, which waits for all hosts, or when all hosts do; and a note."""
    if not unreached or seen.get("state") not in ("stopping", "stopped"):
        return seen, ""
    if seen.get("state") == "stopped" and seen.get("node_rank") == 0:
        return seen, ""
    open_ = {key: value for key, value in seen.items() if key != "ended"}
    return cast("Summary", {**open_, "state": "stopping"}), f"{', '.join(unreached)} not reached"


def _others(hosts: Sequence[str], connector: Connector, run_dir: str, rows: dict[str, dict[str, Any]]) -> list[str]:
    """Add the runs of further hosts; return which could not be asked."""
    parsed = [parse_host(text) for text in hosts]
    asked = [KnownHost(host.name, host.host, host.user, host.port) for host in parsed]
    places = {_place(host): host for host in asked}
    told, failed = _ask(places, {(place, run_dir) for place in places}, connector)
    for (place, _), answers in told.items():
        for summary in sorted(answers, key=lambda one: one.get("node_rank", 0)):
            rows.setdefault(summary["run"], {"note": f"on {places[place].name}", **summary})
            if "problem" in summary:
                rows[summary["run"]]["note"] = summary["problem"]
    return [f"{places[place].name}: {why}" for place, why in failed.items()]


def _ask(
    hosts: Mapping[Place, KnownHost], wanted: set[tuple[Place, str]], connector: Connector
) -> tuple[dict[tuple[Place, str], tuple[Summary, ...]], dict[Place, str]]:
    """Summaries by (place, run_dir), and why the others could not be had."""
    order = list(hosts)
    told, failed = {}, {}
    with reach_hosts({index: hosts[place] for index, place in enumerate(order)}, connector, LIMIT) as reached:
        failed = {order[index]: _short(error, hosts[order[index]]) for index, error in reached.errors.items()}
        futures = {
            (place, run_dir): reached.links[order.index(place)].submit("list", run_dir=run_dir)
            for place, run_dir in wanted
            if order.index(place) in reached.links
        }
        for (place, run_dir), future in futures.items():
            try:
                told[place, run_dir] = summaries(future.result(LIMIT))
            except DisttuiError as error:
                failed[place] = _short(error, hosts[place])
            except TimeoutError:
                failed[place] = f"no answer in {LIMIT:.0f} s"
    return told, failed


def _place(host: KnownHost) -> Place:
    return host.host, host.user, host.port


def _short(error: DisttuiError, host: KnownHost) -> str:
    return clean(error.reason.split("\n")[0])
