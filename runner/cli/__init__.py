"""The `disttui` command: parse, call, print. Slow imports are made where they are needed."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command in this process's arguments, and end the process."""
    try:
        from disttui.runner.cli.process import run

        run()
    except KeyboardInterrupt:
        # Ctrl-C during the first imports: nothing has been done yet.
        os._exit(130)
