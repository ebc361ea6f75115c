"""A user's tags and note of a run on this machine, in its folder (docs/formats.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from runner import private
from runner.errors import InputError
from runner.paths import inside
from runner.protocol.regular import open_regular
from runner.text import clean, is_clean
from runner.untrusted.records import json_object

FILE = "notes.json"
MOST_TAGS = 16
LONGEST_TAG = 32
LONGEST_NOTE = 2000
_LONGEST_FILE = 64 << 10
"""The most bytes of the file; files written here are shorter."""


@dataclass(frozen=True)
class Notes:
    """Tags and a note of one run."""

    tags: tuple[str, ...] = ()
    note: str = ""


def read_notes(folder: Path) -> Notes:
    """The notes in a run's folder; missing, malformed and too long values are empty."""
    try:
        with open_regular(inside(folder, FILE)) as file:
            data = file.read(_LONGEST_FILE + 1)
    except (OSError, InputError):
        return Notes()
    noted = (json_object(data) if len(data) <= _LONGEST_FILE else None) or {}
    tags, note = noted.get("tags"), noted.get("note")
    words = [one for one in tags if isinstance(one, str) and _is_tag(one)] if isinstance(tags, list) else []
    return Notes(tuple(dict.fromkeys(words))[:MOST_TAGS], clean(note[:LONGEST_NOTE]) if isinstance(note, str) else "")


def write_notes(folder: Path, notes: Notes) -> None:
    """Write notes into a run's folder, in place of the earlier ones. Raises InputError where that fails."""
    path = inside(folder, FILE)
    part = inside(folder, FILE + ".part")
    try:
        private.write(part, json.dumps({"disttui": 1, "tags": list(notes.tags), "note": notes.note}))
        part.replace(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "Let it be written, or make room.") from None


def notes_of(tags: str, note: str) -> Notes:
    """Notes from typed text: tags separated by spaces or commas. Raises InputError."""
    words = tuple(dict.fromkeys(tags.replace(",", " ").split()))
    wrong = next((word for word in words if not _is_tag(word)), None)
    if wrong is not None:
        raise InputError(
            f"{clean(wrong)[:80]!r} is no tag", f"A tag has {LONGEST_TAG} characters at most, all visible."
        )
    if len(words) > MOST_TAGS:
        raise InputError(f"{len(words)} tags: a run has {MOST_TAGS} at most", "Leave some out.")
    text = clean(note).strip()
    if len(text) > LONGEST_NOTE:
        raise InputError(f"a note has {LONGEST_NOTE:,} characters at most, and this one {len(text):,}", "Shorten it.")
    return Notes(words, text)


def _is_tag(word: str) -> bool:
    return 0 < len(word) <= LONGEST_TAG and is_clean(word) and not any(one.isspace() or one == "," for one in word)
