"""Names that both ends read and write: runs, their folders, their files."""

from __future__ import annotations

import re

FORMAT = 1
"""The version of a run folder's format that this code writes, `disttui` in its files."""
RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""The id of a run."""
RUN_DIR = "~/.disttui/runs"
"""Where a host keeps its runs unless the profile says otherwise."""
