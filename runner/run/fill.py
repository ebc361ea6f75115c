"""Fetch the beginning of a log that was mirrored from its tail on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from runner.errors import DisttuiError, HostError
from runner.node.serve.reading import READ_LIMIT
from runner.run.history import KnownRun
from runner.run.link import Link
from runner.run.remote import REACH
from runner.run.store import HostStore

AHEAD = 2
"""Reads on their way at once: the host sends one while the word that the one before is whole comes here."""


def fill(link: Link, run: KnownRun, node: int, store: HostStore, name: str, upto: int = 0) -> None:
    """Fetch what is before the first byte that is held of a log, back to offset `upto`, as far as its host has it.

    Raises DisttuiError.
    """
    came: dict[int, int] = {}
    failed: list[DisttuiError] = []

    def take(item: Mapping[str, Any] | tuple[int, int, int, bytes]) -> None:
        try:
            if isinstance(item, tuple) and not failed:
                _, _, offset, data = item
                store.put(name, offset, data)
                came[offset + len(data)] = offset
        except DisttuiError as error:
            failed.append(error)

    request = {**run.request(), "node_rank": node, "name": name}
    start = below = store.files()[name][0]
    asked: deque[tuple[int, Future[Any]]] = deque()
    try:
        while start > upto:
            while below > upto and len(asked) < AHEAD:
                below, end = max(upto, below - READ_LIMIT), below
                asked.append((below, link.stream("read", take, **request, offset=below, length=end - below)))
            begin, answer = asked.popleft()
            _await(link, name, answer, came)
            before = start
            while start in came:
                start = came.pop(start)
            store.fill(name, before, start)
            if failed:
                raise failed[0]
            if start > begin:
                raise HostError(link.host, f"the first {start:,} bytes of {name} are not kept (launch.log_limit)")
    finally:
        # Pieces say not which request they belong to: the link's next stream must not get these.
        wait([answer for _, answer in asked], REACH)


def _await(link: Link, name: str, answer: Future[Any], came: Mapping[int, int]) -> None:
    """Wait for the end of a read for as long as something comes."""
    while True:
        before = len(came)
        try:
            answer.result(REACH)
        except FutureTimeout:
            if len(came) > before:
                continue
            raise HostError(link.host, f"{name}: no answer in {REACH:.0f} s") from None
        return
