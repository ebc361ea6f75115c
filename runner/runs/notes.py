"""What is kept of a run beside its run.json (docs/formats.md): tags, a note, its newest checkpoint, its origin."""

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
    """Whether the job finds it on its own: it is given the folder, not this checkpoint alone."""

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


NAME = "provenance.json"
_LARGEST = 64 * 1024 * 1024
"""Bytes; the facts of 1,024 hosts are a tenth of it."""


@dataclass(frozen=True)
class HostVersions:
    """What ran on a host, and all that the probe found there before."""

    name: str = ""
    interpreter: str = ""
    python: str = ""
    torch: str = ""
    facts: HostFacts | None = None


@dataclass(frozen=True)
class CodeKept:
    """The job's code as it was: what was checked out, and what differed."""

    where: str = ""
    """The host that was asked: that of node rank 0; `this machine` for code that was sent."""
    folder: str = ""
    commit: str | None = None
    """None: in no git repository."""
    diff: Annotated[str, CODE_DIFF] = ""
    """Uncommitted changes, known secrets masked."""
    cut: bool = False
    """Whether there was more of them."""
    untracked: Annotated[tuple[str, ...], CODE_UNTRACKED] = ()
    branch: str = ""
    """Of code that was sent; empty: none, or not known."""
    tree: str = ""
    """The tree that was sent to the hosts; empty: the code lay there already."""


@dataclass(frozen=True)
class Provenance:
    """Everything about a run's start that its profile does not say."""

    version: str = ""
    """Of disttui."""
    python: str = ""
    """Of the viewer."""
    command: tuple[str, ...] = ()
    """Secrets masked."""
    hosts: Annotated[tuple[HostVersions, ...], 1024] = ()
    library: str = ""
    """The team library that the profile came from; empty: none."""
    library_commit: str = ""
    """What was checked out there; empty where it is not a git repository."""
    code: CodeKept | None = None
    """None: not known, such as after a viewer that was killed at once."""

    def save(self, folder: Path) -> None:
        """Write it into a run's folder. Raises OSError."""
        private.replace(inside(folder, NAME), json.dumps({"disttui": 1, **asdict(self)}))

    def with_code(self, code: CodeKept) -> Provenance:
        """The same with the code, whose changes are masked."""
        return replace(self, code=replace(code, diff=masked(code.diff)))


def load_provenance(folder: Path) -> Provenance | None:
    """What is kept of a run; None where there is nothing that can be read."""
    try:
        return build(Provenance, json_object(read_regular(inside(folder, NAME), _LARGEST)))
    except (OSError, MalformedRecordError):
        return None
