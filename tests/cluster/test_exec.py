"""`disttui exec` on real hosts: words arrive unchanged, whatever the login shell; nothing is left after Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.cluster.typed import User, typed
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.timeout(120)
Make = Callable[..., User]
_WORDS = ["a b", "c'd", '"e"', "$HOME", "*", "!x", "ü"]


def test_words_arrive_unchanged(user: Make) -> None:
    me = user(2)
    said = typed(me, "exec", "node1", "node2", "--", "printf", "<%s>", *_WORDS)
    wanted = "".join(f"<{word}>" for word in _WORDS)
    assert sorted(said.splitlines()) == [f"node1 │ {wanted}", f"node2 │ {wanted}"]


def test_the_exit_code_is_the_highest(user: Make) -> None:
    me = user(2)
    (me.cluster[1].home / "here").touch()
    assert "node1 │ exit code 7" in typed(me, "exec", "node1", "node2", "--", "test -e here || exit 7", code=7)
    me.cluster[1].cut()
    config = me.cluster.ssh_config
    config.write_text(config.read_text() + "  ConnectTimeout 1\n")
    lines = [
        json.loads(line) for line in typed(me, "exec", "--json", "node1", "node2", "--", "true", code=1).splitlines()
    ]
    assert {"host": "node1", "exit": 0} in lines
    assert [line["error"]["host"] for line in lines if "error" in line] == ["node2"]


def test_a_profile_gives_folder_and_activate(user: Make) -> None:
    me = user(1)
    (me.cluster[0].home / "my project").mkdir()
    profile = me.profile(
        {"command": ["true"], "workdir": "~/my project"}, [{"host": "node1", "activate": "export WHAT=yes"}]
    )
    assert "/root/my project yes" in typed(me, "exec", profile, "--", 'echo "$PWD $WHAT"')


def test_a_profile_whose_code_belongs_to_runs_gives_the_home(user: Make) -> None:
    me = user(1)
    (me.home / "code").mkdir()
    profile = me.profile({"command": ["true"], "sync": str(me.home / "code")}, ["node1"])
    assert typed(me, "exec", profile, "--", "pwd") == "node1 │ /root\n"


def test_hosts_are_listed_as_for_run(user: Make) -> None:
    me = user(2)
    for words in (["node1,node2"], ["node[1-2]"], ["node1", "node2,node1"]):
        assert sorted(typed(me, "exec", *words, "--", "echo up").splitlines()) == ["node1 │ up", "node2 │ up"]


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGINT, "sleep 4711; sleep 4712"), (signal.SIGTERM, "while echo more; do :; done"),
        (signal.SIGINT, "(setsid sleep 4711 &); setsid sh -c 'sleep 4712; true' & sleep 4713"),
    ],
)  # fmt: skip
def test_a_signal_leaves_nothing(user: Make, number: int, line: str) -> None:
    """Also one that comes while output is printed."""
    me = user(2)
    command = me.command("exec", "node1", "node2", "--", f"echo up; trap '' INT TERM; sleep 1; {line}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=me.home, env=me.environment()) as child:
        assert child.stdout is not None
        assert {child.stdout.readline(), child.stdout.readline()} == {"node1 │ up\n", "node2 │ up\n"}
        if "more" in line:
            assert child.stdout.readline().endswith("more\n")
        child.send_signal(number)
        child.communicate()
        assert child.returncode == 130

    def over() -> bool:
        words = ("sleep 471", "disttui-exec")
        return not any(word in line for host in me.cluster.hosts for _, line in host.processes() for word in words)

    wait_for(over, "the end of what it started")


def test_bad_input_is_one_clear_error(user: Make) -> None:
    me = user(1)
    assert "no command was given after --" in typed(me, "exec", "node1", code=2)
    assert "no host was given before --" in typed(me, "exec", "--", "true", code=2)
    both = typed(me, "exec", me.profile({"command": ["true"]}), "node1", "--", "true", code=2)
    assert "is a run or a profile: the command runs on all its hosts" in both
    assert "line break" in typed(me, "exec", "node1", "--", "a\nb", code=2)
    assert "disttui-exec" not in typed(me, "exec", "node1", "--", "nosuchprogram", code=127), "no name of our own"
