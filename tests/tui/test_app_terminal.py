"""The app in a real terminal: how it starts, that it is quiet, and what it leaves behind however it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from disttui.runner.ids import short
from disttui.runner.runs.registry import known_runs
from tests.command import ran
from tests.tui import shelf_kit as kit
from tests.tui.tmux import tmux
from tests.unit.waiting import Patience

ROOT = Path(__file__).parents[2]
CLI = [sys.executable, "-c", "from disttui.runner.cli import main; main()"]
LEFT = b"\x1b[?1049l"
"""What leaves the alternate screen."""


class Terminal:
    """A child in a pseudo-terminal of 80×24, and all it has written."""

    def __init__(self, command: Sequence[str], environ: dict[str, str]) -> None:
        self.seen = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.child = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=ROOT, env=environ, start_new_session=True
        )
        # Held open, so that its settings can be looked at when the child has ended.
        self.slave = slave

    def until(self, words: bytes, seconds: float = 60.0) -> None:
        """Read until something has been written."""
        patience = Patience(seconds)
        while words not in self.seen:
            assert not patience.ended, f"{words!r} never came, but {self.seen[-600:]!r}"
            self.read(0.1)

    def read(self, seconds: float) -> int:
        """Read for a while; return how much came."""
        before, deadline = len(self.seen), time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                self.seen += os.read(self._master, 65536)
        return len(self.seen) - before

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._master, keys)

    def end(self, seconds: float = 30.0) -> int:
        """Wait for the end; return the exit code."""
        patience = Patience(seconds)
        while self.child.poll() is None:
            assert not patience.ended, f"it does not end: {self.seen[-600:]!r}"
            self.read(0.1)
        self.read(0.1)
        return self.child.returncode

    def close(self) -> None:
        """End what is left."""
        self.child.kill()
        self.child.wait()
        os.close(self._master)
        os.close(self.slave)


@contextmanager
def terminal(command: Sequence[str], folder: Path, **more: str) -> Iterator[Terminal]:
    """Start a command in a terminal of a user who has what is in `folder`."""
    more = {"COLORTERM": "truecolor", "LANG": "C.UTF-8", "DISTTUI_LEASES": str(folder / "leases"), **more}
    with closing(Terminal(command, kit.environ(folder, **more))) as made:
        yield made


def _restored(shown: Terminal) -> None:
    assert LEFT in shown.seen
    assert not re.search(rb"\x1b\[>\d*u", shown.seen), "no key needs kitty's protocol"
    assert shown.seen.rfind(LEFT) > shown.seen.rfind(b"\x1b[?1049h")
    assert b"\x1b[?25h" in shown.seen[shown.seen.rfind(LEFT) - 200 :], "the cursor is shown again"
    assert termios.tcgetattr(shown.slave)[3] == shown.before[3], "the terminal echoes again"


def test_disttui_alone_opens_the_app_and_q_leaves_it(tmp_path: Path) -> None:
    with terminal(CLI, tmp_path) as shown:
        shown.until(b"profiles")
        shown.type(b"q")
        assert shown.end() == 0
        _restored(shown)
        assert b"Traceback" not in shown.seen


def test_a_profile_with_errors_opens_at_the_error(tmp_path: Path) -> None:
    path = kit.add_profile(tmp_path, "broken", "disttui: 1\nhosts: [ada]\nnum_procesess: 2\n")
    with terminal([*CLI, str(path)], tmp_path) as shown:
        shown.until("✗".encode())  # drawn in a colour of its own
        shown.until(b"unknown key")
        shown.type(b"\x11")
        assert shown.end() == 0


def test_without_a_terminal_the_headless_commands_are_named(tmp_path: Path) -> None:
    environ = kit.environ(tmp_path)
    for words, instead in (([], "disttui run PROFILE"), (["2node"], "disttui run 2node")):
        done = ran([*CLI, *words], cwd=ROOT, env=environ)
        assert done.returncode == 2
        assert "needs a terminal, but standard input is not a terminal" in done.stderr
        assert instead in done.stderr


@pytest.mark.slow
def test_it_is_quiet_while_nothing_happens(tmp_path: Path) -> None:
    """Not one byte: over a slow link, and in tmux, every byte costs."""
    kit.busy_machine(tmp_path)
    with terminal(CLI, tmp_path, SSH_CONNECTION="1 2 3 4") as shown:
        shown.until(b"pair-0a11")
        shown.read(3.0)
        assert shown.read(10.0) == 0


def test_a_crash_restores_the_terminal_and_names_attach(tmp_path: Path) -> None:
    code = (
        "import os\nfrom disttui.tui.app import DisttuiApp\n"
        "class Broken(DisttuiApp):\n"
        "    def action_help(self):\n        secret = 'hunter' + '2'\n        raise RuntimeError('boom')\n"
        "app = Broken(dict(os.environ))\napp.run()\nraise SystemExit(app.return_code)\n"
    )
    with terminal([sys.executable, "-c", code], tmp_path) as shown:
        shown.until(b"profiles")
        shown.type(b"?")
        assert shown.end() == 1
        _restored(shown)
        said = re.sub(rb"\s+", b" ", shown.seen[shown.seen.rfind(LEFT) :])
        assert b"disttui attach RUN" in said
        assert b"Traceback" not in said
        assert b"hunter2" not in shown.seen
    kept = (tmp_path / "state" / "disttui" / "crash.txt").read_text()
    assert "RuntimeError: boom" in kept


def test_a_crash_on_a_run_names_the_command_that_opens_it_again(tmp_path: Path) -> None:
    code = (
        "from disttui.tui.dashboard.run_screen import RunScreen\nfrom disttui.runner.cli.app import open_app\n"
        "def broken(self):\n    raise RuntimeError('boom')\nRunScreen.action_zoom = broken\n"
        "open_app('', ('replay', ('example',)))\n"
    )
    with terminal([sys.executable, "-c", code], tmp_path) as shown:
        shown.until(b"lines")
        shown.type(b"z")
        assert shown.end() == 1
        _restored(shown)
        assert b"disttui runs replay example" in re.sub(rb"\s+", b" ", shown.seen[shown.seen.rfind(LEFT) :])


def test_leaving_a_replay_prints_the_run_and_the_way_back(tmp_path: Path) -> None:
    kit.busy_machine(tmp_path)
    [run] = [run for run in known_runs(kit.environ(tmp_path))[0] if run.summary()["state"] == "failed"]
    with terminal([*CLI, "runs", "replay", run.run], tmp_path) as shown:
        shown.until(b"paused")
        shown.type(b"q")
        assert shown.end() == 0
        said = shown.seen[shown.seen.rfind(LEFT) :].decode()
        assert f"{short(run.run)} failed" in said
        assert f"→ disttui runs replay {short(run.run)}" in said


def test_leaving_the_app_prints_the_run_that_was_opened_last(tmp_path: Path) -> None:
    kit.busy_machine(tmp_path)
    [run] = [run for run in known_runs(kit.environ(tmp_path))[0] if run.summary()["state"] == "failed"]
    with terminal(CLI, tmp_path) as shown:
        shown.until(b"profiles")
        shown.type(f"\x10{short(run.run)}".encode())
        shown.until(b"run, failed")
        shown.type(b"\r")
        shown.until(b"lines")
        shown.type(b"\x11")
        assert shown.end() == 0
        said = shown.seen[shown.seen.rfind(LEFT) :].decode()
        assert f"{short(run.run)} failed" in said
        assert f"→ disttui attach {short(run.run)}" in said


@pytest.mark.tmux
def test_ctrl_z_leads_back_to_the_shell_and_fg_to_the_app(tmp_path: Path) -> None:
    with tmux(tmp_path, ["bash", "--norc", "-i"], kit.environ(tmp_path)) as screen:
        screen.type(shlex.join(CLI) + "\n")
        for _ in range(2):
            screen.until("2. Profiles")
            screen.press("C-z")
            screen.until("Stopped")
            screen.type("clear; fg\n")
        screen.until("2. Profiles")
        screen.press("q")
        screen.until_gone("2. Profiles")


@pytest.mark.tmux
def test_without_a_shell_to_return_to_ctrl_z_stops_nothing(tmp_path: Path) -> None:
    """A stopped process that no shell waits for could not be continued from its terminal."""
    with tmux(tmp_path, CLI, kit.environ(tmp_path)) as screen:
        screen.until("2. Profiles")
        screen.press("C-z")
        screen.until("cannot suspend")
        screen.press("q")
        screen.until("exit code 0")


def test_a_signal_restores_the_terminal(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        with terminal(CLI, tmp_path) as shown:
            shown.until(b"profiles")
            shown.child.send_signal(number)
            assert shown.end() == 0
            _restored(shown)


def test_a_terminal_that_goes_without_a_signal_ends_the_app(tmp_path: Path) -> None:
    shown = Terminal(CLI, kit.environ(tmp_path, COLORTERM="truecolor", LANG="C.UTF-8"))
    try:
        shown.until(b"profiles")
        os.close(shown.slave)
        os.close(shown._master)
        assert shown.child.wait(30) in (0, 1), "it ends; nobody is left to see how"
    finally:
        shown.child.kill()
        shown.child.wait()


def test_the_sandbox_ends_after_its_terminal_has_gone(tmp_path: Path) -> None:
    code = (
        "import threading, pathlib\nfrom unittest.mock import Mock\n"
        "from disttui.runner.cli.process import run\nfrom disttui.tui import app\n"
        "from disttui.tui.wizard import sandbox\n"
        "lives = [False, True]\nsandbox._lives = lambda link, request: lives.pop()\n"
        "sandbox.end_with_app('run', 'folder', {0: Mock(closed=False)})\n"
        "mounted = app.DisttuiApp.on_mount\n"
        "def mount(self):\n    mounted(self)\n    self.at_end += [wait_for_guard, sandbox.close, done]\n"
        "def wait_for_guard():\n"
        "    [one.join() for one in threading.enumerate() if '_await_hang_up' in one.name]\n"
        f"def done():\n    pathlib.Path({str(tmp_path / 'done')!r}).touch()\n"
        "app.DisttuiApp.on_mount = mount\nrun()\n"
    )
    shown = Terminal([sys.executable, "-c", code], kit.environ(tmp_path, COLORTERM="truecolor", LANG="C.UTF-8"))
    try:
        shown.until(b"profiles")
        os.close(shown.slave)
        os.close(shown._master)
        shown.child.wait(30)
        assert (tmp_path / "done").exists()
    finally:
        shown.child.kill()
        shown.child.wait()


def test_a_hanging_thread_does_not_delay_quitting(tmp_path: Path) -> None:
    code = (
        "import time, disttui.tui.startup\n"
        "from disttui.runner.cli.process import run\nfrom disttui.tui.home.screen import HomeScreen\n"
        "def hang(self):\n    self.run_worker(lambda: time.sleep(600), thread=True)\n    self.notify('hanging')\n"
        "HomeScreen.action_top = hang\nrun()\n"
    )
    with terminal([sys.executable, "-c", code], tmp_path) as shown:
        shown.until(b"profiles")
        shown.type(b"t")
        shown.until(b"hanging")
        shown.type(b"q")
        assert shown.end(10.0) == 0
        _restored(shown)
