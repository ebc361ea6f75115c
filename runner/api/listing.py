"""The runs that are known here or on given hosts, with their states."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, cast

from runner.api.viewer import Viewer
from runner.errors import DisttuiError
from runner.formatting import number
from runner.profile import Host, parse_host
from runner.protocol.names import RUN_DIR
from runner.runs.registry import KnownHost, KnownRun, known_runs
from runner.runs.remote import missing, reach_hosts
from runner.runs.summary import Summary, summaries
from runner.text import clean
from runner.transport import Connector

LIMIT = 3.0
"""Seconds that hosts may take to answer somebody who waits for it."""
PATIENCE = 15.0
"""Seconds that they may take where nobody waits."""

Place = tuple[str, str | None, int | None]


class RunStatus(Summary, total=False):
    """A run with its last known state."""

    note: str
    """A note about that state."""


class Listing(NamedTuple):
    """Runs, the newest first."""

    rows: list[RunStatus]
    problems: list[str]
    """Problems of runs whose records here could not be read."""
    silent: list[str]
    """The named hosts that could not be asked, and why."""


def list_runs(
    viewer: Viewer,
    hosts: Sequence[str] = (),
    *,
    local: bool = False,
    run_dir: str = RUN_DIR,
    at: Collection[Place] | None = None,
) -> Listing:
    """List the runs that are known here, with the states that their hosts report.

    Args:
        hosts: Further hosts, to be asked for all their runs.
        local: Use the local records, without asking the hosts of known runs.
        run_dir: The folder of runs on `hosts`.
        at: Of the known runs, list those with a host at one of these; None: all.

    Raises:
        InputError: A name is not a host.
    """
    runs, problems = known_runs(viewer.environ)
    if at is not None:
        runs = [run for run in runs if not {place_of_host(host) for host in run.hosts}.isdisjoint(at)]
    rows = {run.run: {**run.summary(), "note": "sandbox" if run.sandbox else ""} for run in runs}
    if not local:
        open_runs = [run for run in runs if not (rows[run.run].get("ended") or run.gone or run.problem)]
        _refresh_all(viewer, open_runs, rows, LIMIT)
    silent = _others(hosts, viewer.connector(), run_dir, rows) if hosts else []
    newest = sorted(rows.values(), key=lambda row: -(number(row.get("started")) or 0.0))
    return Listing(cast("list[RunStatus]", newest), problems, silent)


def refresh(viewer: Viewer, runs: Sequence[KnownRun]) -> dict[str, str]:
    """Ask the hosts of runs for summaries, with patience, and store them; run → why there is no new one."""
    rows: dict[str, dict[str, object]] = {run.run: {"note": ""} for run in runs}
    _refresh_all(viewer, runs, rows, PATIENCE)
    return {run: str(row["note"]) for run, row in rows.items() if row["note"]}


def statuses(viewer: Viewer, runs: Sequence[KnownRun]) -> dict[str, RunStatus]:
    """The same as rows: what the hosts say, or what was last known; of a run with a complete mirror, what that says."""
    rows: dict[str, dict[str, object]] = {run.run: {**run.summary(), "note": ""} for run in runs}
    _refresh_all(viewer, [run for run in runs if not run.problem and missing(run, run.folder)], rows, PATIENCE)
    return cast("dict[str, RunStatus]", rows)


def _refresh_all(viewer: Viewer, runs: Sequence[KnownRun], rows: dict[str, dict[str, object]], limit: float) -> None:
    for config in dict.fromkeys(run.ssh_config for run in runs):
        _refresh([run for run in runs if run.ssh_config == config], viewer.connector(config), rows, limit)


def _refresh(runs: Sequence[KnownRun], connector: Connector, rows: dict[str, dict[str, object]], limit: float) -> None:
    """Ask all hosts of the runs at once; the summary of node 0 has priority over the others."""
    answered, failed = _ask(
        {place_of_host(host): host for run in runs for host in run.hosts},
        {(place_of_host(host), run.run_dir) for run in runs for host in run.hosts},
        connector,
        limit,
    )
    for run in runs:
        answers = [
            summary
            for node, host in enumerate(run.hosts)
            for summary in answered.get((place_of_host(host), run.run_dir), ())
            if summary["run"] == run.run and summary.get("node_rank") == node
        ]
        if answers:
            seen, note = _unless_unseen(answers[0], [host.name for host in run.hosts if place_of_host(host) in failed])
            run.note_seen(seen)
            if seen.get("attempt") != rows[run.run].get("attempt"):
                for name in ("step", "steps", "loss"):  # of the attempt before
                    rows[run.run].pop(name, None)
            rows[run.run].update(seen)
            rows[run.run]["name"] = run.name
            rows[run.run]["note"] = note or rows[run.run]["note"]
        elif place_of_host(run.hosts[0]) in failed:
            rows[run.run]["note"] = f"not refreshed: {failed[place_of_host(run.hosts[0])]}"
        else:
            rows[run.run].update(state="gone", note=f"{run.hosts[0].name} has no such run any more")


def _unless_unseen(seen: Summary, unreached: list[str]) -> tuple[Summary, str]:
    """A stop is complete when the leader reports it, which waits for all hosts, or when all hosts do; and a note."""
    if not unreached or seen.get("state") not in ("stopping", "stopped"):
        return seen, ""
    if seen.get("state") == "stopped" and seen.get("node_rank") == 0:
        return seen, ""
    open_ = {key: value for key, value in seen.items() if key != "ended"}
    return cast("Summary", {**open_, "state": "stopping"}), f"{', '.join(unreached)} not reached"


def _others(hosts: Sequence[str], connector: Connector, run_dir: str, rows: dict[str, dict[str, object]]) -> list[str]:
    """Add the runs of further hosts; return the hosts that could not be asked."""
    parsed = [parse_host(text) for text in hosts]
    asked = [KnownHost(host.name, host.host, host.user, host.port) for host in parsed]
    places = {place_of_host(host): host for host in asked}
    answered, failed = _ask(places, {(place, run_dir) for place in places}, connector, LIMIT)
    for (place, _), answers in answered.items():
        for summary in sorted(answers, key=lambda one: one.get("node_rank", 0)):
            rows.setdefault(summary["run"], {"note": f"on {places[place].name}", **summary})
            if "problem" in summary:
                rows[summary["run"]]["note"] = summary["problem"]
    return [f"{places[place].name}: {why}" for place, why in failed.items()]


def _ask(
    hosts: Mapping[Place, KnownHost], wanted: set[tuple[Place, str]], connector: Connector, limit: float
) -> tuple[dict[tuple[Place, str], tuple[Summary, ...]], dict[Place, str]]:
    """Summaries by (place, run_dir), and why others are missing."""
    order = list(hosts)
    answered, failed = {}, {}
    with reach_hosts({index: hosts[place] for index, place in enumerate(order)}, connector, limit) as reached:
        failed = {order[index]: _short(error, hosts[order[index]]) for index, error in reached.errors.items()}
        futures = {
            (place, run_dir): reached.links[order.index(place)].submit("list", run_dir=run_dir)
            for place, run_dir in wanted
            if order.index(place) in reached.links
        }
        for (place, run_dir), future in futures.items():
            try:
                answered[place, run_dir] = summaries(future.result(limit))
            except DisttuiError as error:
                failed[place] = _short(error, hosts[place])
            except TimeoutError:
                failed[place] = f"no answer in {limit:.0f} s"
    return answered, failed


def place_of_host(host: KnownHost | Host) -> Place:
    """How it is reached, whatever its name."""
    return host.host, host.user, host.port


def _short(error: DisttuiError, host: KnownHost) -> str:
    return clean(error.reason.split("\n")[0])
