"""The command that finds and ends what ended runs have left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

import disttui
from disttui.runner.cli.global_options import emit, wants_json
from disttui.runner.cli.options import complete_hosts, example, viewing
from disttui.runner.cli.run_selector import complete_runs, warn_of
from disttui.runner.errors import HostError
from disttui.runner.formatting import amount, duration, gibibytes, number
from disttui.runner.ids import short
from disttui.runner.protocol.limits import MOST_ORPHANS
from disttui.runner.render.tables import table
from disttui.runner.text import clean


@click.command(epilog=example("disttui runs orphans", "disttui runs orphans box1 --end"))
@click.argument("hosts", nargs=-1, metavar="[HOST]...", shell_complete=complete_hosts)
@click.option("--end", is_flag=True, help="End them, and report what could not be ended.")
@click.option("--run", metavar="RUN", shell_complete=complete_runs, help="Of this run only.")
def orphans(
    hosts: tuple[str, ...],
    end: bool,
    run: str | None,
) -> None:
    """List what ended runs have left on each HOST.

    Processes, their ports and the GPU memory they hold. They are known by the tag that every process of a run carries,
    never by name. Without HOST, the hosts of all runs that are known here are asked. Exit code 1 when something could
    not be ended, 3 when a host could not be asked.
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
"""Characters of each: a host may tell anything, and the rows of others stand in the same columns."""


def render_orphans(
    found: Mapping[str, Sequence[Mapping[str, object]]], *, end: bool, unasked: int = 0, run: str | None = None
) -> str:
    """The orphans of each host, and with `end` the result of ending them.

    Args:
        unasked: How many further hosts could not be asked.
        run: The run that alone was searched for.
    """
    rows = [_row(host, one) for host, ones in found.items() for one in ones]
    silent = f"; {amount(unasked, 'host')} could not be asked" if unasked else ""
    if not rows:
        hosts = ", ".join(map(clean, found)) if len(found) < 5 else f"the {len(found)} hosts that answered"
        return f"no processes left of {clean(run) if run else 'any ended run'} on {hosts}{silent}"
    alive = [(host, one) for host, ones in found.items() for one in ones if not one.get("ended")]
    many = "at least " if any(len(ones) >= MOST_ORPHANS for ones in found.values()) else ""
    last = f"{many}{len(rows)} left behind. End them: disttui runs orphans --end {' '.join(map(clean, found))}"
    if end:
        names = ", ".join(f"{clean(host)}: pid {clean(str(one.get('pid')))}" for host, one in alive)
        last = (
            f"could not be ended: {names}" if alive else f"{many}{len(rows)} ended{'' if many else ', nothing is left'}"
        )
    return f"{table(_HEAD, rows)}\n\n{last}{silent}"


def _row(host: str, one: Mapping[str, object]) -> tuple[str, ...]:
    age, rss, gpu_memory = (number(one.get(name)) for name in ("age", "rss", "gpu_memory"))
    ports = one.get("ports")
    return (
        short(_text(one.get("run"), _RUN)),
        clean(host),
        _text(one.get("pid"), _PID),
        _text(one.get("user") or "?", _USER),
        "-" if age is None else duration(age),
        "-" if rss is None else gibibytes(rss),
        "-" if gpu_memory is None else gibibytes(gpu_memory),
        _text(",".join(map(str, ports)), _PORTS) if isinstance(ports, list) and ports else "-",
        _text(one.get("why") or "", _WHY),
        _text(one.get("command"), _COMMAND),
    )


def _text(value: object, most: int) -> str:
    text = clean(str(value))
    return text if len(text) <= most else f"{text[: most - 1]}…"
