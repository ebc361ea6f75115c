"""The commands for shared hosts: reservations and the queue."""

from __future__ import annotations

import os
import re
import time
from dataclasses import asdict
from datetime import datetime, timedelta
from shutil import get_terminal_size
from typing import Any, Literal

import click

import disttui
from disttui.runner.cli.options import complete_hosts, emit, example, say, viewing, wants_json
from disttui.runner.cli.run_selector import finding, run_options, warn, warn_of
from disttui.runner.errors import DisttuiError, HostError, InputError
from disttui.runner.formatting import amount, fit
from disttui.runner.ids import short

_HOURS = 12
_LONGEST = 366 * 86400
_GPUS = click.option("--gpus", metavar="0,1", help="These GPUs of each HOST, as nvidia-smi counts them.")
_NAMED = click.argument("hosts", nargs=-1, required=True, metavar="HOST...", shell_complete=complete_hosts)


@click.command("list", epilog=example("disttui lease list", "disttui lease list box1 box2"))
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_hosts)
def list_(hosts: tuple[str, ...]) -> None:
    """Show who uses which GPU.

    Lists the leases, which every run takes, and the processes that compute there; lines are cut to the terminal's
    width. A lease belongs to the owner of its file. Without HOST it asks all hosts of known runs, of your profiles and
    your team's, and this machine. Exit code 3 if a host that you name, or that has a run of yours, could not be asked.
    """
    from disttui.runner.render.leases import render_who

    with viewing() as viewer:
        found = disttui.who(viewer, hosts)
    _emit(found, {"hosts": [asdict(host) for host in found.hosts]}, render_who(found.hosts))
    raise SystemExit(3 if found.problems else 0)


@click.command(
    epilog=example("disttui lease add box1 --gpus 0,1 --until 18:00 --note 'debugging'", "disttui lease add box1")
)
@_NAMED
@_GPUS
@click.option(
    "--until",
    default=f"{_HOURS}h",
    show_default=True,
    metavar="WHEN",
    help="18:00, '2026-03-01 18:00', 30m, 2h, 3d, or never.",
)
@click.option("--note", default="", help="What it is for; visible to everyone.")
def add(hosts: tuple[str, ...], gpus: str | None, until: str, note: str) -> None:
    """Reserve GPUs or whole hosts.

    Runs of other users cannot start there until it ends, unless they use --ignore-leases; yours can. Without --gpus,
    reserves the whole host. Reserves all hosts or none: exit code 3 if another user has one.
    """
    chosen, seconds = _gpus(gpus), _seconds(until, time.time())
    if len(note) > 200:
        raise InputError("--note is longer than 200 characters", "Shorten the note.")
    with viewing() as viewer:
        names = disttui.lease(viewer, hosts, chosen, seconds=seconds, note=note)
    what = "the whole host" if chosen is None else f"GPU{'s' * (len(chosen) > 1)} {', '.join(map(str, chosen))}"
    until_ = None if seconds is None else time.time() + seconds
    end = "until you release it" if until_ is None else f"until {_moment(until_)}"
    data = [{"host": name, "gpus": chosen, "until": until_, "note": note} for name in names]
    emit(data, "\n".join(f"{name}: {what} {end}" for name in names))


@click.command(epilog=example("disttui lease release box1", "disttui lease release box1 --gpus 1"))
@_NAMED
@_GPUS
def release(hosts: tuple[str, ...], gpus: str | None) -> None:
    """Release your reservations on each HOST.

    With --gpus, releases only these GPUs. A run's lease ends with the run: disttui stop.
    """
    from disttui.runner.protocol.leases import what_of

    with viewing() as viewer:
        released = disttui.release(viewer, hosts, _gpus(gpus))
    errors = [one for one in released.values() if isinstance(one, DisttuiError)]
    done = {host: leases for host, leases in released.items() if not isinstance(leases, DisttuiError)}
    lines = [
        f"{host}: {f'released {what}' if what else 'nothing to release'}"
        for host, leases in done.items()
        for what in [", ".join(what_of(one) for one in leases)]
    ]
    if not done:
        warn_of(errors[1:])
        raise errors[0]
    warn_of(errors)
    emit(done, "\n".join(lines))
    raise SystemExit(max((error.exit_code for error in errors), default=0))


def _emit(found: disttui.HostsInUse, data: dict[str, object], text: str, *, cut: bool = True) -> None:
    """Print the answers of hosts, and which could not be asked; lines are cut to the terminal's width."""

    if not wants_json():  # the result has both
        warn_of(found.problems)
    if found.unreached and not wants_json():
        warn([f"{amount(len(found.unreached), 'host')} of profiles cannot be reached: {', '.join(found.unreached)}"])
    errors = {error.host: error.as_json() for error in found.problems if isinstance(error, HostError)}
    shown = fit(text, get_terminal_size().columns) if cut else text
    emit({**data, "errors": errors, "unreached": found.unreached}, shown)


def _gpus(words: str | None) -> list[int] | None:
    if words is None:
        return None
    parts = words.split(",")
    if not all(re.fullmatch("[0-9]{1,3}", part.strip(), re.ASCII) for part in parts):
        raise InputError(f"--gpus {words!r}: expected a list of GPUs", "Give their numbers: --gpus 0,1")
    return sorted({int(part) for part in parts})


def _seconds(text: str, now: float) -> float | None:
    """The seconds until a time; None: no end. Raises InputError."""
    if text == "never":
        return None
    from disttui.runner.profile.fields import span

    seconds = span(text)
    if seconds is None:
        try:
            # By timestamps: clocks may be set forward or back in between.
            seconds = _parsed(text, datetime.fromtimestamp(now)).timestamp() - now
        except (ValueError, OverflowError):
            cure = "Give --until 18:00, '2026-03-01 18:00', 30m, 2h, 3d, or never."
            raise InputError(f"--until {text!r}: expected a time", cure) from None
    if seconds <= 0:
        raise InputError(f"--until {text!r} is in the past", "Give a later time.")
    if seconds > _LONGEST:
        raise InputError(f"--until {text!r} is more than a year away", "Give an earlier time, or never.")
    return seconds


def _parsed(text: str, here: datetime) -> datetime:
    if re.fullmatch("[0-9]{1,2}:[0-9]{2}", text):
        hour, minute = map(int, text.split(":"))
        found = here.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return found if found > here else found + timedelta(days=1)
    return datetime.fromisoformat(text)


def _moment(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


@click.command(epilog=example("disttui lease queue", "disttui lease queue box1 box2", "disttui lease queue 2node-7f3a"))
@click.argument("names", nargs=-1, metavar="[HOST or RUN]...", shell_complete=complete_hosts)
@click.option("-v", "--verbose", is_flag=True, help="Show all that each run waits for, on each host.")
def queue(names: tuple[str, ...], verbose: bool) -> None:
    """List the queued runs of all users, in their order.

    Prints one line per run, cut to the terminal's width; for a known RUN, all that it waits for. Users take turns: each
    has one run per round. disttui run --when-free queues a run, disttui stop removes one of yours. Your runs that ended
    before their turn are listed below. For Slurm jobs see disttui ps. Without HOST it asks the hosts of disttui lease
    list. Exit code 3 if a host that you name, or that has a run of yours, could not be asked.
    """
    from disttui.runner.api.leasing import dropped
    from disttui.runner.render.leases import queue_details, queue_json, render_queue
    from disttui.runner.render.waiting import dropped_words
    from disttui.runner.runs.registry import known_runs

    begun = tuple(name for name in names if name)  # every id begins with an empty text
    known = [run for run in known_runs(os.environ)[0] if run.run.startswith(begun)] if begun else []
    hosts = tuple(name for name in names if not name or not any(run.run.startswith(name) for run in known))
    places = (*hosts, *(host.name for run in known for host in run.hosts))
    with viewing() as viewer:
        found = disttui.who(viewer, tuple(dict.fromkeys(places)), gpus=False)
        lost = dropped(viewer, found.places)
    runs = disttui.queue(found.hosts)
    if known and not hosts:
        chosen = {run.run for run in known}
        runs, lost, verbose = tuple(run for run in runs if run.run in chosen), (), True
    gone = {row["run"]: row["dropped"] for row in lost}
    text = queue_details(runs) if verbose else render_queue(runs)
    _emit(found, {"runs": queue_json(runs, verbose), "dropped": gone}, text, cut=not verbose)
    for row in lost:
        say(f"{short(row['run'])}: {dropped_words(short(row['run']), row['dropped'])}")
    raise SystemExit(3 if found.problems else 0)


@click.command(epilog=example("disttui lease move 2node-7f3a --first"))
@click.option("--first", is_flag=True, help="Trade places with the first of your runs on its hosts.")
@click.option("--last", is_flag=True, help="Trade places with the last of your runs on its hosts.")
@run_options
def move(first: bool, last: bool, **where: Any) -> None:
    """Trade places between two of your queued runs.

    RUN gets the place of the first or last of your runs on its hosts. Runs of other users keep their places. All its
    hosts must be reachable.
    """
    from disttui.runner.render.leases import moved_line

    if first == last:
        raise InputError("either --first or --last is required", "Give one of them.")
    to: Literal["first", "last"] = "first" if first else "last"
    with finding(**where) as (known, viewer):
        moved = disttui.move(viewer, known, to)
    emit({"run": known.run, "to": to, **asdict(moved)}, moved_line(known.run, moved, to))
