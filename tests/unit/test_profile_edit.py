"""A profile's text is changed where the data changes, and nowhere else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disttui.runner.profile.edit import edit
from disttui.runner.profile.load import plain
from disttui.runner.profile.nodes import compose

LINES: list[tuple[str, tuple[Any, ...]]] = [
    ("disttui: 1  # version", ("disttui",)),
    ("", ()),
    ("# who trains", ()),
    ("hosts:  # all of them", ()),
    ("  # the first rack", ("hosts",)),
    ("  - node1  # fast", ("hosts", 0)),
    ('  - {host: "node2", num_processes: 2}   # slow', ("hosts", 1)),
    ("  - host: node3  # far", ("hosts", 2, "host")),
    ("    # its own cards", ("hosts", 2)),
    ("    gpus: [0,   1]  # half", ("hosts", 2, "gpus")),
    ("", ()),
    ("env: {A: 'x',  B: \"y\"}  # for all", ("env",)),
    ("job:", ()),
    ("    script: 'train.py'  # mine", ("job", "script")),
    ("    args:", ()),
    ("    - --lr  # rate", ("job", "args", 0)),
    ('    - "0.1"', ("job", "args", 1)),
    ("    env:  # of the job", ()),
    ("      KEY: |  # several lines", ("job", "env", "KEY")),
    ("        one", ("job", "env", "KEY")),
    ("        two", ("job", "env", "KEY")),
    ("# the end", ()),
]
"""Each line, and the path of the data that it says or, of a comment, stands in; () for one that says nothing."""
TEXT = "".join(f"{line}\n" for line, _ in LINES)
scalars = st.sampled_from(["", "no", "3", 3, True, None, "a: b", "#", "- x", "é\n\x85z", "--steps", "x" * 100])
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.sampled_from("CDE"), scalars, max_size=3)


def data_of(text: str) -> Any:
    root = compose(text, "x", [])
    assert root is not None
    return plain(root)


def at(data: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        data = data[step]
    return data


def paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [found for key, value in inner for found in ((*path, key), *paths(value, (*path, key)))]


@settings(max_examples=300)
@given(st.data())
def test_lines_that_say_the_same_stay_to_the_byte(chance: st.DataObject) -> None:
    data = data_of(TEXT)
    path = chance.draw(st.sampled_from(paths(data)))
    parent = at(data, path[:-1])
    kind = chance.draw(st.sampled_from(["change", "remove", "add"]))
    new = copy.deepcopy(data)
    target = at(new, path[:-1])
    if kind == "change":
        target[path[-1]] = chance.draw(values)
    elif kind == "remove" and len(parent) > 1:
        del target[path[-1]]
    elif isinstance(target, list):
        target.append(chance.draw(values))
    else:
        target["NEW"] = chance.draw(values)
    changed = edit(TEXT, new)
    assert data_of(changed) == new
    left = changed.splitlines()
    for line, said in LINES:
        inside = path == said[: len(path)]
        if path == ("hosts", 2, "host") and kind == "remove":
            inside = said[:2] == path[:2]  # what begins on the line of a dash is written anew
        around = said == path[: len(said)] and not line.strip().startswith("#")
        if not inside and not around:
            assert line in left, (kind, path, changed)


@pytest.mark.parametrize(
    ("text", "new", "wanted"),
    [
        ("a: 1 # x\nb: 2\n", {"a": 1, "b": 3}, "a: 1 # x\nb: 3\n"),
        ("a: 1 # x", {"a": 1, "b": 3}, "a: 1 # x\nb: 3\n"),
        ("a: # x\n  - 1\n", {"a": 2}, "a: 2 # x\n"),
        ("a: {b: 1, c: 2, d: 3} # x\n", {"a": {"c": 2}}, "a: {c: 2} # x\n"),
        ("a: {b: 1, c: 2, d: 3} # x\n", {"a": {"b": 1, "c": 2, "e": 4}}, "a: {b: 1, c: 2, e: 4} # x\n"),
        ("a: [x, y, z] # x\n", {"a": ["x", "z", "w"]}, "a: [x, z, w] # x\n"),
        ("a: [ # one\n  x, # two\n  y # three\n]\n", {"a": ["x", "z"]}, "a: [ # one\n  x, # two\n  z # three\n]\n"),
        ("a: # x\nb: 1\n", {"a": 5, "b": 1}, "a: 5 # x\nb: 1\n"),
        ("a: 1\r\nb: 2\r\n", {"a": 1, "b": 2, "c": 3}, "a: 1\r\nb: 2\r\nc: 3\r\n"),
        ("--- # x\na: 1\n...\n", {"a": 2}, "--- # x\na: 2\n...\n"),
        ("a:\n- - 1 # x\n  - 2\n- 3\n", {"a": [[1, 4], 3]}, "a:\n- - 1 # x\n  - 4\n- 3\n"),
        ("? a # x\n: 1\nb: 2\n", {"a": 1, "b": 3}, "? a # x\n: 1\nb: 3\n"),
        ('"a": &x 1 # y\nb: *x\n', {"a": 1, "b": 2}, '"a": &x 1 # y\nb: 2\n'),
        ("a: {}\n", {"a": {"b": 1}}, "a: {b: 1}\n"),
        ("a: >-\n  folded\n  text\n\n# y\nb: 1\n", {"a": "other", "b": 1}, "a: other\n\n# y\nb: 1\n"),
    ],
)  # fmt: skip
def test_one_change(text: str, new: dict[str, Any], wanted: str) -> None:
    assert edit(text, new) == wanted
