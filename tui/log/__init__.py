"""The viewer for mirrored logs: `LogView(LogSources(mirror, names))`."""

from disttui.tui.log.engine import Older
from disttui.tui.log.search import Pattern
from disttui.tui.log.sources import LogSources
from disttui.tui.log.widget import LogView

__all__ = ["LogSources", "LogView", "Older", "Pattern"]
