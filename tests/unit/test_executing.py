"""A command on hosts whose output is read, for as long as it is printed."""

from __future__ import annotations

import os
import queue
import re
import signal
import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from disttui.runner.api import executing
from disttui.runner.api.executing import ExecEnded, ExecPlace, execute, rank_place
from disttui.runner.cli.app import cli
from disttui.runner.errors import InputError
from disttui.runner.profile.load import parse
from disttui.runner.profile.sections import parse_host
from disttui.runner.runs.registry import keep
from disttui.runner.transport.local import LocalConnection
from tests.unit.test_environment import wait_gone


class Endless:
    """A viewer, its connector, their connection and a command that prints without a pause, in one."""

    def __init__(self) -> None:
        self.numbers, self.killed = count(), threading.Event()

    def connector(self, config: str | None) -> Any:
        return self

    def connect(self, address: object) -> Any:
        return self

    def run(self, command: str) -> Any:
        return self

    def write(self, data: bytes) -> None: ...

    def read(self, size: int, timeout: float) -> bytes:
        return b"%d\n" % next(self.numbers)

    def kill(self, word: str) -> None:
        self.killed.set()

    def exit_status(self) -> int:
        return 0

    def close(self) -> None: ...


def test_output_waits_for_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, viewer = threading.Event(), Endless()

    class Noted(queue.Queue[Any]):
        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            if self.full():
                waits.set()
            super().put(item, block, timeout)

    monkeypatch.setattr(queue, "Queue", Noted)
    lines: Any = execute(viewer, [ExecPlace(parse_host("box1"))], ["yes"])  # type: ignore[arg-type]
    assert next(lines).text == "0"
    assert waits.wait(60), "what nobody has read yet is bounded"
    assert [next(lines).text for _ in range(5000)][-1] == "5000", "nothing is lost"
    lines.close()
    assert viewer.killed.wait(60)


def test_a_reader_that_leaves_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executing, "_AHEAD", 1)
    viewer = Endless()
    with pytest.raises(KeyboardInterrupt):
        for one in execute(viewer, [ExecPlace(parse_host("box1"))] * 3, ["yes"]):  # type: ignore[arg-type]
            assert not isinstance(one, ExecEnded)
            raise KeyboardInterrupt
    assert viewer.killed.wait(60)


class Here:
    """A viewer and its connector, for which every host is this machine."""

    def connector(self, config: str | None) -> Any:
        return self

    def connect(self, address: object) -> Any:
        return LocalConnection()


@pytest.mark.parametrize(
    "line",
    ["setsid sleep 600 & echo $!; sleep 601", "(trap '' TERM; setsid sleep 600 & echo $!); sleep 601"],
    ids=["session", "orphan"],
)
def test_what_has_left_its_parent_is_killed_as_well(line: str) -> None:
    lines: Any = execute(Here(), [ExecPlace(parse_host("local"))], [line])  # type: ignore[arg-type]
    child = int(next(lines).text)
    lines.close()
    wait_gone(child)


def heard(place: ExecPlace, *command: str) -> list[str]:
    """What a command prints on this machine, and its exit code."""
    found = execute(Here(), [place], command)  # type: ignore[arg-type]
    return [str(one.code) if isinstance(one, ExecEnded) else one.text for one in found]


@pytest.mark.parametrize("line", ["echo up;", "echo up # as it says", "sleep 0 & echo up; true &"])
def test_a_line_may_end_as_in_a_shell(line: str) -> None:
    assert heard(ExecPlace(parse_host("local"), "/"), line) == ["up", "0"]


@pytest.mark.parametrize("activate", ["source ./'my env' x", "X=x\n[[ $X == x ]] &&\n  WHAT='a\\nb'\nexport WHAT\n"])
def test_activate_is_for_bash_as_in_a_run(activate: str, tmp_path: Path) -> None:
    (tmp_path / "my env").write_text("export WHAT='a\\nb'\n")
    place = ExecPlace(parse_host("local"), str(tmp_path), activate)
    assert heard(place, "printenv WHAT; exit 3;") == ["a\\nb", "3"]
    assert heard(place, "printf", "<%s>", "c'd", "$HOME") == ["<c'd><$HOME>", "0"]
    assert heard(place, "printf", "%s", "\udce9")[-1] == "0", "a word that is not UTF-8"


@pytest.mark.parametrize("activate", ["", "true"])
def test_a_line_may_begin_with_a_dash(activate: str) -> None:
    said, code = heard(ExecPlace(parse_host("local"), activate=activate), "-x")
    assert re.search("-x: (command )?not found$", said) and code == "127"


def test_a_command_does_not_run_where_activate_fails() -> None:
    place = ExecPlace(parse_host("local"), "/", "(exit 4)")
    assert heard(place, "echo up") == ["disttui: activate ended with status 4", "4"]
    assert heard(ExecPlace(parse_host("local"), "/none"), "echo up")[-1:] != ["0"]


def test_background_process_outlives_its_command() -> None:
    line = "sleep 600 >/dev/null 2>&1 & echo $!; exec sh -c 'exit 3'"
    said, ended = execute(Here(), [ExecPlace(parse_host("local"))], [line])  # type: ignore[arg-type]
    assert isinstance(ended, ExecEnded) and ended.code == 3
    child = int(said.text)  # type: ignore[union-attr]
    assert Path(f"/proc/{child}").exists()
    os.kill(child, signal.SIGKILL)


def test_a_command_on_a_slurm_job_is_refused_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else it would run on the login node, once for each of the job's nodes."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    text = "disttui: 1\nhosts: [login]\njob: {command: [env]}\nnum_processes: 2\nslurm: {nodes: 2}\n"
    profile = parse(text, "x.yaml")
    keep(profile, [1], "t-0123456789abcdef", os.environ)
    found = CliRunner().invoke(cli, ["exec", "t-0123", "--", "env"])
    assert isinstance(found.exception, InputError) and "srun --jobid JOB --overlap" in found.exception.cure


def test_no_host_at_all_is_one_clear_error() -> None:
    for word in ("", ","):
        found = CliRunner().invoke(cli, ["exec", word, "--", "env"])
        assert isinstance(found.exception, InputError) and found.exception.what == "no host was given before --"


def test_a_shell_in_a_sandbox_is_refused_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    profile = parse("disttui: 1\nhosts: [box1]\njob: {command: [env]}\n", "x.yaml")
    run = keep(profile, [1], "t-0123456789abcdef", os.environ, sandbox=True)
    with pytest.raises(InputError, match="hosts of a sandbox give no terminal") as caught:
        rank_place(run, 0)
    assert caught.value.cure == "Run a command: disttui exec t-0123 -- COMMAND"
