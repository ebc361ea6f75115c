"""The commands that end and remove runs and leftovers: `stop`, `runs forget`, `runs gc`, `runs orphans`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

import disttui
from disttui.runner.cli.options import (
    can_ask,
    complete_hosts,
    duration,
    emit,
    example,
    progress,
    say,
    viewing,
    wants_json,
)
from disttui.runner.cli.run_selector import (
    YES,
    agree,
    complete_runs,
    finding_all,
    for_each,
    runs_options,
    warn,
    warn_of,
)
from disttui.runner.errors import DisttuiError, HostError, InputError
from disttui.runner.formatting import amount, gibibytes, table
from disttui.runner.formatting import duration as age_text
from disttui.runner.ids import short
from disttui.runner.protocol.limits import MOST_ORPHANS
from disttui.runner.protocol.requests import Orphan
from disttui.runner.text import clean


@click.command(epilog=example("disttui stop 2node-7f3a", "disttui stop gpt-sweep-5d21c0aa --yes"))
@click.option("--now", is_flag=True, help="Kill immediately, without the grace period that lets ranks save their work.")
@YES
@runs_options
def stop(now: bool, yes: bool, runs: tuple[str, ...], mine: bool, **where: Any) -> None:
    """Stop runs on all their hosts, and wait until nothing is left.

    RUN is an id, the name of a sweep, @latest or @failed. One reachable host of a run is enough: it forwards the stop.
    Ended runs are ignored. Exit code 3 if a host has not confirmed the stop.
    """
    from disttui.runner.render.stopping import stopped_data, stopped_lines

    asked: dict[str, None] = {}

    def tell(run: disttui.KnownRun, news: disttui.HostNotice | disttui.StopAsked) -> None:
        if isinstance(news, disttui.StopAsked):
            asked.update(dict.fromkeys(news.hosts))
        else:
            progress(f"{short(run.run) + ': ' if len(chosen) > 1 else ''}{news.host}: {news.text}")

    with finding_all(runs, mine=mine, **where) as (found, viewer):
        chosen = [run for run in found if len(found) == 1 or not run.settled] or found[:1]
        agree("Stop", chosen, yes=yes)
        try:
            done = disttui.stop_runs(viewer, chosen, now=now, tell=tell)
        except KeyboardInterrupt:
            if asked:
                progress(f"the stop was sent to {', '.join(asked)} and continues without this command")
            raise
    results = dict(zip((run.run for run in chosen), done, strict=True))

    def report(run: disttui.KnownRun) -> tuple[dict[str, object], int]:
        stopped = results[run.run]
        if isinstance(stopped, DisttuiError):
            raise stopped
        say("\n".join(stopped_lines(stopped)))
        return stopped_data(stopped), 0 if stopped.complete else 3 if stopped.unconfirmed else 1

    for_each(chosen, report)


@click.command(epilog=example("disttui runs forget 2node-7f3a", "disttui runs forget @failed --here --yes"))
@click.option("--here", is_flag=True, help="Remove only the local files; the hosts keep the runs.")
@YES
@runs_options
def forget(here: bool, yes: bool, runs: tuple[str, ...], mine: bool, **where: Any) -> None:
    """Remove runs with their logs and checkpoints.

    On their hosts and here. RUN is an id, the name of a sweep, @latest or @failed. Active runs are not removed.
    """
    from disttui.runner.render.stopping import forgotten
    from disttui.runner.runs.registry import is_known

    if here and where["host"]:
        raise InputError("--here and --host exclude each other", "Omit one of them.")
    if here and not mine and len(runs) == 1 and is_known(runs[0], os.environ):
        # Also one whose record is damaged.
        run = disttui.forget_here(os.environ, runs[0])
        emit([{"run": run, "hosts": [], "error": None}], f"{run}: local files removed")
        return

    def remove(run: disttui.KnownRun) -> tuple[dict[str, object], int]:
        if here:
            say(f"{disttui.forget_here(os.environ, run.run)}: local files removed")
        else:
            disttui.forget(viewer, run)
            say(forgotten(run))
        return {"hosts": [] if here or run.sandbox else [host.name for host in run.hosts]}, 0

    with finding_all(runs, mine=mine, **where) as (chosen, viewer):
        agree("Remove", chosen, yes=yes)
        for_each(chosen, remove, {"hosts": []})


def parse_size(text: str) -> int:
    """Bytes of a size such as `10GiB`. Raises InputError."""
    from disttui.runner.profile.fields import size

    found = size(text)
    if found is None:
        raise InputError(f"--over {clean(text)!r}: not a size", "Give 500MiB or 10GiB.")
    return found


@click.command(epilog=example("disttui runs gc --older 7d", "disttui runs gc --over 50GiB --yes"))
@click.option("--older", metavar="AGE", help="Runs that ended longer ago: 10m, 12h, 30d (the default), 2w.")
@click.option("--over", metavar="SIZE", help="Remove the oldest runs until the rest fit in this size, such as 10GiB.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
def gc(older: str | None, over: str | None, yes: bool) -> None:
    """Remove old runs, on their hosts and here, after showing which.

    Active runs are never removed. Sweeps of that age without runs are removed as well, but not with only --over.
    """
    from disttui.runner.api.ending import old_sweeps, remove_sweep
    from disttui.runner.render.stopping import forgotten, old_table

    if older is None and over is None:
        older = "30d"
    age = duration("--older", older) if older is not None else None
    size = parse_size(over) if over is not None else None
    code = 0
    with viewing(without_config=True) as viewer:
        chosen, problems = disttui.old_runs(viewer, older=age, over=size)
        warn(problems)
        sweeps = old_sweeps(viewer, age, chosen) if age is not None else ()
        if not chosen and not sweeps:
            emit({"runs": [], "sweeps": [], "removed": False}, "nothing to remove")
            return
        if chosen:
            say(old_table(chosen))
        for name in sweeps:
            say(f"  {name}: a sweep without runs; its table is removed as well")
        found = [
            {"run": old.run.run, "ended": old.ended, "size": old.size, "hosts": [host.name for host in old.run.hosts]}
            for old in chosen
        ]
        if not yes and not (can_ask() and click.confirm("Remove them?")):
            what = "nothing was removed; add --yes to remove them"
            emit({"runs": found, "sweeps": list(sweeps), "removed": False}, what)
            return
        errors = {}
        for known, error in disttui.remove(viewer, chosen):
            say(forgotten(known) if error is None else f"{short(known.run)}: {error.sentence}")
            errors[known.run] = error and error.as_json()
            code = error.exit_code if error else code
        sweeps = old_sweeps(viewer, age) if age is not None else ()
        for name in sweeps:
            remove_sweep(viewer, name)
            say(f"{name}: removed")
        runs = [{**one, "error": errors.get(str(one["run"]))} for one in found]
        emit({"runs": runs, "sweeps": list(sweeps), "removed": True})
    raise SystemExit(code)


@click.command(epilog=example("disttui runs orphans", "disttui runs orphans box1 --end"))
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_hosts)
@click.option("--end", is_flag=True, help="End them, and report what could not be ended.")
@click.option("--run", metavar="RUN", shell_complete=complete_runs, help="Only of this run.")
def orphans(
    hosts: tuple[str, ...],
    end: bool,
    run: str | None,
) -> None:
    """List what ended runs have left on each HOST.

    Lists processes, their ports and their GPU memory, by the tag that every process of a run carries, never by name.
    Without HOST it asks the hosts of all known runs. Exit code 1 if something could not be ended, 3 if a host could
    not be asked.
    """
    with viewing() as viewer:
        found = disttui.orphans(viewer, hosts, end=end, run=run)
    errors = {error.host: error.as_json() for error in found.problems if isinstance(error, HostError)}
    if not wants_json():
        warn_of(found.problems)
    text = render_orphans(found.found, end=end, unasked=len(found.problems), run=run)
    emit({"hosts": found.found, "errors": errors}, text)
    raise SystemExit(1 if end and found.left else 3 if found.problems else 0)


_HEAD = (
    ("RUN", "<"), ("HOST", "<"), ("PID", ">"), ("USER", "<"), ("AGE", ">"), ("MEMORY", ">"), ("GPU MEM", ">"),
    ("PORTS", "<"), ("WHY", "<"), ("COMMAND", "<"),
)  # fmt: skip
_COMMAND = 80
_RUN, _PID, _USER, _PORTS, _WHY = 100, 10, 32, 40, 80
"""Most characters of each: rows of all hosts share the columns."""


def render_orphans(
    found: Mapping[str, Sequence[Orphan]], *, end: bool, unasked: int = 0, run: str | None = None
) -> str:
    """The orphans of each host, and with `end` the result of ending them.

    Args:
        unasked: Number of further hosts that could not be asked.
        run: The only run that was searched for.
    """
    rows = [_row(host, one) for host, ones in found.items() for one in ones]
    silent = f"; {amount(unasked, 'host')} could not be asked" if unasked else ""
    if not rows:
        hosts = ", ".join(map(clean, found)) if len(found) < 5 else f"the {len(found)} hosts that answered"
        return f"no processes of {clean(run) if run else 'ended runs'} left on {hosts}{silent}"
    alive = [(host, one) for host, ones in found.items() for one in ones if not one["ended"]]
    many = "at least " if any(len(ones) >= MOST_ORPHANS for ones in found.values()) else ""
    only = f" --run {short(run)}" if run else ""
    last = f"{many}{len(rows)} left behind. End them: disttui runs orphans --end{only} {' '.join(map(clean, found))}"
    if end:
        names = ", ".join(f"{clean(host)}: pid {one['pid']}" for host, one in alive)
        last = (
            f"could not be ended: {names}" if alive else f"{many}{len(rows)} ended{'' if many else ', nothing is left'}"
        )
    return f"{table(_HEAD, rows)}\n\n{last}{silent}"


def _row(host: str, one: Orphan) -> tuple[str, ...]:
    gpu_memory = one["gpu_memory"]
    return (
        short(_cut(one["run"], _RUN)),
        clean(host),
        _cut(str(one["pid"]), _PID),
        _cut(one["user"] or "?", _USER),
        age_text(one["age"]),
        gibibytes(one["rss"]),
        "-" if gpu_memory is None else gibibytes(gpu_memory),
        _cut(",".join(map(str, one["ports"])), _PORTS) or "-",
        _cut(one["why"], _WHY),
        _cut(one["command"], _COMMAND),
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
