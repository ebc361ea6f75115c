"""What is noted of a run on this machine, in its folder: tags, a note, its newest checkpoint (docs/formats.md)."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from disttui.runner import private
from disttui.runner.errors import InputError
from disttui.runner.paths import inside
from disttui.runner.protocol.regular import read_regular
from disttui.runner.text import clean, is_clean
from disttui.runner.untrusted.records import json_object

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
        noted = json_object(read_regular(inside(folder, FILE), _LONGEST_FILE)) or {}  # a longer one is cut: no JSON
    except (OSError, InputError):
        return Notes()
    tags, note = noted.get("tags"), noted.get("note")
    words = [one for one in tags if isinstance(one, str) and _is_tag(one)] if isinstance(tags, list) else []
    return Notes(tuple(dict.fromkeys(words))[:MOST_TAGS], clean(note[:LONGEST_NOTE]) if isinstance(note, str) else "")


def write_notes(folder: Path, notes: Notes) -> None:
    """Write notes into a run's folder, in place of the earlier ones. Raises InputError where that fails."""
    path = inside(folder, FILE)
    try:
        private.replace(path, json.dumps({"disttui": 1, "tags": list(notes.tags), "note": notes.note}))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "Make it writable, or free some space.") from None


def notes_of(tags: str, note: str) -> Notes:
    """Notes from typed text: tags separated by spaces or commas. Raises InputError."""
    words = tuple(dict.fromkeys(tags.replace(",", " ").split()))
    wrong = next((word for word in words if not _is_tag(word)), None)
    if wrong is not None:
        raise InputError(
            f"{clean(wrong)[:80]!r} is not a valid tag", f"A tag has {LONGEST_TAG} characters at most, all visible."
        )
    if len(words) > MOST_TAGS:
        raise InputError(f"{len(words)} tags: a run has {MOST_TAGS} at most", "Leave some out.")
    text = clean(note).strip()
    if len(text) > LONGEST_NOTE:
        raise InputError(f"a note has {LONGEST_NOTE:,} characters at most, and this one {len(text):,}", "Shorten it.")
    return Notes(words, text)


def _is_tag(word: str) -> bool:
    return 0 < len(word) <= LONGEST_TAG and is_clean(word) and not any(one.isspace() or one == "," for one in word)


KEPT = "saved.json"
"""The newest checkpoint of a run."""


@dataclass(frozen=True)
class Checkpoint:
    """A file in a run's folder for checkpoints, or a folder there with all its files."""

    host: str
    """Those that have its files."""
    name: str
    """Below that folder."""
    written: float
    """Unix time of its newest file, by the host's clock."""
    folder: str
    """That folder on the hosts, of the run or of one that it continued."""
    size: int = 0
    """Bytes, on all hosts."""
    step: int | None = None
    """As its name says."""
    newest: bool = True
    """Whether the job finds it by itself: it is given the folder, not this checkpoint alone."""

    @property
    def source(self) -> str:
        """What the job resumes from, as DISTTUI_RESUME_FROM says it."""
        return self.folder if self.newest else f"{self.folder}/{self.name}"


def keep_checkpoint(folder: Path, found: Checkpoint | None) -> None:
    """Keep the newest checkpoint of a run that has ended in its folder here; None: it has none."""
    with suppress(OSError):
        private.replace(inside(folder, KEPT), json.dumps({"disttui": 1, **(asdict(found) if found else {})}))


def kept_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint of a run as it was kept in its folder here."""
    try:
        known = json_object(read_regular(inside(folder, KEPT), _LONGEST_FILE)) or {}
        return Checkpoint(**{name: value for name, value in known.items() if name != "disttui"})
    except (OSError, TypeError):
        return None
