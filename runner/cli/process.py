"""Ends the process, with one line and the right exit code for every error that the user can fix."""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TextIO

import click

from disttui.runner.cli import startup
from disttui.runner.cli.app import cli
from disttui.runner.cli.render.output import failure, put, reader_gone
from disttui.runner.errors import DisttuiError, InputError

CLOSED_PIPE = 128 + signal.SIGPIPE
"""Exit code when the output is closed, as shells report for a program ended by SIGPIPE."""

_given: dict[str, object] = {}
"""The global options read so far."""


def run() -> NoReturn:
    """Run the command, and end the process."""
    startup.begin()
    try:
        code = _run()
    except BrokenPipeError as error:
        code = CLOSED_PIPE if _reader_gone() else _crash(error)
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:
        code = _crash(error)
    _end(code)


def _run() -> int:
    stdout = sys.stdout
    try:
        return cli.main(prog_name="disttui", standalone_mode=False, obj=_given) or 0
    except SystemExit as error:
        if sys.stdout is not stdout:  # click wraps it when a pipe has broken, and exits with 1
            raise BrokenPipeError from None
        return int(error.code or 0)
    except (click.ClickException, click.Abort, DisttuiError) as error:
        return _report(error)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not _folder_exists():
            return _report(InputError("the current folder has been deleted", "Change to another one (cd)."))
        if _reader_gone() or not (_lost(sys.stdout, "standard output") or _lost(sys.stderr, "standard error")):
            raise
        return 1


def _report(error: click.ClickException | click.Abort | DisttuiError) -> int:
    """Print an error, as text or as JSON; returns the exit code."""
    code = 130 if isinstance(error, click.Abort) else error.exit_code
    # A command line that cannot be parsed may have options that were not read.
    if _given.get("json") or (isinstance(error, click.UsageError) and "--json" in sys.argv):
        _print_json(error)
    elif isinstance(error, click.ClickException):
        try:
            error.show()
        except BrokenPipeError:
            raise
        except OSError:
            _lost(sys.stderr, "standard error")
    else:
        from disttui.runner.text import clean_lines

        text = _interruption(error) if isinstance(error, click.Abort) else clean_lines(str(error))
        put(sys.stderr, f"disttui: {text}\n")
    return code


def _interruption(error: click.Abort) -> str:
    return error.args[0] if error.args else "interrupted"


def _print_json(error: BaseException) -> None:
    if isinstance(error, DisttuiError):
        data = error.as_json()
    elif isinstance(error, click.ClickException):
        ctx = getattr(error, "ctx", None)
        cure = f"See: {ctx.command_path if ctx else 'disttui'} --help"
        data = {**DisttuiError(error.format_message(), cure).as_json(), "code": "usage"}
    elif isinstance(error, click.Abort):
        data = {**DisttuiError(_interruption(error)).as_json(), "code": "interrupted"}
    else:
        cure = "Report this bug with the output on standard error."
        data = {**DisttuiError(f"{type(error).__name__}: {error}", cure).as_json(), "code": "internal"}
    put(sys.stdout, json.dumps({"type": "error", **data}) + "\n")


def _end(code: int) -> NoReturn:
    """End the process, without Python's finalization.

    Threads remain that cannot be joined: paramiko's, and those that wait for a dead host. Up to 3.11 Python crashes
    when a thread starts during finalization. Nothing is lost: every command has closed its links by now.
    """
    atexit._run_exitfuncs()  # packages of trackers finish their work there
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = CLOSED_PIPE
        except OSError:
            code = code or 1
    os._exit(code)


def _crash(error: BaseException) -> int:
    """Print the traceback of a bug."""
    with suppress(OSError):
        sys.excepthook(type(error), error, error.__traceback__)
        if _given.get("json"):
            _print_json(error)
    return 1


def _reader_gone() -> bool:
    return reader_gone(sys.stdout) or reader_gone(sys.stderr)


def _folder_exists() -> bool:
    """Whether the current folder still exists: a command may start in a deleted one, but relative paths need it."""
    try:
        return bool(Path.cwd())
    except FileNotFoundError:
        return False


def _lost(stream: TextIO, name: str) -> bool:
    """Whether this stream cannot be written; reports it."""
    error = failure(stream)
    if error is not None:
        put(sys.stderr, f"disttui: {name} cannot be written: {error.strerror}\n")
    return error is not None
