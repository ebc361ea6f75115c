"""What a path that is being typed may become, as the node program tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttui.runner.node.serve.listing import MOST, complete
from tests.files import new_file


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("project/train.py", "project/tools/x", "project/table.csv", "project/.hidden", "other"):
        new_file(tmp_path / name)
    return tmp_path


def test_scripts_come_first_and_folders_end_in_a_slash(home: Path) -> None:
    assert complete("t", "~/project") == {"names": ["train.py", "table.csv", "tools/"], "more": False}
    assert complete("tools/", "project")["names"] == ["tools/x"]
    assert complete("~/p", "/")["names"] == ["~/project/"]
    assert complete(f"{home}/o", "/nowhere")["names"] == [f"{home}/other"]


def test_hidden_files_are_offered_after_a_typed_dot(home: Path) -> None:
    assert ".hidden" not in complete("", "~/project")["names"]
    assert complete(".", "~/project")["names"] == [".hidden"]


def test_the_answer_is_bounded(home: Path) -> None:
    for number in range(MOST + 10):
        (home / "project" / f"many-{number}").touch()
    answer = complete("many", "~/project")
    assert len(answer["names"]) == MOST and answer["more"]


def test_undecodable_names_can_be_sent(home: Path) -> None:
    (home / "project" / b"caf\xe9".decode("utf-8", "surrogateescape")).touch()
    assert complete("caf", "~/project")["names"] == ["caf?"]


def test_a_folder_that_is_not_there_is_an_error(home: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        complete("nowhere/x", "~")
