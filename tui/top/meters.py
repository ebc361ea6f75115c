"""Bars, small curves and numbers of fixed width, the same in all panes of `top`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.style import Style

from tui.theme import FULL
from tui.widgets.drawn import Piece

Paint = Callable[[str], Style]
"""Maps the name of a component class to its colours."""
_LEVELS = "▁▂▃▄▅▆▇"
"""Without the full block, which would touch the row above."""
_EIGHTHS = " ▁▂▃▄▅▆▇█"
NONE = "–"
"""Shown for an unknown value."""


def ramp(share: float) -> str:
    """The component class of a load between 0 and 1."""
    return f"ramp--{_step(share, FULL + 1)}"


def bar(percent: float | None, width: int, paint: Paint) -> list[Piece]:
    """A bar and its number: `━━━━╸───  55 %`, 6 cells wider than `width`."""
    if percent is None:
        return [("─" * width, paint("top--rest")), (f"{NONE:>6}", paint("top--quiet"))]
    style = paint(ramp(percent / 100))
    return [*strip(percent, width, paint), (f" {min(999.0, percent):>3.0f} %", style)]


def strip(percent: float, width: int, paint: Paint) -> list[Piece]:
    """The bar alone, in steps of half a cell."""
    halves = round(max(0.0, min(1.0, percent / 100)) * width * 2)
    full = "━" * (halves // 2) + ("╸" if halves % 2 else "")
    return [(full, paint(ramp(percent / 100))), ("─" * (width - len(full)), paint("top--rest"))]


def level(percent: float | None, paint: Paint) -> Piece:
    """One cell for a load, which its height and colour show."""
    if percent is None:
        return "·", paint("top--quiet")
    share = max(0.0, min(1.0, percent / 100))
    return _LEVELS[_step(share, len(_LEVELS))], paint(ramp(share))


def curve(values: Sequence[float | None], width: int, top: float, style: Style) -> Piece:
    """Values as one row of levels, flush right."""
    shown = "".join(" " if value is None else _LEVELS[_step(value / top, len(_LEVELS))] for value in values[-width:])
    return f"{shown:>{width}}", style


def area(values: Sequence[float | None], width: int, height: int, top: float) -> list[str]:
    """Values as columns of `height` rows, the uppermost row first, flush right."""
    eighths = [0 if value is None else max(1, min(height * 8, round(value / top * height * 8))) for value in values]
    eighths = [0] * (width - len(eighths)) + eighths[-width:]
    return ["".join(_EIGHTHS[max(0, min(8, one - 8 * row))] for one in eighths) for row in range(height - 1, -1, -1)]


def _step(share: float, steps: int) -> int:
    return max(0, min(steps - 1, int(share * steps)))


def size(value: float | None) -> str:
    """Bytes in five cells: `61.2G`, ` 640M`, `  –  `."""
    return _short(value, 1024.0, "BKMGTP")


def rate(value: float | None) -> str:
    """Bytes a second in five cells, in steps of a thousand as networks count."""
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
    """Text cut or padded to a width in cells, with an ellipsis if cut; also for double-width characters."""
    if text.isascii():
        return text.ljust(width) if len(text) <= width else text[: max(0, width - 1)] + "…"[:width]
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(set_cell_size(text, max(0, width - 1)) + "…"[:width], width)
