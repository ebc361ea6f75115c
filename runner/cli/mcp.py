"""For assistants: `skill` prints how to use disttui, `mcp` offers tools of the Model Context Protocol.

A tool runs the command of its name in a separate process with --json: answers, errors and limits are the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any, BinaryIO, NamedTuple

import click

from disttui.runner import __version__
from disttui.runner.cli.check import is_profile
from disttui.runner.cli.options import emit, example, given, wants_json
from disttui.runner.errors import InputError

_VERSIONS = ("2025-06-18", "2025-03-26", "2024-11-05")
"""Versions of the protocol, newest first; what is used here is the same in all."""
_LINE = 1 << 20
_ANSWER = 64 * 1024
"""Most bytes of a request, and of a tool's result."""
_WORD, _WORDS = 4096, 64
"""Most characters of an argument, and items of a list."""
_CALLS = 8
"""Most tools that run concurrently."""
_LONGEST = 3600.0
"""Seconds that a tool may take."""


@click.command(epilog=example("disttui skill > SKILL.md"))
def skill() -> None:
    """Print SKILL.md: ten tasks for coding assistants.

    It has the exact commands. disttui mcp offers the same as tools.
    """
    text = files("disttui.runner.cli").joinpath("skill.md").read_text("utf-8").rstrip()
    emit({"text": text}, text)


@click.command(epilog=example("disttui mcp", "disttui mcp --allow run,stop"))
@click.option("--allow", default="", metavar="run,stop", help="Also offer tools that start or stop runs.")
def mcp(allow: str) -> None:
    """Serve the Model Context Protocol on standard input.

    For coding assistants: tools that inspect hosts and runs, and explain failures. Only --allow enables changes: run
    (plan, start, resume and fetch runs) and stop.
    """
    allowed = {word.strip() for word in allow.split(",") if word.strip()}
    if allowed - {"run", "stop"}:
        raise InputError(f"--allow {allow!r}: not known", "Give run, stop, or run,stop.")
    if wants_json():
        raise InputError("mcp speaks JSON-RPC, not --json", "Omit --json.")
    config = given("ssh_config")
    # Not `-m`, which would import a package of this name from the current folder.
    command = [sys.executable, sys.argv[0], "--json", *([f"--ssh-config={config}"] if config else [])]
    tools = {name: tool for name, tool in _TOOLS.items() if tool.needs in ("", *allowed)}
    _Server(tools, command).serve(sys.stdin.buffer)


class _Argument(NamedTuple):
    about: str
    option: str = ""
    """Option; empty: a required argument."""
    kind: str = "string"
    """integer, string, or array of strings."""

    def takes(self, value: object) -> bool:
        """Whether a value, or an item of a list, can be a word of a command line."""
        if self.kind == "integer":
            return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
        return isinstance(value, str) and 0 < len(value) <= _WORD and value.isprintable()


class _Tool(NamedTuple):
    about: str
    command: str
    arguments: Mapping[str, _Argument] = {}
    needs: str = ""
    """The word of --allow that enables it."""

    def described(self, name: str) -> dict[str, object]:
        """The tool as in `tools/list`."""
        properties = {
            key: {
                "type": one.kind,
                "description": one.about,
                **({"items": {"type": "string"}} if one.kind == "array" else {}),
            }
            for key, one in self.arguments.items()
        }
        required = [key for key, one in self.arguments.items() if not one.option]
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        hints = {"readOnlyHint": not self.needs, "destructiveHint": self.needs == "stop"}
        return {"name": name, "description": self.about, "inputSchema": schema, "annotations": hints}

    def words(self, passed: Mapping[str, object]) -> list[str]:
        """The command line. Raises _RpcError for arguments that do not match."""
        if unknown := sorted(passed.keys() - self.arguments.keys()):
            raise _RpcError(-32602, f"unknown argument {unknown[0][:60]!r}")
        options, words = list[str](), list[str]()
        for key, one in self.arguments.items():
            if key not in passed and one.option:
                continue
            values = passed.get(key) if one.kind == "array" else [passed.get(key)]
            if not isinstance(values, list) or not 0 < len(values) <= _WORDS or not all(map(one.takes, values)):
                raise _RpcError(-32602, f"{key}: expected {one.kind}: {one.about}")
            options += [f"{one.option}={each}" for each in values if one.option]
            words += [str(each) for each in values if not one.option]
        if self.arguments is _HOSTS and (profiles := [word for word in words if is_profile(word)]):
            # A command on hosts may come from a profile, even for `check`.
            raise _RpcError(-32602, f"hosts: {profiles[0][:60]!r} is a profile, expected hosts")
        return [*self.command.split(), *options, "--", *words]


_RUN = {"run": _Argument("its id or the beginning of it, or @latest")}
_HOSTS = {"hosts": _Argument("ssh aliases, user@host:port, or local", kind="array")}
_PROFILE = {"profile": _Argument("a file, or the name of a saved profile")}
_SET = {"set": _Argument("overrides of the profile, KEY=VALUE", "--set", "array")}
_TOOLS: Mapping[str, _Tool] = {
    "probe": _Tool("See what hosts have: cores, GPUs, torch, who uses them.", "probe", _HOSTS),
    "check": _Tool("Find what would stop or slow a run: network, versions, limits.", "check", _HOSTS),
    "validate": _Tool("Check a profile without any host; every error with its line.", "profile validate", _PROFILE),
    "ps": _Tool("List runs, newest first.", "ps", {
        "state": _Argument("only runs in this state, such as running or failed", "--state"),
        "limit": _Argument("at most this many, 100 by default", "--limit", "integer"),
        "after": _Argument("continue after this run, the last one listed", "--after"),
    }),
    "show": _Tool("Show the story of a run: profile, timeline, versions, result.", "runs show", _RUN),
    "wait": _Tool(
        "Wait until a run ends or meets a condition; at most 2 KB, with cause, evidence and next command.",
        "wait --timeout=60s",
        {
            **_RUN,
            "until": _Argument("end, running, stall, alarm, step>=N, loss<X, or any of them joined by |", "--until"),
            "timeout": _Argument("give up after 90s, 10m; 60s by default", "--timeout"),
        },
    ),
    "diagnose": _Tool("Explain why a run failed, or what it is waiting for.", "diagnose", _RUN),
    "logs": _Tool("Read the last lines of every rank of a run.", "logs --tail=20", {
        **_RUN,
        "tail": _Argument("lines of each rank, 20 by default", "--tail", "integer"),
        "rank": _Argument("only this rank", "--rank", "integer"),
        "grep": _Argument("only lines that match this regular expression", "--grep"),
    }),
    "metrics": _Tool("Read the metrics of a run, one record per line.", "runs metrics", _RUN),
    "plan": _Tool(
        "See what a profile would run where, and why. Its activate lines run on the hosts.", "profile plan",
        {**_PROFILE, **_SET}, "run",
    ),
    "run": _Tool(
        "Start a profile in the background; the last line has the id.", "run --detach", {**_PROFILE, **_SET}, "run",
    ),
    "resume": _Tool(
        "Rerun from the newest checkpoint, in the background.", "rerun --resume --detach",
        {**_RUN, **_SET}, "run",
    ),
    "pull": _Tool("Copy the checkpoints and results of a run into a folder here.", "runs pull", {
        **_RUN, "to": _Argument("the folder, ./RUN by default", "--to"),
    }, "run"),
    "stop": _Tool("Stop a run on all its hosts.", "stop", _RUN, "stop"),
}  # fmt: skip


class _RpcError(Exception):
    """A request that is answered with an error of JSON-RPC."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Server:
    """Answers requests line by line; tools run concurrently.

    Args:
        command: The first words of the command line of every tool.
    """

    def __init__(self, tools: Mapping[str, _Tool], command: Sequence[str]) -> None:
        self._tools = tools
        self._command = command
        self._out = threading.Lock()
        self._calls: dict[str | int, subprocess.Popen[bytes]] = {}
        """Id of a request → its process."""

    def serve(self, lines: BinaryIO) -> None:
        """Serve until the input ends, then end running tools."""
        try:
            while line := lines.readline(_LINE):
                whole = len(line) < _LINE
                while not whole and not line.endswith(b"\n") and line:
                    line = lines.readline(_LINE)
                self._hear(line if whole else b"")
        finally:
            for process in [*self._calls.values()]:
                process.terminate()

    def _hear(self, line: bytes) -> None:
        number = None
        try:
            request = _request(line)
            number = request.get("id")
            if number is None:
                self._note(request)
            elif (result := self._result(number, request["method"], request.get("params") or {})) is not None:
                self._send(id=number, result=result)
        except _RpcError as error:
            self._send(id=number, error={"code": error.code, "message": str(error)})

    def _note(self, request: Mapping[str, Any]) -> None:
        asked = (request.get("params") or {}).get("requestId")
        if request["method"] == "notifications/cancelled" and isinstance(asked, str | int):
            process = self._calls.pop(asked, None)
            if process:
                process.terminate()

    def _result(self, number: str | int, method: str, params: Mapping[str, Any]) -> dict[str, object] | None:
        """The answer to a request; None: it comes later."""
        if method == "initialize":
            asked = params.get("protocolVersion")
            version = asked if asked in _VERSIONS else _VERSIONS[0]
            server = {"name": "disttui", "version": __version__}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": [one.described(name) for name, one in self._tools.items()]}
        if method != "tools/call":
            raise _RpcError(-32601, f"{method[:60]}: no such method")
        name, arguments = str(params.get("name")), params.get("arguments") or {}
        if name not in self._tools:
            allow = f": start the server with --allow {_TOOLS[name].needs}" if name in _TOOLS else ""
            raise _RpcError(-32602, f"{name[:60]}: no such tool{allow}")
        if not isinstance(arguments, dict):
            raise _RpcError(-32602, f"{name}: expected named arguments")
        words = self._tools[name].words(arguments)
        if len(self._calls) >= _CALLS or number in self._calls:
            raise _RpcError(-32603, f"{_CALLS} tools are already running, or one with this id")
        # In a session of its own: ssh programs that it starts must not ask in the assistant's terminal.
        process = subprocess.Popen(
            [*self._command, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
        self._calls[number] = process
        threading.Thread(target=self._finish, args=(number, process), daemon=True).start()
        return None

    def _finish(self, number: str | int, process: subprocess.Popen[bytes]) -> None:
        timer = threading.Timer(_LONGEST, process.terminate)
        timer.start()
        assert process.stdout
        with process.stdout as out:
            text = out.read(_ANSWER + 1)
        if len(text) > _ANSWER:
            process.terminate()
            text = text[:_ANSWER].rpartition(b"\n")[0] + b"\n(cut here: ask for less)"
        code = process.wait()
        timer.cancel()
        if self._calls.pop(number, None) is None:
            return  # cancelled
        said = text.decode("utf-8", "replace") or f"exit code {code}, without output"
        ends = text.strip().splitlines() or [b""]
        failed = not text or any(line.startswith(b'{"type": "error"') for line in (ends[0], ends[-1]))
        self._send(id=number, result={"content": [{"type": "text", "text": said}], "isError": failed})

    def _send(self, **message: object) -> None:
        with self._out, suppress(BrokenPipeError):
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()


def _request(line: bytes) -> dict[str, Any]:
    """A request of JSON-RPC. Raises _RpcError."""
    if not line:
        raise _RpcError(-32600, f"the request has {_LINE:,} bytes or more")
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        raise _RpcError(-32700, "not JSON") from None
    if not isinstance(request, dict) or request.get("jsonrpc") != "2.0" or not isinstance(request.get("method"), str):
        raise _RpcError(-32600, "not a request of JSON-RPC 2.0")
    if not isinstance(request.get("params") or {}, dict) or not isinstance(request.get("id"), str | int | None):
        raise _RpcError(-32600, "expected named parameters, and a text or integer as id")
    return request
