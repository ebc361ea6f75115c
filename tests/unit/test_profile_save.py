"""Writing profiles: new ones, changed ones, and onto the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttui.runner.errors import InputError
from disttui.runner.profile import parse
from disttui.runner.profile.edit import diff, edit
from disttui.runner.profile.save import render, save

PROFILES = sorted((Path(__file__).parents[2] / "profiles").glob("*.yaml"))
NEW: dict[str, Any] = {
    "job": {"builtin": "bytegpt", "args": ["--steps", "300", "a: b", "no", "#"], "env": {"KEY": "${env:SECRET}"}},
    "hosts": ["node1", {"host": "node2", "num_processes": 3}],
    "name": "two",
    "disttui": 1,
}


def written(text: str) -> dict[str, Any]:
    return dict(parse(text, "x.yaml").as_written())


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


def test_a_host_that_is_gone_takes_only_its_line() -> None:
    text = "disttui: 1\nhosts:\n- a  # first\n- b  # second\n- c  # third\njob: {builtin: bytegpt}\n"
    data = {**written(text), "hosts": ["a", "c"]}
    assert edit(text, data) == text.replace("- b  # second\n", "")


def test_aliases_are_no_trap() -> None:
    text = "disttui: 1\nenv: &e {A: x}\nhosts: [{host: a, env: *e}, b]\njob: {builtin: bytegpt, env: *e}\n"
    data = written(text)
    data = {**data, "env": {"A": "y"}}
    assert written(edit(text, data)) == data


def test_a_text_that_is_no_profile_is_written_anew() -> None:
    assert edit("{", NEW) == render(NEW)


words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)
values = st.recursive(
    words | st.integers(0, 99) | st.booleans(), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


@given(st.lists(words, max_size=6), st.dictionaries(st.from_regex(r"[A-Z]{1,5}", fullmatch=True), words, max_size=3))
def test_whatever_is_written_reads_back(args: list[str], env: dict[str, str]) -> None:
    data = {**NEW, "job": {"script": "train.py", "args": args, "env": env}}
    from disttui.runner.profile.load import plain
    from disttui.runner.profile.nodes import compose

    for text in (render(data), edit(render(NEW), data)):
        root = compose(text, "x", [])
        assert root is not None and plain(root) == data


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
    with pytest.raises(InputError, match="there is a file already"):
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
