"""Follows a run from its beginning, or from what is held of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import InputError
from disttui.runner.hosts.link import Link
from disttui.runner.ids import short
from disttui.runner.runs import remote
from disttui.runner.runs.backfill import Beginning, fill_all
from disttui.runner.runs.following import Following, Wishes
from disttui.runner.runs.registry import KnownRun, mirror_of
from disttui.runner.runs.store import HostStore, host_folder

TAIL = remote.TAIL
"""Bytes at the end of every log with which a late viewer begins."""
REPLAY = 256 * 1024
"""Bytes at the end of every mirrored log with which `attach` begins."""


@contextmanager
def follow(
    viewer: Viewer,
    run: KnownRun,
    links: Sequence[Link | None] | None = None,
    *,
    wishes: Wishes | None = None,
    tail: int | None = None,
    only_look: bool = False,
) -> Iterator[Following]:
    """Follow a run from its beginning while the block runs. Arguments as of `Following`.

    Raises:
        InputError: The mirror cannot be written.
    """
    with mirror_of(run) as mirror:
        opener = partial(viewer.link_to, run)
        with closing(Following(run, mirror, opener, links, wishes=wishes, tail=tail, only_look=only_look)) as following:
            yield following


@contextmanager
def attach(
    viewer: Viewer, run: KnownRun, *, wishes: Wishes | None = None, only_look: bool = False
) -> Iterator[Following]:
    """Follow a run that is running or has ended: mirrored records come first, logs from their tails.

    Raises:
        DisttuiError: No host of the run can be reached, and the mirror is not complete.
    """
    with mirror_of(run) as mirror:
        nodes = remote.missing(run, mirror)
        with viewer.reach(run, nodes) as reached:
            if nodes:
                reached.refuse_none()
            links = [reached.links.get(node) for node in range(len(run.hosts))]
            following = Following(
                run, mirror, partial(viewer.link_to, run), links,
                unreached=reached.errors, wishes=wishes, tail=TAIL, replay=REPLAY, only_look=only_look,
            )  # fmt: skip
            with closing(following):
                yield following


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
        fill_all(partial(viewer.link_to, run), run, wanted, lambda node: HostStore(host_folder(folder, node)))


def refuse_sandbox(run: KnownRun) -> None:
    """Raise InputError for a run of a sandbox whose hosts are gone."""
    if run.gone:
        raise InputError(
            f"{short(run.run)} was played in a sandbox, which lives only as long as its command",
            "Its records stay here: disttui runs show, logs, metrics.",
        )
