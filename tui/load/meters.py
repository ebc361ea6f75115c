"""Bars, small curves, numbers of fixed width, sums over GPUs, and leases, for all views of the load. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.style import Style

from disttui.runner.hosts.load import Load
from disttui.runner.protocol.leases import Lease, holder, who_has
from disttui.tui.load.feed import percent
from disttui.tui.theme import FULL
from disttui.tui.widgets.drawn import Piece

if TYPE_CHECKING:
    from disttui.runner.runs.watch import HostNow

Paint = Callable[[str], Style]
"""Maps the name of a component class to its style."""
LEVELS = "▁▂▃▄▅▆▇"
"""Bars of rising height, without the full block, which would touch the row above."""
_EIGHTHS = " ▁▂▃▄▅▆▇█"
STATES = {"seen": "running", "connecting": "connecting", "failed": "failed", "not seen": "not seen"}
"""State of a host → a word that `disttui.tui.theme.look` knows."""
NONE = "–"
"""Shown for an unknown value."""


def ramp(share: float) -> str:
    """The component class of a load between 0 and 1."""
    return f"ramp--{_step(share, FULL + 1)}"


def bar(percent: float | None, width: int, paint: Paint) -> list[Piece]:
    """A bar and its number: `━━━━╸───  55 %`, 6 cells wider than `width`."""
    if percent is None:
        return [("─" * width, paint("rule")), (f"{NONE:>6}", paint("muted"))]
    style = paint(ramp(percent / 100))
    return [*strip(percent, width, paint), (f" {min(999.0, percent):>3.0f} %", style)]


def strip(percent: float, width: int, paint: Paint) -> list[Piece]:
    """A bar without its number, in steps of half a cell."""
    halves = round(max(0.0, min(1.0, percent / 100)) * width * 2)
    full = "━" * (halves // 2) + ("╸" if halves % 2 else "")
    return [(full, paint(ramp(percent / 100))), ("─" * (width - len(full)), paint("rule"))]


def level(percent: float | None, paint: Paint) -> Piece:
    """One cell that shows a load by height and colour."""
    if percent is None:
        return "·", paint("muted")
    glyph, css = level_of(percent)
    return glyph, paint(css)


def level_of(percent: float) -> tuple[str, str]:
    """The cell for a load, and the component class of its colour."""
    share = max(0.0, min(1.0, percent / 100))
    return LEVELS[_step(share, len(LEVELS))], ramp(share)


def curve(values: Sequence[float | None], width: int, top: float, style: Style) -> Piece:
    """Values as one row of levels, flush right; `top` is the value of the highest level."""
    shown = "".join(" " if value is None else LEVELS[_step(value / top, len(LEVELS))] for value in values[-width:])
    return f"{shown:>{width}}", style


def area(values: Sequence[float | None], width: int, height: int, top: float) -> list[str]:
    """Values as columns of `height` rows, flush right; the top row, which ends at the value `top`, comes first."""
    eighths = [0 if value is None else max(1, min(height * 8, round(value / top * height * 8))) for value in values]
    eighths = [0] * (width - len(eighths)) + eighths[-width:]
    return ["".join(_EIGHTHS[max(0, min(8, one - 8 * row))] for one in eighths) for row in range(height - 1, -1, -1)]


def _step(share: float, steps: int) -> int:
    return max(0, min(steps - 1, int(share * steps)))


def size(value: float | None) -> str:
    """Bytes in five cells, with binary prefixes: `61.2G`, ` 640M`, `    –`."""
    return _short(value, 1024.0, "BKMGTP")


def rate(value: float | None) -> str:
    """Bytes per second in five cells, with decimal prefixes, as is usual for networks."""
    return _short(value, 1000.0, "BkMGTP")


def _short(value: float | None, step: float, units: str) -> str:
    if value is None:
        return f"{NONE:>5}"
    for unit in units:
        if abs(value) < 999.5 or unit == units[-1]:
            break
        value /= step
    digits = 0 if unit == units[0] or value >= 99.95 else 1
    return f"{value:>4.{digits}f}{unit}"


def fit(text: str, width: int) -> str:
    """Cut or pad a text to a width in cells, with an ellipsis if cut; handles double-width characters."""
    if text.isascii():
        return text.ljust(width) if len(text) <= width else text[: max(0, width - 1)] + "…"[:width]
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(set_cell_size(text, max(0, width - 1)) + "…"[:width], width)


def mean(load: Load | None, name: str) -> float | None:
    """The mean of a figure over all GPUs that report it; None if none does."""
    known = _each(load, name)
    return sum(known) / len(known) if known else None


def total(load: Load | None, name: str) -> float | None:
    """The sum of a figure over all GPUs that report it; None if none does."""
    known = _each(load, name)
    return sum(known) if known else None


def gpu_memory(load: Load | None) -> float | None:
    """The used share of all GPUs' memory, in percent."""
    return percent(total(load, "mem_used"), total(load, "mem_total"))


def hottest(load: Load | None) -> float | None:
    """The temperature of the hottest GPU, in °C."""
    return max(_each(load, "temp"), default=None)


def _each(load: Load | None, name: str) -> list[float]:
    return [value for gpu in (load.gpus if load else ()) if (value := getattr(gpu, name)) is not None]


def sort_key(load: Load | None, name: str) -> float:
    """A figure of a host as a sort key."""
    return known_first(getattr(load, name) if load else None)


def known_first(value: float | None) -> float:
    """A figure as a sort key: -1 if it is unknown."""
    return -1.0 if value is None else float(value)


def memory(load: Load | None) -> tuple[float | None, float | None]:
    """Used and total memory, in bytes."""
    return (load.mem_used, load.mem_total) if load else (None, None)


def lease_of(host: HostNow, gpu: int) -> Lease | None:
    """The lease of a GPU, or of its whole host; None if none is known."""
    return next((one for one in _held(host) if one["gpus"] is None or gpu in one["gpus"]), None)


def lease_words(host: HostNow, lease: Lease) -> str:
    """A lease as text: `alice's llama-7f3a, 41 % done, about 3 h left`."""
    return who_has(lease, _now(host))


def other_leases(host: HostNow) -> list[str]:
    """The leases that include no known GPU, as texts: `bob reserved the whole host until released`."""
    shown = {gpu.index for gpu in host.load.gpus} if host.load else set()
    others = (one for one in _held(host) if not shown & set(one["gpus"] or ()) and not (shown and one["gpus"] is None))
    return [holder(one, _now(host)) for one in others]


def leased(host: HostNow) -> int:
    """The number of a host's GPUs that are leased."""
    return sum(lease_of(host, gpu.index) is not None for gpu in host.load.gpus) if host.load else 0


def _now(host: HostNow) -> float:
    """The time (unix time, s) of a host's last report, or of its last change of state if it has sent none."""
    return host.load.t if host.load else host.since


def _held(host: HostNow) -> list[Lease]:
    return [one for one in host.leases or () if one["state"] == "held"]
