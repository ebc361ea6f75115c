"""`disttui.run`: starts a profile in one call; the run is one object."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

from disttui.runner.api.following import follow
from disttui.runner.api.library import load_profile
from disttui.runner.api.log_lines import LineFilter, LogLines, logs
from disttui.runner.api.questions import Questions
from disttui.runner.api.starting import Launched, start
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import InputError
from disttui.runner.profile.library import find
from disttui.runner.profile.load import with_overrides
from disttui.runner.profile.schema import Profile
from disttui.runner.protocol.metrics import Metrics
from disttui.runner.runs.following import Update
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.state import RunState


class StartedRun:
    """A started run. Iterate for its updates, or call `wait`; both end with the run.

    It outlives this object: closing it, or ending the script, disconnects from its hosts and no more. Runs of a sandbox
    end with it. One thread iterates or waits; `stop` may be called from any other.

    Attributes:
        known: The run as the other functions of this package take it.
        viewer: The connections to its hosts.
    """

    def __init__(self, viewer: Viewer, profile: Profile, *, source: str | None, when_free: bool) -> None:
        self.viewer = viewer
        with ExitStack() as stack:
            stack.callback(viewer.close)
            steps = stack.enter_context(closing(start(viewer, profile, source=source, queued=when_free)))
            launched = next(step for step in steps if isinstance(step, Launched))
            self.known: KnownRun = launched.run
            self._following = stack.enter_context(follow(viewer, self.known, launched.links))
            self._open = stack.pop_all()

    def __enter__(self) -> StartedRun:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Update]:
        return iter(self._following)

    def __repr__(self) -> str:
        return f"<disttui run {self.id}>"

    @property
    def id(self) -> str:
        """Its id, as in `disttui attach ID`."""
        return self.known.run

    @property
    def state(self) -> RunState:
        """Its state, as of the last update."""
        return self._following.state

    @property
    def metrics(self) -> Metrics:
        """The newest value of each metric: a number, or "nan", "inf", "-inf"."""
        return self.state.metrics

    @property
    def exit_code(self) -> int | None:
        """0 trained, 1 failed, 130 stopped; None while it runs."""
        return None if self.state.result is None else self._following.exit_code

    def wait(self) -> int:
        """Follow the run to its end; returns its exit code."""
        for _ in self._following:
            pass
        return self._following.exit_code

    def stop(self, *, now: bool = False) -> None:
        """Ask every host to stop it; `wait` returns when it has.

        Args:
            now: Kill it at once, without `launch.grace`.
        """
        self._following.stop(now=now)

    def logs(self, *, rank: int | None = None, grep: str | None = None) -> Iterator[str]:
        """The lines of its ranks' output, rank by rank, safe to print.

        Args:
            grep: A regular expression that a line must match.

        Raises:
            InputError: The run has no such rank, or `grep` is not a regular expression.
        """
        try:
            wanted = LineFilter(rank=rank, grep=re.compile(grep) if grep else None)
        except re.error as error:
            raise InputError(f"grep={grep!r}: {error}", "Give a Python regular expression.") from None
        for item in logs(self.viewer, self.known, wanted):
            if isinstance(item, LogLines):
                yield from item.lines

    def close(self) -> None:
        """Disconnect; the run continues."""
        self._open.close()


def run(
    profile: str | os.PathLike[str] | Profile,
    overrides: Sequence[str] = (),
    *,
    sandbox: bool = False,
    when_free: bool = False,
    ssh_config: str | None = None,
    questions: Questions | None = None,
) -> StartedRun:
    """Start a profile on all its hosts.

    Args:
        profile: Its name, its path, or itself.
        overrides: `KEY=VALUE`, as of `--set`.
        sandbox: Replace every host by a temporary SSH server on this machine.
        when_free: Wait in the queue while others have reserved what it uses.
        ssh_config: As ssh's -F; None: the user's own configuration.
        questions: Answers questions while connecting; None: every answer is no.

    Raises:
        InputError: The profile is wrong.
        PreflightError: Checks forbid the start.
        DisttuiError: A host cannot be used; nothing runs.
    """
    if isinstance(profile, Profile):
        loaded, source = with_overrides(profile, overrides) if overrides else profile, None
    else:
        loaded = load_profile(os.fspath(profile), tuple(overrides), questions=questions)
        source = str(find(os.fspath(profile)))
    viewer = (
        Viewer.in_sandbox([host.host for host in loaded.hosts])
        if sandbox
        else Viewer(questions=questions, ssh_config=ssh_config)
    )
    return StartedRun(viewer, loaded, source=source, when_free=when_free)
