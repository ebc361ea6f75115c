"""Names that both ends read and write: runs, their folders, their files."""

from __future__ import annotations

import re

FORMAT = 1
"""The version of a run folder's format that this code writes, `disttui` in its files."""
RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""The id of a run."""
WHOLE = re.compile(r".+-[0-9a-f]{16}")
"""The id of a run with all its digits."""
RUN_DIR = "~/.disttui/runs"
"""Where a host keeps its runs unless the profile says otherwise."""
WHEELS = "~/.cache/disttui/wheels"
"""The folder on a host with wheels that were sent there."""
CODE = "code"
"""The folder of a run with its copy of the code that was sent to the host."""
ENVIRONMENT = re.compile(r"/environments/[0-9a-f]{16}\.[0-9a-f]{16}/env/bin/python\Z")
"""The end of the path of a Python that belongs to an environment of `job.environment`."""
HOST_FILE = re.compile(r"(attempt-[0-9]{1,9}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A file that a host mirrors: a script that makes others in its folder must not cost its run the viewers."""
VIEWER_FILE = re.compile(r"(?=.{1,200}\Z)([A-Za-z0-9][A-Za-z0-9._-]*/)?[A-Za-z0-9][A-Za-z0-9._-]*")
"""A file that a viewer takes: never one of its own, never outside of its folder."""


def short(run: str) -> str:
    """A run's id with four of its digits, as people see it."""
    return run[:-12] if WHOLE.fullmatch(run) else run  # number of digits of a run's id that are not shown
