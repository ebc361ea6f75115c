"""The table of orphans: processes of ended runs, their resources, and why they count as orphans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.formatting import amount, duration, gibibytes, number
from runner.ids import short
from runner.render.tables import table
from runner.text import clean

_HEAD = (
    ("RUN", "<"), ("HOST", "<"), ("PID", ">"), ("USER", "<"), ("AGE", ">"), ("MEMORY", ">"), ("GPU MEM", ">"),
    ("PORTS", "<"), ("WHY", "<"), ("COMMAND", "<"),
)  # fmt: skip
_COMMAND = 80


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
        return f"nothing is left of {clean(run) if run else 'any ended run'} on {hosts}{silent}"
    alive = [(host, one) for host, ones in found.items() for one in ones if not one.get("ended")]
    last = f"{len(rows)} left behind. End them: disttui orphans --end {' '.join(map(clean, found))}"
    if end:
        names = ", ".join(f"{clean(host)}: pid {clean(str(one.get('pid')))}" for host, one in alive)
        last = f"could not be ended: {names}" if alive else f"{len(rows)} ended, nothing is left"
    return f"{table(_HEAD, rows)}\n\n{last}{silent}"


def _row(host: str, one: Mapping[str, object]) -> tuple[str, ...]:
    age, rss, gpu_memory = (number(one.get(name)) for name in ("age", "rss", "gpu_memory"))
    ports = one.get("ports")
    return (
        short(clean(str(one.get("run")))),
        clean(host),
        clean(str(one.get("pid"))),
        clean(str(one.get("user") or "?")),
        "-" if age is None else duration(age),
        "-" if rss is None else gibibytes(rss),
        "-" if gpu_memory is None else gibibytes(gpu_memory),
        ",".join(clean(str(port)) for port in ports) if isinstance(ports, list) and ports else "-",
        clean(str(one.get("why") or "")),
        clean(str(one.get("command")))[:_COMMAND],
    )
