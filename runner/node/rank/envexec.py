"""Executes a command with the profile's variables, which override those that the activation line has set."""

from __future__ import annotations

import json
import os
import sys

OVERLAY = "DISTTUI_OVERLAY"
"""Environment variable that carries the profile's variables (JSON) past the activation line."""


def main(command: list[str]) -> None:
    """Replace this process by `command`; exit with code 127 where it cannot be started."""
    environment = dict(os.environb)
    for name, value in json.loads(environment.pop(OVERLAY.encode(), b"{}")).items():
        environment[name.encode()] = value.encode("utf-8", "surrogateescape")
    try:
        os.execvpe(os.fsencode(command[0]), [os.fsencode(word) for word in command], environment)  # noqa: S606
    except OSError as error:
        print(f"disttui: cannot start {command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        sys.exit(127)
