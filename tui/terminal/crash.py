"""The message shown when the app itself fails."""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from runner import __version__, private
from runner.user.folders import user_folder


def note(environ: Mapping[str, str], again: str | None) -> str:
    """Write the traceback of the current exception to a file; return the message for the user.

    Args:
        again: The command that opens the same screen again.
    """
    path = user_folder("state", environ) / "crash.txt"
    try:
        private.make_folder(path.parent)
        private.write(path, f"disttui {__version__}\n{traceback.format_exc()}")
        where = f"what happened is in {path}"
    except OSError as error:
        where = f"{path} could not be written ({error.strerror}):\n{traceback.format_exc()}"
    look = again or "disttui attach RUN"
    runs = "Runs go on as before, except in a sandbox."
    return f"disttui: the app has failed; this is a bug, {where}\n  → {runs} To look again: {look}"
