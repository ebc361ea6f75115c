"""How the command ends: one line and the right code, whatever its streams, its folders and its user do."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from disttui.runner.api import ending
from disttui.runner.cli import app
from disttui.runner.cli.signals import Signals
from disttui.runner.errors import InputError
from disttui.runner.runs import registry
from disttui.runner.runs.store import mirrors_folder
from tests.command import ran

DISTTUI = str(Path(sys.executable).with_name("disttui"))
ROOT = Path(__file__).parents[2]


def command(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DISTTUI, *words], cwd=ROOT, text=True, timeout=120, check=False, **more)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["profile", "validate", "profiles/2node.yaml"], ["completion", "bash"]])
def test_a_full_disk_under_standard_output_is_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = command(*words, stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 1
        assert done.stderr == "disttui: standard output cannot be written: No space left on device\n"
        assert command("nosuch", stdout=full, stderr=full).returncode == 2


def test_a_live_view_says_that_its_lines_are_lost() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    code = (
        "import sys\nfrom disttui.runner.cli.render.output import put\n"
        "for n in range(3):\n    put(sys.stdout, 'line')\n"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 0
    why = "standard output cannot be written: No space left on device; further output is discarded"
    assert done.stderr == f"disttui: {why}\n"


def test_relative_path_in_a_deleted_folder_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "train.py").touch()
    line = f"cd gone && rmdir ../gone && exec {shlex.quote(DISTTUI)} run ../train.py --hosts local"
    done = ran(["sh", "-c", line], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "disttui: the current folder has been deleted\n" in done.stderr and "Traceback" not in done.stderr


def closed_pipe() -> int:
    """The writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize(
    "words",
    [["--help"], ["profile", "validate", "2node"], ["profile", "bytegpt"], ["ps", "--local"], ["nosuch"]],
    ids=" ".join,
)
def test_closed_pipe_ends_every_command_with_141(tmp_path: Path, words: list[str]) -> None:
    writer = closed_pipe()
    stream = "stderr" if words == ["nosuch"] else "stdout"
    other = "stdout" if stream == "stderr" else "stderr"
    nothing = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}  # of many runs, `ps` says how to see the rest
    done = command(*words, env=nothing, **{stream: writer, other: subprocess.PIPE})
    os.close(writer)
    assert (done.returncode, getattr(done, other)) == (141, "")


def test_quiet_follower_notices_that_its_reader_has_gone() -> None:
    code = (
        "import sys, time\nfrom disttui.runner.cli import process\n"
        "from disttui.runner.cli.render.printer import JsonPrinter\n"
        "def follow(**_):\n    printer = JsonPrinter(sys.stdout)\n    printer.say('first')\n"
        "    while True:\n        printer.refresh(None)\n        time.sleep(0.01)\n"
        "process.cli.main = follow\nprocess.run()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == '{"type": "say", "text": "first"}\n'
        child.stdout.close()
        assert (child.wait(60), child.stderr.read()) == (141, "")


def test_broken_pipe_that_is_not_an_output_stream_is_a_bug() -> None:
    code = (
        "from disttui.runner.cli import process as p\n"
        "def main(**_):\n    raise BrokenPipeError\np.cli.main = main\np.run()"
    )
    done = ran([sys.executable, "-c", code], cwd=ROOT)
    assert done.returncode == 1 and "Traceback" in done.stderr


EXITS = int(os.environ.get("DISTTUI_EXITS", "50"))
AT_ONCE = 20
_EXIT = """
import os, sys, threading
from disttui.runner.cli import process

class Canary:
    def __del__(self, write=os.write):  # the names of modules are gone by then
        write(2, b"finalized")

def start_threads():
    while True:
        threading.Thread(target=int, name="good-bye", daemon=True).start()

def command(**_):
    sys.setswitchinterval(1e-6)
    sys.canary = Canary()
    for _ in range(4):
        threading.Thread(target=start_threads, daemon=True).start()
    print("out " * 1000)
    print("err", file=sys.stderr)
    if sys.argv[1] == "crash":
        raise RuntimeError("boom")
    if sys.argv[1] == "exit":
        raise SystemExit(3)
    return 3

process.cli.main = command
process.run()
"""


@pytest.mark.parametrize(("how", "code"), [("return", 3), ("exit", 3), ("crash", 1)])
def test_no_thread_starts_while_python_finalizes(how: str, code: int) -> None:
    """Python up to 3.11 crashes there: the process must end before. DISTTUI_EXITS=2000 tries more."""
    for begun in range(0, EXITS // 3, AT_ONCE):
        for out, err, returned in _exits(_EXIT, how, min(AT_ONCE, EXITS // 3 - begun)):
            assert (returned, out) == (code, "out " * 1000 + "\n")
            assert err.startswith("err\n") and "finalized" not in err
            assert err.endswith("RuntimeError: boom\n") if how == "crash" else err == "err\n"


def test_the_canary_of_the_exits_sees_a_finalization() -> None:
    """Otherwise the test above could not fail."""
    [(_, err, returned)] = _exits(_EXIT.replace("process.run()", "process._end = sys.exit\nprocess.run()"), "return", 1)
    assert returned == 3 or returned < 0, err
    assert returned < 0 or err == "err\nfinalized"


def test_stream_closed_at_interpreter_exit_starts_no_thread() -> None:
    """As of a run that a script has followed and not left: Python up to 3.11 waits for that thread for ever."""
    code = (
        "import os\nfrom disttui.runner.transport.local import LocalConnection\n"
        "class Left:\n    stream = LocalConnection('local').run('cat')\n"
        "    def __del__(self, write=os.write):\n        self.stream.close()\n        write(1, b'closed')\n"
        "left = Left()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"closed", b"")


def _exits(code: str, how: str, number: int) -> list[tuple[str, str, int]]:
    """What each of these commands has written to both streams, and how it has ended."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, how], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(number)
    ]
    return [(*child.communicate(timeout=120), child.returncode) for child in children]


def test_unwritable_data_folder_is_refused_before_connecting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "file")}
    done = command("run", "2node", "--sandbox", env=env, capture_output=True)
    assert done.returncode == 2 and "connecting" not in done.stderr
    assert f"cannot store runs in {tmp_path}/file" in done.stderr
    assert ": Not a directory\n  → Set XDG_DATA_HOME to a writable folder" in done.stderr


def test_a_read_only_disk_is_named_as_the_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    for flag, why in ((os.ST_RDONLY, "Read-only file system"), (0, "Permission denied")):
        monkeypatch.setattr(os, "statvfs", lambda _, flag=flag: SimpleNamespace(f_flag=flag))
        with pytest.raises(InputError, match=f"cannot store runs in {tmp_path}.*: {why}"):
            registry.make_folder({"XDG_DATA_HOME": str(tmp_path)})


def test_a_run_that_cannot_be_deleted_is_named_in_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a read-only disk rmtree names the first file alone."""

    def refuse(_: Path) -> None:
        raise OSError(30, "Read-only file system", ".viewer")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(InputError, match=f"cannot delete {tmp_path}: Read-only file system"):
        ending._remove(tmp_path)


def test_a_relative_data_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert mirrors_folder({"XDG_DATA_HOME": "rel"}) == mirrors_folder({}) == tmp_path / ".local/share/disttui/runs"
    assert mirrors_folder({"XDG_DATA_HOME": "/x"}) == Path("/x/disttui/runs")


def test_an_empty_home_is_the_home_of_the_account() -> None:
    code = (
        "from pathlib import Path\nfrom disttui.runner.cli import startup\n"
        "startup.begin()\nprint(Path('~/x').expanduser())"
    )
    done = ran([sys.executable, "-c", code], env={**os.environ, "HOME": ""}, check=True)
    assert done.stdout == f"{pwd.getpwuid(os.getuid()).pw_dir}/x\n"


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
def test_sigterm_or_sighup_releases_a_partial_lease(number: int, tmp_path: Path, leases_of_the_tests: Path) -> None:
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        (tmp_path / "two.yaml").write_text(
            f"disttui: 1\nhosts: [local, {{name: silent, host: 127.0.0.1, port: {port}}}]\njob: {{command: [x]}}\n"
        )
        with subprocess.Popen(
            [DISTTUI, "lease", "add", "two.yaml"], cwd=tmp_path, env=env, text=True, stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509 - under nohup it is ignored
        ) as child:  # fmt: skip
            door.settimeout(60)
            taken, _ = door.accept()
            assert len([*leases_of_the_tests.iterdir()]) == 1  # the hosts are leased one after the other
            child.send_signal(number)
            assert child.stderr is not None
            assert child.stderr.read().endswith("disttui: interrupted\n")
            assert child.wait(60) == 130
            taken.close()
    assert not [*leases_of_the_tests.iterdir()]


def test_a_repeated_sigterm_does_not_cut_the_cleanup_short() -> None:
    """`timeout` sends it to the process and to its group."""
    code = (
        "import signal\nfrom disttui.runner.cli import startup\nstartup.begin()\n"
        "try: signal.raise_signal(signal.SIGTERM)\n"
        "except KeyboardInterrupt: signal.raise_signal(signal.SIGTERM); print('cleaned', flush=True)\n"
        "signal.raise_signal(signal.SIGTERM); print('still running', flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("cleaned\n", "", -signal.SIGTERM)
    control = Signals()
    control.hold_back()
    seen = []
    with control.caught():
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
            seen.append(control.stops)
    assert seen == [1, 1, 2]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_hang_up_that_nohup_ignores_ends_no_following(handler: signal.Handlers) -> None:
    before = signal.signal(signal.SIGHUP, handler)
    try:
        with Signals().caught():
            assert (signal.getsignal(signal.SIGHUP) == signal.SIG_IGN) == (handler == signal.SIG_IGN)
        assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_initially_closed_stream_causes_no_traceback(tmp_path: Path, closed: str) -> None:
    run = f"'{sys.executable}' -c 'from disttui.runner.cli import main; main()'"
    for words, code in (("ps", 0), ("", 2)):
        done = ran(["sh", "-c", f"{run} {words} {closed}"], cwd=ROOT, env={**os.environ, "HOME": str(tmp_path)})
        assert done.returncode == code and "Traceback" not in done.stdout + done.stderr


def test_ctrl_c_during_the_first_imports_causes_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(300)\n")
    with subprocess.Popen(
        [sys.executable, "-c", "from disttui.runner.cli import main; main()"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == "importing\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
        assert child.stderr.read() == ""


@pytest.mark.parametrize(
    ("term", "why"),
    [(None, "TERM is not set"), ("", "TERM is not set"), ("dumb", "TERM=dumb is a terminal that cannot show it"),
     ("unknown", "TERM=unknown is a terminal that cannot show it"), ("xterm", "")],
)  # fmt: skip
def test_why_a_terminal_cannot_show_the_app(monkeypatch: pytest.MonkeyPatch, term: str | None, why: str) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, SimpleNamespace(isatty=lambda: True))
    if term is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", term)
    assert app._no_terminal() == why
