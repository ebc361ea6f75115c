"""Keys: every binding has an id by which the user's config can remap it, a short label, and its meaning in words."""

from __future__ import annotations

from textual.binding import Binding

MOVE = Binding.Group("Move")
OPEN = Binding.Group("Open")
VIEW = Binding.Group("View")
CHANGE = Binding.Group("Change")
"""What changes something on hosts or in files. Its actions are refused under --read-only."""
APP = Binding.Group("Everywhere")

GROUPS = (OPEN, CHANGE, VIEW, MOVE, APP)
"""The sections of the help screen, in their order."""


def bind(
    id: str,
    keys: str,
    action: str,
    label: str,
    words: str = "",
    *,
    group: Binding.Group = VIEW,
    show: bool = True,
    priority: bool = False,
) -> Binding:
    """Make a binding.

    Args:
        id: `<screen or widget>.<action>`, unique in the app; what `keys:` of the config names.
        keys: Textual's key names, several separated by commas. The first is the one that is shown.
        action: The action it runs.
        label: One or two words for the footer.
        words: What it does, as a sentence for the help screen; `label` where nothing is given.
        group: Its section of the help screen.
        show: Whether it stands in the footer.
        priority: Whether it comes before what the focused widget makes of the key.
    """
    return Binding(keys, action, label, show=show, priority=priority, tooltip=words or label, id=id, group=group)


MOVES = (
    bind("move.down", "j,down", "cursor_down", "down", "one row down", group=MOVE, show=False),
    bind("move.up", "k,up", "cursor_up", "up", "one row up", group=MOVE, show=False),
    bind("move.page_down", "ctrl+d,pagedown", "page_down", "page down", group=MOVE, show=False),
    bind("move.page_up", "ctrl+u,pageup", "page_up", "page up", group=MOVE, show=False),
    bind("move.first", "g,home", "first", "first", "to the first row", group=MOVE, show=False),
    bind("move.last", "G,end", "last", "last", "to the last row", group=MOVE, show=False),
)
"""Moving in anything that has rows: a widget that takes these has the six actions."""

PANE_KEYS = (
    bind("dash.next", "tab", "pane(1)", "pane", "to the next pane", group=MOVE),
    bind("dash.zoom", "z", "zoom", "zoom", "this pane alone, or all of them", group=VIEW),
    bind("dash.find", "slash", "log('find')", "find", "find in the log", group=VIEW),
)
"""What a screen of panes binds after its own keys: the footer shows the first that fit."""
