"""Whatever a host has written into a run's files: every command has an answer, no traceback, and no escape sequence."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disttui.runner.cli.app import cli
from disttui.runner.cli.render.live import TextPrinter
from disttui.runner.errors import DisttuiError, HostError
from disttui.runner.runs import remote
from disttui.runner.runs.contents import read_content
from disttui.runner.runs.state import begin
from disttui.runner.untrusted.records import records
from disttui.tui.inventory import read_inventory
from tests.unit.liar_kit import connector, liar, lied
from tests.unit.state_kit import fold

RUN = "one-1a2b"
T = 1.7e9
CAUSE = {"node": 0, "rank": 0, "kind": "exception", "type": "E", "message": "m", "code": 1, "at": T}
EVENTS: list[dict[str, Any]] = [
    {"e": "supervisor", "hostname": "h", "boot_id": "b", "pid": 1, "python": "3.11"},
    {"e": "join", "node": 1},
    {"e": "waiting", "missing": [1]},
    {"e": "dial", "address": "a", "port": 1, "problem": "p"},
    {"e": "clock", "node": 1, "offset": 0.5},
    {"e": "attempt", "attempt": 1, "master": "10.0.0.1", "port": 29500, "world_size": 2},
    {"e": "launch", "attempt": 1, "pid": 1, "command": ["c"], "interface": "eth0"},
    {"e": "rank", "attempt": 1, "rank": 0, "local_rank": 0, "pid": 7, "world_size": 2},
    {"e": "group", "attempt": 1, "rank": 0, "world_size": 2, "backend": "gloo"},
    {"e": "step", "attempt": 1},
    {"e": "note", "level": "warning", "text": "x"},
    {"e": "alarm", "kind": "disk", "text": "x", "value": 1},
    {"e": "straggler", "attempt": 1, "rank": 1, "median": 2.0, "others": 1.0, "shows": ["a"]},
    {"e": "stall", "attempt": 1, "since": T, "pace": 1.0, "silent": {"0": 20}, "stacks": "stacks-1.json"},
    {"e": "host", "node": 1, "state": "lost", "last": T},
    {"e": "error", "attempt": 1, "rank": 0, "type": "V", "message": "boom", "at": T, "traceback": "V: boom\n"},
    {"e": "death", "attempt": 1, "rank": 0, "pid": 7, "code": -9, "at": T, "oom": {"group": 1, "limit": 9}},
    {"e": "launcher", "attempt": 1, "code": 1, "error": "e"},
    {"e": "failed", "attempt": 1, "cause": CAUSE},
    {"e": "stopping", "reason": "failure", "now": False, "attempt": 1},
    {"e": "left", "processes": [{"pid": 9, "command": "c"}]},
    {"e": "attempt", "attempt": 2, "master": "10.0.0.1", "port": 29501, "world_size": 2},
    {"e": "verdict", "state": "failed", "code": 1, "attempt": 2, "cause": CAUSE},
]
FILES: dict[str, list[dict[str, Any]]] = {
    "events.jsonl": [{"t": T + second, **event} for second, event in enumerate(EVENTS)],
    "telemetry.jsonl": [{"t": T, "cpu": 5.0, "ranks": {"0": {"cpu": 5, "rss": 1}}, "gpus": [{"index": 0, "use": 3}]}],
    "spec.json": [{"disttui": 1, "run": RUN, "started": T, "version": "0.1", "profile": {"name": "one"}}],
    "stacks-1.json": [{"t": T, "attempt": 1, "ranks": {"0": {"note": "n", "t": T, "pid": 7, "silent": 5.0}}}],
    "attempt-2/rank-0.metrics.jsonl": [{"t": T, "step": 3, "steps": 10, "loss": 0.5, "tokens_per_s": 100}] * 2,
    "attempt-2/ranks.jsonl": [{"t": T, "rank": 0, "pid": 3, "e": "exit", "code": 0}],
    "attempt-2/growth.jsonl": [{"t": T, "sizes": {"0": 4}}],
    "exit.json": [{"t": T + 60, "state": "failed", "code": 1, "cause": CAUSE, "attempt": 2, "left": [4]}],
}
KNOWN: dict[str, Any] = {
    "disttui": 1, "run": RUN, "profile": {"name": "one", "hosts": ["n1", "n2"]}, "run_dir": "~/.disttui/runs",
    "hosts": [{"name": name, "host": "127.0.0.1", "port": 9, "nproc": 1} for name in ("n1", "n2")],
    "started": T, "by": "me@h", "ssh_config": None, "sandbox": False,
}  # fmt: skip
ESCAPE = "\x1b[2J"
ODD: list[Any] = [
    None, [], {}, "x", ESCAPE, -1, 0, 10**30, 10**12, -(10**18), 1.5, True, float("nan"), float("-inf"), "1e999", [[]],
    {"a": 1}, [None],
]  # fmt: skip
DAMAGE: dict[str, bytes] = {
    "empty": b"", "zeros": b"\0" * 5000, "bytes": b"\xff\xfe\x80\n" * 9, "list": b"[]\n", "null": b"null\n",
    "deep": b"[" * 100_000, "deep objects": b'{"a":' * 50_000, "endless integer": b'{"t":' + b"9" * 9000 + b"}\n",
    "overflow": b'{"t":1e999,"e":"attempt","attempt":1e999}\n', "no fields": b"{}\n", "not a number": b'{"t":NaN}\n',
    "torn": b'{"e":"jo\n{"e":"join","node":1}\n{"e":', "half a character": b'{"t":1,"e":"note","text":"\\ud800"}\n',
}  # fmt: skip
COMMANDS = (
    ["ps", "--local"],
    ["runs", "show", RUN],
    ["runs", "show", "--json", RUN],
    ["logs", "--since", "2020-01-01", RUN],
    ["runs", "metrics", "--csv", RUN],
    ["diagnose", RUN],
    ["diagnose", "--json", RUN],
    ["attach", "--plain", RUN],
    ["attach", "--json", RUN],
)


class Terminal(io.TextIOWrapper):
    """A terminal: nothing is taken out of what is printed there."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "utf-8", errors="replace", write_through=True)

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        held = self.buffer
        assert isinstance(held, io.BytesIO)
        return held.getvalue().decode()


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a record."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*way, key)
        yield from places(one, (*way, key))


def changed(value: Any, way: tuple[Any, ...], odd: Any) -> Any:
    """The same with something odd in one place."""
    value = copy.deepcopy(value)
    inner = value
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = odd
    return value


def lines(entries: Any) -> bytes:
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


def write(base: Path, spoilt: Mapping[str, bytes]) -> None:
    """Write a mirror whose first host has these bytes in some files."""
    place = base / "disttui/runs" / RUN
    for node in (0, 1):
        folder = place / str(node)
        (folder / "attempt-2").mkdir(parents=True, exist_ok=True)
        contents = {name.replace("rank-0", f"rank-{node}"): lines(entries) for name, entries in FILES.items()}
        contents[f"attempt-2/rank-{node}.log"] = b"hello\n"
        for name, data in contents.items():
            (folder / name).write_bytes(spoilt.get(name, data) if node == 0 else data)
        held = json.dumps({name: [0, 0] for name in contents}).encode()
        (folder / ".mirror.json").write_bytes(spoilt.get(".mirror.json", held) if node == 0 else held)
    (place / "run.json").write_bytes(spoilt.get("run.json", json.dumps(KNOWN).encode()))
    (place / "seen.json").write_bytes(spoilt.get("seen.json", b'{"state": "running", "step": 1}'))


def typed(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Type a command at a terminal; all that it says."""
    out, err = Terminal(), Terminal()
    with monkeypatch.context() as here:
        here.setattr(sys, "stdout", out)
        here.setattr(sys, "stderr", err)
        try:
            cli.main(words, prog_name="disttui", standalone_mode=False)
        except (DisttuiError, SystemExit, click.ClickException) as error:
            err.write(str(error))
    return out.text() + err.text()


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_what_is_not_damaged_is_reported(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the others would show nothing."""
    write(base, {})
    said = {" ".join(words): typed(words, monkeypatch) for words in COMMANDS}
    assert "rank 0 raised V: boom" in said[f"runs show {RUN}"]
    assert f"✗ {RUN} failed" in said[f"attach --plain {RUN}"] and "hello" in said[f"attach --plain {RUN}"]
    assert "hello" in said[f"logs --since 2020-01-01 {RUN}"] and "n1,2,0" in said[f"runs metrics --csv {RUN}"]
    assert "malformed" not in "".join(said.values())


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_pipe_or_folder_in_place_of_a_run_file_does_not_block(
    plant: Callable[[Path], None], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job on this machine runs as the same user, and may have put it there."""
    write(base, {})
    folder = base / "disttui/runs" / RUN
    own = [folder / name for name in ("seen.json", "notes.json", "diagnoses.json", "provenance.json", "run.json")]
    for path in [*(path for path in (folder / "0").rglob("*") if path.is_file()), *own]:
        path.unlink(missing_ok=True)
        plant(path)
        said = typed(["ps", "--local"], monkeypatch) + typed(["runs", "show", RUN], monkeypatch)
        assert RUN in said and "Traceback (most" not in said, (path, said)
        inventory = read_inventory(dict(os.environ), T)
        assert len(inventory.runs) + len(inventory.problems) == 1, path
        if path in own[:-1]:
            continue
        for words in COMMANDS[2:]:
            said = typed(words, monkeypatch)
            assert "Traceback (most" not in said, (path, words, said)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files(damage: str, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*FILES, "attempt-2/rank-0.log", "run.json", "seen.json", ".mirror.json"):
        write(base, {name: DAMAGE[damage]})
        for words in COMMANDS:
            said = typed(words, monkeypatch)
            assert said and "Traceback (most" not in said, (name, words, said)


def test_a_damaged_line_is_named_with_its_place(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(base, {"events.jsonl": b'{"t": 1, "e": "note", "text": "x"}\n\0\0\0\n{"e": "join", "node": 7}\n{"e":'})
    said = typed(["runs", "show", RUN], monkeypatch)
    assert re.findall(r"events.jsonl at byte (\d+): malformed record skipped", said) == ["35", "39"]


def test_runs_are_listed_before_profiles_are_read(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a team may take long."""
    write(base, {})
    seen: list[str] = []

    def listed(*_: object, **__: object) -> list[object]:
        seen.append("profiles")
        return []

    monkeypatch.setattr("disttui.runner.api.libraries.list_library", listed)
    read_inventory(dict(os.environ), T, take_runs=lambda runs: seen.append(runs[0].run))
    assert seen == [RUN, "profiles"]


def test_an_endless_exit_json_is_not_read_whole(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = b'{"t": 1, "state": "finished", "code": 0, "x": "' + b"x" * (5 << 20) + b'"}'
    write(base, {"exit.json": huge, "events.jsonl": b""})
    assert "finished" not in typed(["ps", "--local"], monkeypatch)


def test_a_host_cannot_say_that_its_run_is_another(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(base, {"spec.json": lines([{**FILES["spec.json"][0], "run": "other-1"}]), "seen.json": b'{"run": "other-2"}'})
    said = typed(["ps", "--local"], monkeypatch)
    assert RUN in said and "other" not in said


@pytest.mark.slow
def test_odd_values_on_the_command_line(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field of every record in turn holds an escape sequence, or a number beyond everything."""
    for name, entries in FILES.items():
        for way in places(entries):
            if len(way) > 1:
                write(base, {name: lines(changed(entries, way, ESCAPE))})
                said = typed(["runs", "show", RUN], monkeypatch) + typed(["attach", "--plain", RUN], monkeypatch)
                assert ESCAPE not in said, (name, way, said)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_odd_values_while_a_run_goes_on(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(FILES)))
    way = data.draw(st.sampled_from([way for way in places(FILES[name]) if len(way) > 1]))
    spoilt = {**FILES, name: changed(FILES[name], way, data.draw(st.sampled_from(ODD)))}
    out, err = Terminal(), Terminal()
    printer = TextPrinter(out, err, ("n1", "n2"), 2, colour=True)
    state = begin(RUN, ("n1", "n2"), (1, 1))
    for file, entries in spoilt.items():
        for _, record in records(lines(entries), 0):
            try:
                state = fold(state, 0, file, record or {})
            except (KeyError, TypeError, ValueError, AttributeError):
                continue  # Session skips it with a warning
            printer.record(state, 0, read_content(file, record or {}))
    printer.refresh(state)
    printer.end(state, Path("logs"))
    assert ESCAPE not in out.text() + err.text()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": NaN, "b": -Infinity, "c": 1e999}', {"a": "nan", "b": "-inf", "c": "inf"}),
        (b'{"a": 1E999, "b": -1e+999}', {"a": "inf", "b": "-inf"}),
        (b'{"a": 1750000000000000000, "b": 1e300}', {"a": 1750000000000000000, "b": "inf"}),
        (
            b'{"a": 1e18, "b": -1.0000001e18, "c": 1e-18, "d": -9e-19, "e": 5e-324, "f": 3e-05}',
            {"a": 1e18, "b": "-inf", "c": 1e-18, "d": 0.0, "e": 0.0, "f": 3e-05},
        ),
        (
            b'{"a": 2' + b"0" * 18 + b'.5, "b": 0.' + b"0" * 18 + b'9, "c": 1E+019, "d": 1e00}',
            {"a": "inf", "b": 0.0, "c": "inf", "d": 1.0},
        ),
        (b'{"a": 9223372036854775808}', None),
        (b'{"a": "99999999999999999999 e999"}', {"a": "99999999999999999999 e999"}),
    ],
)
def test_numbers_are_bounded(text: bytes, value: Any) -> None:
    assert list(records(text, 3)) == [(3, value)]


FORGED = {
    "type": "end", "run": RUN, "result": {"state": "finished", "code": 0}, "host": "n2", "rank": 7, "attempt": 9,
    "record": {"type": "end"}, "t": T, "step": 3, "loss": 0.25,
}  # fmt: skip


def test_no_script_can_forge_what_json_prints(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes to its metrics or prints is a record of a rank on a host, and nothing else."""
    printed = f"{json.dumps(FORGED)}\n".encode()
    write(base, {"attempt-2/rank-0.metrics.jsonl": printed, "attempt-2/rank-0.log": printed})
    said = [json.loads(line) for line in typed(["attach", "--json", RUN], monkeypatch).splitlines() if line[:1] == "{"]
    ends = [line for line in said if line["type"] == "end"]
    assert len(ends) == 1 and ends[0]["result"]["state"] == "failed"
    metrics = next(line for line in said if line["type"] == "metrics" and line["host"] == "n1")
    assert (metrics["attempt"], metrics["rank"], metrics["record"]) == (2, 0, FORGED)
    rows = [json.loads(line) for line in typed(["runs", "metrics", RUN], monkeypatch).splitlines()]
    assert (rows[0]["host"], rows[0]["attempt"], rows[0]["rank"], rows[0]["loss"]) == ("n1", 2, 0, 0.25)
    table = typed(["runs", "metrics", "--csv", RUN], monkeypatch).splitlines()
    assert table[0].startswith("host,attempt,rank,") and table[1].startswith("n1,2,0,")


CLOSING = f"✓ {RUN} finished in 0:05: 2 ranks on 2 hosts"


@pytest.mark.parametrize("kind", ["exception", "exit", "launch", "host lost"])
def test_no_words_of_a_rank_pass_for_the_closing_line(kind: str, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of them stands behind a bar, whatever it is."""
    words = f"no\n{CLOSING}\nlogs: /nowhere\r\n\x1b[2K{CLOSING}\u2028{CLOSING}"
    cause = {**CAUSE, "kind": kind, "code": 1, "message": words}
    events = [
        {**event, **{key: words for key in ("message", "traceback", "text", "said", "error") if key in event}}
        for event in EVENTS
        if kind == "exception" or event["e"] != "error"
    ]
    events = [{**event, "cause": cause} if "cause" in event else event for event in events]
    events.insert(-1, {**next((one for one in events if one["e"] == "error"), events[-2]), "attempt": 2})
    spoilt = lines([{"t": T + second, **event} for second, event in enumerate(events)])
    write(base, {
        "events.jsonl": spoilt, "attempt-2/rank-0.log": words.encode(), "attempt-2/launcher.log": words.encode(),
        "exit.json": lines([{**FILES["exit.json"][0], "cause": cause}]),
    })  # fmt: skip
    for command in ("runs show", "diagnose", "attach --plain", "logs --since 2020-01-01"):
        said = typed([*command.split(), RUN], monkeypatch)
        forged = [line for line in said.split("\n") if line.startswith((CLOSING, f"disttui: {CLOSING}", "logs: /now"))]
        assert not forged and ESCAPE not in said, (command, said)
    assert kind == "host lost" or f"│ {CLOSING}" in typed(["runs", "show", RUN], monkeypatch)


def test_no_words_of_a_host_pass_for_a_line_of_ours(tmp_path: Path) -> None:
    run = lied(tmp_path, liar(tmp_path, "n1", f"yield {{'error': {{'what': 'no\\n{CLOSING}', 'cure': ''}}}}"))
    with remote.reach_hosts(dict(enumerate(run.hosts)), connector()) as reached:
        answer = reached.ask("list", run_dir="~/x")[0]
    assert isinstance(answer, HostError) and str(answer) == f"n1: no\n│ {CLOSING}"


def test_no_host_can_speak_for_another(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(base, {"events.jsonl": lines([{"t": T, "e": "note", "text": "x", "host": "n2"}])})
    story = json.loads(typed(["runs", "show", "--json", RUN], monkeypatch))
    assert [event["host"] for event in story["timeline"] if event.get("text") == "x" and event["t"] == T] == ["n1"]
