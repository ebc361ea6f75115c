"""The manifest of a code tree: its files in one canonical encoding (docs/formats.md, "Code trees")."""

from __future__ import annotations

import hashlib
import re
from typing import Dict, Iterable, NamedTuple, Tuple

_HEAD = b"disttui tree 1"
MOST_FILES = 250_000
MOST_BYTES = 128 << 20
"""Most bytes of an encoded manifest."""
_LONGEST, _LONGEST_NAME = 4000, 255
"""Most bytes of a path, and of one of its names."""
DEEPEST = 250
"""Most folders above a file: tools that remove deeper trees fail."""
HASH = re.compile(r"[0-9a-f]{64}")
_SIZE = re.compile(b"0|[1-9][0-9]{0,14}")
_PATH = rb"(?:[\w+-][\w.+-]*/){0,20}[\w+-][\w.+-]*"
_USUAL_PATH = re.compile(_PATH)
_USUAL = re.compile(rb"([fx]) (0|[1-9][0-9]{0,14}) ([0-9a-f]{64}) (" + _PATH + rb")")
"""Most lines: a file with a path that, unless it is very long, needs no further checks."""


class Entry(NamedTuple):
    """One file of a tree, or a symbolic link that stays inside it. Folders exist where a file needs them."""

    path: bytes
    """Relative path, with slashes."""
    kind: str
    """`f`: a file, `x`: an executable file, `l`: a link."""
    size: int
    value: str
    """The SHA-256 of a file's content, or a link's target, in hexadecimal digits."""

    @property
    def target(self) -> bytes:
        """The target of a link."""
        return bytes.fromhex(self.value)


def link(path: bytes, target: bytes) -> Entry:
    """The entry of a symbolic link."""
    return Entry(path, "l", len(target), target.hex())


def encode(entries: Iterable[Entry]) -> bytes:
    """The manifest of the entries, the same for every order of them."""
    lines = (b"%s %d %s %s" % (one.kind.encode(), one.size, one.value.encode(), one.path) for one in sorted(entries))
    return b"\0".join([_HEAD, *lines])


def decode(data: bytes) -> Tuple[Entry, ...]:
    """The entries of a manifest. Raises ValueError for anything but what `encode` returns for a valid tree."""
    if len(data) > MOST_BYTES:
        raise ValueError("the manifest is too large")
    head, *lines = data.split(b"\0")
    if head != _HEAD or len(lines) > MOST_FILES:
        raise ValueError("this is not a manifest")
    entries = []
    before = b""
    for line in lines:
        usual = _USUAL.fullmatch(line) if len(line) <= _LONGEST_NAME else None
        if usual:
            kind, size, value, path = usual.groups()
            entry = Entry(path, kind.decode(), int(size), value.decode())
        else:
            entry = _decoded(line)
        if entry.path <= before:
            raise ValueError("%r is out of order" % entry.path[:100])
        before = entry.path
        entries.append(entry)
    if below := _file_as_folder(entries):
        raise ValueError("%r lies below a file" % below[:100])
    return tuple(entries)


def _decoded(line: bytes) -> Entry:
    """The entry of a line. Raises ValueError if it is malformed."""
    fields = line.split(b" ", 3)
    if len(fields) != 4 or fields[0] not in (b"f", b"x", b"l") or not _SIZE.fullmatch(fields[1]):
        raise ValueError("malformed entry %r" % line[:100])
    entry = Entry(fields[3], fields[0].decode(), int(fields[1]), fields[2].decode("ascii", "replace"))
    if why := flaw(entry.path):
        raise ValueError("%r: %s" % (entry.path[:100], why))
    if entry.kind != "l" and not HASH.fullmatch(entry.value):
        raise ValueError("%r has no hash" % entry.path[:100])
    if entry.kind == "l" and not leads_inside(entry.path, entry.target):
        raise ValueError("the link %r leads out of the tree" % entry.path[:100])
    if entry.kind == "l" and entry != link(entry.path, entry.target):
        raise ValueError("malformed link %r" % entry.path[:100])
    return entry


def flaw(path: bytes) -> str:
    """Explain why a tree cannot have a file with this path; "" if it can."""
    if len(path) <= _LONGEST_NAME and _USUAL_PATH.fullmatch(path):
        return ""
    if len(path) > _LONGEST_NAME and (len(path) > _LONGEST or max(map(len, path.split(b"/"))) > _LONGEST_NAME):
        return "the name is too long"
    if path.count(b"/") > DEEPEST:
        return "it lies in more than %d folders" % DEEPEST
    parts = b"/%s/" % path
    if b"\0" in path or b"//" in parts or b"/./" in parts or b"/../" in parts:
        return "not a relative path"
    return ""


def leads_inside(path: bytes, target: bytes) -> bool:
    """Whether a link at `path` stays inside the tree, whatever other links are on its way.

    So `..` is only allowed at its beginning: after the name of another link it would start elsewhere.
    """
    if not target or target.startswith(b"/") or b"\0" in target or len(target) > _LONGEST:
        return False
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    up = next((number for number, part in enumerate(parts) if part != b".."), len(parts))
    return up <= path.count(b"/") and b".." not in parts[up:]


def objects(entries: Iterable[Entry]) -> Dict[str, int]:
    """The objects that a tree consists of: hash → bytes, in the tree's order."""
    return {one.value: one.size for one in entries if one.kind != "l"}


def digest(data: bytes) -> str:
    """The name of an object with this content; for a manifest, the name of its tree."""
    return hashlib.sha256(data).hexdigest()


def _file_as_folder(entries: Iterable[Entry]) -> bytes:
    files = {one.path for one in entries}
    folders = set()
    for path in files:
        at = path.rfind(b"/")
        while at > 0 and (above := path[:at]) not in folders:
            if above in files:
                return path
            folders.add(above)
            at = path.rfind(b"/", 0, at)
    return b""
