"""Ends the process: one clear line and the right exit code for every error that the user can correct."""

from __future__ import annotations

import errno
import os
import sys
from typing import TextIO

import click

from runner.cli import startup
from runner.cli.group import cli
from runner.cli.render.output import failure, put
from runner.errors import DisttuiError


def run() -> None:
    """Run the command, and end the process."""
    startup.begin()
    try:
        code = cli.main(prog_name="disttui", standalone_mode=False)
    except click.ClickException as error:
        code = _tell_usage(error)
    except DisttuiError as error:
        from runner.text import clean_lines

        put(sys.stderr, f"disttui: {clean_lines(str(error))}\n")
        code = error.exit_code
    except click.Abort as error:
        put(sys.stderr, f"disttui: {error.args[0] if error.args else 'interrupted'}\n")
        # Threads that still wait for a dead host would delay a normal exit.
        os._exit(130)
    except OSError:
        if not (_lost(sys.stdout, "standard output") or _lost(sys.stderr, "standard error")):
            raise
        code = 1
    raise SystemExit(code)


def _tell_usage(error: click.ClickException) -> int:
    try:
        error.show()
    except OSError:
        _lost(sys.stderr, "standard error")
    return error.exit_code


def _lost(stream: TextIO, name: str) -> bool:
    """Check whether this stream cannot be written; if so, report it, unless its reader has gone."""
    error = failure(stream)
    if error is not None and error.errno != errno.EPIPE:
        put(sys.stderr, f"disttui: {name} cannot be written: {error.strerror}\n")
    return error is not None
