"""Immutable snapshots of all hosts, posted from threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual.message import Message
from textual.message_pump import MessagePump

from disttui.runner.errors import DisttuiError

if TYPE_CHECKING:
    from disttui.runner.api.viewer import Viewer
    from disttui.runner.runs.watch import HostNow, HostsWatch

PACE = 1.0
"""Seconds between two snapshots; a changed state (a host connected or lost) is posted sooner."""
SOON = 0.1
SPAN = 180
"""Minimum number of samples that a curve covers, as far as KEEP allows."""
KEEP = 600
"""Number of samples kept of each host and GPU."""


class TopChanged(Message):
    """The state of the hosts has changed to `hosts`."""

    def __init__(self, hosts: tuple[HostNow, ...], now: float) -> None:
        super().__init__()
        self.hosts, self.now = hosts, now

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, TopChanged)


class TopFailed(Message):
    """No host can be watched: a name is not valid, or the profile has errors."""

    def __init__(self, error: DisttuiError) -> None:
        super().__init__()
        self.error = error


class TopFeed:
    """Watches hosts and posts `TopChanged` to a screen.

    Args:
        words: Names of hosts, or of a profile; empty for all hosts in view.
        profile: The file of a profile, instead of `words`.
        viewer: Makes the viewer; called in a thread.
        pace: Seconds between two snapshots.
    """

    def __init__(
        self,
        target: MessagePump,
        words: Sequence[str],
        profile: Path | None,
        viewer: Callable[[], Viewer],
        pace: float = PACE,
    ) -> None:
        self._target = target
        self._words, self._profile = words, profile
        self._viewer = viewer
        self._pace = pace
        self._news = threading.Event()
        self._closed = threading.Event()
        self.watch: HostsWatch | None = None
        """The watch of the hosts; None until they are known."""

    def start(self) -> None:
        """Start the thread that watches the hosts."""
        threading.Thread(target=self._work, name="top", daemon=True).start()

    def close(self) -> None:
        """Close the connections to all hosts, without waiting."""
        self._closed.set()
        self._news.set()
        if self.watch is not None:
            self.watch.close()

    def _work(self) -> None:
        from disttui.runner.api.orphan_search import watch_hosts

        try:
            watch = watch_hosts(
                self._viewer(), self._words, profile=self._profile, changed=self._news.set, interval=self._pace
            )
        except DisttuiError as error:
            self._target.post_message(TopFailed(error))
            return
        self.watch = watch
        watch.start()
        posted, states = 0.0, None
        while not self._closed.is_set():
            self._news.clear()
            hosts = watch.now()
            now_states = [(host.name, host.state) for host in hosts]
            if now_states != states or time.monotonic() - posted >= self._pace:
                posted, states = time.monotonic(), now_states
                self._target.post_message(TopChanged(hosts, time.time()))
            # Hosts report independently of each other, so reports that arrive close together are combined.
            self._closed.wait(SOON)
            self._news.wait(self._pace)
        watch.close()


class LoadHistory:
    """The newest KEEP samples of every figure of every host and GPU."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int | None, str], deque[float | None]] = {}
        self._counts: dict[tuple[str, int | None, str], int] = {}
        self._last: dict[str, float] = {}

    def take(self, hosts: Sequence[HostNow]) -> None:
        for host in hosts:
            load = host.load
            if load is None or self._last.get(host.name) == load.t:
                continue
            self._last[host.name] = load.t
            self._put(host.name, None, "use", load.cpu)
            self._put(host.name, None, "memory", percent(load.mem_used, load.mem_total))
            self._put(host.name, None, "net in", load.net_rx)
            self._put(host.name, None, "net out", load.net_tx)
            for gpu in load.gpus:
                self._put(host.name, gpu.index, "use", gpu.use)
                self._put(host.name, gpu.index, "memory", percent(gpu.mem_used, gpu.mem_total))
                self._put(host.name, gpu.index, "power", gpu.power)
                self._put(host.name, gpu.index, "temperature", gpu.temp)

    def columns(self, host: str, gpu: int | None, what: str, width: int) -> list[float | None]:
        """Means of the newest samples in up to `width` columns of `step_of(width)` samples each, the newest last.

        Samples stay in their column as it moves to the left; only the last column changes with each sample.
        """
        key = (host, gpu, what)
        values, step = list(self._rows.get(key, ())), step_of(width)
        if not values:
            return []
        begun = self._counts.get(key, 0) % step or step
        ends = range(len(values), 0, -1) if step == 1 else [len(values), *range(len(values) - begun, 0, -step)]
        found = [_mean(values[max(0, end - (begun if end == len(values) else step)) : end]) for end in ends[:width]]
        return found[::-1]

    def _put(self, host: str, gpu: int | None, what: str, value: float | None) -> None:
        key = (host, gpu, what)
        if key not in self._rows:
            self._rows[key] = deque(maxlen=KEEP)
        self._rows[key].append(value)
        self._counts[key] = self._counts.get(key, 0) + 1


def step_of(width: int) -> int:
    """Samples per column, so that `width` columns cover SPAN samples, but no more than KEEP."""
    return max(1, min(KEEP // max(1, width), -(-SPAN // max(1, width))))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def percent(used: float | None, total: float | None) -> float | None:
    """A share in percent; None if a value is unknown or the total is 0."""
    return None if used is None or not total else 100 * used / total
