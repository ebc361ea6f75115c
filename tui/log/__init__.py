"""The log viewer over mirrored files: `LogView(LogSources(mirror, names))`."""

from tui.log.older import Older
from tui.log.search import Pattern
from tui.log.sources import LogSources
from tui.log.widget import LogView

__all__ = ["LogSources", "LogView", "Older", "Pattern"]
