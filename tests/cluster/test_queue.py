"""Three accounts of one host queue runs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cluster.typed import COMMAND, User
from tests.command import ran
from tests.files import new_file
from tests.unit.waiting import wait_for

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

_SIGN = """
import getpass, os
with open(os.path.join(os.path.dirname(__file__), "began"), "a") as file:
    file.write(getpass.getuser() + "\\n")
"""


def test_a_single_run_starts_second_after_fifty(user: Callable[..., User]) -> None:
    """Alice queues 50 runs, then bob one, then carol five, while root has leased the host."""
    me = user(1, logins=dict.fromkeys(("alice", "bob", "carol"), "/bin/sh"))
    began = new_file(me.cluster.shared / "began", mode=0o666)
    me.cluster.shared.chmod(0o755)

    def say(*words: str) -> str:
        environ = me.environment(DISTTUI_SSH_CONFIG=str(me.cluster.ssh_config))
        done = ran([COMMAND, *words], cwd=me.home, env=environ, timeout=500)
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def profile(name: str) -> str:
        return str(me.profile({"script": str(me.script(_SIGN))}, [f"{name}@node1"], name=f"{name}s"))

    def sweep(name: str, number: int) -> None:
        say("sweep", profile(name), "--set", f"job.args.trial={','.join(map(str, range(number)))}")

    say("lease", "add", "root@node1", "--until", "never")
    sweep("alice", 50)
    say("run", "--when-free", "--detach", profile("bob"))
    sweep("carol", 5)
    answer = say("lease", "queue", "--json", "node1")
    users = [run["user"] for run in json.loads(answer)["runs"]]
    assert users == ["alice", "bob", "carol", *["alice", "carol"] * 4, *["alice"] * 45]
    assert len(answer) < 60_000
    lines = say("lease", "queue", "node1").splitlines()
    assert len(lines) == 57 and max(map(len, lines)) <= 80
    assert len(say("lease", "list", "node1").splitlines()) == 3
    say("lease", "release", "root@node1")
    started = wait_for(lambda: len(names := began.read_text().split()) >= 3 and names, "the first three", 200)
    assert started[:3] == ["alice", "bob", "carol"]
