"""How the command ends: one line and the right code, whatever its streams, its folders and its user do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.runs.store import mirrors_folder

DISTTUI = str(Path(sys.executable).with_name("disttui"))
ROOT = Path(__file__).parents[2]


def command(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DISTTUI, *words], cwd=ROOT, text=True, timeout=120, check=False, **more)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["validate", "profiles/2node.yaml"], ["completion", "bash"]])
def test_a_full_disk_under_standard_output_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = command(*words, stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 1
        assert done.stderr == "disttui: standard output cannot be written: No space left on device\n"
        assert command("nosuch", stdout=full, stderr=full).returncode == 2


def test_a_live_view_says_that_its_lines_are_lost() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    code = "import sys\nfrom runner.cli.render.output import put\nfor n in range(3):\n    put(sys.stdout, 'line')\n"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 0
    assert done.stderr == "disttui: <stdout> cannot be written: No space left on device; the rest of it goes nowhere\n"


def test_nothing_is_said_of_a_reader_that_has_gone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = command("--help", stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.stderr == ""


def test_nothing_is_said_of_a_reader_of_a_followed_log_that_has_gone() -> None:
    """As of `disttui logs -f RUN | head`, where the pipe breaks outside of what click looks after."""
    code = "from runner.cli import process\nprocess.cli.main = lambda **_: print('line', flush=True)\nprocess.run()"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_run_that_cannot_be_kept_is_refused_before_its_hosts_are_reached(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "file")}
    done = command("run", "2node", "--sandbox", env=env, capture_output=True)
    assert done.returncode == 2 and "connecting" not in done.stderr
    assert "where runs are kept: Not a directory\n  → Set XDG_DATA_HOME to a folder" in done.stderr


def test_a_relative_data_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert mirrors_folder({"XDG_DATA_HOME": "rel"}) == mirrors_folder({}) == tmp_path / ".local/share/disttui/runs"
    assert mirrors_folder({"XDG_DATA_HOME": "/x"}) == Path("/x/disttui/runs")


def test_ctrl_c_before_the_start_says_that_nothing_was_started(tmp_path: Path) -> None:
    # A host that takes the connection and never says a word.
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as door:
        profile = tmp_path / "one.yaml"
        port = door.getsockname()[1]
        profile.write_text(f'disttui: 1\nhosts: ["root@127.0.0.1:{port}"]\njob: {{builtin: bytegpt}}\n')
        with subprocess.Popen(
            [DISTTUI, "run", str(profile)], env=env, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as child:
            door.settimeout(60)
            taken, _ = door.accept()
            child.send_signal(signal.SIGINT)
            assert child.stderr is not None
            seen = child.stderr.read()
            assert child.wait(60) == 130
            taken.close()
    assert seen.endswith("disttui: nothing was started\n")
    assert "Traceback" not in seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_gives_back_what_a_lease_of_several_hosts_has_taken(
    number: int, tmp_path: Path, leases_of_the_tests: Path
) -> None:
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        (tmp_path / "two.yaml").write_text(
            f"disttui: 1\nhosts: [local, {{name: silent, host: 127.0.0.1, port: {port}}}]\njob: {{command: [x]}}\n"
        )
        with subprocess.Popen(
            [DISTTUI, "lease", "two.yaml", "--gpus", "9"], cwd=tmp_path, env=env, text=True, stderr=subprocess.PIPE
        ) as child:
            door.settimeout(60)
            taken, _ = door.accept()
            assert len([*leases_of_the_tests.iterdir()]) == 1  # the hosts are leased one after the other
            child.send_signal(number)
            assert child.stderr is not None
            assert child.stderr.read().endswith("disttui: interrupted\n")
            assert child.wait(60) == 130
            taken.close()
    assert not [*leases_of_the_tests.iterdir()]


def test_ctrl_c_while_the_first_modules_are_imported_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(300)\n")
    with subprocess.Popen(
        [sys.executable, "-c", "from runner.cli import main; main()"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == "importing\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
        assert child.stderr.read() == ""
