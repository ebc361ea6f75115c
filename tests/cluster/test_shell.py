"""`disttui shell` on real hosts, typed at a real terminal: a rank's folder and environment, sizes, keys, exit codes."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest

from tests.cluster.typed import User, typed
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.timeout(200)
Make = Callable[..., User]
_WAITS = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


@contextmanager
def shell(me: User, target: str | Path, *options: str) -> Iterator[pexpect.spawn]:
    """A shell whose prompt is READY."""
    words = me.command("shell", *options, target)
    child = pexpect.spawn(
        words[0], words[1:], env={**me.environment(), "TERM": "dumb"}, cwd=str(me.home), encoding="utf-8",
        timeout=60, dimensions=(31, 97),
    )  # fmt: skip
    try:
        child.expect_exact(("$ ", "# "))
        child.sendline("PS1=REA''DY")
        child.expect_exact("READY")
        yield child
    finally:
        child.close(force=True)


def answer(child: pexpect.spawn, line: str) -> str:
    """What a line prints."""
    child.sendline(line)
    child.expect_exact("READY")
    return str(child.before).partition("\n")[2].strip()


def left(child: pexpect.spawn, line: str) -> int:
    """The exit code of `disttui` after a last line."""
    child.sendline(line)
    child.expect(pexpect.EOF)
    child.close()
    return int(child.exitstatus)


def test_shell_opens_beside_its_rank_but_outside_the_run(user: Make) -> None:
    me = user(2, light=True)
    (me.cluster.shared / "work here").mkdir()
    profile = me.profile(
        {"script": str(me.script(_WAITS)), "workdir": str(me.cluster.shared / "work here"),
         "env": {"TOKEN": "${env:TOKEN}", "WHAT": "a b"}},
        num_processes=2,
    )  # fmt: skip
    running = me.start(profile, env={"TOKEN": "t0p-s3cret-value"})
    running.wait_for(lambda: running.stdout.count("up") == 4)
    (run,) = (path.name for path in (me.home / ".local/share/disttui/runs").iterdir())
    with shell(me, f"{run}:3") as child:
        assert answer(child, 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $WHAT $TOKEN"') == "3 1 4 a b t0p-s3cret-value"
        assert answer(child, "pwd") == str(me.cluster.shared / "work here")
        assert answer(child, "echo $MASTER_ADDR") == me.cluster[0].address
        assert answer(child, "env | grep -c DISTTUI_") == "3", "the run, the node, the attempt"
        assert answer(child, "stty size") == "31 97"
        child.setwinsize(40, 120)
        answer(child, "until test \"$(stty size)\" = '40 120'; do sleep 0.1; done")
        child.sendline("sleep 4711")
        child.expect_exact("sleep 4711")
        running.wait_for(lambda: any("sleep 4711" in words for _, words in me.cluster[1].processes()))
        child.sendintr()
        child.expect_exact("READY")
        running.send(signal.SIGINT)
        assert running.wait() == 130
        found = json.loads(typed(me, "runs orphans", "--json", "node1", "node2"))
        assert found == {"hosts": {"node1": [], "node2": []}, "errors": {}}
        assert answer(child, "echo alive") == "alive"
        assert left(child, "exit 7") == 7
    with shell(me, run) as child:
        assert answer(child, 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $WHAT <$TOKEN>"') == "0 0 4 a b <>"
        assert left(child, "exit") == 0
    for rank, words in (("4", "has no rank 4"), ("x", "'x' is not a rank of")):
        refused = shlex.join(me.command("shell", f"{run}:{rank}"))
        assert words in pexpect.run(refused, env=me.environment()).decode()


@pytest.mark.parametrize("transport", ["builtin", "ssh"])
def test_a_host_of_a_profile(user: Make, transport: str) -> None:
    me = user(1)
    (me.cluster[0].home / "my work").mkdir()
    host = {"host": "node1", "transport": transport, "activate": "export WHAT=yes"}
    profile = me.profile({"command": ["true"], "workdir": "~/my work"}, [host])
    with shell(me, f"{profile}:node1") as child:
        assert answer(child, 'echo "$PWD $WHAT"') == "/root/my work yes"
        assert answer(child, "stty size") == "31 97"
        assert answer(child, "seq 200000 | tail -1; head -c 300000 /dev/zero | tr '\\0' x | wc -c").split() == [
            "200000",
            "300000",
        ]
        child.sendline("sleep 4712")
        wait_for(lambda: any("sleep 4712" in words for _, words in me.cluster[0].processes()), "the sleep")
        child.sendintr()
        child.expect_exact("READY")
        assert left(child, "exit 3") == 3
    with shell(me, f"{profile}:node1") as child:
        assert left(child, "kill -9 $$") == 255


def test_a_lost_host_gives_the_terminal_back(user: Make) -> None:
    me = user(1)
    with shell(me, "node1") as child:
        assert answer(child, "pwd") == "/root"
        me.cluster[0].drop_sessions()
        child.expect("the connection was lost")
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 3


def test_this_machine_as_a_host(user: Make) -> None:
    me = user(1)
    python = me.home / "my env" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    host = {"host": "local", "python": str(python)}
    profile = me.profile({"command": ["true"], "workdir": str(me.home)}, [host])
    with shell(me, f"{profile}:local") as child:
        assert answer(child, "pwd") == str(me.home)
        assert answer(child, "stty size") == "31 97"
        # A shell may lose a Ctrl-C typed while it starts a program: the program says itself that it runs.
        child.sendline("sh -c 'echo U\"\"P; exec cat'")
        child.expect_exact("UP")
        child.sendintr()
        child.expect_exact("READY")
        assert left(child, "exit 4") == 4
    with shell(me, f"{profile}:local") as child:
        assert left(child, "kill -9 $$") == 255
