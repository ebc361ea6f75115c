"""The app as a process: settings, threads, exit code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tui.app import DisttuiApp
from tui.config import load_settings


def start(
    environ: Mapping[str, str],
    *,
    first: tuple[str, tuple[Any, ...]] | None = None,
    read_only: bool = False,
    ssh_config: str | None = None,
    accept_new_host_keys: bool = False,
) -> int:
    """Run the app in this terminal until it is left; return the exit code of the command.

    Args:
        first: What to open over the home screen: the name of an `open_…` method and its arguments.

    Raises:
        InputError: The config is wrong.
    """
    app = DisttuiApp(
        environ,
        load_settings(environ),
        first=first,
        read_only=read_only,
        ssh_config=ssh_config,
        accept_new_host_keys=accept_new_host_keys,
    )
    try:
        app.run()
    finally:
        for work in app.at_end:
            work()
    return app.return_code or 0
