"""The `disttui` command: parse, call, print. Every import that costs time is made where it is needed."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command of this process's arguments, and end the process."""
    try:
        from runner.cli.process import run

        run()
    except KeyboardInterrupt:
        # Pressed while the first imports went on: nothing has been done.
        os._exit(130)
