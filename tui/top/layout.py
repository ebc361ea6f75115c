"""Which columns of hosts and GPUs fit a width, and how wide each is. Pure."""

from __future__ import annotations

from typing import NamedTuple

SPACE = "  "
"""Between two columns."""
_LEAST = 4
"""Cells of a bar."""
_WIDE = 106
"""The least width for the columns of the last minutes, the load, and runs."""

_GPU = 39
"""Cells of a GPU's row beside its name, its bars, the last minutes, total memory and users."""
_RUN = 12
"""The least cells for the runs, as far as the last minutes can give them: names that are cut off say nothing."""
_TREND = len("last 3:00")
"""The least cells for the last minutes: those of their head."""


class ColumnLayout(NamedTuple):
    """Widths of the columns."""

    name: int
    bar: int
    trend: int
    """0: no room for it."""
    gpus: int
    """0: no host has GPUs."""
    who: int
    of: bool
    """Whether memory is shown as used/total."""
    net: bool


def lay_out(
    width: int, longest: int, gpus: int, leased: int = 0, users: int = 0, *, alone: bool = False
) -> ColumnLayout:
    """Fit the columns: leave out columns that do not fit, give remaining room to the bars.

    Args:
        longest: Cells of the longest name.
        gpus: The largest number of GPUs of any host.
        leased: Cells of the longest lease at the end of a GPU's row, a sentence: the last minutes leave it half of
            their room, and where it is still cut off the bars and the total memory give it theirs.
        users: Cells of the names at the end of a GPU's row; the bars leave them room.
        alone: Whether the only row is a GPU's: the columns of a host need no room.
    """
    space, wide = len(SPACE), width >= _WIDE
    name = min(longest, 26 if wide else 10 + max(0, width - 76) // 4)
    if alone:  # before the bars, which tell no more when they are longer
        name += max(0, min(longest - name, width - name - _GPU - 6 - users - 2 * _LEAST))
    trend = min(60, (width - 90) // 2) if wide else 0
    who = min(40, (width - 96) // 4) if wide else 0
    if wide and who < _RUN:
        taken = min(trend, _RUN - who)
        trend, who = trend - taken, who + taken
    if leased:
        trend, who = trend - trend // 2, who + trend // 2
    if trend < _TREND:
        trend, who = 0, who + trend
    columns = [2 + name, 6, 6, *(one for one in (trend, 15 if wide else 0, who) if one)]
    fixed = sum(columns) + space * (len(columns) - 1)
    room = width - fixed - 2 * _LEAST
    of, strip, net = (room >= least for least in (6, 6 + (gpus + 8 if gpus else 0), 6 + gpus + 8 + 14))
    fixed += (6 if of else 0) + (gpus + 6 + space if gpus and strip else 0) + (12 + space if net else 0)
    beside = name + _GPU + (6 if of else 0) + (trend + space if trend else 0) + users
    most = (width - beside) // 2
    if alone and wide:
        fixed, most = 0, most - _RUN
    bar = max(_LEAST, min(24, (width - fixed) // 2, most if most >= _LEAST else 24))
    if leased and wide and not alone:
        lacking = leased + beside - users + 2 * bar - width
        slim = max(_LEAST, bar - max(0, (lacking + 1) // 2))
        lacking, who, bar = lacking - 2 * (bar - slim), who + 2 * (bar - slim), slim
        if lacking > 0 and of:
            of, who = False, who + 6
    return ColumnLayout(name, bar, trend, gpus if strip else 0, who, of, net)
