"""What is stored about a run besides its run.json (docs/formats.md): tags, a note, newest checkpoint, origin."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from disttui.runner import private
from disttui.runner.errors import InputError
from disttui.runner.hosts.facts import HostFacts
from disttui.runner.paths import inside
from disttui.runner.protocol.limits import CODE_DIFF, CODE_UNTRACKED
from disttui.runner.protocol.regular import read_regular
from disttui.runner.text import clean, is_clean
from disttui.runner.text.masking import masked
from disttui.runner.untrusted.decode import MalformedRecordError, build
from disttui.runner.untrusted.records import json_object

FILE = "notes.json"
MOST_TAGS = 16
LONGEST_TAG = 32
LONGEST_NOTE = 2000
_LONGEST_FILE = 64 << 10
"""Largest size of the file in bytes; files written here are smaller."""


@dataclass(frozen=True)
class Notes:
    """Tags and a note of one run."""

    tags: tuple[str, ...] = ()
    note: str = ""


def read_notes(folder: Path) -> Notes:
    """The notes in a run's folder; missing, malformed and overlong values are empty."""
    try:
        noted = json_object(read_regular(inside(folder, FILE), _LONGEST_FILE)) or {}  # a longer one is cut: not JSON
    except (OSError, InputError):
        return Notes()
    tags, note = noted.get("tags"), noted.get("note")
    words = [one for one in tags if isinstance(one, str) and _is_tag(one)] if isinstance(tags, list) else []
    return Notes(tuple(dict.fromkeys(words))[:MOST_TAGS], clean(note[:LONGEST_NOTE]) if isinstance(note, str) else "")


def write_notes(folder: Path, notes: Notes) -> None:
    """Write notes into a run's folder, replacing earlier ones. Raises InputError if that fails."""
    path = inside(folder, FILE)
    try:
        private.replace(path, json.dumps({"disttui": 1, "tags": list(notes.tags), "note": notes.note}))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "Make it writable, or free space.") from None


def notes_of(tags: str, note: str) -> Notes:
    """Parse notes from typed text: tags separated by spaces or commas. Raises InputError."""
    words = tuple(dict.fromkeys(tags.replace(",", " ").split()))
    wrong = next((word for word in words if not _is_tag(word)), None)
    if wrong is not None:
        raise InputError(f"{clean(wrong)[:80]!r} is not a valid tag", f"Use at most {LONGEST_TAG} visible characters.")
    if len(words) > MOST_TAGS:
        raise InputError(f"{len(words)} tags; at most {MOST_TAGS} are allowed", "Remove some tags.")
    text = clean(note).strip()
    if len(text) > LONGEST_NOTE:
        raise InputError(
            f"the note has {len(text):,} characters; at most {LONGEST_NOTE:,} are allowed", "Shorten the note."
        )
    return Notes(words, text)


def _is_tag(word: str) -> bool:
    return 0 < len(word) <= LONGEST_TAG and is_clean(word) and not any(one.isspace() or one == "," for one in word)


KEPT = "saved.json"
"""The file with the newest checkpoint of a run."""


@dataclass(frozen=True)
class Checkpoint:
    """A file in a run's checkpoint folder, or a folder there with all its files."""

    host: str
    """The hosts that have its files."""
    name: str
    """Path below `folder`."""
    written: float
    """Unix time of its newest file, on the host's clock."""
    folder: str
    """The checkpoint folder on the hosts, of the run or of one that it continued."""
    size: int = 0
    """Bytes on all hosts."""
    step: int | None = None
    """The step in its name."""
    newest: bool = True
    """Whether the job finds it by default: the job is given the folder, not this checkpoint."""

    @property
    def source(self) -> str:
        """What the job resumes from, as in DISTTUI_RESUME_FROM."""
        return self.folder if self.newest else f"{self.folder}/{self.name}"


def keep_checkpoint(folder: Path, found: Checkpoint | None) -> None:
    """Store the newest checkpoint of an ended run in its folder here; None if it has none."""
    with suppress(OSError):
        private.replace(inside(folder, KEPT), json.dumps({"disttui": 1, **(asdict(found) if found else {})}))


def kept_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint of a run as stored in its folder here."""
    try:
        known = json_object(read_regular(inside(folder, KEPT), _LONGEST_FILE)) or {}
        return Checkpoint(**{name: value for name, value in known.items() if name != "disttui"})
    except (OSError, TypeError):
        return None


NAME = "provenance.json"
_LARGEST = 64 * 1024 * 1024
"""Largest size in bytes; the facts of 1,024 hosts take a tenth of it."""


@dataclass(frozen=True)
class HostVersions:
    """The versions that ran on a host, and everything that the probe found there before."""

    name: str = ""
    interpreter: str = ""
    python: str = ""
    torch: str = ""
    facts: HostFacts | None = None


@dataclass(frozen=True)
class CodeKept:
    """The job's code at the start: what was checked out, and what differed."""

    where: str = ""
    """The host that was asked, which has node rank 0; `this machine` for code that was sent."""
    folder: str = ""
    commit: str | None = None
    """None if the code is not in a git repository."""
    diff: Annotated[str, CODE_DIFF] = ""
    """Uncommitted changes, known secrets masked."""
    cut: bool = False
    """Whether there were more changes."""
    untracked: Annotated[tuple[str, ...], CODE_UNTRACKED] = ()
    branch: str = ""
    """The branch of code that was sent; "" if it has none, or it is not known."""
    tree: str = ""
    """The tree that was sent to the hosts; "" if the code was already there."""


@dataclass(frozen=True)
class Provenance:
    """Everything about a run's start that its profile does not contain."""

    version: str = ""
    """The version of disttui."""
    python: str = ""
    """The viewer's Python version."""
    command: tuple[str, ...] = ()
    """The command line, secrets masked."""
    hosts: Annotated[tuple[HostVersions, ...], 1024] = ()
    library: str = ""
    """The team library that the profile came from; "" if none."""
    library_commit: str = ""
    """The commit that was checked out there; "" if it is not a git repository."""
    code: CodeKept | None = None
    """None if not known, as when the viewer was killed right after the start."""

    def save(self, folder: Path) -> None:
        """Write the record into a run's folder. Raises OSError."""
        private.replace(inside(folder, NAME), json.dumps({"disttui": 1, **asdict(self)}))

    def with_code(self, code: CodeKept) -> Provenance:
        """A copy with the code, whose changes are masked."""
        return replace(self, code=replace(code, diff=masked(code.diff)))


def load_provenance(folder: Path) -> Provenance | None:
    """The stored record of a run; None if nothing can be read."""
    try:
        return build(Provenance, json_object(read_regular(inside(folder, NAME), _LARGEST)))
    except (OSError, MalformedRecordError):
        return None
