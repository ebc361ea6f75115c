"""Writes profiles as YAML, edits YAML text in place, and saves files atomically.

An edit keeps the comments, order and quotes of unchanged values: only the text of changed ones is replaced, removed or
inserted. If the result does not read back as the wanted data, the whole file is rewritten instead.
"""

from __future__ import annotations

import difflib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from disttui.runner import private
from disttui.runner.errors import InputError
from disttui.runner.profile.leaks import refuse
from disttui.runner.profile.load import plain
from disttui.runner.profile.nodes import compose
from disttui.runner.profile.problems import ProfileErrors, ProfileProblem, printable
from disttui.runner.user.config import config_file, read_config

ORDER = (
    "disttui", "name", "description", "transport", "hosts", "num_processes", "python", "activate", "env", "job",
    "data", "container", "launch", "parallel", "precision", "metrics", "on_end", "watch", "notify",
)  # fmt: skip
"""Usual order of the profile's keys."""
TALL = ("hosts", "job")
"""Keys whose value takes one line per item, however short it is."""
_FLOW_WIDTH = 88
_PLAIN = re.compile(r"[A-Za-z_/~.+-][\w/~.+=@%^-]*(?: [\w/~.+=@%^-]+)*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "~", "-", "."}
_ENDLESS = 1 << 30
_PATIENCE = 60.0
"""Seconds to wait for a lock that another process holds."""


def render(data: Mapping[str, Any]) -> str:
    """Return profile `data` as the text of a new file, with keys in the usual order."""
    order = {key: at for at, key in enumerate(ORDER)}
    return "".join(entry(key, data[key]) for key in sorted(data, key=lambda key: order.get(key, len(order)))) or "{}\n"


def entry(key: str, value: Any) -> str:
    """The lines of one key of a mapping, without indentation."""
    return _written(yaml.MappingNode(_tag("map"), [(_node(key), _node(value, tall=key in TALL))], flow_style=False))


def item(value: Any) -> str:
    """The lines of one item of a list, without indentation."""
    return _written(yaml.SequenceNode(_tag("seq"), [_node(value)], flow_style=False), indent=False)


def inline(value: Any) -> str:
    """A value on one line, also for use inside brackets."""
    return _written(yaml.SequenceNode(_tag("seq"), [_node(value, flow=True)], flow_style=True))[1:-2]


def is_short(key: str | None, value: Any) -> bool:
    """Whether a value is written on one line; `key` is None for an item of a list."""
    return not isinstance(value, Mapping | list | tuple) or (key not in TALL and len(str(value)) <= _FLOW_WIDTH)


class _Dumper(yaml.SafeDumper):
    """Indents the items of a list below their key, which PyYAML does not do by default."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _written(node: yaml.Node, *, indent: bool = True) -> str:
    dumper = _Dumper if indent else yaml.SafeDumper
    return str(yaml.serialize(node, Dumper=dumper, allow_unicode=True, width=_ENDLESS))


def _node(value: Any, *, tall: bool = False, flow: bool = False) -> yaml.Node:
    """A value as a PyYAML node: on one line if it is short, always with `flow`, never with `tall`."""
    one_line = flow or (not tall and len(str(value)) <= _FLOW_WIDTH)
    if isinstance(value, Mapping):
        pairs = [(_node(key), _node(inner, flow=one_line)) for key, inner in value.items()]
        return yaml.MappingNode(_tag("map"), pairs, flow_style=one_line)
    if isinstance(value, list | tuple):
        return yaml.SequenceNode(_tag("seq"), [_node(each, flow=one_line) for each in value], flow_style=one_line)
    if value is None:
        return yaml.ScalarNode(_tag("null"), "null")
    if isinstance(value, bool):
        return yaml.ScalarNode(_tag("bool"), str(value).lower())
    if isinstance(value, int):
        return yaml.ScalarNode(_tag("int"), str(value))
    text = str(value)
    quoted = not _PLAIN.fullmatch(text) or text.lower() in _WORDS
    return yaml.ScalarNode(_tag("str"), text, style='"' if quoted else None)


def _tag(kind: str) -> str:
    return f"tag:yaml.org,2002:{kind}"


def save(text: str, path: Path, *, replace: bool, mode: int = 0o664) -> None:
    """Write one of the user's own profiles atomically; if `path` is a symbolic link, its target is replaced.

    Args:
        replace: Whether an existing file may be replaced; it keeps its mode.
        mode: Mode of a new file, before the umask.

    Raises:
        InputError: It cannot be written, exists without `replace`, or contains a value that looks like a secret.
    """
    name = printable(str(path))
    refuse(text, str(path))
    if path.suffix not in (".yaml", ".yml"):
        raise InputError("a profile's file ends in .yaml", f"Write {printable(path.name)}.yaml.", place=name)
    with writing(path):
        if path.exists() and not replace:
            raise InputError("this file already exists", "Give another name, or remove that file first.", place=name)
        write(path, text, mode)


def write(path: Path, text: str, mode: int = 0o664) -> None:
    """Write a file atomically, replacing anything at its path but a folder. Raises OSError."""
    target = Path(os.path.realpath(path))
    private.make_folder(target.parent, 0o775)
    mode &= ~_umask()
    with suppress(FileNotFoundError):
        status = target.lstat()
        mode = status.st_mode & 0o777 if stat.S_ISREG(status.st_mode) else mode
    part = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn OSError and ValueError from writing a file into InputError."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:
        no_folder = isinstance(error, FileExistsError | NotADirectoryError)
        why = "a part of this path is not a folder" if no_folder else getattr(error, "strerror", None) or str(error)
        cure = "Choose another folder, or make this one writable."
        raise InputError(why, cure, place=printable(str(path))) from None


@contextmanager
def locked(file: Path, busy: str, place: str = "") -> Iterator[None]:
    """Lock a file against other processes, creating it; if its file system has no locks, continue without one.

    Args:
        busy: Message of the error if another process holds the lock for a minute.
        place: Place in that error; empty: the file's folder.

    Raises:
        InputError: The lock is held, or the file cannot be created.
    """
    folder = printable(str(file.parent))
    try:
        private.make_folder(file.parent)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", place=folder) from None
    with os.fdopen(descriptor):
        wait_for_lock(descriptor, busy, place or folder)
        yield


def wait_for_lock(descriptor: int, busy: str, place: str) -> None:
    """Lock an open file or folder, as `locked` does. Raises InputError."""
    with suppress(OSError):
        if not private.lock(descriptor, _PATIENCE):
            raise InputError(busy, "Try again.", place=place)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def edit(old: str, data: Mapping[str, Any]) -> str:
    """Edit the YAML text `old` to hold `data`; lines of unchanged values stay the same to the byte."""
    before = as_data(old)
    if before is None:
        return render(data)
    if before == data:
        return old
    try:
        changed = _Editor(old).changed(before, data)
    except _Stuck:
        return render(data)
    return changed if as_data(changed) == data else render(data)


def diff(old: str, new: str, name: str = "profile") -> list[str]:
    """The lines of a unified diff, without line ends; empty if the texts are equal."""
    lines = old.splitlines(), new.splitlines()
    return list(difflib.unified_diff(*lines, f"{name} (saved)", f"{name} (new)", lineterm=""))


def as_data(text: str) -> dict[str, Any] | None:
    """Parse a text to data as in `Profile.as_written`; None if it cannot be parsed or is not a mapping."""
    try:
        root = compose(text, "profile", [])
    except ProfileErrors:
        return None
    data = plain(root) if root is not None else None
    return data if isinstance(data, dict) else None


class _Stuck(Exception):
    """This part of the text cannot be edited in place."""


class _Change(NamedTuple):
    """Replacement for the old text from index `start` to `end`."""

    start: int
    end: int
    text: str


@dataclass
class _Span:
    """The extent of a value in the text, from `start` up to but not including `end`, without trailing comments."""

    start: int
    end: int
    column: int
    """Column of its keys or dashes, if they are on lines of their own."""
    flow: bool = True
    """Whether it is a scalar, an alias, or inside brackets."""
    keys: dict[str, _Span] = field(default_factory=dict)
    """For a mapping: key → extent of the key."""
    values: list[_Span] = field(default_factory=list)
    """Values of a mapping, in the order of `keys`, or items of a list."""


class _Editor:
    def __init__(self, text: str) -> None:
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._text = text if text.endswith("\n") else text + self._newline
        self._changes: list[_Change] = []

    def changed(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
        """Return the text edited to hold `after`. Raises _Stuck."""
        self._mapping(_spans(self._text), before, after)
        text = self._text
        # From the end, so that indices stay valid; insertions at one index keep their order.
        for _, change in sorted(enumerate(self._changes), key=lambda each: (each[1][:2], each[0]), reverse=True):
            text = text[: change.start] + change.text + text[change.end :]
        return text

    def _mapping(self, span: _Span, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        if list(span.keys) != list(before):
            raise _Stuck
        gone = [key not in after for key in before]
        new = [key for key in after if key not in before]
        if span.flow and (any(gone) or not before):
            raise _Stuck  # values in brackets are rewritten as a whole
        self._take_out(span, [key.start for key in span.keys.values()], gone)
        for (key, at), value in zip(span.keys.items(), span.values, strict=True):
            if key in after and after[key] != before[key]:
                place = self._text.index(":", at.end) + 1
                try:
                    self._value(key, span, value, before[key], after[key], place)
                except _Stuck:
                    self._rewrite(span, at.start, value.end, entry(key, after[key]))
        for key in new:
            text = f"{inline(key)}: {inline(after[key])}" if span.flow else entry(key, after[key])
            self._insert(span, _place(list(before), key), text)

    def _list(self, span: _Span, before: Sequence[Any], after: Sequence[Any]) -> None:
        if len(span.values) != len(before):
            raise _Stuck
        gone = _gone(before, after)
        left = [at for at, each in enumerate(gone) if not each]
        if span.flow and any(gone):
            raise _Stuck
        self._take_out(span, [self._dash(span, value) for value in span.values] if any(gone) else [], gone)
        for at, value in zip(left, after, strict=False):
            if value != before[at]:
                place = span.values[at].start
                try:
                    self._value(None, span, span.values[at], before[at], value, place)
                except _Stuck:
                    self._rewrite(span, self._dash(span, span.values[at]), span.values[at].end, item(value))
        for value in after[len(left) :]:
            self._insert(span, len(before), inline(value) if span.flow else item(value))

    def _value(self, key: str | None, around: _Span, span: _Span, before: Any, after: Any, place: int) -> None:
        """Change a value; `place` is the first index where it may begin: after the colon, or its start."""
        noted = len(self._changes)
        try:
            if before and isinstance(before, Mapping) and isinstance(after, Mapping):
                self._mapping(span, before, after)
                return
            if before and isinstance(before, list) and isinstance(after, list | tuple):
                self._list(span, before, after)
                return
        except _Stuck:
            del self._changes[noted:]
        bracketed = span.flow and span.values
        if not around.flow and not bracketed and not is_short(key, after):
            raise _Stuck
        if "\n" not in self._text[place : span.start]:
            self._put(span.start, span.end, inline(after) if span.end > span.start else f" {inline(after)}")
        else:
            # The old value begins on its own line; a comment after the colon stays.
            self._put(place, place, f" {inline(after)}")
            self._put(self._line_start(span.start), self._line_end(span.end), "")

    def _rewrite(self, around: _Span, start: int, end: int, text: str) -> None:
        """Rewrite all lines of an entry or item. Raises _Stuck inside brackets."""
        if around.flow:
            raise _Stuck
        self._put(start, end, _indented(text, around.column).strip(" \n"))

    def _take_out(self, span: _Span, starts: Sequence[int], gone: Sequence[bool]) -> None:
        """Remove the lines of all parts marked in `gone`. Raises _Stuck if none would remain."""
        if all(gone):
            raise _Stuck
        for at, start in enumerate(starts):
            if gone[at]:
                if self._text[self._line_start(start) : start].strip():
                    raise _Stuck  # something else begins on the same line
                self._put(self._line_start(start), self._line_end(span.values[at].end), "")

    def _insert(self, span: _Span, at: int, text: str) -> None:
        """Insert a part before the old part number `at`; inside brackets, at the end."""
        if span.flow:
            self._put(span.values[-1].end, span.values[-1].end, f", {text}")
            return
        place = self._line_end(span.values[at - 1].end) if at else self._line_start(span.start)
        if not at and self._text[place : span.start].strip():
            raise _Stuck
        if at == len(span.values) and span.column:
            # Comments below the last part that are indented like it belong to it.
            while re.match(rf" {{{span.column},}}#", self._text[place : self._text.find("\n", place)]):
                place = self._line_end(place)
        self._put(place, place, _indented(text, span.column))

    def _dash(self, span: _Span, value: _Span) -> int:
        """The index where an item begins: its dash, in a list without brackets. Raises _Stuck."""
        if span.flow:
            return value.start
        start = self._line_start(value.start) + span.column
        if start >= value.start or self._text[start] != "-":
            raise _Stuck
        return start

    def _put(self, start: int, end: int, text: str) -> None:
        self._changes.append(_Change(start, end, text.replace("\n", self._newline)))

    def _line_start(self, index: int) -> int:
        return self._text.rfind("\n", 0, index) + 1

    def _line_end(self, index: int) -> int:
        """The index after the line break of the line at `index`."""
        return self._text.index("\n", index) + 1


def _gone(before: Sequence[Any], after: Sequence[Any]) -> list[bool]:
    """Choose the items to remove, as many as the list shrinks by: first those that are not in `after`."""
    gone = [False] * len(before)
    for unknown in (True, False):
        for at in reversed(range(len(before))):
            if len(before) - sum(gone) > len(after) and not gone[at] and (before[at] not in after) == unknown:
                gone[at] = True
    return gone


def _place(known: Sequence[str], key: str) -> int:
    """The index in `known` before which a new key belongs in the usual order; `len(known)` at the end."""
    if key in ORDER:
        for at, other in enumerate(known):
            if other in ORDER and ORDER.index(other) > ORDER.index(key):
                return at
    return len(known)


def _indented(text: str, column: int) -> str:
    return "".join(" " * column + line for line in text.splitlines(keepends=True))


def _spans(text: str) -> _Span:
    """The extents of all values of a text that `compose` has accepted: one document, not deeply nested."""
    events = yaml.parse(text, Loader=yaml.SafeLoader)

    def value(event: Any) -> _Span:
        start, end = event.start_mark, event.end_mark
        span = _Span(start.index, end.index, start.column)
        if isinstance(event, yaml.SequenceStartEvent):
            while not isinstance(part := next(events), yaml.SequenceEndEvent):
                span.values.append(value(part))
        elif isinstance(event, yaml.MappingStartEvent):
            while not isinstance(part := next(events), yaml.MappingEndEvent):
                name = str(getattr(part, "value", ""))
                if name in span.keys:
                    raise _Stuck
                span.keys[name] = value(part)
                span.values.append(value(next(events)))
        else:
            if getattr(event, "style", None) in ("|", ">"):
                span.end = len(text[: span.end].rstrip())
            return span
        span.flow = bool(event.flow_style)
        if not span.flow:
            span.end = span.values[-1].end
        elif part.end_mark:
            span.end = part.end_mark.index
        return span

    next(events)  # of the stream
    next(events)  # of the document
    return value(next(events))


_NOTHING = re.compile(r"^(?:---[ \t]+)?[ \t]*(?:~|null|Null|NULL)[ \t]*\n?", re.MULTILINE)
"""The null of an otherwise empty config, which must go before keys can be added."""
Change = Callable[[Mapping[str, object]], Mapping[str, object]]
"""Data of the config, as from `plain` → the keys to write, with their new values."""


def change_config(environ: Mapping[str, str], change: Change) -> Path:
    """Write some keys into the config and return its path; a lock serialises several processes.

    Raises:
        InputError: It cannot be read or written.
    """
    path = config_file(environ)
    # A separate file is locked: other users may read the folder, and could hold a lock on it forever.
    with locked(path.with_name(".config.lock"), "another disttui is changing the config"):
        text, before = read_config(environ)
        problems: list[ProfileProblem] = []
        root = compose(text, str(path), problems)
        if problems:
            raise ProfileErrors(problems)
        data = plain(root) if root else {}
        changes = change(data)
        if root:
            new = edit(text, {**data, **changes})
        else:
            text = _NOTHING.sub("", text, count=1)
            new = text + "\n" * (text[-1:] not in ("", "\n")) + render(changes)
        if not _keeps(before, new, changes):
            cure = f"Add this to it: {render(changes).strip()}"
            raise InputError("this file cannot be edited automatically", cure, place=printable(str(path)))
        # Users who can write the config could allow commands.
        save(new, path, replace=True, mode=0o600)
    return path


def _keeps(before: Mapping[str, object], new: str, changes: Mapping[str, object]) -> bool:
    """Whether a new text keeps all other keys, as PyYAML reads the config."""
    try:
        after = yaml.safe_load(new)
    except yaml.YAMLError:
        return False
    old, kept = ({key: each[key] for key in each if key not in changes} for each in (before, after))
    return old == kept
