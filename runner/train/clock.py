"""How long the forward passes of a step take: the part that no other rank can slow down under DDP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class ForwardClock:
    """Adds up the time inside `running`; on a GPU by events, so that nothing waits until `seconds` is asked."""

    def __init__(self, device: Any) -> None:
        self._on_gpu = device.type == "cuda"
        self._spans: list[tuple[Any, Any]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        begin = self._now()
        yield
        self._spans.append((begin, self._now()))

    def seconds(self) -> float:
        """The sum since the last call; the device's work must be done."""
        spans, self._spans = self._spans, []
        if self._on_gpu:
            return float(sum(begin.elapsed_time(end) for begin, end in spans)) / 1000
        return float(sum(end - begin for begin, end in spans))

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
