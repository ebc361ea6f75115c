"""Parses YAML text into a tree of nodes with their source locations. Every scalar stays text, as written.

PyYAML's constructors would turn `no` into False, `12:30` into 750 and `3e-4` into text; here each field decides what
its text means (fields.py). Only parser events are read, so aliases are counted before they are expanded.
"""

from __future__ import annotations

import bisect
import codecs
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import yaml

from disttui.runner import private
from disttui.runner.errors import InputError
from disttui.runner.profile.problems import Path, ProfileErrors, ProfileProblem, SourceLocation, printable, quoted
from disttui.runner.profile.references import MEANT

MAX_SIZE = 1024 * 1024
"""Most characters of a file, before and after its aliases are expanded."""
MAX_NODES = 10_000
MAX_DEPTH = 32

UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_NUL = re.compile(r"\\(?:0|x00|u0000|U00000000)")
_SURROGATE = re.compile(r"\\(?:u|U0000)[dD][89a-fA-F]")
NULLS = ("", "~", "null", "Null", "NULL")
_MANY = 5
"""Unprintable characters from which on a file counts as binary."""
_QUOTE = "quote a value that begins with * or &"
_CURES = {
    "cannot start any token": "quote the value",
    "expected alphabetic or numeric character": _QUOTE,
    "mapping values are not allowed": "expected one key on a line, and quotes around text with a colon and a space",
    "expected <block end>": "indent items of one block equally",
    "could not find expected ':'": "expected key: value",
    "expected ',' or ']'": "close the list with ]",
    "expected ',' or '}'": "close the mapping with }",
    "unexpected end of stream": "close the quotation marks",
}
"""Part of a PyYAML message → cure."""


@dataclass(frozen=True)
class ScalarNode:
    """A single value as written; `plain` if it has no quotes."""

    place: SourceLocation
    text: str
    plain: bool = False
    reference: SourceLocation | None = None
    """Location of its first `${env:`, `${file:` or `${cmd:`."""

    nodes = 1
    height = 0

    @property
    def size(self) -> int:
        """Length in characters."""
        return len(self.text)

    @property
    def is_null(self) -> bool:
        """Whether it is empty or a YAML null."""
        return self.plain and self.text in NULLS


@dataclass(frozen=True)
class SequenceNode:
    """A list. `nodes`, `size` and `height` count what its aliases expand to."""

    place: SourceLocation
    items: tuple[Node, ...]
    nodes: int = 1
    size: int = 0
    height: int = 1


@dataclass(frozen=True)
class MappingNode:
    """A mapping: key → (the key's place, its value), in the order of the file."""

    place: SourceLocation
    entries: dict[str, tuple[SourceLocation, Node]] = field(default_factory=dict)
    nodes: int = 1
    size: int = 0
    height: int = 1


Node = ScalarNode | SequenceNode | MappingNode


def compose(
    text: str, source: str, problems: list[ProfileProblem], *, in_file: bool = True, quick: bool = False
) -> Node | None:
    """Parse `text` as a single YAML document; return None if it is empty.

    Args:
        source: Name of the text in messages.
        problems: Problems of single values are appended to it.
        in_file: Whether locations have a line and a column; false for the value of a `--set`.
        quick: Use libyaml if PyYAML was built with it: four times as fast, with different error messages.

    Raises:
        ProfileErrors: The text cannot be parsed to its end.
    """
    return _Composer(text, source, problems, in_file, quick).document()


def walk(node: Node, path: Path = ()) -> Iterator[tuple[Path, ScalarNode]]:
    """Yield every scalar value with its path."""
    if isinstance(node, ScalarNode):
        yield path, node
    elif isinstance(node, SequenceNode):
        for index, item in enumerate(node.items):
            yield from walk(item, (*path, index))
    else:
        for key, (_, value) in node.entries.items():
            yield from walk(value, (*path, key))


class _Composer:
    def __init__(self, text: str, source: str, problems: list[ProfileProblem], in_file: bool, quick: bool) -> None:
        self._text, self._source, self._problems, self._in_file = text, source, problems, in_file
        self._anchors: dict[str, Node | None] = {}
        self._nodes = self._size = 0
        self._merged = False
        """Whether there is a merge key: then the values missing because of it are not reported as well."""
        if len(text) > MAX_SIZE:
            raise self._end(self._place(0, 0), "larger than 1 MiB", "expected a profile of a few lines")
        if found := [self._unprintable(match) for match in islice(UNPRINTABLE.finditer(text), _MANY)]:
            if len(found) == _MANY:
                what = f"{found[0].what}, and more of the same: not a text file"
                found = [replace(found[0], what=what, expected="expected a YAML file")]
            raise ProfileErrors([*problems, *found])
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if quick else yaml.SafeLoader
        self._loader = loader(text)

    def document(self) -> Node | None:
        event = self._next()  # StreamStart
        event = self._next()
        if isinstance(event, yaml.StreamEndEvent):
            return None
        root = self._node(self._next(), 0)
        self._next()  # DocumentEnd
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            raise self._end(self._mark(event.start_mark), "a second document begins", "expected one per file")
        if self._merged:
            raise ProfileErrors(self._problems)
        return None if isinstance(root, ScalarNode) and root.is_null else root

    def _next(self) -> Any:
        try:
            return self._loader.get_event()
        except yaml.MarkedYAMLError as error:
            raise self._syntax(error) from None
        except (ValueError, OverflowError):  # PyYAML converts \UFFFFFFFF and %YAML 1.<5000 digits> unchecked
            place = self._mark(self._loader.get_mark())
            raise self._end(place, "not valid YAML: number out of range in an escape or directive") from None

    def _node(self, event: Any, depth: int) -> Node:
        place = self._mark(event.start_mark)
        if depth > MAX_DEPTH:
            raise self._end(place, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), place, depth)
        if event.tag is not None:
            self._problem(place, f"the tag {quoted(event.tag)} is not allowed", "quote the value to make it text")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node: Node = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._items(place, depth)
        else:
            node = self._table(place, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _items(self, place: SourceLocation, depth: int) -> SequenceNode:
        self._count(1, 0, place)
        items = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return SequenceNode(place, tuple(items), *_measure(items))

    def _table(self, place: SourceLocation, depth: int) -> MappingNode:
        self._count(1, 0, place)
        entries: dict[str, tuple[SourceLocation, Node]] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            value = self._node(self._next(), depth + 1)
            at = self._mark(event.start_mark)
            if not isinstance(key, ScalarNode):
                self._problem(at, "a list or mapping as a key", "expected text")
            elif key.plain and key.text == "<<":
                self._problem(at, "merge keys (<<) are not supported", "write the values out, or use an alias (*)")
                self._merged = True
            elif key.text in entries:
                first = entries[key.text][0]
                cure = f"first on line {first.line}" if first.line else ""
                self._problem(at, f"key {quoted(key.text)} is given twice", cure)
            else:
                entries[key.text] = (at, value)
        nodes, size, height = _measure([value for _, value in entries.values()])
        return MappingNode(place, entries, nodes, size + sum(map(len, entries)), height)

    def _scalar(self, event: Any) -> ScalarNode:
        place, text = self._mark(event.start_mark), event.value
        self._count(1, len(text), place)
        if "\0" in text:
            at = self._spot(_NUL, event)
            self._problem(at, "a NUL character, which no argument or variable can contain", "remove it")
            text = text.replace("\0", "")
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            # JSON escapes an emoji as a pair of surrogates, and JSON should be valid input.
            pairs = text.encode("utf-16-le", "surrogatepass")
            try:
                text = pairs.decode("utf-16-le")
            except UnicodeDecodeError:
                self._problem(self._spot(_SURROGATE, event), "half of a surrogate pair is not a character")
                text = pairs.decode("utf-16-le", "replace")
        reference = self._spot(MEANT, event) if MEANT.search(text) else None
        return ScalarNode(place, text, not event.style, reference)

    def _alias(self, name: str, place: SourceLocation, depth: int) -> Node:
        if name not in self._anchors:
            raise self._end(place, f"the alias {quoted('*' + name)} names no anchor above it", _QUOTE)
        node = self._anchors[name]
        if node is None:
            raise self._end(place, f"the alias {quoted('*' + name)} contains itself")
        if depth + node.height > MAX_DEPTH:
            raise self._end(place, f"nested deeper than {MAX_DEPTH} levels")
        self._count(node.nodes, node.size, place)
        return node

    def _count(self, nodes: int, size: int, place: SourceLocation) -> None:
        self._nodes += nodes
        self._size += size
        if self._nodes > MAX_NODES or self._size > MAX_SIZE:
            raise self._end(place, f"more than {MAX_NODES:,} values or 1 MiB of text, aliases included")

    def _spot(self, pattern: re.Pattern[str], event: Any) -> SourceLocation:
        """Location of the first match of `pattern` in a scalar's source, or the scalar's start if escapes hide it."""
        start, end = event.start_mark, event.end_mark
        found = pattern.search(self._text, start.index, end.index)
        return self._index(found.start()) if found else self._mark(start)

    def _index(self, index: int) -> SourceLocation:
        line = bisect.bisect_right(self._line_starts, index) - 1
        return self._place(line, index - self._line_starts[line])

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in _BREAK.finditer(self._text))]

    def _mark(self, mark: Any) -> SourceLocation:
        return self._place(mark.line, mark.column)

    def _place(self, line: int, column: int) -> SourceLocation:
        return SourceLocation(self._source, line + 1, column + 1) if self._in_file else SourceLocation(self._source)

    def _unprintable(self, match: re.Match[str]) -> ProfileProblem:
        place, code = self._index(match.start()), ord(match[0])
        if not code:
            return ProfileProblem.at(place, "a NUL byte", "expected text")
        if 0xD800 <= code <= 0xDFFF:
            return ProfileProblem.at(place, "half of a surrogate pair is not a character")
        escape = f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
        return ProfileProblem.at(place, f"a raw control character {escape}", f'write "{escape}" in double quotes')

    def _syntax(self, error: yaml.MarkedYAMLError) -> ProfileErrors:
        problem = error.problem or ""
        mark = error.problem_mark or error.context_mark or self._loader.get_mark()
        if "'\\t'" in problem:
            return self._end(self._mark(mark), "a tab where YAML does not allow one", "indent with spaces")
        if error.context_mark and re.search("end of stream|<stream|expected ':'$|expected ',' or", problem):
            # The user has to correct the beginning of the unclosed part.
            mark = error.context_mark
        what = ", ".join(filter(None, (error.context, problem)))
        cure = next((cure for words, cure in _CURES.items() if words in problem), "")
        return self._end(self._mark(mark), f"not valid YAML: {what}", cure)

    def _problem(self, place: SourceLocation, what: str, expected: str = "") -> None:
        self._problems.append(ProfileProblem.at(place, what, expected))

    def _end(self, place: SourceLocation, what: str, expected: str = "") -> ProfileErrors:
        return ProfileErrors([*self._problems, ProfileProblem.at(place, what, expected)])


def _measure(children: list[Node]) -> tuple[int, int, int]:
    return (
        1 + sum(child.nodes for child in children),
        sum(child.size for child in children),
        1 + max((child.height for child in children), default=0),
    )


class Source(NamedTuple):
    """A file's path, text and status at the time it was read."""

    path: str
    text: str
    status: os.stat_result
    """Status of the open file that `text` was read from, even if another file has replaced it since."""


def read(path: FilePath) -> Source:
    """Read a file as text.

    Raises:
        InputError: It cannot be read.
        ProfileErrors: It is not UTF-8 text.
    """
    name = printable(str(path))
    try:
        # One byte over the limit shows that the file is too large, even if it is an endless device.
        data, status = private.read(path, 4 * MAX_SIZE + 1, devices=True)
    except private.NoRegularFileError:
        raise InputError(
            "not a regular file, but profiles are read more than once", "Save it in a file.", place=name
        ) from None
    except FileNotFoundError:
        raise InputError("file not found", place=name) from None
    except IsADirectoryError:
        raise InputError("this is a folder", "Name a profile in it.", place=name) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", place=name) from None
    try:
        return Source(str(path), data.decode("utf-8"), status)
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        if "\0" in before or len(data) > 4 * MAX_SIZE:
            return Source(str(path), before, status)
        wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        what = "UTF-16 text" if wide else f"byte 0x{data[error.start]:02x} is not UTF-8 text"
        expected = "save the file as UTF-8" if wide else "expected a YAML file"
        raise ProfileErrors([ProfileProblem(line, column, what, expected, str(path))]) from None
