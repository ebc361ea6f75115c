"""Names that both ends read and write: runs, their folders, their files."""

from __future__ import annotations

import re

FORMAT = 1
"""The version of the run folder format that this code writes, as `disttui` in its files."""
RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""The id of a run."""
WHOLE = re.compile(r".+-[0-9a-f]{16}")
"""A run's id in full length."""
RUN_DIR = "~/.disttui/runs"
"""Where a host keeps its runs unless the profile says otherwise."""
WHEELS = "~/.cache/disttui/wheels"
"""A host's folder with wheels that were sent there."""
CODE = "code"
"""A run's folder with its copy of the code that was sent to the host."""
ENVIRONMENT = re.compile(r"/environments/[0-9a-f]{16}\.[0-9a-f]{16}/env/bin/python\Z")
"""The end of the path of a Python that belongs to an environment of `job.environment`."""
HOST_FILE = re.compile(r"(attempt-[0-9]{1,9}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A file that a host mirrors: a script that creates others in the folder must not make its run unreadable."""
VIEWER_FILE = re.compile(r"(?=.{1,200}\Z)([A-Za-z0-9][A-Za-z0-9._-]*/)?[A-Za-z0-9][A-Za-z0-9._-]*")
"""A file that a viewer accepts: never one of its own, never outside of its folder."""


GIT_FILTERS = ("config", "--show-scope", "--name-only", "-z", "--get-regexp", r"^filter\.")
"""The command of git whose output `filters_off` takes; its exit code is 1 if there are no filters."""


def filters_off(listed: str) -> list[str]:
    """Options of git that switch off the filters of a repository's own configuration, which comes with the code.

    Those of the user, such as LFS, still run. Raises ValueError if one cannot be switched off.
    """
    words = listed.split("\0")
    own = [name for scope, name in zip(words[::2], words[1::2]) if scope in ("local", "worktree")]  # noqa: B905
    names = sorted({name.rpartition(".")[0] for name in own})
    if any("=" in name for name in names):
        raise ValueError("no option has this name")
    return [
        word for name in names for key in ("clean=", "process=", "required=false") for word in ("-c", f"{name}.{key}")
    ]


def short(run: str) -> str:
    """A run's id with four of its digits, as shown to people."""
    return run[:-12] if WHOLE.fullmatch(run) else run  # number of digits of a run's id that are not shown
