"""Follows a run by its id, with a viewer of its own."""

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
    """Follow a run that this machine knows while the block runs. Raises InputError for an unknown id."""
    # A viewer of its own, because closing it also ends a connect that hangs.
    with app.new_viewer() as viewer:
        known = find_run(viewer, run_id)
        with follow(viewer, known, tail=TAIL, only_look=app.read_only) as following:
            yield following
