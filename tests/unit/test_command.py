"""What the tests' own `disttui` does where a command hangs, or the process that forks has ended."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import command
from tests.command import ran


def test_a_command_that_hangs_is_killed_with_its_group() -> None:
    words = ["sh", "-c", "sleep 1000 & echo; wait"]
    with subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert command._end_of(child.pid, 0.0) == -9
        assert child.stdout.read() == b"", "nobody holds the pipe"
        child.returncode = -9  # it has been waited for


def test_ended_forker_is_reported_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command._forker().shutdown(socket.SHUT_RDWR)
    with pytest.raises(RuntimeError, match="the forker has ended"):
        command.disttui("--version")
    assert command.disttui("--version").stdout.startswith("disttui")


def test_an_end_with_a_text_says_it() -> None:
    program = "import sys; from tests.command import _run; _run(lambda: sys.exit('no such thing'))"
    done = ran([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stderr) == (1, "no such thing\n")
