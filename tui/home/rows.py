"""The texts of the home screen: rows, details, and the consequences of actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from textual import events
from textual.content import Content
from textual.widgets import Static

from disttui.runner.formatting import amount, duration, figure, rough
from disttui.runner.hosts.load import GpuLoad
from disttui.runner.ids import short
from disttui.runner.protocol.leases import Lease
from disttui.runner.protocol.metrics import NOT_FINITE
from disttui.runner.protocol.names import RUN
from disttui.runner.text import clean
from disttui.tui.inventory import ENDED, QUIET, HostRow, Inventory, ProfileRow, RunRow, thinned
from disttui.tui.load import meters
from disttui.tui.load.feed import percent
from disttui.tui.theme import look, state_words
from disttui.tui.widgets.points import Point
from disttui.tui.widgets.table import Cell, Column, Row, state_cell

if TYPE_CHECKING:
    from disttui.runner.runs.watch import HostNow

COLUMNS: Mapping[str, Sequence[Column]] = {
    "runs": (
        Column("state"), Column("run"), Column("trend", rank=3), Column("loss", "right", rank=2),
        Column("step", "right", rank=6), Column("took", "right", rank=4), Column("when", "right", rank=1),
        Column("hosts", rank=5, most=24, least=12), Column("ranks", "right", rank=7), Column("by", rank=8, most=20),
        Column("progress", rank=2, most=120, least=21, grows=True),
    ),
    "profiles": (
        Column("name"), Column("hosts", rank=2, most=28), Column("processes", rank=3), Column("from", rank=1),
        Column("description", rank=4, most=80, grows=True),
    ),
    "hosts": (
        Column("host"), Column("GPUs", rank=1, most=16), Column("free", "right", rank=2),
        Column("use", "right", rank=3), Column("memory", "right", rank=3), Column("hottest", "right", rank=4),
        Column("running", rank=1, most=60, least=16), Column("profiles", rank=5, most=60, grows=True),
    ),
}  # fmt: skip

LOOKED_AT = ("failed", "stopped", "done")
"""Kinds of states of ended runs, the most important first."""
_SHOWN = 8
"""Maximum number of runs that a question names."""
_BAR = 5
"""Cells of a run's progress bar."""
CURVE = 24
"""Cells of a curve of losses, if there is room."""


def news(runs: Sequence[RunRow], since: float, now: float) -> Content:
    """The runs that have ended since a unix time (s), failures first; empty if none has."""
    ended = [row for row in runs if row.over and (row.ended or 0.0) > since]
    ended.sort(key=lambda row: (LOOKED_AT.index(look(row.state).kind), -(row.ended or 0.0)))
    if not ended:
        return Content()
    ago = _when(since, now)
    known = f"in the last {ago.removesuffix(' ago')}" if ago.endswith(" ago") else f"since {ago}"
    words = [Content.styled(known, "$muted")]
    for row in ended:
        seen, cause = look(row.state), f": {row.cause}" if row.cause else ""
        words.append(Content.assemble((f"{seen.glyph} ", seen.style), f"{short(row.run)} {row.state}{cause}"))
    return Content("  ").join(words)


def empty(inventory: Inventory, pane: str, *, read_only: bool) -> str:
    """The text of a pane without rows."""
    if not inventory.read:
        return "reading"
    if pane != "runs":
        return ""
    return "none yet" if read_only else "none yet; r runs the selected profile"


def facts(inventory: Inventory, live: Mapping[str, HostNow], now: float) -> list[str]:
    """The numbers of running, queued and unreachable runs, including other users', and of free GPUs."""
    runs = (*inventory.runs, *others(inventory, live, now))
    states = [row.state for row in runs if not row.over]
    apart = {state: states.count(state) for state in ("queued", "not seen")}
    alive = len(states) - sum(apart.values())
    words = [f"{alive} running" if alive else "nothing running"] if inventory.read else []
    words += [f"{number} {state}" for state, number in apart.items() if number]
    gpus = sum(len(host.load.gpus) for host in live.values() if host.load and host.state == "seen")
    free = gpus - sum(meters.leased(host) for host in live.values() if host.state == "seen")
    return [*words, *([f"{free} of {gpus} GPUs free"] if gpus else [])]


ORDERS: Mapping[str, Callable[[RunRow, float], Any]] = {
    "newest": lambda row, now: (row.over, -row.started),
    "name": lambda row, now: (row.run.rpartition("-")[0], -row.started),
    "state": lambda row, now: (row.over, row.state, -row.started),
    "duration": lambda row, now: (-(_took(row, now) or 0.0), -row.started),
}
"""Order of the runs → its sort key, from the run and the unix time; smaller keys come first."""
HEADS = {"state": "state", "run": "name", "took": "duration", "when": "newest"}
"""Column → the order that a click on its head selects."""
_TAGS = Column("tags", rank=3, most=24)


def run_columns(inventory: Inventory, curve: int = CURVE) -> Sequence[Column]:
    """The columns of the runs, with tags only if a run has any.

    Args:
        curve: Cells for the curve of the losses.
    """
    state, run, trend, *others = COLUMNS["runs"]
    tags = [_TAGS] if any(row.tags for row in inventory.runs) else []
    return [state, run, *tags, trend._replace(most=curve), *others]


def host_columns(live: Mapping[str, HostNow]) -> Sequence[Column]:
    """The columns of the hosts, with those of GPUs only if a watched host has any."""
    host, *gpus, running, profiles = COLUMNS["hosts"]
    return [host, *(gpus if any(one.load and one.load.gpus for one in live.values()) else ()), running, profiles]


def runs(inventory: Inventory, now: float, order: str = "newest", curve: int = CURVE) -> list[Row]:
    """Rows of the runs in one of the ORDERS; of equal ones, the newest comes first.

    Args:
        curve: Cells for the curve of the losses.
    """
    ordered = sorted(inventory.runs, key=lambda row: ORDERS[order](row, now))
    ids = [row.run for row in ordered]
    tagged = any(row.tags for row in ordered)
    found = []
    for row in ordered:
        cells = _run_cells(row, now, short(row.run, ids), curve)
        tags: list[Cell] = [[(" ".join(row.tags), "muted")]] if tagged else []
        found.append(Row(row.run, [*cells[:2], *tags, *cells[2:]]))
    return found


def _run_cells(row: RunRow, now: float, run: str, curve: int) -> list[Cell]:
    return [
        state_cell(row.state),
        run,
        [(sparkline(row.losses, curve) if len(row.losses) > 1 else "", "ramp--0")],
        [(figure(row.loss) or "", "state--slow" if row.loss in NOT_FINITE else "")],
        _step(row),
        _span(took) if (took := _took(row, now)) is not None else "",
        [(_when(row.started, now), "muted")],
        _names(row.hosts),
        f"{row.processes}" if row.processes else "",
        [(row.by, "muted")],
        _progress(row, now),
    ]


def _progress(row: RunRow, now: float) -> Cell:
    """A run's progress and remaining time, what it waits for, or why it failed."""
    if row.cause:
        return [(row.cause, "state--failed")]
    if row.state == "not seen":
        return [(f"no data for {rough(now - row.seen)}", "state--unseen")]
    if row.doubt or row.waits:
        return [(row.doubt or row.waits, "state--slow" if row.doubt else "muted")]
    if row.over or not row.step or not row.steps:
        return [(row.saved if row.over else "", "muted")]
    share = min(1.0, row.step / row.steps)
    full = round(share * _BAR)
    pace = row.pace or max(0.0, row.seen - (row.began or row.started)) / row.step
    left = max(0.0, pace * (row.steps - row.step) - max(0.0, now - row.seen))
    return [
        (f"{100 * share:2.0f} % ", ""),
        ("━" * full, "state--running"), ("─" * (_BAR - full), "muted"),
        (f" {_span(left)} left" if row.steps > row.step else "", ""),
    ]  # fmt: skip


def _took(row: RunRow, now: float) -> float | None:
    """Seconds for which a run has been running, as far as known; None if it was only queued."""
    if row.waited:
        return None
    until = row.ended or (now if row.state not in ENDED and row.state != "not seen" else row.seen)
    return max(0.0, until - (row.began or row.started))


def profiles(inventory: Inventory) -> list[Row]:
    """Rows of the profiles, in the order in which their libraries are searched for a name."""
    return [Row(str(row.path), _profile_cells(row)) for row in inventory.profiles]


def _profile_cells(row: ProfileRow) -> list[Cell]:
    name: Cell = [(row.name, "muted")] if row.shadowed_by else row.name
    origin: Cell = [("example" if row.origin == "built in" else row.library or row.origin, "muted")]
    if row.problem:
        return [name, [("✗ has errors", "state--failed")], "", origin, [(row.problem, "state--failed")]]
    said = [f"shadowed by {row.shadowed_by}"] if row.shadowed_by else []
    words = " · ".join([*said, *([row.description] if row.description else [])])
    return [name, _hosts_of(row), processes(row), origin, [(words, "muted")]]


def _hosts_of(row: ProfileRow) -> str:
    return f"{len(row.hosts)} of yours" if row.example else _names(row.hosts)


def hosts(inventory: Inventory, live: Mapping[str, HostNow]) -> list[Row]:
    """Rows of the hosts in the order of the inventory.

    Args:
        live: Name → state of the watched hosts.
    """
    found, columns = [], host_columns(live)
    for row in inventory.hosts:
        host = live.get(row.name)
        name, *gpus = _load(row.name, host)
        profiles = ", ".join(row.profiles) if row.used else "in your ssh config"
        found.append(Row(row.name, [name, *gpus[: len(columns) - 3], _running(row, host), profiles]))
    return found


def _load(name: str, host: HostNow | None) -> list[Cell]:
    """The cells for a host's reachability and for the load of its GPUs."""
    shown = "this machine" if name == "local" else name
    if host is None:
        return [f"  {shown}", "", "", "", "", ""]
    seen = look(meters.STATES[host.state])
    load = host.load if host.state == "seen" else None
    gpus = load.gpus if load else ()
    strip = [("·", "muted") if gpu.use is None else meters.level_of(gpu.use) for gpu in gpus]
    figures = (meters.mean(load, "use"), "%"), (meters.gpu_memory(load), "%"), (meters.hottest(load), "°C")
    return [
        [(f"{seen.glyph} ", seen.css), (shown, "")],
        strip or [("none" if load else "", "muted")],
        f"{len(gpus) - meters.leased(host)} of {len(gpus)}" if gpus else "",
        *("" if value is None else f"{value:.0f} {unit}" for value, unit in figures),
    ]


def _running(row: HostRow, host: HostNow | None) -> Cell:
    """The runs on a host and other users' leases there, after the reason if it is unreachable."""
    parts: list[tuple[str, str]] = []
    for run in row.runs:
        seen = look(run.state)
        parts += [(f"{'  ' if parts else ''}{seen.glyph} ", seen.css), (short(run.run), "")]
    mine = {run.run for run in row.runs}
    others = {holder(one) for one in (host.leases or () if host else ()) if one["run"] not in mine}
    parts += [(f"{'  ' * bool(parts or at)}{words}", "muted") for at, words in enumerate(sorted(others))]
    if host is not None and host.state in ("failed", "not seen"):
        parts.insert(0, (host.problem + "  " * bool(parts), look(meters.STATES[host.state]).css))
    return parts or ""


def holder(lease: Lease) -> str:
    """A lease as text: `bob's llama-7f3a`, `bob reserved`, `bob's llama-7f3a queued`."""
    if lease["kind"] == "hand":
        return f"{lease['user']} reserved"
    return f"{lease['user']}'s {short(lease['run'])}" + " queued" * (lease["state"] == "waiting")


def others(inventory: Inventory, live: Mapping[str, HostNow], now: float) -> tuple[RunRow, ...]:
    """The runs that are known only from leases on the watched hosts, as the leases describe them."""
    known = {row.run for row in inventory.runs}
    found: dict[str, RunRow] = {}
    for host in live.values():
        for lease in host.leases or ():
            run, waits = lease["run"], lease["state"] == "waiting"
            if lease["kind"] != "run" or run in known or not RUN.fullmatch(run):
                continue
            before = found.get(run)
            names = dict.fromkeys((*(before.hosts if before else ()), host.name))
            heard = max(before.seen if before else 0.0, now if host.state == "seen" else host.heard or host.since)
            state = "not seen" if now - heard > QUIET else "queued" if waits else "running"
            found[run] = RunRow(
                run=run, state=state, hosts=tuple(names),
                processes=0, step=lease["step"], steps=lease["steps"], loss=None, started=lease["since"],
                began=None if waits else lease["since"], ended=None, seen=heard, by=lease["user"], folder=Path(),
                profile=run.rpartition("-")[0], source=None, problem="", waited=waits, foreign=True,
            )  # fmt: skip
    return tuple(found.values())


def processes(row: ProfileRow) -> str:
    """The processes per host as text: `2 × 4 = 8`, `8 + 6 = 14`, `auto`, `2 + auto`."""
    known = [each for each in row.processes if each is not None]
    if not known:
        return "auto"
    if len(known) < len(row.processes):
        words = ["auto" if each is None else str(each) for each in row.processes]
        return f"{' + '.join(words[:4])}{' …' if len(words) > 4 else ''}"
    if len(known) == 1:
        return f"{known[0]}"
    if len(set(known)) == 1:
        return f"{len(known)} × {known[0]} = {sum(known)}"
    return f"{' + '.join(map(str, known[:4]))}{' …' if len(known) > 4 else ''} = {sum(known)}"


def details(
    row: RunRow | ProfileRow | HostRow,
    now: float,
    home: str,
    silent: str = "",
    host: HostNow | None = None,
    chart: tuple[int, int] = (CURVE, 1),
) -> list[Point]:
    """Everything known about a row, one item per point; paths below `home` begin with ~.

    Args:
        silent: For a run, why its hosts gave no answer when last queried.
        host: For a host, its state.
        chart: For a run, columns and rows of the chart of its losses.
    """
    if isinstance(row, HostRow):
        lines = _host_details(row, host)
    else:
        lines = _run_details(row, now, home, silent, chart) if isinstance(row, RunRow) else _profile_details(row, home)
    width = max(len(name) for name, _ in lines)
    return [Point(value, mark=name.ljust(width) + "  ", mark_style="$muted") for name, value in lines]


def _run_details(
    row: RunRow, now: float, home: str, silent: str, chart: tuple[int, int]
) -> list[tuple[str, Content | str]]:
    lines: list[tuple[str, Content | str]] = [
        ("run", Content.assemble(state_words(row.state), f"  {short(row.run)}  from {row.profile}, by {row.by}")),
        ("hosts", f"{', '.join(row.hosts)}  {amount(row.processes, 'rank') if row.processes else ''}"),
        (
            "started",
            f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(row.started))}, last update {_ago(row.seen, now)}",
        ),
        ("files", "on its hosts; enter reads them" if row.foreign else _short(row.folder, home)),
    ]
    if row.waits:
        lines.insert(1, ("waits", row.waits))
    if len(row.losses) > 1:
        width, height = chart
        ends = f"{figure(row.losses[0])} to {figure(row.loss)}" + (", rank 0" if row.processes > 1 else "")
        if height == 1:
            bars = Content.styled(sparkline(row.losses, width), "$accent")
            lines.insert(1, ("loss", Content.assemble(bars, (f"  {ends}", "$muted"))))
        else:
            lines.insert(1, ("loss", Content.styled(ends, "$muted")))
            lines += _chart(row.losses, width, height)
    if row.doubt:
        lines.insert(1, ("warning", Content.styled(row.doubt, "$state-slow")))
    if row.cause:
        lines.insert(1, ("cause", Content.styled(row.cause, "$state-failed")))
    if row.saved_as:
        lines.append(("saved", f"{row.saved_as}: p copies it here"))
    if row.tags:
        lines.append(("tags", " ".join(row.tags)))
    if row.note:
        lines.append(("note", row.note))
    if silent and not row.over:
        lines.append(("no reply", Content.styled(silent, "$state-unseen")))
    if row.problem and row.problem != row.cause:
        lines.append(("problem", Content.styled(row.problem, "$state-failed")))
    return lines


def _chart(losses: Sequence[float], width: int, height: int) -> list[tuple[str, Content]]:
    """The losses as an area over several lines, labelled with the highest and the lowest."""
    shown, low, high = thinned(losses, width), min(losses), max(losses)
    lines = meters.area([loss - low for loss in shown], len(shown), height, high - low or 1.0)
    labels = [figure(high) or "", *[""] * (height - 2), figure(low) or ""]
    return [(label, Content.styled(line, "$accent")) for label, line in zip(labels, lines, strict=True)]


def sparkline(values: Sequence[float], most: int = CURVE) -> str:
    """One bar per value for at most `most` of the values, scaled from the lowest to the highest."""
    values = thinned(values, most)
    low, high = min(values), max(values)
    steps = len(meters.LEVELS) - 1
    return "".join(meters.LEVELS[round((value - low) / (high - low) * steps) if high > low else 0] for value in values)


def _profile_details(row: ProfileRow, home: str) -> list[tuple[str, Content | str]]:
    lines: list[tuple[str, Content | str]] = [
        ("profile", f"{row.name}  {row.description}"),
        ("file", "built in" if row.origin == "built in" else _short(row.path, home)),
    ]
    if row.problem:
        return [*lines, ("error", Content.styled(row.problem, "$state-failed"))]
    return [
        *lines,
        ("hosts", f"{_hosts_of(row)}: enter asks which" if row.example else ", ".join(row.hosts)),
        ("processes", processes(row)),
        ("command", f"disttui run {row.name}" + (" --sandbox, or --set 'hosts=[HOST, …]'" if row.example else "")),
    ]


def _host_details(row: HostRow, host: HostNow | None) -> list[tuple[str, Content | str]]:
    alive = [Content.assemble(state_words(run.state), f" {short(run.run)}") for run in row.runs]
    name = "this machine" if row.name == "local" else row.name
    state = state_words(meters.STATES[host.state]) if host else Content()
    lines: list[tuple[str, Content | str]] = [
        ("host", Content.assemble(name, "  ", "● reachable" if host and host.state == "seen" else state)),
        ("running", Content("  ").join(alive) if alive else "no known runs"),
        ("profiles", ", ".join(row.profiles) or ("none" if row.used else "none; from your ssh config")),
        ("command", f"disttui top {row.name}"),
    ]
    if host and host.problem:
        lines.insert(1, ("problem", " ".join(filter(None, (host.problem, host.cure)))))
    if host and host.load:
        lines += ((f"GPU {gpu.index}", _gpu_words(host, gpu)) for gpu in host.load.gpus)
    return lines


def _gpu_words(host: HostNow, gpu: GpuLoad) -> str:
    lease = meters.lease_of(host, gpu.index)
    figures = (gpu.use, "%"), (percent(gpu.mem_used, gpu.mem_total), "% memory"), (gpu.temp, "°C")
    words = [f"{value:3.0f} {unit}" for value, unit in figures if value is not None]
    return "  ".join([*words, meters.lease_words(host, lease) if lease else "free"])


def run_consequence(row: ProfileRow) -> str:
    """The consequence of running a profile."""
    shown = processes(row)
    number = {"auto": "as many processes as fit", "1": "1 process"}.get(shown, f"{shown} processes")
    here = row.hosts == ("local",)
    where = "this machine first" if here else f"{amount(len(row.hosts), 'host')} first: {', '.join(row.hosts)}"
    return f"Checks {where}. If no check fails, starts {number} there."


def delete_consequence(chosen: Sequence[RunRow], home: str) -> str:
    """The consequence of deleting runs, with the places of their files."""
    lines = []
    for row in chosen[:_SHOWN]:
        by = "" if len({one.by for one in chosen}) == 1 else f", started by {row.by}"
        where = "" if row.sandbox else f"on {_names(row.hosts)}, and "
        lines.append(f"{row.run}: {where}here {_short(row.folder, home)}{by}")
    if len(chosen) > _SHOWN:
        lines.append(f"and {amount(len(chosen) - _SHOWN, 'run')} more")
    return "\n".join(
        [*lines, "Deletes logs, metrics and checkpoints there, and tags and notes here. This cannot be undone."]
    )


def stop_consequence(row: RunRow) -> str:
    """The consequence of stopping a run."""
    at = f" at step {row.step:,}" if row.step is not None else ""
    return (
        f"Stops {amount(row.processes, 'process')} on {', '.join(row.hosts)}{at}: SIGTERM to let them save "
        "a checkpoint; what still runs then is killed. Logs, metrics and checkpoints are kept."
    )


def _short(path: Path, home: str) -> str:
    text = clean(str(path))
    return f"~{text[len(home) :]}" if home and text.startswith(f"{home}/") else text


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} +{len(names) - 1}"


def _step(row: RunRow) -> str:
    if row.step is None:
        return ""
    return f"{row.step:,}" + (f" / {row.steps:,}" if row.steps else "")


def _span(seconds: float) -> str:
    return duration(seconds) if seconds < 3600 else rough(seconds)


def _ago(then: float, now: float) -> str:
    return f"{rough(now - then)} ago" if then else "never"


def _when(then: float, now: float) -> str:
    return f"{rough(now - then)} ago" if now - then < 7 * 86400 else time.strftime("%d %b %Y", time.localtime(then))


class WelcomeLine(NamedTuple):
    """A line of the welcome, for one key."""

    shown: str
    """The key, as printed."""
    does: str
    action: str
    """The action of the screen that the key runs."""


STEPS = (
    WelcomeLine("s", "train now, on this machine", "sandbox"),
    WelcomeLine("n", "describe your hosts and job", "new"),
    WelcomeLine("enter", "start from a profile below", "begin"),
    WelcomeLine("e", "replay a recorded run", "example"),
    WelcomeLine("t", "show the load of this machine", "top"),
    WelcomeLine("?", "list all keys", "app.help"),
)


class Welcome(Static):
    """The welcome: one line per step; a click on a line runs its action.

    Args:
        steps: The number of steps shown.
        head: A title above them.
    """

    DEFAULT_CSS = "Welcome { pointer: pointer; }"
    ALLOW_SELECT = False

    def __init__(self, steps: int = len(STEPS), *, head: str = "", id: str | None = None) -> None:
        self._steps = STEPS[:steps]
        self._above = 2 if head else 0
        lines = [Content.assemble((f"{step.shown:<7}", "bold $accent"), step.does) for step in self._steps]
        if head:
            lines[:0] = [Content.styled(head, "bold"), Content()]
        super().__init__(Content("\n").join(lines), id=id)

    async def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        row = -1 if offset is None else offset.y - self._above
        if 0 <= row < len(self._steps):
            await self.screen.run_action(self._steps[row].action)
