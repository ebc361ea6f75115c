"""Stopping, killing and leaving a run: what is left on the hosts, and when."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable

import pexpect  # type: ignore[import-untyped]
import pytest

from tests.cluster.typed import Running, User, wait_gone
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.torch

# The ranks print nothing, and each has a child; that of a deaf one has also left its session. A deaf one says when a
# second has passed since it was asked to end.
_SLEEP = """
import os, pathlib, signal, subprocess, sys, time

here = pathlib.Path(__file__).parent
if "--deaf" in sys.argv:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"], start_new_session="--deaf" in sys.argv)
if "--deaf" in sys.argv:
    def refuse(number, frame):
        time.sleep(1)
        (here / f"refused-{os.environ['RANK']}").touch()
    signal.signal(signal.SIGTERM, refuse)
(here / f"up-{os.environ['RANK']}").write_text(str(os.getpid()))
time.sleep(900)
"""
_SHORT = """
import os, pathlib, time

here = pathlib.Path(__file__).parent
(here / f"up-{os.environ['RANK']}").touch()
with open(here / f"beats-{os.environ['RANK']}", "ab", 0) as beats:
    while not (here / "enough").exists():
        beats.write(b".")
        time.sleep(0.05)
print("the last line", flush=True)
"""


def _wait_up(me: User, running: Running) -> None:
    for rank in range(len(me.cluster.hosts)):
        running.wait_file(me.cluster.shared / f"up-{rank}")


@pytest.mark.parametrize(
    ("args", "grace", "number"),
    [([], 300, signal.SIGINT), (["--deaf"], 1, signal.SIGTERM)],
    ids=["SIGINT", "SIGTERM-deaf"],
)
def test_one_signal_stops_all(user: Callable[..., User], args: list[str], grace: float, number: int) -> None:
    """Nothing is left: long before the end of the grace where ranks obey TERM, after it where not; exit code 130."""
    me = user(2)
    script = me.script(_SLEEP)
    running = me.start(me.profile({"script": str(script), "args": args}, launch={"grace": grace}))
    _wait_up(me, running)
    sent = running.send(number)
    print(f"gone after {running.wait_gone() - sent:.2f} s")
    assert running.wait() == 130
    assert "stopped after" in running.stderr.splitlines()[-2], running.stderr


def test_ctrl_c_on_a_terminal_then_again(user: Callable[..., User]) -> None:
    """A real Ctrl-C asks the ranks to end; the second, while a deaf rank has its long grace, kills at once."""
    me = user(2, light=True)
    script = me.script(_SLEEP)
    profile = me.profile({"script": str(script), "args": ["--deaf"]}, launch={"grace": 300})
    command = me.command("run", profile)
    terminal = pexpect.spawn(command[0], command[1:], env=me.environment(), cwd=me.home, timeout=60, encoding="utf-8")
    for rank in range(2):
        while not (me.cluster.shared / f"up-{rank}").exists():
            terminal.expect([r".+", pexpect.TIMEOUT], timeout=0.05)
            assert terminal.isalive()
    terminal.send("\x03")
    terminal.expect("press Ctrl-C again to kill it")
    for rank in range(2):
        wait_for((me.cluster.shared / f"refused-{rank}").exists, "a second of the grace of a deaf rank")
    assert all(len(host.processes()) >= 4 for host in me.cluster.hosts), "the deaf ranks were not given their grace"
    terminal.send("\x03")
    sent = time.time()
    print(f"gone after {wait_gone(me.cluster) - sent:.2f} s")
    terminal.expect("stopped after")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130


@pytest.mark.parametrize("end", ["hang up", "SIGKILL"])
def test_run_continues_without_its_viewer(user: Callable[..., User], end: str) -> None:
    """A terminal that is closed leaves the run alone, and so does a viewer that is killed."""
    me = user(2, light=True)
    command = me.command("run", me.profile({"script": str(me.script(_SHORT))}))
    terminal = pexpect.spawn(command[0], command[1:], env=me.environment(), cwd=me.home, timeout=60)
    for rank in range(2):
        while not (me.cluster.shared / f"up-{rank}").exists():
            terminal.expect([r".+", pexpect.TIMEOUT], timeout=0.05)
    if end == "hang up":
        os.close(terminal.child_fd)
        terminal.child_fd, terminal.closed = -1, True
        assert terminal.wait() == 0
    else:
        terminal.kill(signal.SIGKILL)
        terminal.wait()
    for rank in range(2):
        beats = me.cluster.shared / f"beats-{rank}"
        enough = beats.stat().st_size + 20
        wait_for(lambda: beats.stat().st_size >= enough, "another second of a rank")  # noqa: B023 (called here)
    assert all(len(host.processes()) >= 3 for host in me.cluster.hosts)
    (me.cluster.shared / "enough").touch()
    wait_gone(me.cluster, 90 if end == "SIGKILL" else 30)
    for node, host in enumerate(me.cluster.hosts):
        [folder] = (host.home / ".disttui/runs").glob(f"t-*/{node}")
        record = json.loads((folder / "exit.json").read_text())
        assert (record["state"], record["code"], record["left"]) == ("finished", 0, [])
        assert (folder / f"attempt-1/rank-{node}.log").read_text() == "the last line\n"


def test_ctrl_c_while_connecting(user: Callable[..., User]) -> None:
    """Nothing was started yet: the command ends at once, whatever a dead host takes to time out."""
    me = user(2)
    me.cluster[1].cut()
    running = me.start(me.profile({"script": str(me.script(_SLEEP))}))
    running.wait_for(lambda: bool(me.cluster[0].processes()))
    sent = running.send(signal.SIGINT)
    assert running.wait(20) == 130
    print(f"left after {time.time() - sent:.2f} s")
    said = running.stderr.splitlines()
    assert said[-1] == "disttui: nothing was started"
    assert [line for line in said if "node2" in line] == ["disttui: node2: connecting"], "it was waited for"
    running.wait_gone(10)
    assert not (me.cluster[0].home / ".disttui").exists()


def test_ctrl_c_at_a_question(user: Callable[..., User]) -> None:
    """The terminal echoes again after a question for a passphrase has been left by Ctrl-C."""
    me = user(1)
    key = me.home / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", key], check=True)
    config = me.cluster.ssh_config.read_text()
    me.cluster.ssh_config.write_text(config.replace(str(me.cluster.folder / "key-client"), str(key)))
    words = me.command("run", me.profile({"command": ["true"]}))
    line = f"trap : INT; {shlex.join(words)}; echo code $?; stty"
    shell = pexpect.spawn("sh", ["-c", line], env=me.environment(), cwd=me.home, timeout=60, encoding="utf-8")
    shell.expect("passphrase")
    shell.send("\x03")
    shell.expect("code 130")
    shell.expect(pexpect.EOF)
    assert "-echo" not in shell.before, shell.before
    shell.close()
