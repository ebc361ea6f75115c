"""The log viewer over mirrored files: `LogView(LogSources(mirror, names))`."""

from tui.logs.older import Older
from tui.logs.search import Pattern
from tui.logs.sources import LogSources
from tui.logs.widget import LogView

__all__ = ["LogSources", "LogView", "Older", "Pattern"]
