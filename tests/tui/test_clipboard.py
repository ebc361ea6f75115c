"""Which way a text takes to the clipboard, with real programs on the path."""

from __future__ import annotations

import base64
import stat
import subprocess
from pathlib import Path

import pytest

from disttui.tui import terminal
from tests.command import ran


def _tool(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A terminal on this machine, and nothing but what a test puts on the path."""
    (tmp_path / "bin").mkdir()
    return {"TERM": "xterm-256color", "PATH": str(tmp_path / "bin"), "OUT": str(tmp_path / "out")}


def test_over_ssh_the_terminal_is_reported(environ: dict[str, str], tmp_path: Path) -> None:
    """A native tool would fill the clipboard of a machine that nobody sits at."""
    _tool(tmp_path / "bin", "xclip", '/bin/cat > "$OUT"')
    done = terminal.copy("grüße\n", {**environ, "DISPLAY": ":0", "SSH_CONNECTION": "1.2.3.4 5 6.7.8.9 22"})
    assert done.good
    assert "OSC 52" in done.words
    assert not (tmp_path / "out").exists()
    assert done.sequence.startswith("\x1b]52;c;")
    assert done.sequence.endswith("\x07")
    assert base64.b64decode(done.sequence[7:-1]).decode() == "grüße\n"


def test_a_native_tool_where_there_is_one(environ: dict[str, str], tmp_path: Path) -> None:
    _tool(tmp_path / "bin", "xclip", '/bin/cat > "$OUT"')
    done = terminal.copy("one\ntwo\n", {**environ, "DISPLAY": ":0"})
    assert (done.words, done.sequence) == ("2 lines copied (xclip)", "")
    assert (tmp_path / "out").read_text() == "one\ntwo\n"


def test_a_native_tool_that_fails_is_passed_over(environ: dict[str, str], tmp_path: Path) -> None:
    _tool(tmp_path / "bin", "xclip", "exit 1")
    _tool(tmp_path / "bin", "xsel", '/bin/cat > "$OUT"')
    assert "xsel" in terminal.copy("x", {**environ, "DISPLAY": ":0"}).words


def test_a_native_tool_that_hangs_is_passed_over(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_PATIENCE", 0.3)
    _tool(tmp_path / "bin", "xclip", "exec /bin/sleep 60")
    assert "OSC 52" in terminal.copy("x", {**environ, "DISPLAY": ":0"}).words


@pytest.mark.parametrize("more", [{"TERM": "linux"}, {"TERM_PROGRAM": "Apple_Terminal"}, {}], ids=str)
def test_a_file_is_the_last_resort(
    environ: dict[str, str], more: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the terminal does not take it, or would drop it for its length."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = "x" * (10 if more else terminal.OSC_LIMIT)
    done = terminal.copy(text, {**environ, **more})
    assert (done.good, done.sequence) == (False, "")
    (path,) = tmp_path.glob("disttui-*.txt")
    assert str(path) in done.words
    assert path.read_text() == text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.tmux
def test_through_a_real_tmux(tmp_path: Path) -> None:
    """The text is in tmux's own buffer, and what goes to the terminal is wrapped so that tmux hands it on."""
    socket = str(tmp_path / "tmux")
    tmux = ["tmux", "-S", socket, "-f", "/dev/null"]
    subprocess.run([*tmux, "new-session", "-d", "sleep 600"], check=True)
    try:
        server = ran([*tmux, "display", "-p", "#{pid}"], check=True)
        environ = {
            "TERM": "tmux-256color", "PATH": "/usr/bin:/bin:/usr/local/bin", "SSH_TTY": "/dev/pts/1",
            "TMUX": f"{socket},{server.stdout.strip()},0",
        }  # fmt: skip
        done = terminal.copy("a line\n", environ)
        held = ran([*tmux, "show-buffer"], check=True)
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
    assert held.stdout == "a line\n"
    assert "tmux" in done.words
    assert done.sequence.startswith("\x1bPtmux;\x1b\x1b]52;c;")
    assert done.sequence.endswith("\x07\x1b\\")
