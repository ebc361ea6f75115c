"""Metrics for the viewer (JSON lines in the file that DISTTUI_METRICS names), and the clock of forward passes."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Union

import torch

Value = Union[int, float, str]


class MetricsWriter:
    """The metrics file of this rank; does nothing if no file is named.

    A file that cannot be written is reported once on stderr and then not used: training continues.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1
        if path:
            try:
                self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                self._give_up(error)

    def write(self, step: int, **values: Value) -> None:
        """Append one record; `step` is the number of finished steps."""
        if self._descriptor < 0:
            return
        record = {"t": time.time(), "step": step, **{name: _plain(value) for name, value in values.items()}}
        try:
            os.write(self._descriptor, (json.dumps(record) + "\n").encode())
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._descriptor = -1
        print(f"bytegpt: no metrics: {self._path}: {error.strerror}", file=sys.stderr, flush=True)


def _plain(value: Value) -> Value:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class ForwardClock:
    """Adds up the time inside `running`; on a GPU with events, so that nothing waits until `seconds` is called."""

    def __init__(self, device: Any) -> None:
        self._on_gpu = device.type == "cuda"
        self._spans: list[tuple[Any, Any]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        begin = self._now()
        yield
        self._spans.append((begin, self._now()))

    def seconds(self) -> float:
        """The sum since the last call; the device's work must be complete."""
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
