"""All changes of the command line to its process, nearly all before it parses a command, each with its reason."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from types import FrameType
from typing import TextIO

from disttui.runner.text.glyphs import fit
from disttui.runner.text.masking import masked


def begin() -> None:
    """Set up the streams, the signals and the imports of this process."""
    _set_up_streams()
    _end_in_order()
    _hide_invoke()


def import_ahead() -> None:
    """Import in a thread, while hosts are awaited, what a command on a profile needs after their answers.

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
    """End by SIGTERM and by a closed terminal as by Ctrl-C: leases taken so far are given back, copies are removed.

    A second signal ends the process at once. One that is ignored, as by nohup, stays so.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
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
    """Keep the values of known secrets out of everything that is written."""
    write = stream.write
    vars(stream)["write"] = lambda text: write(masked(text))


@contextmanager
def without_guesses() -> Iterator[None]:
    """Show on stdout what only looks like a secret: the user decides by it, and who wrote it could hide words."""
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
    """Leave the streams to the app: a shorter text would move the cells behind it, and it masks text before drawing."""
    for stream in (sys.stdout, sys.stderr):
        vars(stream).pop("write", None)


def _hide_invoke() -> None:
    """Keep paramiko from importing invoke, which it needs for a parser of ssh_config that nothing here uses.

    `import runner.transport.ssh`: 78 ms without invoke, 146 ms with it, before the first connection of every command.
    """
    sys.modules["invoke"] = None  # type: ignore[assignment]
