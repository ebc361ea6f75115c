"""Tags and notes on runs: what is typed, and what is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttui.runner.errors import InputError
from disttui.runner.runs.notes import Notes, notes_of, read_notes, write_notes

HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e"


def test_what_is_noted_is_read_back_and_is_this_users_alone(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == Notes()
    noted = notes_of("baseline, lr3e-4  baseline", "  the best by now ")
    assert noted == Notes(("baseline", "lr3e-4"), "the best by now")
    write_notes(tmp_path, noted)
    assert read_notes(tmp_path) == noted
    assert (tmp_path / "notes.json").stat().st_mode & 0o777 == 0o600
    write_notes(tmp_path, Notes())
    assert read_notes(tmp_path) == Notes()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"\xff" * 100, b'{"tags": 3, "note": []}', b'{"tags": [3, null, {}, "a b", ""]}',
        b'{"tags": ["' + b"x" * 99 + b'"]}', b'{"note": "' + b"x" * 70_000 + b'"}', b"[" * 60_000,
    ],
)  # fmt: skip
def test_a_damaged_file_of_notes_counts_as_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "notes.json").write_bytes(data)
    assert read_notes(tmp_path) == Notes()


def test_huge_or_hostile_notes_are_bounded_and_cleaned(tmp_path: Path) -> None:
    words = ", ".join(f'"t{number}"' for number in range(100))
    (tmp_path / "notes.json").write_text(f'{{"tags": [{words}], "note": "{"n" * 5000}"}}')
    found = read_notes(tmp_path)
    assert (len(found.tags), len(found.note)) == (16, 2000)
    write_notes(tmp_path, Notes((HOSTILE, "good"), f"me {HOSTILE}"))
    found = read_notes(tmp_path)
    assert found.tags == ("good",) and not set(found.note) & set(HOSTILE[:1] + "\x9b\u202e\x07")
    (tmp_path / "notes.json").unlink()
    (tmp_path / "notes.json").symlink_to("/etc/hostname")
    assert read_notes(tmp_path) == Notes()


@pytest.mark.parametrize(
    ("tags", "note", "words"),
    [
        ("x" * 33, "", "is not a valid tag"), (f"a{HOSTILE}", "", "is not a valid tag"),
        (" ".join(map(str, range(17))), "", "17 tags"),
        ("", "n" * 2001, "at most 2,000 are allowed"),
    ],
)  # fmt: skip
def test_invalid_tags_and_notes_are_refused_with_a_reason(tags: str, note: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        notes_of(tags, note)
    assert "\x1b" not in str(error.value)
