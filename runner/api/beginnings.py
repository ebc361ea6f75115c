"""Fetches the beginnings of logs that were mirrored from their tails on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Protocol

from runner.api.viewer import Viewer
from runner.errors import DisttuiError, InputError
from runner.ids import short
from runner.runs.backfill import fill
from runner.runs.registry import KnownRun, mirror_of
from runner.runs.store import HostStore, host_folder


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


def fetch_beginnings(viewer: Viewer, run: KnownRun, wanted: Sequence[Beginning]) -> None:
    """Fetch the wanted parts into the mirror of a run that is not followed here; blocks.

    Raises:
        InputError: Another viewer of this machine writes the mirror, or the run's hosts are gone.
        DisttuiError: The first error; all other parts have been fetched where possible.
    """
    refuse_sandbox(run)
    with mirror_of(run) as folder:
        if folder != run.folder:
            raise InputError(f"another disttui is writing {folder}", "Look for them there.")
        fetch(viewer, run, wanted, lambda node: HostStore(host_folder(folder, node)))


def fetch(viewer: Viewer, run: KnownRun, wanted: Sequence[Beginning], store: Callable[[int], HostStore]) -> None:
    """The same into the stores of a locked mirror, over separate links, host by host."""
    first: DisttuiError | None = None
    for node in sorted({one.node for one in wanted}):
        try:
            link = viewer.link_to(run, node)
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


def refuse_sandbox(run: KnownRun) -> None:
    """Raise InputError for a run of a sandbox whose hosts are gone."""
    if run.gone:
        raise InputError(
            f"{short(run.run)} was played in a sandbox, which lives only as long as its command",
            "Its records stay here: disttui show, logs, metrics.",
        )
