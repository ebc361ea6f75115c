"""All changes of the command line to its process, most before it parses a command, each with its reason."""

from __future__ import annotations

import os
import pwd
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from types import FrameType
from typing import TextIO

from disttui.runner.text.glyphs import fit
from disttui.runner.text.masking import masked


def begin() -> None:
    """Set up the environment, the streams, the signals and the imports of this process."""
    if not os.environ.get("HOME"):
        with suppress(KeyError):  # no such account
            os.environ["HOME"] = pwd.getpwuid(os.getuid()).pw_dir  # with an empty one, `~` is `/`
    _set_up_streams()
    _end_in_order()
    # Only paramiko's unused parser of ssh_config needs invoke. `import runner.transport.ssh`: 78 ms without it, 146 ms
    # with it, before the first connection of every command.
    sys.modules["invoke"] = None  # type: ignore[assignment]


def import_ahead() -> None:
    """Import in a thread, while waiting for hosts, what a command on a profile needs afterwards.

    Importing the planning takes 38 ms and the story of the end 48 ms; this would delay the first step, and the report
    after the end of the run.
    """
    Thread(target=_import_rest, daemon=True).start()


@contextmanager
def without_stdin() -> Iterator[None]:
    """Keep a package from asking at the terminal: wandb would ask for a key, and store it."""
    ours = sys.stdin
    with open(os.devnull, encoding="utf-8") as nobody:  # noqa: PTH123 - os.devnull is not a Path
        sys.stdin = nobody
        try:
            yield
        finally:
            sys.stdin = ours


def _import_rest() -> None:
    import disttui.runner.planning.plan
    import disttui.runner.planning.preflight
    import disttui.runner.planning.recommend
    import disttui.runner.render.story  # noqa: F401


def _end_in_order() -> None:
    """Treat SIGTERM and a closed terminal as Ctrl-C: release leases, remove copies.

    The second of a kind is ignored, since `timeout` and closing terminals send two; a third ends the process
    immediately. Ignored signals, as by nohup, stay ignored.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, lambda *_: signal.signal(number, signal.SIG_DFL))
    raise KeyboardInterrupt


def _set_up_streams() -> None:
    """Make both output streams writable, with glyphs that they can show."""
    # Some daemons start their children with a closed stream: nothing is read, and the output is discarded.
    sys.stdin = sys.stdin or os.fdopen(os.open(os.devnull, os.O_RDONLY))
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        fit(stream, os.environ, utf8_mode=bool(sys.flags.utf8_mode))
        _mask(stream)


def _mask(stream: TextIO) -> None:
    """Mask the values of known secrets in all output."""
    write = stream.write
    vars(stream)["write"] = lambda text: write(masked(text))


@contextmanager
def without_guesses() -> Iterator[None]:
    """Show on stdout what only looks like a secret: its author could otherwise hide words from the user."""
    stream = sys.stdout
    ours = vars(stream).pop("write", None)
    write = stream.write
    vars(stream)["write"] = lambda text: write(masked(text, guesses=False))
    try:
        yield
    finally:
        del vars(stream)["write"]
        if ours:
            vars(stream)["write"] = ours


def unmask() -> None:
    """Leave the streams to the app, which masks text before drawing: a shorter text would shift cells."""
    for stream in (sys.stdout, sys.stderr):
        vars(stream).pop("write", None)
