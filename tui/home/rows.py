"""The texts of the home screen: rows, details, and the consequences of actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from textual.content import Content

from runner.formatting import count, duration
from runner.ids import short
from runner.text import clean
from tui.inventory import ENDED, HostRow, ProfileRow, RunRow, Shelf
from tui.theme import look, state_words
from tui.widgets.points import Point
from tui.widgets.table import Cell, Column, Row, state_cell

COLUMNS: Mapping[str, Sequence[Column]] = {
    "runs": (
        Column("state"), Column("run", grows=True, least=40), Column("hosts", rank=4, most=24, least=12),
        Column("ranks", "right", rank=3),
        Column("step", "right", rank=1), Column("loss", "right", rank=2), Column("took", "right", rank=2),
        Column("when", "right", rank=1), Column("by", rank=5, most=20),
    ),
    "profiles": (
        Column("name"), Column("hosts", rank=2, most=28), Column("processes", rank=3), Column("from", rank=1),
        Column("description", rank=4, most=80, grows=True),
    ),
    "hosts": (
        Column("host"), Column("running", rank=1, most=60, least=16), Column("profiles", rank=2, most=60, grows=True),
    ),
}  # fmt: skip

_SHOWN = 8
"""The most runs that a question names."""
_BARS = "▁▂▃▄▅▆▇█"


def empty(shelf: Shelf, pane: str, *, read_only: bool) -> str:
    """The words in place of a pane's rows where there are none."""
    if not shelf.read:
        return "reading"
    if pane != "runs":
        return ""
    return "none yet" if read_only else "none yet; r runs the profile under the cursor"


def facts(shelf: Shelf) -> list[str]:
    """The numbers of running, of queued and of unseen runs, in words."""
    states = [row.state for row in shelf.runs if not row.over]
    others = {state: states.count(state) for state in ("queued", "not seen")}
    alive = len(states) - sum(others.values())
    words = [f"{alive} running" if alive else "nothing running"] if shelf.read else []
    return [*words, *(f"{number} {state}" for state, number in others.items() if number)]


ORDERS: Mapping[str, Callable[[RunRow, float], Any]] = {
    "newest": lambda row, now: (row.over, -row.started),
    "name": lambda row, now: (row.run.rpartition("-")[0], -row.started),
    "state": lambda row, now: (row.over, row.state, -row.started),
    "duration": lambda row, now: (-(_took(row, now) or 0.0), -row.started),
}
"""How runs can be ordered: by age running ones come first, by duration the longest."""
HEADS = {"state": "state", "run": "name", "took": "duration", "when": "newest"}
"""Column → the order that a click on its head selects."""
_TAGS = Column("tags", rank=3, most=24)


def run_columns(shelf: Shelf) -> Sequence[Column]:
    """The columns of the runs; with tags only if a run has any."""
    state, run, *others = COLUMNS["runs"]
    return [state, run, *([_TAGS] if any(row.tags for row in shelf.runs) else []), *others]


def runs(shelf: Shelf, now: float, order: str = "newest") -> list[Row]:
    """The runs in one of the ORDERS; equal ones with the newest first."""
    ordered = sorted(shelf.runs, key=lambda row: ORDERS[order](row, now))
    ids = [row.run for row in ordered]
    tagged = any(row.tags for row in ordered)
    found = []
    for row in ordered:
        cells = _run_cells(row, now, short(row.run, ids))
        tags: list[Cell] = [[(" ".join(row.tags), "table--muted")]] if tagged else []
        found.append(Row(row.run, [*cells[:2], *tags, *cells[2:]]))
    return found


def _run_cells(row: RunRow, now: float, run: str) -> list[Cell]:
    return [
        state_cell(row.state),
        run,
        _names(row.hosts),
        f"{row.processes}",
        _step(row),
        _loss(row.loss),
        _span(took) if (took := _took(row, now)) is not None else "",
        [(_when(row.started, now), "table--muted")],
        [(row.by, "table--muted")],
    ]


def _took(row: RunRow, now: float) -> float | None:
    """The seconds that it has run, as far as known; None: it has only waited."""
    if row.waited:
        return None
    until = row.ended or (now if row.state not in ENDED and row.state != "not seen" else row.seen)
    return max(0.0, until - (row.began or row.started))


def profiles(shelf: Shelf) -> list[Row]:
    """The profiles in the order of their libraries, which decides what a name means."""
    return [Row(str(row.path), _profile_cells(row)) for row in shelf.profiles]


def _profile_cells(row: ProfileRow) -> list[Cell]:
    name: Cell = [(row.name, "table--muted")] if row.shadowed_by else row.name
    origin: Cell = [("example" if row.origin == "built in" else row.library or row.origin, "table--muted")]
    if row.problem:
        return [name, [("✗ has errors", "state--failed")], "", origin, [(row.problem, "state--failed")]]
    said = [f"shadowed by {row.shadowed_by}"] if row.shadowed_by else []
    words = " · ".join([*said, *([row.description] if row.description else [])])
    return [name, _names(row.hosts), processes(row), origin, [(words, "table--muted")]]


def hosts(shelf: Shelf) -> list[Row]:
    """Rows of the hosts, by name; this machine comes last."""
    return [
        Row(
            row.name, ["this machine" if row.name == "local" else row.name, _running(row.runs), ", ".join(row.profiles)]
        )
        for row in shelf.hosts
    ]


def _running(alive: Sequence[RunRow]) -> Cell:
    parts: list[tuple[str, str]] = []
    for row in alive:
        seen = look(row.state)
        parts += [(f"{'  ' if parts else ''}{seen.glyph} ", seen.css), (short(row.run), "")]
    return parts or ""


def processes(row: ProfileRow) -> str:
    """`2 × 4 = 8`, `8 + 6 = 14`, `auto`, `2 + auto`."""
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


def details(row: RunRow | ProfileRow | HostRow, now: float, home: str, silent: str = "") -> list[Point]:
    """All that is known about a row, one item per point; paths under `home` begin with ~.

    Args:
        silent: Why the hosts of a run gave no answer when they were last asked.
    """
    if isinstance(row, HostRow):
        lines = _host_details(row)
    else:
        lines = _run_details(row, now, home, silent) if isinstance(row, RunRow) else _profile_details(row, home)
    width = max(len(name) for name, _ in lines)
    return [Point(value, mark=name.ljust(width) + "  ", mark_style="$muted") for name, value in lines]


def _run_details(row: RunRow, now: float, home: str, silent: str) -> list[tuple[str, Content | str]]:
    lines: list[tuple[str, Content | str]] = [
        ("run", Content.assemble(state_words(row.state), f"  {short(row.run)}  from {row.profile}, by {row.by}")),
        ("hosts", f"{', '.join(row.hosts)}  {_count(row.processes, 'rank')}"),
        ("begun", f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(row.started))}, last heard {_ago(row.seen, now)}"),
        ("files", _short(row.folder, home)),
    ]
    if row.waits:
        lines.insert(1, ("waits", row.waits))
    if len(row.losses) > 1:
        bars = Content.styled(sparkline(row.losses), "$accent")
        ends = f"  {_loss(row.losses[0])} to {_loss(row.loss)}" + (", rank 0" if row.processes > 1 else "")
        lines.insert(1, ("loss", Content.assemble(bars, (ends, "$muted"))))
    if row.cause:
        lines.insert(1, ("cause", Content.styled(row.cause, "$state-failed")))
    if row.tags:
        lines.append(("tags", " ".join(row.tags)))
    if row.note:
        lines.append(("note", row.note))
    if silent and not row.over:
        lines.append(("asked", Content.styled(silent, "$state-unseen")))
    if row.problem:
        lines.append(("problem", Content.styled(row.problem, "$state-failed")))
    return lines


def sparkline(values: Sequence[float]) -> str:
    """One bar per value, scaled from the lowest to the highest."""
    low, high = min(values), max(values)
    steps = len(_BARS) - 1
    return "".join(_BARS[round((value - low) / (high - low) * steps) if high > low else 0] for value in values)


def _profile_details(row: ProfileRow, home: str) -> list[tuple[str, Content | str]]:
    lines: list[tuple[str, Content | str]] = [
        ("profile", f"{row.name}  {row.description}"),
        ("file", "comes with disttui" if row.origin == "built in" else _short(row.path, home)),
    ]
    if row.problem:
        return [*lines, ("error", Content.styled(row.problem, "$state-failed"))]
    return [
        *lines,
        ("hosts", ", ".join(row.hosts)),
        ("processes", processes(row)),
        ("by hand", f"disttui run {row.name}"),
    ]


def _host_details(row: HostRow) -> list[tuple[str, Content | str]]:
    alive = [Content.assemble(state_words(run.state), f" {short(run.run)}") for run in row.runs]
    return [
        ("host", "this machine" if row.name == "local" else row.name),
        ("running", Content("  ").join(alive) if alive else "nothing that is known here"),
        ("profiles", ", ".join(row.profiles) or "none"),
        ("by hand", f"disttui top {row.name}"),
    ]


def run_consequence(row: ProfileRow) -> str:
    """What running it will do."""
    shown = processes(row)
    number = {"auto": "as many processes as fit", "1": "1 process"}.get(shown, f"{shown} processes")
    here = row.hosts == ("local",)
    where = "this machine first" if here else f"{_count(len(row.hosts), 'host')} first: {', '.join(row.hosts)}"
    return f"Checks {where}. If nothing stands in the way, starts {number} there."


def delete_consequence(chosen: Sequence[RunRow], home: str) -> str:
    """What deleting runs will do, and where."""
    lines = []
    for row in chosen[:_SHOWN]:
        by = "" if len({one.by for one in chosen}) == 1 else f", started by {row.by}"
        where = "" if row.sandbox else f"on {_names(row.hosts)}, and "
        lines.append(f"{row.run}: {where}here {_short(row.folder, home)}{by}")
    if len(chosen) > _SHOWN:
        lines.append(f"and {_count(len(chosen) - _SHOWN, 'run')} more")
    return "\n".join(
        [*lines, "Logs, metrics and checkpoints there go, with tags and notes here. Nothing brings them back."]
    )


def stop_consequence(row: RunRow) -> str:
    """What stopping it will do."""
    at = f" at step {row.step:,}" if row.step is not None else ""
    return (
        f"Ends all {row.processes} processes on {', '.join(row.hosts)}{at}: TERM first, so that they can save, "
        "then KILL. What they wrote stays."
    )


def _short(path: Path, home: str) -> str:
    text = clean(str(path))
    return f"~{text[len(home) :]}" if home and text.startswith(f"{home}/") else text


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} +{len(names) - 1}"


def _step(row: RunRow) -> str:
    if row.step is None:
        return ""
    return f"{row.step:,}" + (f" / {row.steps:,}" if row.steps else "")


def _loss(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 10_000 else f"{value:.2e}"


def _span(seconds: float) -> str:
    return duration(seconds) if seconds < 3600 else _rough(seconds)


def _rough(seconds: float) -> str:
    if seconds < 60:
        return "moments"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{count(round(seconds / 86400))} days"


def _ago(then: float, now: float) -> str:
    return f"{_rough(now - then)} ago" if then else "never"


def _when(then: float, now: float) -> str:
    return f"{_rough(now - then)} ago" if now - then < 7 * 86400 else time.strftime("%d %b %Y", time.localtime(then))
