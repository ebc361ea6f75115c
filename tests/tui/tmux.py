"""A person at a real terminal: a tmux server of its own, keys in, screens out."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from tests.command import ran
from tests.unit.waiting import Patience

POLL = 0.1


class Tmux:
    """One window of a tmux server that nobody else uses.

    Args:
        socket: Where the server listens.
        size: Columns and rows.
    """

    def __init__(self, socket: Path, command: Sequence[str], environ: Mapping[str, str], size: tuple[int, int]) -> None:
        self._tmux = ["tmux", "-f", "/dev/null", "-S", str(socket)]
        self._environ = {**environ, "TERM": "xterm-256color"}
        line = f"env TERM=tmux-256color {shlex.join(command)}; echo exit code $?; cat"
        self.written = socket.with_name(f"{socket.name}.written")
        """Every byte that the terminal got."""
        piped = ["pipe-pane", f"cat > {shlex.quote(str(self.written))}"]
        self._call("new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), line, ";", *piped)

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names: `Enter`, `Escape`, `Down`, `C-p`."""
        for key in keys:
            self._call("send-keys", key)
            if key == "Escape":
                # A terminal tells Escape and a key from Alt and that key by the time between them alone.
                time.sleep(0.3)

    def type(self, text: str) -> None:
        """Type characters as they are."""
        self._call("send-keys", "-l", text)

    def answer(self, key: str, question: str) -> None:
        """Press a key until a question is gone: it takes no key that was typed before it could be read."""
        self.until(question)
        for _ in range(20):
            time.sleep(1.0)
            self.press(key)
            again = time.monotonic() + 6.0
            while time.monotonic() < again:
                if not re.search(question, self.screen()):
                    return
                time.sleep(POLL)
        raise AssertionError(f"{key} does not answer {question!r}:\n{self.screen()}")

    def resize(self, columns: int, rows: int) -> None:
        """Make the terminal another size."""
        self._call("resize-window", "-x", str(columns), "-y", str(rows))

    def screen(self, *, coloured: bool = False) -> str:
        """What a person sees."""
        return self._call("capture-pane", "-p", *(["-e"] if coloured else []))

    def until(self, pattern: str, seconds: float = 120.0) -> str:
        """Wait until the screen shows something; returns it."""
        patience = Patience(seconds)
        while not re.search(pattern, shown := self.screen()):
            assert not patience.ended, f"{pattern!r} never came:\n{shown}"
            time.sleep(POLL)
        return shown

    def until_gone(self, pattern: str, seconds: float = 120.0) -> None:
        """Wait until the screen does not show something any more."""
        patience = Patience(seconds)
        while re.search(pattern, shown := self.screen()):
            assert not patience.ended, f"{pattern!r} is still there:\n{shown}"
            time.sleep(POLL)

    def tell(self, what: str) -> str:
        """What tmux itself knows, such as `#{pane_title}`."""
        return self._call("display-message", "-p", what).strip()

    def close(self) -> None:
        """End the server and what runs in it."""
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)

    def _call(self, *words: str) -> str:
        done = ran([*self._tmux, *words], env=self._environ, timeout=30)
        assert done.returncode == 0, f"tmux {words[0]}: {done.stderr}"
        return done.stdout


@contextmanager
def tmux(
    folder: Path, command: Sequence[str], environ: Mapping[str, str], size: tuple[int, int] = (80, 24)
) -> Iterator[Tmux]:
    """A terminal with a command in it, until the end of the block."""
    with closing(Tmux(folder / f"tmux-{time.monotonic_ns()}", command, environ, size)) as opened:
        yield opened
