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

pytestmark = pytest.mark.torch

# The ranks print nothing, and each has a child; that of a deaf one has also left its session.
_SLEEP = """
import os, pathlib, signal, subprocess, sys, time

here = pathlib.Path(__file__).parent
if "--deaf" in sys.argv:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"], start_new_session="--deaf" in sys.argv)
(here / f"up-{os.environ['RANK']}").write_text(str(os.getpid()))
time.sleep(900)
"""
_SHORT = """
import os, pathlib, time

here = pathlib.Path(__file__).parent
(here / f"up-{os.environ['RANK']}").touch()
while not (here / "enough").exists():
    time.sleep(0.05)
print("the last line", flush=True)
"""


def _wait_up(me: User, running: Running) -> None:
    for rank in range(len(me.cluster.hosts)):
        running.wait_file(me.cluster.shared / f"up-{rank}")


@pytest.mark.parametrize(
    ("args", "grace", "number", "limit"),
    [([], 10, signal.SIGINT, 1.0), (["--deaf"], 1, signal.SIGTERM, 3.0)],
    ids=["SIGINT", "SIGTERM-deaf"],
)
def test_one_signal_stops_all(
    user: Callable[..., User], args: list[str], grace: float, number: int, limit: float
) -> None:
    """Within 1 s nothing is left where ranks obey TERM, within grace + 2 s where they do not; exit code 130."""
    me = user(2)
    script = me.script(_SLEEP)
    running = me.start(me.profile({"script": str(script), "args": args}, launch={"grace": grace}))
    _wait_up(me, running)
    sent = running.send(number)
    took = running.wait_gone() - sent
    print(f"gone after {took:.2f} s")
    assert running.wait() == 130
    assert "stopped after" in running.stderr.splitlines()[-2], running.stderr
    assert took <= limit, running.stderr


def test_ctrl_c_on_a_terminal_then_again(user: Callable[..., User]) -> None:
    """A real Ctrl-C asks the ranks to end; the second, while a deaf rank has its long grace, kills at once."""
    me = user(2)
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
    time.sleep(1.0)
    assert all(len(host.processes()) >= 4 for host in me.cluster.hosts), "the deaf ranks were not given their grace"
    terminal.send("\x03")
    sent = time.time()
    took = wait_gone(me.cluster) - sent
    print(f"gone after {took:.2f} s")
    terminal.expect("stopped after")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130
    assert took <= 1.0


@pytest.mark.parametrize("end", ["hang up", "SIGKILL"])
def test_the_run_goes_on_without_its_viewer(user: Callable[..., User], end: str) -> None:
    """A terminal that is closed leaves the run alone, and so does a viewer that is killed."""
    me = user(2)
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
    time.sleep(1.0)
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
    while not me.cluster[0].processes():
        assert running.process.poll() is None
        time.sleep(0.02)
    sent = running.send(signal.SIGINT)
    assert running.wait(20) == 130
    took = time.time() - sent
    print(f"left after {took:.2f} s")
    assert took < 2.0
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
