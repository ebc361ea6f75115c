"""The fold, fed with records as a host's files have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from disttui.runner.runs import state as core
from disttui.runner.runs.contents import read_content
from disttui.runner.runs.state import RunState


def fold(state: RunState, node: int, file: str, record: Mapping[str, Any]) -> RunState:
    """Fold one record. Raises ValueError for a malformed one."""
    return core.fold(state, node, read_content(file, record))
