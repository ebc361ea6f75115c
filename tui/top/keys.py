"""The keys that both panes of `top` have."""

from __future__ import annotations

from textual.binding import BindingType

from tui.keys import MOVES, OPEN, VIEW, bind

ROW_KEYS: tuple[BindingType, ...] = (
    bind("top.open", "enter", "open", "open", "only what the cursor is on: one host, one GPU", group=OPEN),
    bind("top.sort", "s", "sort(1)", "sort", "by the next column", group=VIEW),
    bind("top.sort_back", "S", "sort(-1)", "sort back", "by the column before", group=VIEW, show=False),
    bind("top.turn", "v", "turn", "reverse", "the other way round", group=VIEW, show=False),
    *MOVES,
)
