"""`job.setup` on a host: once for the same commands and code, before the run, and ended with whoever waits for it."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from disttui.runner.errors import HostError
from disttui.runner.hosts.link import Link
from disttui.runner.node import locks, procs
from disttui.runner.node.supervise import setup, steps
from disttui.runner.node.supervise.steps import CommandError, EndedError, Steps, alone
from disttui.runner.transport.local import LocalConnection
from tests.command import running
from tests.kept import has_been_reached
from tests.unit.test_environment import guards, wait_gone
from tests.unit.waiting import wait_for

A = f"a{os.getpid()}"
"""How the runs' ids begin: a setup ends all that carries the tag of its run, also what other tests have started."""


class Host:
    """This machine with a home of its own, where runs of one code are set up."""

    def __init__(self, home: Path) -> None:
        self.home, self.links = home, list[Link]()

    def link(self) -> Link:
        self.links.append(Link(LocalConnection("local"), "local", sys.executable))
        return self.links[-1]

    def code(self, run: str) -> Path:
        """The run's copy of the code."""
        made = self.home / "runs" / run / "code"
        if not made.exists():
            made.mkdir(parents=True, mode=0o700)
            (self.home / "runs").chmod(0o700)
            made.parent.chmod(0o700)
            (made / "train.py").write_text("1")
        return made

    def begin(self, run: str, commands: Sequence[str], **more: Any) -> Future[Any]:
        spec = {
            "run": run, "node_rank": 0, "run_dir": "~/runs", "workdir": str(self.code(run)), "tree": "a" * 64,
            "python": sys.executable, "activate": "", "env": more.pop("env", {"MINE": "1"}),
        }  # fmt: skip
        secrets = {"TOKEN": more.pop("token", "t")}
        arguments = {"spec": {**spec, **more}, "commands": list(commands), "secrets": secrets, "variables": spec["env"]}
        return self.link().stream("setup", lambda item: None, **arguments)

    def run(self, run: str, commands: Sequence[str], **more: Any) -> Any:
        return self.begin(run, commands, **more).result(120)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    has_been_reached(home)
    made = Host(home)
    yield made
    for link in made.links:
        link.close()


def test_it_runs_once_and_later_runs_get_what_it_wrote(host: Host) -> None:
    commands = ["mkdir -p out && echo $MINE$TOKEN > out/made && echo 2 >> train.py", "which python"]
    assert host.run(f"{A}-1", commands) == {"ran": True}
    log = (host.home / f"runs/{A}-1/0/setup.log").read_text()
    assert "$ which python\n" + str(Path(sys.executable)) in log
    assert (
        not (host.home / f"runs/{A}-1/0/spec.json").exists()
        and not (host.home / f"runs/{A}-1/0/supervisor.json").exists()
    )
    assert host.run(f"{A}-2", commands) == {"ran": False}
    code = host.code(f"{A}-2")
    assert (code / "out/made").read_text() == "1t\n" and (code / "train.py").read_text() == "12\n"
    assert host.run(f"{A}-3", [*commands, "true"]) == {"ran": True}
    assert host.run(f"{A}-4", commands, tree="b" * 64) == {"ran": True}
    other = host.home / "bin/python"
    other.parent.mkdir()
    other.symlink_to(sys.executable)
    assert host.run(f"{A}-5", commands, python=str(other)) == {"ran": True}
    assert host.run(f"{A}-6", commands, env={"MINE": "2"}) == {"ran": True}
    assert (host.code(f"{A}-6") / "out/made").read_text() == "2t\n"
    assert host.run(f"{A}-7", commands, token="other") == {"ran": True}


def test_what_another_version_has_installed_is_installed_again(host: Host) -> None:
    commands = [f"cp train.py {host.home}/install"]
    for number, (tree, ran) in enumerate((("a", True), ("a", False), ("b", True), ("a", True), ("a", False))):
        assert host.run(f"{A}-{number}", commands, tree=tree * 64) == {"ran": ran}
    for number in (5, 6):
        assert host.run(f"{A}-{number}", ["true install -e ."], tree="c" * 64) == {"ran": True}


def test_later_runs_lack_what_it_removed(host: Host) -> None:
    for run in (f"{A}-1", f"{A}-2"):
        code = host.code(run)
        for name in ("old/a/b", "was-folder/x", "was-file", "two\nlines", os.fsdecode(b"\xff")):
            (code / name).parent.mkdir(parents=True, exist_ok=True)
            (code / name).write_text("x")
        (code / "link").symlink_to("old")
    remove = "rm -r old $'two\\nlines' $'\\xff' link was-folder was-file"
    commands = [f"{remove}; echo 2 > was-folder; mkdir link was-file; echo 3 > link/x"]
    assert host.run(f"{A}-1", commands) == {"ran": True}
    assert host.run(f"{A}-2", commands) == {"ran": False}
    found = [
        sorted(str(path.relative_to(host.code(run))) for path in host.code(run).rglob("*"))
        for run in (f"{A}-1", f"{A}-2")
    ]
    assert found == [["link", "link/x", "train.py", "was-file", "was-folder"]] * 2
    assert (host.code(f"{A}-2") / "was-folder").read_text() == "2\n"


def test_later_runs_get_modes(host: Host) -> None:
    for run, ran in ((f"{A}-1", True), (f"{A}-2", False)):
        assert host.run(run, ["chmod 700 train.py"]) == {"ran": ran}
        assert (host.code(run) / "train.py").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("line", ["ln -s $PWD/train.py made", "echo '#!'$PWD/python > made", "echo $PWD > made.pth"])
def test_what_names_the_copy_of_a_run_is_made_for_each_run(host: Host, line: str) -> None:
    for run in (f"{A}-1", f"{A}-2"):
        assert host.run(run, [line]) == {"ran": True}


def test_commands_that_write_nothing_run_once_as_well(host: Host) -> None:
    for run, ran in ((f"{A}-1", True), (f"{A}-2", False)):
        assert host.run(run, ["rm train.py"]) == {"ran": ran}
        assert not list(host.code(run).iterdir())
    for run, ran in ((f"{A}-3", True), (f"{A}-4", False)):
        assert host.run(run, ["true"], tree=None, workdir=str(host.home)) == {"ran": ran}, "a folder of the host"


def test_commands_that_remove_their_own_folder_are_an_error(host: Host) -> None:
    for run in (f"{A}-1", f"{A}-2"):
        with pytest.raises(HostError, match="its commands have removed the folder that they run in"):
            host.run(run, ['rm -r "$PWD"'])


def test_a_failure_has_command_and_last_lines(host: Host) -> None:
    with pytest.raises(HostError) as error:
        host.run(f"{A}-1", ["true", "seq 100; echo no compiler >&2; exit 7", "touch never"])
    said = str(error.value)
    assert "`seq 100; echo no compiler >&2; exit 7` ended with exit code 7" in said and "no compiler" in said
    assert "│ 100" in said and "│ 50" not in said and not (host.code(f"{A}-1") / "never").exists()
    status = host.link().request("status", run=f"{A}-1", node_rank=0, run_dir="~/runs")
    assert status["exit"] is not None and status["exit"]["cause"] is not None
    assert status["exit"]["state"] == "failed" and "code 7" in status["exit"]["cause"]["message"]
    assert host.run(f"{A}-2", ["true"]) == {"ran": True}
    with pytest.raises(HostError, match=r"`kill -9 \$\$` was killed by SIGKILL"):
        host.run(f"{A}-3", ["kill -9 $$"])


def test_two_at_once_run_it_once(host: Host) -> None:
    commands = [f"echo x >> {host.home}/count; sleep 1; echo 1 > made"]
    both = [host.begin(f"{A}-{number}", commands) for number in range(2)]
    assert sorted(one.result(120)["ran"] for one in both) == [True, True]
    assert (host.home / "count").read_text() == "x\n"
    assert all((host.code(f"{A}-{number}") / "made").exists() for number in range(2))


def test_hosts_with_one_home_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not see each other's locks."""
    monkeypatch.setattr(locks, "take", lambda *_: BytesIO())
    boot, told, first = ["a"], list[str](), ExitStack()
    monkeypatch.setattr(procs, "boot_id", lambda: boot[0])
    first.enter_context(alone(str(tmp_path), "x", f"{A}-1", 0, told.append))
    assert not told

    def pause(*_: object) -> tuple[list[int], list[int], list[int]]:
        first.close()
        return [], [], []

    monkeypatch.setattr(select, "select", pause)
    boot[0] = "b"
    with alone(str(tmp_path), "x", f"{A}-1", 1, told.append):
        assert told == [f"waiting for the same step on {os.uname().nodename}"]
    assert list(tmp_path.iterdir()) == []


def test_a_setup_that_fails_halfway_may_have_installed(host: Host) -> None:
    """What another version has installed since is not what the first one needs."""
    first, second = ["echo install a >> ../../../log"], ["echo install b >> ../../../log; exit 3"]
    assert host.run(f"{A}-1", first) == {"ran": True}
    with pytest.raises(HostError, match="exit code 3"):
        host.run(f"{A}-2", second)
    assert host.run(f"{A}-3", first) == {"ran": True}
    assert (host.home / "log").read_text().split() == ["install", "a", "install", "b", "install", "a"]


@pytest.mark.parametrize(("line", "kept"), [("set -e; touch made", True), ("pip install -e . ; touch made", False)])
def test_only_an_editable_installation_is_not_kept(line: str, kept: bool) -> None:
    assert bool(setup._EDITABLE.search(line)) is not kept


def test_a_start_that_gives_up_leaves_the_other_hosts_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "select", lambda *_: ([0], [], []))
    (tmp_path / "x.claim").symlink_to("box9/boot")
    with pytest.raises(EndedError), alone(str(tmp_path), "x", f"{A}-1", 0, lambda _: None):
        pytest.fail("it has it")
    assert (tmp_path / "x.claim").is_symlink()


@pytest.mark.parametrize("who", ["box9/boot", "{own}"])
def test_a_dead_hosts_claim_is_void(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    monkeypatch.setattr(steps, "_DEAD", -1.0)
    monkeypatch.setattr(select, "select", lambda *_: pytest.fail("it waits"))
    (tmp_path / "x.claim").symlink_to(who.format(own=f"{os.uname().nodename}/{procs.boot_id()}"))
    with alone(str(tmp_path), "x", f"{A}-1", 0, lambda _: None):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {".x.lock"}


def test_another_host_does_not_repeat_it_in_the_same_copy(host: Host) -> None:
    """What it made there is for that copy alone, and is not kept."""
    commands = [f"echo x >> {host.home}/count; [ -e venv ] || ln -s $PWD venv"]
    for run in (f"{A}-1", f"{A}-1", f"{A}-2"):
        assert host.run(run, commands) == {"ran": True}
        assert (host.code(run) / "venv").is_symlink()
    assert (host.home / "count").read_text() == "x\nx\n"


def test_a_stop_ends_it_and_all_that_it_started(host: Host) -> None:
    pids = host.home / "pids"
    asked = host.begin(f"{A}-1", [f"setsid sleep 600 & echo $! $$ > {pids}; trap '' TERM; sleep 600"])
    found = [int(pid) for pid in wait_for(lambda: pids.exists() and pids.read_text().split())]
    rows = host.link().request("list", run_dir="~/runs")["runs"]
    assert [row["alive"] for row in rows] == [True]
    host.link().request("stop", run=f"{A}-1", node_rank=0, run_dir="~/runs")
    with pytest.raises(HostError, match="stopped"):
        asked.result(60)
    for pid in found:
        wait_gone(pid)
    status = host.link().request("status", run=f"{A}-1", node_rank=0, run_dir="~/runs")
    assert status["exit"] is not None and status["exit"]["state"] == "stopped"


def test_a_command_killed_by_a_stop_has_not_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop may kill it before the process that waits for it looks."""
    killed = SimpleNamespace(pid=0, returncode=-9, poll=lambda: -9)
    monkeypatch.setattr("disttui.runner.node.supervise.steps.select.select", lambda *_: ([], [], []))
    for stop, error in ((True, EndedError), (False, CommandError)):
        steps = Steps(
            str(tmp_path / "log"), f"{A}-1", 0, os.environ, str(tmp_path), lambda _: None, partial(bool, stop)
        )
        with monkeypatch.context() as patched, pytest.raises(error):
            patched.setattr("disttui.runner.node.supervise.steps.subprocess.Popen", lambda *_, **__: killed)
            steps.run(["true"])


def test_it_ends_with_its_viewer_and_is_repeated(host: Host) -> None:
    pids = host.home / "pids"
    commands = [f"sleep 600 & echo $! > {pids}; [ -e {host.home}/quick ] || wait"]
    host.begin(f"{A}-1", commands)
    pid = int(wait_for(lambda: pids.exists() and pids.read_text().strip()))
    [guard] = guards(host.home, b"setup")
    served_by = Path(f"/proc/{guard}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(int(served_by), signal.SIGKILL)
    wait_gone(pid)
    (host.home / "quick").write_text("")
    assert host.run(f"{A}-2", commands) == {"ran": True}
    wait_gone(int(pids.read_text()))


def test_ranks_of_a_run_that_was_set_up_before_are_left_alone(host: Host) -> None:
    assert host.run(f"{A}-1", ["true"]) == {"ran": True}
    with running(["sleep", "600"], env={**os.environ, "DISTTUI_TAG": f"{A}-1/0/1"}) as rank:
        [result] = (host.home / ".cache/disttui/setups").glob("*.tar")
        result.unlink()
        assert host.run(f"{A}-2", ["true"]) == {"ran": True}
        assert rank.poll() is None


def test_results_are_bounded_by_their_bytes(tmp_path: Path) -> None:
    for number in range(4):
        with (tmp_path / f"{number}.tar").open("wb") as sparse:
            sparse.truncate(4 << 30)
        os.utime(tmp_path / f"{number}.tar", (time.time() - number - 60,) * 2)
    setup._prune(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.tar", "1.tar"]
    with (tmp_path / "new.tar").open("wb") as sparse:
        sparse.truncate(11 << 30)
    setup._prune(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["new.tar"], "the newest stays"
