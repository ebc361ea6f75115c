"""The runs that are known here or on given hosts, with their states."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from typing import NamedTuple

from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, HostError
from disttui.runner.formatting import number
from disttui.runner.hosts.facts import read_leases
from disttui.runner.profile.sections import Host, parse_host
from disttui.runner.protocol.leases import Lease, person
from disttui.runner.protocol.names import RUN, RUN_DIR
from disttui.runner.runs.registry import KnownHost, KnownRun, known_runs
from disttui.runner.runs.remote import missing, reach_hosts
from disttui.runner.runs.summary import SANDBOX, SANDBOX_ENDED, RunStatus, Summary, summaries
from disttui.runner.text import clean
from disttui.runner.transport import Connector

LIMIT = 3.0
"""Seconds for answers of hosts that the user did not name."""
PATIENCE = 15.0
"""Seconds for answers of hosts that the user named, or if nobody waits."""

Place = tuple[str, str | None, int | None]


@dataclass(frozen=True)
class RunFilter:
    """Which runs to list; empty fields select all."""

    name: str = ""
    """A part of the profile's name."""
    states: Collection[str] = ()
    runs: Collection[str] | None = None
    """Ids, such as those of a sweep."""
    user: str = ""
    """Their owner: `alice`, or `alice@laptop`."""
    since: float = 0.0
    """Unix time after which they were started."""

    def takes(self, row: Mapping[str, object]) -> bool:
        """Whether it selects a run, by its summary."""
        by = str(row.get("by") or "")
        return (
            self.name in str(row.get("name") or "")
            and (not self.states or row.get("state") in self.states)
            and (self.runs is None or row.get("run") in self.runs)
            and (not self.user or self.user in (by, person(by)))
            and (number(row.get("started")) or 0.0) >= self.since
        )


class Listing(NamedTuple):
    """Runs, newest first."""

    rows: list[RunStatus]
    problems: list[str]
    """Problems of runs whose records here could not be read."""
    silent: list[DisttuiError]
    """Why named hosts could not be asked."""


def list_runs(
    viewer: Viewer,
    hosts: Sequence[str] = (),
    *,
    local: bool = False,
    run_dir: str = RUN_DIR,
    at: Collection[Place] | None = None,
    wanted: RunFilter = RunFilter(),
) -> Listing:
    """Known runs, with the states that their hosts report.

    Args:
        hosts: List the runs of these alone, and ask them for those of all users.
        local: Use the local records, without asking the hosts of known runs.
        run_dir: The folder of runs on `hosts`.
        at: Of the known runs, list those with a host at one of these; None: all.
        wanted: Which of them to list.

    Raises:
        InputError: A name is not a host.
    """
    runs, problems = known_runs(viewer.environ)
    if hosts:
        at = {place_of_host(parse_host(text)) for text in hosts}
        runs = [run for run in runs if any(host.name in hosts or place_of_host(host) in at for host in run.hosts)]
    elif at is not None:
        runs = [run for run in runs if not {place_of_host(host) for host in run.hosts}.isdisjoint(at)]
    rows = {run.run: run.summary() for run in runs}
    # All fields but the state are known without asking the host.
    runs = [run for run in runs if replace(wanted, states=()).takes(rows[run.run])]
    rows = {run.run: rows[run.run] for run in runs}
    if not local:
        _refresh_all(viewer, [run for run in runs if not run.settled], rows, PATIENCE if hosts else LIMIT)
    silent = _others(hosts, viewer.connector(), run_dir, rows) if hosts else []
    newest = sorted(filter(wanted.takes, rows.values()), key=lambda row: -(number(row.get("started")) or 0.0))
    return Listing(newest, problems, silent)


def refresh(viewer: Viewer, runs: Sequence[KnownRun]) -> dict[str, str]:
    """Ask the hosts of runs for summaries, with patience, and store them; run → why there is no new one."""
    rows: dict[str, RunStatus] = {run.run: {"note": ""} for run in runs}
    _refresh_all(viewer, runs, rows, PATIENCE)
    return {run: row["note"] for run, row in rows.items() if row["note"] not in ("", SANDBOX, SANDBOX_ENDED)}


def statuses(viewer: Viewer, runs: Sequence[KnownRun]) -> dict[str, RunStatus]:
    """Runs as rows: the hosts' summaries, the last known ones, or those of complete mirrors."""
    rows: dict[str, RunStatus] = {run.run: run.summary() for run in runs}
    _refresh_all(viewer, [run for run in runs if not run.problem and missing(run, run.folder)], rows, PATIENCE)
    return rows


def _refresh_all(viewer: Viewer, runs: Sequence[KnownRun], rows: dict[str, RunStatus], limit: float) -> None:
    for config in dict.fromkeys(run.ssh_config for run in runs):
        _refresh([run for run in runs if run.ssh_config == config], viewer.connector(config), rows, limit)


def _refresh(runs: Sequence[KnownRun], connector: Connector, rows: dict[str, RunStatus], limit: float) -> None:
    """Update `rows` with the answers of all hosts of the runs, asked concurrently."""
    answered, failed = _ask(
        {place_of_host(host): host for run in runs for host in run.hosts},
        {(place_of_host(host), run.run_dir) for run in runs for host in run.hosts},
        connector,
        limit,
    )
    for run in runs:
        found = [
            (node, summary)
            for node, host in enumerate(run.hosts)
            for summary in answered.get((place_of_host(host), run.run_dir), ())
            if summary["run"] == run.run
        ]
        answers = {node: summary for node, summary in found if summary.get("node_rank") == node}
        unreadable = [summary["problem"] for _, summary in found if "problem" in summary]
        if answers:
            rows[run.run] = run.summary(answers)
            unheard = [host for node, host in enumerate(run.hosts) if node not in answers]
            silent = [host.name for host in unheard if place_of_host(host) in failed]
            if silent and rows[run.run]["state"] == "stopping":
                rows[run.run]["note"] = f"no answer from {', '.join(silent)}"
        elif place_of_host(run.hosts[0]) in failed:
            why = failed[place_of_host(run.hosts[0])].reason.partition("\n")[0]
            rows[run.run]["note"] = f"not refreshed: {clean(why)}"
        elif unreadable:
            rows[run.run]["note"] = clean(unreadable[0])
        elif run.heard:
            run.note_removed([node for node, host in enumerate(run.hosts) if place_of_host(host) not in failed])
            rows[run.run] = run.summary()


def _others(hosts: Sequence[str], connector: Connector, run_dir: str, rows: dict[str, RunStatus]) -> list[DisttuiError]:
    """Add the runs of further hosts to `rows`; return the errors of hosts that could not be asked."""
    parsed = [parse_host(text) for text in hosts]
    asked = [KnownHost.of(host, host.name) for host in parsed]
    places = {place_of_host(host): host for host in asked}
    leases: dict[Place, tuple[Lease, ...]] = {}
    answered, failed = _ask(places, {(place, run_dir) for place in places}, connector, PATIENCE, leases)
    for (place, _), answers in answered.items():
        for summary in sorted(answers, key=lambda one: one.get("node_rank", 0)):
            rows.setdefault(summary["run"], {"note": f"on {places[place].name}", **summary})
            if "problem" in summary:
                rows[summary["run"]]["note"] = summary["problem"]
    for place, found in leases.items():
        for lease in found:
            if lease["kind"] == "run" and RUN.fullmatch(lease["run"]):
                _name_private(lease, places[place].name, rows)
    return list(failed.values())


def _name_private(lease: Lease, host: str, rows: dict[str, RunStatus]) -> None:
    """Add a run with unreadable files to `rows`, from its lease, which all users of the host can see."""
    row = rows.setdefault(lease["run"], {"run": lease["run"], "note": f"{lease['user']}'s, private, on {host}"})
    if "state" not in row:  # otherwise the run's files were readable
        state = "queued" if lease["state"] == "waiting" else "running"
        row |= {"name": lease["run"].rpartition("-")[0], "by": lease["user"], "started": lease["since"]}
        row |= {"state": state, "hosts": [host]}


def _ask(
    hosts: Mapping[Place, KnownHost],
    wanted: set[tuple[Place, str]],
    connector: Connector,
    limit: float,
    leases: dict[Place, tuple[Lease, ...]] | None = None,
) -> tuple[dict[tuple[Place, str], tuple[Summary, ...]], dict[Place, DisttuiError]]:
    """Return summaries by (place, run_dir), and errors by place.

    Args:
        leases: The leases of each host are added to it; None: do not ask for them.
    """
    order = list(hosts)
    answered, failed = {}, dict[Place, DisttuiError]()
    with reach_hosts({index: hosts[place] for index, place in enumerate(order)}, connector, limit) as reached:
        failed = {order[index]: error for index, error in reached.errors.items()}
        links = {order[index]: link for index, link in reached.links.items()}
        asked = {} if leases is None else {place: link.submit("leases", gpus=False) for place, link in links.items()}
        futures = {
            (place, run_dir): links[place].submit("list", run_dir=run_dir)
            for place, run_dir in wanted
            if place in links
        }
        for (place, run_dir), future in futures.items():
            try:
                answer = future.result(limit)
                answered[place, run_dir] = summaries(answer)
                if answer.get("more"):
                    what = f"there are too many runs in {run_dir} to list the oldest"
                    failed[place] = HostError(hosts[place].name, what, "Remove old ones: disttui runs gc --older 30d")
                if leases is not None:
                    leases[place] = read_leases(asked[place].result(limit).get("leases"))
            except DisttuiError as error:
                failed[place] = error
            except FutureTimeout:
                failed[place] = HostError(hosts[place].name, f"no answer in {limit:.0f} s")
    return answered, failed


def place_of_host(host: KnownHost | Host) -> Place:
    """Address of the host, regardless of its name."""
    return host.host, host.user, host.port
