"""The beginnings of logs that were mirrored from their tails on, fetched from the hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from runner.errors import DisttuiError
from runner.hosts.link import Link
from runner.runs.backfill import fill
from runner.runs.history import KnownRun
from runner.runs.store import HostStore
from tui.log import Older


def fetch(
    run: KnownRun, wanted: Sequence[Older], reopen: Callable[[int], Link], store: Callable[[int], HostStore]
) -> None:
    """Fetch what is wanted into the mirror, host by host; to be called in a thread.

    Args:
        reopen: Node → a link that mirrors nothing. Raises DisttuiError.
        store: Node → its mirror.

    Raises:
        DisttuiError: The first that kept something from being fetched; whatever else can be had has come.
    """
    first: DisttuiError | None = None
    for node in sorted({one.node for one in wanted}):
        try:
            link = reopen(node)
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
