"""From a run's id to its following, with a viewer of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from runner.api.finding import find_run
from runner.api.following import TAIL, Following, follow

if TYPE_CHECKING:
    from tui.shell import Shell


@contextmanager
def attached(app: Shell, run_id: str) -> Iterator[Following]:
    """A run that this viewer knows, followed as long as the block runs. Raises InputError for unknown ids."""
    # Not the app's own viewer: a connect that hangs ends with this one.
    with app.new_viewer() as viewer:
        known = find_run(viewer, run_id)
        with follow(viewer, known, tail=TAIL, only_look=app.read_only) as following:
            yield following
