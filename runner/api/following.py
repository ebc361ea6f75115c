"""Follows a run; the only place that makes a `Session`."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.api.beginnings import Beginning, fetch
from runner.api.viewer import Viewer
from runner.errors import DisttuiError
from runner.hosts.link import Link
from runner.runs import remote
from runner.runs.registry import KnownRun, mirror_of
from runner.runs.session import Session, Update, Wishes
from runner.runs.state import RunState

TAIL = remote.TAIL
"""Bytes at the end of every log with which a late viewer begins."""
REPLAY = 256 * 1024
"""Bytes at the end of every mirrored log with which `attach` begins."""


class Following:
    """A followed run. Iterate for its updates; the iteration ends when the run has ended or was left.

    Args:
        mirror: The folder that its files are mirrored into, one folder per node rank.
        links: One per host; None for those that are still to be connected.
        unreached: Node rank → why the host could not be reached at first; it is tried again.
        wishes: What the user wants; may be set from other threads.
        tail: Bytes at the end of every log to begin with; None: all of it.
        replay: Bytes at the end of every mirrored log to begin with.
        only_look: Change nothing on the hosts; a run without a supervisor is not settled.
    """

    def __init__(
        self,
        viewer: Viewer,
        run: KnownRun,
        mirror: Path,
        links: Sequence[Link | None] | None = None,
        *,
        unreached: Mapping[int, DisttuiError] | None = None,
        wishes: Wishes | None = None,
        tail: int | None = None,
        replay: int = 0,
        only_look: bool = False,
    ) -> None:
        self.run = run
        self.mirror = mirror
        self.unreached = unreached or {}
        self._viewer = viewer
        self._session = Session(
            run.begin(),
            folder=mirror,
            request=run.request() if tail is None else {**run.request(), "tail": tail},
            reopen=_OneLink(viewer, run, links).to if run.one_way else lambda node: viewer.link_to(run, node),
            wishes=wishes,
            replay=replay,
            only_look=only_look,
        )
        given = links or [None] * len(run.hosts)
        if run.one_way:
            given = [given[0]] * len(run.hosts)
        self._updates: Generator[Update, None, None] = self._session.follow(given)

    def __iter__(self) -> Iterator[Update]:
        return self._updates

    @property
    def state(self) -> RunState:
        """The present state of the run."""
        return self._session.state

    @property
    def exit_code(self) -> int:
        """The run's exit code; 0 when it was left, 1 when it has ended without a result."""
        return self._session.exit_code

    def stop(self, *, now: bool = False) -> None:
        """Ask every host to stop the run; the results are updates. Any thread may call this.

        Args:
            now: Kill it at once, without the grace that lets ranks save their work.
        """
        self._session.wishes.stops = max(self._session.wishes.stops, 2 if now else 1)

    def leave(self) -> None:
        """End the iteration; the run goes on. Any thread may call this."""
        self._session.wishes.leave = True

    def fetch(self, wanted: Sequence[Beginning]) -> None:
        """Fetch beginnings of logs into the mirror while following; blocks. Raises DisttuiError."""
        fetch(self._viewer, self.run, wanted, self._session.store)

    def close(self) -> None:
        """Close the links to all hosts."""
        self._updates.close()


class _OneLink:
    """The link to a login node of Slurm, which all parts of a run share."""

    def __init__(self, viewer: Viewer, run: KnownRun, links: Sequence[Link | None] | None) -> None:
        self._viewer = viewer
        self._run = run
        self._link = links[0] if links else None
        self._lock = threading.Lock()

    def to(self, node: int) -> Link:
        """The link, made anew if it is closed. Raises DisttuiError."""
        with self._lock:
            if self._link is None or self._link.closed:
                self._link = self._viewer.link_to(self._run, 0)
            return self._link


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
        following = Following(viewer, run, mirror, links, wishes=wishes, tail=tail, only_look=only_look)
        try:
            yield following
        finally:
            following.close()


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
                viewer, run, mirror, links,
                unreached=reached.errors, wishes=wishes, tail=TAIL, replay=REPLAY, only_look=only_look,
            )  # fmt: skip
            try:
                yield following
            finally:
                following.close()
