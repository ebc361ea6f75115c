"""Where the output goes: a terminal, a pipe that closes early, JSON."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable

import pexpect  # type: ignore[import-untyped]
import pytest

from tests.cluster.typed import User, typed, wait_gone
from tests.command import ran
from tests.files import new_file

pytestmark = pytest.mark.torch

_TALK = """
import json, os, pathlib, sys, time

rank = int(os.environ["RANK"])
seen = pathlib.Path(__file__).parent / "seen"
with open(os.environ["DISTTUI_METRICS"], "a", 1) as metrics:
    for step in range(1, 5):
        print(f"rank {rank} step {step}", flush=True)
        metrics.write(json.dumps({"step": step, "steps": 4, "loss": 1 / step}) + chr(10))
        while step == 2 and "wait" in sys.argv and not seen.exists():
            time.sleep(0.01)
        time.sleep(0.4)
"""
_SAID = sorted(f"node{rank + 1}:{rank} │ rank {rank} step {step}" for rank in (0, 1) for step in (1, 2, 3, 4))


def test_a_terminal(user: Callable[..., User]) -> None:
    """Coloured prefixes, and under them one live line with progress, loss and hosts."""
    me = user(2, light=True)
    command = me.command("run", me.profile({"script": str(me.script(_TALK)), "args": ["wait"]}))
    size = {"dimensions": (24, 100)}
    terminal = pexpect.spawn(command[0], command[1:], env=me.environment(), cwd=me.home, encoding="utf-8", **size)
    terminal.expect(r"\x1b\[2K[^\r\n\x1b]*step 2/4[^\r\n\x1b]*loss 0.5[^\r\n\x1b]*node2 ● running", timeout=120)
    raw = str(terminal.before) + str(terminal.after)
    (me.cluster.shared / "seen").touch()
    terminal.expect(pexpect.EOF, timeout=120)
    terminal.close()
    assert terminal.exitstatus == 0
    raw += str(terminal.before)
    drawn = [line for line in re.findall(r"\x1b\[2K([^\r\n\x1b]+)", raw) if "step" in line]
    assert all(len(line) < 100 for line in drawn)
    shown = [re.sub(r"\x1b\[[0-9;]*[mK]", "", line).rpartition("\r")[2] for line in raw.split("\r\n")]
    assert sorted(line for line in shown if "│" in line) == _SAID
    (closing,) = [line for line in shown[-4:] if line.startswith("✓ t-")]
    assert "loss 1 → 0.25" in closing


def test_a_terminal_announces_the_run_as_the_config_asks(user: Callable[..., User]) -> None:
    """The title while it goes on; the bell and a notification at its end; then the title of before."""
    me = user(1)
    new_file(me.home / ".config/disttui/config.yaml", "title: true\nbell: true\nnotify: osc9\n")
    command = me.command("run", me.profile({"command": ["sleep", "1"]}))
    environ = {**me.environment(), "TERM": "xterm-256color"}
    terminal = pexpect.spawn(command[0], command[1:], env=environ, cwd=me.home, encoding="utf-8")
    terminal.expect(pexpect.EOF, timeout=120)
    terminal.close()
    assert terminal.exitstatus == 0
    sent = re.findall(r"\x1b\]([0-9]+;[^\x07]*)\x07", str(terminal.before))
    assert re.fullmatch(r"2;t-\S+ running", sent[-3]) or re.fullmatch(r"2;t-\S+ starting", sent[-3])
    assert re.fullmatch(r"2;t-\S+ finished", sent[-2]) and sent[-1] == sent[-2].replace("2;", "9;")
    assert "\a\x1b]9;" in str(terminal.before)
    assert str(terminal.before).index("\x1b[22;0t") < str(terminal.before).index("\x1b[23;0t")


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_pipe_that_closes_early(user: Callable[..., User], options: list[str]) -> None:
    """`| grep -m1`: the command ends, and the run continues to its end, with whole logs."""
    me = user(2, light=True)
    profile = me.profile({"script": str(me.script(_TALK)), "args": ["wait"]})
    line = f"{shlex.join(me.command('run', *options, profile))} | grep -m1 'step 2'; echo ${{PIPESTATUS[0]}}"
    done = ran(["bash", "-c", line], env=me.environment(), cwd=me.home, check=True)
    assert done.stdout.splitlines()[-1] == "141", done
    assert "the run continues" in done.stderr
    (me.cluster.shared / "seen").touch()
    wait_gone(me.cluster, 30)
    logs = typed(me, "logs", "@latest").splitlines()
    assert sorted(line.rpartition("│ ")[2] for line in logs if " step " in line) == [
        f"rank {rank} step {step}" for rank in (0, 1) for step in (1, 2, 3, 4)
    ]


def test_closed_streams(user: Callable[..., User]) -> None:
    """As a daemon may start it."""
    me = user(1, light=True)
    line = shlex.join(me.command("run", me.profile({"command": ["true"]}))) + " <&- >&- 2>&-"
    assert subprocess.run(line, shell=True, env=me.environment(), cwd=me.home, timeout=120, check=False).returncode == 0


def test_json(user: Callable[..., User]) -> None:
    """Every line is an object; logs, metrics, events and the end are all there."""
    me = user(2, light=True)
    running = me.run(me.profile({"script": str(me.script(_TALK))}), "--json")
    lines = [json.loads(line) for line in running.stdout.splitlines()]
    assert running.stderr == ""
    assert {line["type"] for line in lines} >= {"say", "link", "event", "log", "metrics", "telemetry", "exit", "end"}
    logs = sorted(f"{line['host']}:{line['rank']} │ {line['line']}" for line in lines if line["type"] == "log")
    assert logs == _SAID
    losses = [line["record"]["loss"] for line in lines if line["type"] == "metrics" and line["rank"] == 0]
    assert losses == [1, 1 / 2, 1 / 3, 1 / 4]
    assert lines[-1]["type"] == "end"
    assert (lines[-1]["result"]["state"], lines[-1]["result"]["code"]) == ("finished", 0)
