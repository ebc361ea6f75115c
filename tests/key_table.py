"""docs/keys.md from the bindings of the app: `python -m tests.key_table`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import format_key

from disttui.tui.app import DisttuiApp
from disttui.tui.charts.chart import Chart
from disttui.tui.dashboard.hosts import HostsPane
from disttui.tui.dashboard.rank_grid import RankGrid
from disttui.tui.dashboard.run_screen import RunScreen
from disttui.tui.dashboard.screen import DashboardScreen
from disttui.tui.home.screen import HomeScreen
from disttui.tui.keys import MOVES
from disttui.tui.log.lines import LogBody
from disttui.tui.log.widget import LogView
from disttui.tui.replay.screen import ReplayScreen
from disttui.tui.top.hosts import HostsTable
from disttui.tui.top.screen import TopScreen
from disttui.tui.wizard.check import CheckStep
from disttui.tui.wizard.hardware import HardwareTable
from disttui.tui.wizard.hosts import HostTable
from disttui.tui.wizard.processes import HostValues, ValueTable
from disttui.tui.wizard.screen import WizardScreen

PAGE = Path(__file__).parents[1] / "docs" / "keys.md"
_PLACES: dict[str, tuple[type[DOMNode], ...]] = {
    "Everywhere": (DisttuiApp,),
    "Home": (HomeScreen,),
    "Wizard": (WizardScreen, HostTable, HardwareTable, ValueTable, HostValues, CheckStep),
    "A run": (DashboardScreen, RunScreen, HostsPane, RankGrid),
    "Replay": (ReplayScreen,),
    "Log": (LogView, LogBody),
    "Charts": (Chart,),
    "top": (TopScreen, HostsTable),
}
_HEAD = """\
# Keys

Generated from the app's bindings (`python -m tests.key_table`). Labels can be clicked. To change a key, use its id
(second column) in `~/.config/disttui/config.yaml`:

```yaml
keys: {dash.stop: "ctrl+x", home.new: "n,insert"}
```
"""


def page() -> str:
    """The whole page."""
    lines = [_HEAD]
    moves = {(one.id or "").partition(".")[2] for one in MOVES} | {"left", "right", "begin", "half_down", "half_up"}
    listed: set[str] = set()
    for place, kinds in _PLACES.items():
        bindings = [one for kind in kinds for one in Binding.make_bindings(vars(kind).get("BINDINGS", ()))]
        if place == "Everywhere":
            bindings += Binding.make_bindings(MOVES)
        else:
            bindings = [one for one in bindings if one.id not in listed and not _is_move(place, one, moves)]
        lines += [f"## {place}", "", *_rows(bindings), ""]
        listed |= {one.id or "" for one in bindings}
    return "\n".join(lines).rstrip("\n") + "\n"


def _is_move(place: str, binding: Binding, moves: Collection[str]) -> bool:
    """Whether it moves through a list, a pane or the log as everywhere; in a replay and a chart they do more."""
    return place not in ("Replay", "Charts") and (binding.id or "").partition(".")[2] in moves


def _rows(bindings: Iterable[Binding]) -> list[str]:
    """A line for each id: its keys, in the words of the help. Ids that end in a digit share one."""
    keys: dict[str, list[str]] = {}
    words: dict[str, str] = {}
    for one in bindings:
        name = one.id or ""
        name = f"{name[:-1]}N" if name.endswith(one.key) and one.key.isdigit() else name
        shown = one.key if one.key in ("enter", "tab", "space") else format_key(one.key)
        if shown not in keys.setdefault(name, []):
            keys[name].append(shown)
        words.setdefault(name, (one.tooltip or one.description).replace("rank 0", "this rank"))
    shown_keys = {name: f"{some[0]}–{some[-1]}" if len(some) == 10 else " ".join(some) for name, some in keys.items()}
    return [f"    {shown_keys[name]:<16}{name:<20}{words[name].replace('`', '')}" for name in keys]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
