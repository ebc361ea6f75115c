"""How the logs of an attempt's ranks grow: growth.jsonl (docs/formats.md), and when each rank last said something."""

from __future__ import annotations

import os
import time
from typing import Iterable

from ..journal import Journal


class GrowthWriter:
    """Looks at the sizes of the ranks' logs; whoever calls `look` decides how often that is noted.

    Args:
        folder: The attempt's folder.
        ranks: The global ranks of this host.
    """

    def __init__(self, folder: str, ranks: Iterable[int]) -> None:
        self._logs = {rank: os.path.join(folder, f"rank-{rank}.log") for rank in ranks}
        self._journal = Journal(os.path.join(folder, "growth.jsonl"))
        self.sizes: dict[int, int] = {}

    def look(self) -> set[int]:
        """Note the sizes that have changed since the last look; returns the ranks that have said something."""
        changed = {}
        for rank, log in self._logs.items():
            try:
                size = os.stat(log).st_size
            except OSError:
                continue
            if size != self.sizes.get(rank, 0):
                changed[rank] = self.sizes[rank] = size
        if changed:
            sizes = {str(rank): size for rank, size in changed.items()}
            self._journal.add({"t": round(time.time(), 3), "sizes": sizes})
        return set(changed)
