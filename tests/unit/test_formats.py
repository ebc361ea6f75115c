"""The protocol as types: docs/formats.md lists them, and no place that must know a kind of event can forget one."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from disttui.runner.node.gang import messages
from disttui.runner.node.host import HostPart
from disttui.runner.node.loop import Loop
from disttui.runner.node.observe.ranks import Ranks
from disttui.runner.node.serve.channel import Sender, Server
from disttui.runner.protocol import events, gang, requests
from disttui.runner.protocol.cause import Cause
from disttui.runner.protocol.events import Event
from disttui.runner.protocol.files import Exit, Launch, Spec, Target
from tests.command import ran
from tests.unit.waiting import wait_for

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "formats.md"
EVENTS = ROOT / "runner" / "protocol" / "events.py"
PLACES = (
    "runner/runs/state.py",  # the fold
    "runner/render/story.py",  # its text
)
"""Where every kind of event is taken apart."""


def test_the_page_of_formats_has_every_event() -> None:
    kinds = {get_args(get_type_hints(kind)["e"])[0] for kind in get_args(Event)}
    assert rows("### events.jsonl") == kinds


def test_the_page_of_formats_has_every_operation() -> None:
    assert rows("### Frames") == set(get_args(requests.Op))


@pytest.mark.slow
def test_new_event_kind_fails_mypy_where_it_is_unhandled(tmp_path: Path) -> None:
    """mypy, asked about a protocol with one kind more."""
    text = EVENTS.read_text(encoding="utf-8")
    kind = 'class Newcomer(_Event):\n    e: Literal["newcomer"]\n\n\n'
    more = text.replace("\nEvent = Union[\n", f"\n{kind}Event = Union[\n    Newcomer,\n")
    assert more != text
    (tmp_path / "events.py").write_text(more, encoding="utf-8")
    shadow = ["--shadow-file", str(EVENTS.relative_to(ROOT)), str(tmp_path / "events.py")]
    done = ran(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), *shadow, *PLACES], cwd=ROOT, timeout=230
    )
    found = re.findall(
        r'^(\S+?):\d+: error: Argument 1 to "Unhandled" has incompatible type "Newcomer"', done.stdout, re.M
    )
    assert sorted(found) == sorted(PLACES), done.stdout[-3000:]


def test_every_report_of_a_rank_has_its_handler(tmp_path: Path) -> None:
    spec: Any = {"run": "x", "node_rank": 0, "nproc": [1], "launch": {"instrument": True}, "target": {"kind": "script"}}
    ranks = Ranks(HostPart(spec, str(tmp_path), "", None, {}, 0o22), 1, Loop(), print, print)
    assert ranks._handlers.keys() == set(get_args(events.ReportKind))
    ranks.close()


@pytest.mark.parametrize(("union", "table"), [(gang.Report, messages.OF_FOLLOWER), (gang.Order, messages.OF_LEADER)])
def test_what_the_gang_takes_are_the_messages_of_the_protocol(union: object, table: messages.Kinds) -> None:
    """Each with its fields: those that the table lets be absent are those that the type does."""
    kinds: dict[str, dict[str, bool]] = {}
    for kind in get_args(union):
        hints = get_type_hints(kind)
        fields = {name: name in kind.__required_keys__ for name in hints if name != "k"}
        kinds[get_args(hints["k"])[0]] = fields
    del kinds["listening" if union is gang.Report else "over"]  # never on the wire; and without fields
    checked = {
        kind: {name.rstrip("?"): not name.endswith("?") for name in fields}
        for kind, fields in table.items()
        if kind not in ("beat", "over")
    }
    assert {kind: set(fields) for kind, fields in kinds.items()} == {kind: set(one) for kind, one in checked.items()}
    may_be_absent = {(kind, name) for kind, fields in checked.items() for name, needed in fields.items() if not needed}
    assert not [(kind, name) for kind, name in may_be_absent if kinds[kind][name]]


def test_every_request_has_its_handler() -> None:
    server = Server("", None, Sender(io.BytesIO()))
    handled = [name[3:] for name in dir(server) if name.startswith("do_")]
    assert sorted(handled) == sorted(get_args(requests.Op))


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (RuntimeError("can't start new thread"), "can't start new thread (ulimit -v "),
        (MemoryError(), "out of memory ("),
    ],
)
def test_a_limit_of_the_login_is_no_traceback(monkeypatch: pytest.MonkeyPatch, raised: Exception, said: str) -> None:
    def fails(*_: object) -> None:
        raise raised

    out = io.BytesIO()
    server = Server("", None, Sender(out))
    if isinstance(raised, MemoryError):
        monkeypatch.setattr(server, "_do", fails)
    else:
        monkeypatch.setattr("threading.Thread.start", fails)
    server.handle({"id": 1, "op": "list"})
    wait_for(out.getvalue, "an answer")
    assert said.encode() in out.getvalue() and b"Traceback" not in out.getvalue()


@pytest.mark.parametrize(
    ("heading", "kinds"), [("### spec.json", (Spec, Target, Launch)), ("### exit.json", (Exit, Cause))]
)
def test_the_page_of_formats_names_every_field(heading: str, kinds: tuple[type, ...]) -> None:
    text = section(heading)
    missing = [f"{kind.__name__}.{name}" for kind in kinds for name in get_type_hints(kind) if not named(name, text)]
    assert not missing


def section(heading: str) -> str:
    return re.split(r"\n##+ ", PAGE.read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1], maxsplit=1)[0]


def rows(heading: str) -> set[str]:
    """The names in the first column of the table under a heading."""
    return {
        name for cell in re.findall(r"^\| (`[^|]+) \|", section(heading), re.M) for name in re.findall("`(.+?)`", cell)
    }


def named(field: str, text: str) -> bool:
    return bool(re.search(rf"[\"`, ]{field}[\"`:, ]", text))
