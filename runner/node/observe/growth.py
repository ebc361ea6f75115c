"""Records how the logs of an attempt's ranks grow: growth.jsonl (docs/formats.md)."""

from __future__ import annotations

import os
import time
from typing import Iterable

from ..journal import Journal


class GrowthWriter:
    """Records the sizes of the ranks' logs, once for each call of `look`.

    Args:
        folder: The attempt's folder.
        ranks: The global ranks of this host.
    """

    def __init__(self, folder: str, ranks: Iterable[int]) -> None:
        self._logs = {rank: os.path.join(folder, f"rank-{rank}.log") for rank in ranks}
        self._journal = Journal(os.path.join(folder, "growth.jsonl"))
        self.sizes: dict[int, int] = {}

    def look(self) -> set[int]:
        """Record the sizes that have changed since the last call; returns the ranks whose logs have grown."""
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
