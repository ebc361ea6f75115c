"""Writing profiles: new ones, changed ones (where the data changes, and nowhere else), and onto the disk."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disttui.runner.errors import InputError
from disttui.runner.profile.load import parse, plain
from disttui.runner.profile.nodes import compose
from disttui.runner.profile.save import diff, edit, render, save

PROFILES = sorted((Path(__file__).parents[2] / "profiles").glob("*.yaml"))
NEW: dict[str, Any] = {
    "job": {"builtin": "bytegpt", "args": ["--steps", "300", "a: b", "no", "#"], "env": {"KEY": "${env:SECRET}"}},
    "hosts": ["node1", {"host": "node2", "num_processes": 3}],
    "name": "two",
    "disttui": 1,
}


def written(text: str) -> dict[str, Any]:
    return dict(parse(text, "x.yaml").as_written())


def data_of(text: str) -> Any:
    root = compose(text, "x", [])
    assert root is not None
    return plain(root)


def test_a_new_profile_looks_like_a_persons() -> None:
    assert render(NEW) == (
        "disttui: 1\nname: two\nhosts:\n  - node1\n  - {host: node2, num_processes: 3}\n"
        'job:\n  builtin: bytegpt\n  args: [--steps, "300", "a: b", "no", "#"]\n  env: {KEY: "${env:SECRET}"}\n'
    )
    assert written(render(NEW)) == NEW


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_unchanged_data_leaves_every_byte(path: Path) -> None:
    text = path.read_text()
    assert edit(text, written(text)) == text


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_only_the_lines_that_changed_differ(path: Path) -> None:
    text = path.read_text()
    data = {**written(text), "num_processes": 7}
    changed = edit(text, data)
    assert written(changed) == data
    assert [line for line in diff(text, changed) if line[0] in "+-"][2:] != []
    removed, added = ([line for line in diff(text, changed)[2:] if line[0] == sign] for sign in "-+")
    assert len(removed) == len(added) == 1 and "num_processes: 7" in added[0]
    assert removed[0].partition("#")[2] == added[0].partition("#")[2]


def test_new_items_and_keys_stand_where_a_person_puts_them() -> None:
    text = next(path for path in PROFILES if path.stem == "2node").read_text()
    data = written(text)
    data = {**data, "hosts": [*data["hosts"], "node3"], "job": {**data["job"], "env": {"A": "1"}}}
    changed = edit(text, data)
    assert written(changed) == data
    assert "  - node2\n  - node3\n\nnum_processes" in changed
    assert 'stored nowhere\n  env: {A: "1"}\n\nlaunch:' in changed
    assert len([line for line in diff(text, changed)[2:] if line[0] in "+-"]) == 2


def test_aliases_are_no_trap() -> None:
    text = "disttui: 1\nenv: &e {A: x}\nhosts: [{host: a, env: *e}, b]\njob: {builtin: bytegpt, env: *e}\n"
    data = written(text)
    data = {**data, "env": {"A": "y"}}
    assert written(edit(text, data)) == data


def test_text_that_is_not_a_profile_is_replaced() -> None:
    assert edit("{", NEW) == render(NEW)


words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)
values = st.recursive(
    words | st.integers(0, 99) | st.booleans(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


@given(st.lists(words, max_size=6), st.dictionaries(st.from_regex(r"[A-Z]{1,5}", fullmatch=True), words, max_size=3))
def test_whatever_is_written_reads_back(args: list[str], env: dict[str, str]) -> None:
    data = {**NEW, "job": {"script": "train.py", "args": args, "env": env}}
    assert data_of(render(data)) == data_of(edit(render(NEW), data)) == data


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
changes = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.sampled_from("CDE"), scalars, max_size=3)


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
        target[path[-1]] = chance.draw(changes)
    elif kind == "remove" and len(parent) > 1:
        del target[path[-1]]
    elif isinstance(target, list):
        target.append(chance.draw(changes))
    else:
        target["NEW"] = chance.draw(changes)
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
        ("a:\n- x  # 1\n- y  # 2\n- z  # 3\nb: 1\n", {"a": ["x", "z"], "b": 1}, "a:\n- x  # 1\n- z  # 3\nb: 1\n"),
        ("a: >-\n  folded\n  text\n\n# y\nb: 1\n", {"a": "other", "b": 1}, "a: other\n\n# y\nb: 1\n"),
    ],
)  # fmt: skip
def test_one_change(text: str, new: dict[str, Any], wanted: str) -> None:
    assert edit(text, new) == wanted


def test_saving_replaces_at_once_and_keeps_mode_and_links(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    save("one", real, replace=False)
    real.chmod(0o640)
    link.symlink_to(real)
    save("two", link, replace=True)
    assert link.is_symlink() and real.read_text() == "two" and real.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "real.yaml"]
    save("three", tmp_path / "new" / "folder" / "x.yaml", replace=False)


def test_what_cannot_be_saved_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("mine")
    with pytest.raises(InputError, match="this file already exists"):
        save("other", path, replace=False)
    with pytest.raises(InputError, match="ends in \\.yaml"):
        save("other", tmp_path / "x", replace=True)
    with pytest.raises(InputError, match="is not a folder"):
        save("other", path / "y.yaml", replace=False)
    with pytest.raises(InputError, match="directory"):
        (tmp_path / "d.yaml").mkdir()
        save("other", tmp_path / "d.yaml", replace=True)
    assert path.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.yaml", "x.yaml"]
