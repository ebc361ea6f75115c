"""What comes from another machine is as its type says, or refused: missing, of another kind, or more than that."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttui.runner.protocol.events import Event, Left, Note, Stall, Waiting
from disttui.runner.protocol.files import Exit, Stacks
from disttui.runner.protocol.telemetry import Telemetry
from disttui.runner.runs.contents import EventLine, NewerEvent, read_content
from disttui.runner.untrusted.decode import MalformedRecordError, decode

_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


def test_what_is_right_is_not_copied() -> None:
    record = {"t": 1, "e": "note", "text": "x", "level": "warning", "of a newer version": [1]}
    assert decode(Note, record) is record


@pytest.mark.parametrize(
    "record",
    [
        {"e": "note"}, {"t": 1.0, "e": "note"}, {"e": "note", "text": "x"}, {"t": "now", "e": "note", "text": "x"},
        {"t": True, "e": "note", "text": "x"}, {"t": 1.0, "e": "note", "text": 7}, 7, None, [],
        {"t": 1.0, "e": "note", "text": None},
    ],
)  # fmt: skip
def test_a_required_field_that_is_wrong_costs_the_record(record: Any) -> None:
    with pytest.raises(MalformedRecordError):
        decode(Note, record)


def test_any_other_field_that_is_wrong_is_as_if_it_were_absent() -> None:
    record = {"t": 1.0, "e": "note", "text": "x", "level": "loud", "stop": 1, "more": 2}
    assert decode(Note, record) == {"t": 1.0, "e": "note", "text": "x", "more": 2}
    assert record["level"] == "loud", "the record itself is left as it is"


def test_wrong_items_are_dropped_from_object_lists_and_tables() -> None:
    left = decode(Left, {"t": 1.0, "e": "left", "processes": [{"pid": 1}, 7, {"pid": "x", "command": "a"}]})
    assert left["processes"] == [{"pid": 1}, {"command": "a"}]
    assert decode(Stall, {"t": 1.0, "e": "stall", "silent": {"0": 1, "1": "x"}}).get("silent") == {"0": 1}
    with pytest.raises(MalformedRecordError, match="missing"):
        decode(Waiting, {"t": 1.0, "e": "waiting", "missing": [0, True]})
    gpus = [{"index": 0, "use": None}, {"use": 3}, {"index": 1, "pids": [1, "2"]}]
    assert decode(Telemetry, {"t": 1.0, "gpus": gpus, "cpus": None}) == {
        "t": 1.0, "gpus": [{"index": 0}, {"index": 1}], "cpus": None,
    }  # fmt: skip


def test_a_kind_of_a_newer_version_is_kept_as_it_is() -> None:
    record = {"t": 3.0, "e": "from the future", "x": [1]}
    assert read_content("events.jsonl", record) == NewerEvent(3.0, record)
    with pytest.raises(MalformedRecordError):
        read_content("events.jsonl", {"t": "x", "e": "from the future"})


@given(st.dictionaries(st.sampled_from(["t", "attempt", "rank", "node", "text", "cause", "missing", "over"]), _JSON))
def test_whatever_a_host_writes_is_read_or_refused(fields: dict[str, Any]) -> None:
    for kind in get_args(Event):
        name = get_args(get_type_hints(kind)["e"])[0]
        try:
            line = read_content("events.jsonl", {**fields, "e": name})
        except MalformedRecordError:
            continue
        assert isinstance(line, EventLine) and all(field in line.event for field in kind.__required_keys__)


@given(_JSON)
def test_no_file_of_a_host_raises_anything_else(value: Any) -> None:
    for kind in (Exit, Stacks, Telemetry):
        try:
            decode(kind, value)
        except MalformedRecordError:
            continue
