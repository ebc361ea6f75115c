"""The commands for hosts that several people use: who has what, leases by hand."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timedelta

import click

from runner.cli.options import AS_JSON, complete_hosts, example, ssh_options
from runner.cli.run_selector import warn
from runner.errors import HostError, InputError

_HOURS = 12
_SPAN = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)([mhd])")
_UNITS = {"m": 60, "h": 3600, "d": 86400}
_LONGEST = 366 * 86400
_GPUS = click.option("--gpus", metavar="0,1", help="These GPUs of each HOST, as nvidia-smi counts them.")
_NAMED = click.argument("hosts", nargs=-1, required=True, metavar="HOST...", shell_complete=complete_hosts)


@click.command(epilog=example("disttui who", "disttui who box1 box2"))
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_hosts)
@AS_JSON
@ssh_options
def who(hosts: tuple[str, ...], as_json: bool, ssh_config: str | None, accept_new_host_keys: bool) -> None:
    """Show who uses which GPU of each HOST.

    By lease, which every run takes, and by the processes that compute there. A lease is that of its file's owner.
    Without HOST, all hosts of runs that are known here, of your profiles and your team's, and this machine.
    Exit code 3 when a host could not be asked.
    """
    from runner.api.leasing import who as ask
    from runner.cli.viewing import viewing
    from runner.render.leases import render_who, who_json

    with viewing(ssh_config, accept_new_host_keys) as viewer:
        found = ask(viewer, hosts)
    if as_json:
        errors = {error.host: error.sentence for error in found.problems if isinstance(error, HostError)}
        click.echo(json.dumps({"hosts": who_json(found.hosts), "errors": errors}, indent=2))
    else:
        warn([error.sentence for error in found.problems])
        click.echo(render_who(found.hosts))
    raise SystemExit(3 if found.problems else 0)


@click.command(epilog=example("disttui lease box1 --gpus 0,1 --until 18:00 --note 'debugging'", "disttui lease box1"))
@_NAMED
@_GPUS
@click.option(
    "--until",
    default=f"{_HOURS}h",
    show_default=True,
    metavar="WHEN",
    help="18:00, '2026-03-01 18:00', 30m, 2h, 3d, or never.",
)
@click.option("--note", default="", help="What it is for; everybody who looks sees it.")
@ssh_options
def lease(
    hosts: tuple[str, ...], gpus: str | None, until: str, note: str, ssh_config: str | None, accept_new_host_keys: bool
) -> None:
    """Keep GPUs of each HOST, or all of it, for yourself.

    Runs of others are not started there meanwhile, unless they say --ignore-leases; your own are. Without --gpus, the
    whole host. All hosts are leased, or none: exit code 3 when somebody else has one.
    """
    from runner.api.leasing import lease as take
    from runner.cli.viewing import viewing

    chosen, seconds = _gpus(gpus), _seconds(until, time.time())
    if len(note) > 200:
        raise InputError("--note is longer than 200 characters", "Say it in fewer words.")
    with viewing(ssh_config, accept_new_host_keys) as viewer:
        names = take(viewer, hosts, chosen, seconds=seconds, note=note)
    what = "the whole host" if chosen is None else f"GPUs {', '.join(map(str, chosen))}"
    end = "until you release it" if seconds is None else f"until {_moment(time.time() + seconds)}"
    click.echo("\n".join(f"{name}: {what} {end}" for name in names))


@click.command(epilog=example("disttui release box1", "disttui release box1 --gpus 1"))
@_NAMED
@_GPUS
@ssh_options
def release(hosts: tuple[str, ...], gpus: str | None, ssh_config: str | None, accept_new_host_keys: bool) -> None:
    """Give back what you have leased on each HOST by hand.

    A run's lease ends with the run: disttui stop.
    """
    from runner.api.leasing import release as give_back
    from runner.cli.viewing import viewing
    from runner.protocol.lease_words import what_of

    with viewing(ssh_config, accept_new_host_keys) as viewer:
        released = give_back(viewer, hosts, _gpus(gpus))
    for host, leases in released.items():
        what = ", ".join(what_of(one) for one in leases)
        click.echo(f"{host}: {f'released {what}' if what else 'nothing was leased by you'}")


def _gpus(words: str | None) -> list[int] | None:
    if words is None:
        return None
    parts = words.split(",")
    if not all(re.fullmatch("[0-9]{1,3}", part.strip(), re.ASCII) for part in parts):
        raise InputError(f"--gpus {words!r} is no list of GPUs", "Give their numbers: --gpus 0,1")
    return sorted({int(part) for part in parts})


def _seconds(text: str, now: float) -> float | None:
    """The seconds until a moment, None: no end. Raises InputError."""
    if text == "never":
        return None
    span = _SPAN.fullmatch(text)
    if span:
        seconds = float(span[1]) * _UNITS[span[2]]
    else:
        try:
            # By timestamps: clocks may be set forward or back in between.
            seconds = _parsed(text, datetime.fromtimestamp(now)).timestamp() - now
        except (ValueError, OverflowError):
            cure = "Give --until 18:00, '2026-03-01 18:00', 30m, 2h, 3d, or never."
            raise InputError(f"--until {text!r} is no time", cure) from None
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
