"""Fetches the beginning of a log that was mirrored from its tail on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import closing
from typing import Any, Protocol

from disttui.runner.errors import DisttuiError, HostError
from disttui.runner.hosts.link import Item, Link
from disttui.runner.protocol.limits import READ_LIMIT
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.remote import REACH
from disttui.runner.runs.store import HostStore

AHEAD = 2
"""Concurrent reads: the host sends one while the answer of the previous one is on its way."""
PIECE = 1 << 20
"""Bytes per write: every system call releases the interpreter's lock, and waits to get it again."""
_LOOK = 1.0
"""Seconds after which a waiting reader checks whether bytes still arrive."""


class Beginning(Protocol):
    """The part of a host's log before the mirrored one, from the offset `upto` on."""

    @property
    def node(self) -> int:
        """Node rank."""

    @property
    def name(self) -> str:
        """The log's name in the mirror."""

    @property
    def upto(self) -> int:
        """Offset."""


def fill_all(
    open_link: Callable[[int], Link], run: KnownRun, wanted: Sequence[Beginning], store: Callable[[int], HostStore]
) -> None:
    """Fetch beginnings of logs into the stores of a locked mirror, over separate links, host by host.

    Raises DisttuiError: the first error; all other parts have been fetched where possible.
    """
    first: DisttuiError | None = None
    for node in sorted({one.node for one in wanted}):
        try:
            link = open_link(node)
        except DisttuiError as error:
            first = first or error
            continue
        with closing(link):
            for one in wanted:
                if one.node == node:
                    try:
                        fill(link, run, node, store(node), one.name, one.upto)
                    except DisttuiError as error:
                        first = first or error
    if first:
        raise first


def fill(link: Link, run: KnownRun, node: int, store: HostStore, name: str, upto: int = 0) -> None:
    """Fetch the part of a log before the first byte in the mirror, back to offset `upto`, if its host still has it.

    Raises DisttuiError.
    """
    written = _Writing(store, name)
    request = {**run.request(), "node_rank": node, "name": name}
    start = below = store.files()[name][0]
    asked: deque[tuple[int, Future[Any]]] = deque()
    try:
        while start > upto:
            while below > upto and len(asked) < AHEAD:
                below, end = max(upto, below - READ_LIMIT), below
                written.ends.add(end)
                asked.append((below, link.stream("read", written.take, **request, offset=below, length=end - below)))
            begin, answer = asked[0]
            _await(link, name, answer, written)
            before = start
            while start in written.came:
                start = written.came.pop(start)
            store.fill(name, before, start)
            if written.failed:
                raise written.failed
            asked.popleft()
            if start > begin:
                raise HostError(link.host, f"the first {start:,} bytes of {name} are not kept (launch.log_limit)")
    finally:
        # Pieces carry no id of their request: the link's next stream must not get these.
        for _, answer in asked:
            link.cancel(answer)
        if wait([answer for _, answer in asked], REACH).not_done:
            link.close()


class _Writing:
    """Writes the pieces of reads to their offsets, in large blocks; called by the link's reader."""

    def __init__(self, store: HostStore, name: str) -> None:
        self.ends: set[int] = set()
        """Of the reads."""
        self.came: dict[int, int] = {}
        """The written ranges: end → begin."""
        self.bytes = 0
        """Bytes that have arrived."""
        self.failed: DisttuiError | None = None
        self._store = store
        self._name = name
        self._loose: dict[int, tuple[int, list[memoryview]]] = {}
        """The ranges that are not written yet: end → begin, and the bytes between."""

    def take(self, item: Item) -> None:
        """Take a piece of the file."""
        if not isinstance(item, tuple) or self.failed:
            return
        _, _, offset, data = item
        self.bytes += len(data)
        begin, pieces = self._loose.pop(offset, (offset, []))
        pieces.append(data)
        end = offset + len(data)
        if end - begin < PIECE and end not in self.ends:
            self._loose[end] = begin, pieces
            return
        try:
            self._store.put(self._name, begin, b"".join(pieces))
            self.came[end] = begin
        except DisttuiError as error:
            self.failed = error


def _await(link: Link, name: str, answer: Future[Any], written: _Writing) -> None:
    """Wait for the end of a read, as long as bytes arrive and can be written."""
    came, since = 0, time.monotonic()
    while not written.failed:
        try:
            answer.result(_LOOK)
        except FutureTimeout:
            if written.bytes > came:
                came, since = written.bytes, time.monotonic()
            elif time.monotonic() - since > REACH:
                raise HostError(link.host, f"{name}: no answer in {REACH:.0f} s") from None
        else:
            return
