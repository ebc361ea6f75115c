"""The text of copied lines: safe, without colours, with tabs."""

from __future__ import annotations

from collections.abc import Iterable

from tui.log.ansi import safe_text
from tui.log.sources import AttemptLog

MOST = 100_000
"""The most lines copied at once."""


def copied(log: AttemptLog, entries: Iterable[int], *, prefixed: bool) -> str:
    """Join lines of the order; `prefixed`: with host and rank before each."""
    found = []
    for entry in entries:
        text = safe_text(log.read(entry))
        found.append(f"{log.source_of(entry).label} │ {text}" if prefixed else text)
    return "\n".join(found)
