"""Key bindings: each has an id by which the user's config can remap it, a short label, and a description."""

from __future__ import annotations

from typing import NamedTuple

from textual.binding import Binding

MOVE = Binding.Group("Move")
OPEN = Binding.Group("Open")
VIEW = Binding.Group("View")
CHANGE = Binding.Group("Change")
"""Actions that change something on hosts or in files; --read-only refuses them."""
APP = Binding.Group("Everywhere")

GROUPS = (OPEN, CHANGE, VIEW, MOVE, APP)
"""The sections of the help screen, in order."""


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
        id: `<screen or widget>.<action>`, unique in the app; `keys:` in the config refers to it.
        keys: Textual's key names, separated by commas. The first is shown.
        action: The action it runs.
        label: One or two words for the footer.
        words: A description for the help screen; defaults to `label`.
        group: Its section of the help screen.
        show: Whether the footer shows it.
        priority: Whether it takes the key before the focused widget does.
    """
    return Binding(keys, action, label, show=show, priority=priority, tooltip=words or label, id=id, group=group)


MOVES = (
    bind("move.down", "j,down", "move(1)", "down", "one row down", group=MOVE, show=False),
    bind("move.up", "k,up", "move(-1)", "up", "one row up", group=MOVE, show=False),
    bind("move.page_down", "ctrl+d,pagedown", "page(1)", "page down", group=MOVE, show=False),
    bind("move.page_up", "ctrl+u,pageup", "page(-1)", "page up", group=MOVE, show=False),
    bind("move.first", "g,home", "edge(False)", "first", "first row", group=MOVE, show=False),
    bind("move.last", "G,end", "edge(True)", "last", "last row", group=MOVE, show=False),
)
"""Keys that move through rows: a widget that uses these implements the actions `move`, `page` and `edge`."""

ROW_KEYS = (
    bind("top.open", "enter", "open", "open", "show this host or GPU alone", group=OPEN),
    bind("top.sort", "s", "sort(1)", "sort", "by the next column", group=VIEW),
    bind("top.sort_back", "S", "sort(-1)", "sort back", "by the previous column", group=VIEW, show=False),
    bind("top.turn", "v", "turn", "reverse", "reverse the order", group=VIEW, show=False),
    *MOVES,
)
"""Keys of both panes of `top`."""

PANE_KEYS = (
    bind("dash.next", "tab", "pane(1)", "pane", "next pane", group=MOVE),
    bind("dash.zoom", "z", "zoom", "zoom", "this pane alone, or all", group=VIEW),
    bind("dash.find", "slash", "log('find')", "find", "find in the log", group=VIEW),
)
"""Bindings that a screen of panes adds after its own: the footer shows the first that fit."""


class ShellCommand(NamedTuple):
    """A disttui command for the help screen and the palette."""

    words: str
    """The command, without `disttui`."""
    purpose: str
    """What it does, in at most 50 characters, so that its line of the help fits into 80 columns."""


SHELL_COMMANDS = (
    ShellCommand("lease list", "who uses which GPU, by lease and by process"),
    ShellCommand("lease add", "reserve GPUs or whole hosts"),
    ShellCommand("lease queue", "queued runs of all users, and their reasons"),
    ShellCommand("sweep", "a queued run for each value, and their results"),
    ShellCommand("runs weights", "a checkpoint's weights as one file"),
    ShellCommand("runs metrics", "metrics for TensorBoard, wandb, trackio, mlflow"),
    ShellCommand("library", "libraries of a team: add, diff, history, restore"),
    ShellCommand("profile import", "a profile from Accelerate, DeepSpeed or Slurm"),
    ShellCommand("profile export", "files that run a profile without disttui"),
    ShellCommand("runs orphans", "leftover processes of ended runs"),
)
