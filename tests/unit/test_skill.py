"""`disttui skill`: its commands are true, and enough to train; the same by `disttui mcp`, over its pipes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from disttui.runner.cli import mcp
from disttui.runner.cli.app import cli
from tests.command import disttui
from tests.files import new_file
from tests.light import light_python
from tests.unit.history_kit import DISTTUI
from tests.unit.test_json_schemas import held

TEXT = CliRunner().invoke(cli, ["skill"]).output
TASKS = [part.split("\n", 1) for part in re.split(r"^\d+\. ", TEXT.split("## Tasks")[1], flags=re.M)[1:]]
COMMANDS = [re.findall(r"^ {7,8}disttui (.*)$", body, flags=re.M) for _, body in TASKS]
MOST = 2048

SCRIPT = """
import json, os, pathlib, sys, time
steps = int(sys.argv[sys.argv.index("--steps") + 1])
with open(os.environ["DISTTUI_METRICS"], "a") as metrics:
    for step in range(1, steps + 1):
        print("step", step, flush=True)
        metrics.write(json.dumps({"t": time.time(), "step": step, "steps": steps, "loss": 1 / step}) + "\\n")
        metrics.flush()
checkpoints = pathlib.Path(os.environ["DISTTUI_CHECKPOINTS"])
checkpoints.mkdir(parents=True, exist_ok=True)
(checkpoints / "model.pt").write_text("trained")
"""


class Bare:
    """A user with nothing but a folder and this machine as the host."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder / "work", folder / "home"
        self.folder.mkdir()
        self.home.mkdir()
        here = str(Path(sys.executable).parent)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "DISTTUI_"))}
        self.env = {**kept, "HOME": str(self.home), "PATH": f"{here}:{os.environ['PATH']}"}
        [profile] = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.S)
        text = "\n".join(line.removeprefix("   ") for line in profile.split("\n"))
        text = (
            text.replace("[HOST1, HOST2]", "[local]") + f"num_processes: 1\npython: {light_python(folder / 'light')}\n"
        )
        (self.folder / "mine.yaml").write_text(text)
        self.run = ""

    def script(self, text: str) -> None:
        (self.folder / "train.py").write_text(text)

    def types(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a command of SKILL.md, on this machine."""
        words = shlex.split(line.replace("HOST1 HOST2", "local").replace("RUN", self.run))
        done = disttui(*words, env=self.env, cwd=self.folder)
        if words[0] in ("run", "rerun"):
            self.run = next((one["run"] for one in map(json.loads, done.stdout.splitlines()) if "run" in one), "")
        return done


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Bare]:
    found = Bare(tmp_path)
    yield found
    for name in (found.home / ".disttui" / "runs").glob("*"):
        disttui("stop", name.name, "--now", env=found.env, cwd=found.folder)


def test_ten_tasks_with_commands_that_exist() -> None:
    assert len(TASKS) == 10 and all(COMMANDS) and len(TEXT) < 4096
    for line in (line for lines in COMMANDS for line in lines):
        words = shlex.split(line)
        command: Any = cli
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_parser(command.context_class(command)).parse_args(words)  # raises for an unknown option


@pytest.mark.torch
def test_every_command_of_the_skill_does_what_it_says(bare: Bare) -> None:
    bare.script(SCRIPT)
    for lines in COMMANDS:
        for line in lines:
            done = bare.types(line)
            assert done.returncode == 0, (line, done)
            held(done, " ".join(re.findall(r"^(?:(?:profile|runs) )?\w+", line)))
    assert (bare.folder / "results" / "checkpoints" / "model.pt").read_text() == "trained"


@contextmanager
def served(bare: Bare, *options: str) -> Iterator[Any]:
    """`disttui mcp` as a client starts it; yields a function that sends a request and returns the answer to it."""
    process = subprocess.Popen(
        [DISTTUI, "mcp", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=bare.env, cwd=bare.folder
    )
    to, back = process.stdin, process.stdout
    assert to and back
    numbers = iter(range(1, 1000))

    def ask(method: str | bytes, **params: Any) -> Any:
        if isinstance(method, bytes):
            to.write(method)
        else:
            request = {"jsonrpc": "2.0", "id": next(numbers), "method": method, "params": params}
            to.write(json.dumps(request).encode() + b"\n")
        to.flush()
        answer = json.loads(back.readline())
        assert answer["jsonrpc"] == "2.0"
        return answer.get("result") or answer.get("error") or answer

    try:
        yield ask
        to.close()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        back.close()


def called(ask: Any, name: str, **arguments: Any) -> Any:
    """What a tool has answered, one object or several."""
    result = ask("tools/call", name=name, arguments=arguments)
    text = result["content"][0]["text"]
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


@pytest.mark.torch
def test_six_tool_calls_lead_from_bare_hosts_to_a_model(bare: Bare) -> None:
    bare.script(SCRIPT)
    with served(bare, "--allow", "run") as ask:
        checked = called(ask, "check", hosts=["local"])
        assert (checked[-1] if isinstance(checked, list) else checked)["passed"]
        assert called(ask, "plan", profile="mine.yaml")["world_size"] == 1
        run = called(ask, "run", profile="mine.yaml")[-1]["run"]
        [waited] = called(ask, "wait", run=run, timeout="5m")["runs"]
        assert (waited["state"], waited["step"]) == ("finished", 20)
        assert called(ask, "pull", run=run, to="results")[0]["files"]
    assert (bare.folder / "results" / "checkpoints" / "model.pt").read_text() == "trained"


def test_tools_that_change_something_need_leave(bare: Bare) -> None:
    with served(bare) as ask:
        found = ask("initialize", protocolVersion="2024-11-05", capabilities={}, clientInfo={"name": "t"})
        assert found["protocolVersion"] == "2024-11-05" and found["capabilities"] == {"tools": {}}
        tools = {one["name"]: one for one in ask("tools/list")["tools"]}
        assert {"probe", "ps", "wait", "diagnose", "logs"} <= tools.keys() and not {
            "run",
            "stop",
            "plan",
        } & tools.keys()
        assert all(one["annotations"]["readOnlyHint"] for one in tools.values())
        assert tools["probe"]["inputSchema"]["properties"]["hosts"]["items"] == {"type": "string"}
        # A profile names commands for its hosts, which `check` would run.
        refused = ask("tools/call", name="check", arguments={"hosts": ["mine.yaml"]})
        assert (refused["code"], refused["message"]) == (-32602, "hosts: 'mine.yaml' is a profile, expected hosts")
        assert "--allow stop" in ask("tools/call", name="stop", arguments={"run": "x"})["message"]
        assert called(ask, "ps") == []
    with served(bare, "--allow", "stop") as ask:
        assert "stop" in {one["name"] for one in ask("tools/list")["tools"]}
        error = called(ask, "stop", run="nope")
        assert (error["code"], error["what"]) == ("input", "no run 'nope' is known here")
    done = disttui("mcp", "--allow", "all", env=bare.env)
    assert done.returncode == 2 and "Give run, stop" in done.stderr


def test_hostile_requests_are_answered_with_errors(bare: Bare) -> None:
    with served(bare, "--allow", "run,stop") as ask:
        for line, code in (
            (b"{\n", -32700), (b"[" * 100_000 + b"\n", -32700), (b"[1]\n", -32600), (b"x" * (3 << 20) + b"\n", -32600),
            (b'{"jsonrpc": "2.0", "id": [1], "method": "ping"}\n', -32600), (b"\xff\xfe\n", -32700),
            (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}\n', -32600),
        ):  # fmt: skip
            assert ask(line)["code"] == code, line[:40]
        assert ask("shutdown")["code"] == -32601
        for arguments in (
            {"run": "--now"}, {"run": 1}, {"run": ""}, {"run": "x\ny"}, {"run": "x" * 9999}, {"run": "x", "yes": 1}, {},
        ):  # fmt: skip
            answer = ask("tools/call", name="stop", arguments=arguments)
            if arguments == {"run": "--now"}:  # is a word, not an option
                assert "no run '--now' is known here" in answer["content"][0]["text"] and answer["isError"]
            else:
                assert answer["code"] == -32602, arguments
        assert ask("tools/call", name="probe", arguments={"hosts": ["a"] * 65})["code"] == -32602
        # A notification is not answered: the next answer is that of the ping.
        assert ask(b'{"jsonrpc": "2.0", "method": "x"}\n{"jsonrpc": "2.0", "id": 7, "method": "ping"}\n')["id"] == 7


def test_requests_are_answered_while_tools_run_or_are_cancelled(bare: Bare) -> None:
    def line(**request: Any) -> bytes:
        return json.dumps({"jsonrpc": "2.0", **request}).encode() + b"\n"

    probe = {"name": "probe", "arguments": {"hosts": ["local"]}}
    call, ping = line(id="a", method="tools/call", params=probe), line(id="b", method="ping")
    cancel = line(method="notifications/cancelled", params={"requestId": "a"})
    with served(bare) as ask:
        assert ask(call + ping)["id"] == "b"
        assert "facts" in ask(b"")["content"][0]["text"]
        assert ask(call + cancel + ping)["id"] == "b"
        assert ask(line(id="c", method="ping"))["id"] == "c"  # and no answer to the call that was cancelled
    with served(bare) as ask:
        refused = ask(b"".join(line(id=number, method="tools/call", params=probe) for number in range(9)))
        assert refused["code"] == -32603


def test_a_server_that_is_ended_ends_its_tools(tmp_path: Path) -> None:
    """By SIGTERM, which is a KeyboardInterrupt."""
    tool = new_file(tmp_path / "tool.py", "import time\ntime.sleep(600)\n")
    server = mcp._Server({"x": mcp._Tool("", str(tool))}, [sys.executable])
    call = {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": "x"}}
    begun = list[subprocess.Popen[bytes]]()

    class Lines:
        def readline(self, size: int) -> bytes:
            if not server._calls:
                return json.dumps(call).encode() + b"\n"
            begun.extend(server._calls.values())
            raise KeyboardInterrupt

    lines: Any = Lines()
    with pytest.raises(KeyboardInterrupt):
        server.serve(lines)
    assert begun[0].wait(60) == -signal.SIGTERM


_AFTER = "import sys\nprint('loading', flush=True)\n"
_FAULTS = {
    "raise ValueError('bad batch')": "ValueError: bad batch",
    "import nosuchmodule": "No module named 'nosuchmodule'",
    "open('/no/such/data.bin')": "/no/such/data.bin",
    "sys.exit(3)": "exit code 3",
    "import os; os.kill(os.getpid(), 11)": "SIGSEGV",
    "def step(:": "SyntaxError",
    "sys.exit('data.bin has no header')": "data.bin has no header",
    "import os; os.kill(os.getpid(), 9)": "SIGKILL",
    "{}['lr']": "KeyError: 'lr'",
    "import argparse; argparse.ArgumentParser().parse_args()": "unrecognized arguments: --steps 20",
    "def f(): f()\nf()": "RecursionError: maximum recursion depth exceeded",
    "import time; print('tokenizer is slow', flush=True); time.sleep(600)": "watch.log: its log matches tokenizer",
}
"""A line of the script → what the first answer has to name."""


@pytest.mark.torch
@pytest.mark.parametrize("fault", _FAULTS)
def test_first_answer_has_the_cause_of_a_planted_fault(bare: Bare, fault: str) -> None:
    bare.script(_AFTER + fault + "\n")
    with (bare.folder / "mine.yaml").open("a") as profile:
        profile.write("watch: {log: {pattern: tokenizer, do: restart}}\nlaunch: {restarts: 1}\n")
    bare.types(COMMANDS[4][0])
    with served(bare) as ask:
        [by_tool] = ask("tools/call", name="wait", arguments={"run": bare.run, "timeout": "5m"})["content"]
    by_command = bare.types(COMMANDS[5][0])
    assert by_command.returncode == 1
    for answer in (by_tool["text"], by_command.stdout):
        assert len(answer.encode()) <= MOST
        told = json.loads(answer)["runs"][0]["explain"]
        assert _FAULTS[fault] in told["cause"] and told["next"].startswith("disttui "), told


@pytest.mark.parametrize(
    ("old", "new", "cause", "place"),
    [
        ("script:", "scrpt:", "scrpt", "mine.yaml:5"), ("[local]", "[]", "no hosts", "mine.yaml:3"),
        ("disttui: 1", "disttui: 9", "9", "mine.yaml:1"), ("name: mine", "name: [", "", "mine.yaml:"),
        ("num_processes: 1", "num_processes: many", "many", "mine.yaml:8"),
    ],
)  # fmt: skip
def test_first_answer_has_the_place_of_a_mistake_in_a_profile(
    bare: Bare, old: str, new: str, cause: str, place: str
) -> None:
    path = bare.folder / "mine.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    done = bare.types(COMMANDS[4][0])
    assert done.returncode == 2 and len(done.stdout.encode()) <= MOST
    assert cause in done.stdout and place in done.stdout, done.stdout
    with served(bare, "--allow", "run") as ask:
        answer = ask("tools/call", name="run", arguments={"profile": "mine.yaml"})
        assert answer["isError"] and json.loads(answer["content"][0]["text"]) == json.loads(done.stdout)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("[local]", "[127.0.0.1:1]", "127.0.0.1"), ("train.py", "nosuch.py", "nosuch.py"),
        ("python: /", "python: /no/such/", "/no/such/"),
    ],
)  # fmt: skip
def test_first_answer_has_what_is_missing_on_a_host(bare: Bare, old: str, new: str, cause: str) -> None:
    path = bare.folder / "mine.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    bare.script(SCRIPT)
    done = bare.types(COMMANDS[4][0])
    assert done.returncode in (2, 3) and len(done.stdout.encode()) <= MOST, done
    with served(bare, "--allow", "run") as ask:
        [by_tool] = ask("tools/call", name="run", arguments={"profile": "mine.yaml"})["content"]
    for answer in (done.stdout, by_tool["text"]):
        told = json.loads(answer.splitlines()[-1])
        assert len(answer.encode()) <= MOST and cause in told["what"] + told["place"], answer
