"""Two edits of one profile joined by key; pure. What cannot be joined without losing something is not joined."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from disttui.runner.profile.changes import alike
from disttui.runner.profile.edit import as_data, edit
from disttui.runner.profile.leaks import leaks
from disttui.runner.profile.load import plain
from disttui.runner.profile.nodes import MappingNode, compose
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.profile.save import inline
from disttui.runner.text import clean

_SUBJECT = 72
_MOST = 40
"""Keys in the body of a message."""
_WIDE = 100
_DASH = "-"


class KeyChange(NamedTuple):
    """A key that two texts of a profile differ in, as safe text; `-` stands for one that is not there."""

    key: str
    before: str
    after: str


def key_changes(before: str, after: str) -> list[KeyChange] | None:
    """The keys that differ; None where one of the texts cannot be read."""
    old, new = _data(before), _data(after)
    if old is None or new is None:
        return None
    one, other = dict(_leaves(old, "")), dict(_leaves(new, ""))
    return [
        KeyChange(clean(key), one.get(key, _DASH), other.get(key, _DASH))
        for key in dict.fromkeys((*one, *other))
        if one.get(key) != other.get(key)
    ]


def message(name: str, before: str | None, after: str | None) -> str:
    """The message of the commit that saves an edit: what has changed, key by key."""
    name = clean(name)
    if before is None or after is None:
        return f"{name}: {'new' if before is None else 'removed'}\n"
    changes = key_changes(before, after)
    if changes is None:
        return f"{name}: changed\n"
    if not changes:
        return f"{name}: comments\n"
    keys = ", ".join(dict.fromkeys(change.key for change in changes))
    subject = f"{name}: {keys}"
    if len(subject) > _SUBJECT:
        subject = f"{name}: {len(changes)} keys"
    lines = [f"{change.key}: {_cut(change.before)} → {_cut(change.after)}" for change in changes[:_MOST]]
    return "\n".join([subject, "", *lines, *(["…"] if len(changes) > _MOST else []), ""])


def _data(text: str) -> Mapping[str, object] | None:
    """The data of a text; what looks like a secret in it is masked from now on. None where it cannot be read."""
    if not text:
        return {}
    try:
        root = compose(text, "profile", [])
    except ProfileErrors:
        return None
    if not isinstance(root, MappingNode):
        return None
    for _ in leaks(root):
        pass
    data: Mapping[str, object] = plain(root)
    return data


def _cut(text: str) -> str:
    return text if len(text) <= _WIDE else f"{text[:_WIDE]}…"


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif path == "hosts" and isinstance(value, list):
        for host in value:
            name = str(host.get("name") or host.get("host")) if isinstance(host, Mapping) else str(host)
            yield f"hosts.{name}", clean(inline(host))
    else:
        yield path, clean(inline(value))


_MOST_LINES = 2_000
_MOST_PAIRS = 50_000
"""Pairs of equal lines that may be compared: many lines that are alike cost time with their number to the third."""
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)


class _Missing:
    """A key that is not there."""


_MISSING = _Missing()


class _ConflictError(Exception):
    """Both have changed the same."""


def join(base: str, mine: str, theirs: str, works: Callable[[str], bool]) -> str | None:
    """The text with both edits of a profile, comments too; None where both have changed the same.

    Args:
        base: What both began with.
        works: Whether a text is a good profile. A join of two good ones that is none counts as none.
    """
    if theirs in (mine, base):
        return mine
    if mine == base:
        return theirs
    lined = join_lines(base, mine, theirs)
    old, one, other = (as_data(text) for text in (base, mine, theirs))
    if old is None or one is None or other is None:
        return None
    try:
        data = _joined(old, one, other, "")
    except _ConflictError:
        return None
    for text in filter(None, (lined, edit(theirs, data), edit(mine, data))):
        if _same(as_data(text), data) and not _comments_lost(base, mine, theirs, text):
            return text if works(text) or not (works(mine) and works(theirs)) else None
    return None


def join_lines(base: str, mine: str, theirs: str) -> str | None:
    """The text with both edits where they have changed lines that do not touch one another; else None."""
    old, one, other = [text.splitlines(keepends=True) for text in (base, mine, theirs)]
    if max(map(len, (old, one, other))) > _MOST_LINES:
        return None
    both = [_edits(old, one), _edits(old, other)]
    if None in both:
        return None
    edits = sorted({edit for each in both for edit in each or ()})
    for (_, end, _), (start, _, _) in pairwise(edits):
        if start <= end:
            return None
    for start, end, text in reversed(edits):
        old[start:end] = text
    return "".join(old)


def _edits(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, tuple[str, ...]]] | None:
    """The lines from and to which an edit has others; None where it is too costly to find out."""
    head = alike(old, new)
    tail = alike(old[head:][::-1], new[head:][::-1])
    old, new = old[head : len(old) - tail], new[head : len(new) - tail]
    counts = Counter(new)
    if sum(counts[line] for line in old) > _MOST_PAIRS:
        return None
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [
        (head + i1, head + i2, tuple(new[j1:j2])) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"
    ]


def _joined(base: Any, mine: Any, theirs: Any, key: str) -> Any:
    """A value, or `_MISSING`. Raises _ConflictError."""
    if _same(mine, theirs) or _same(theirs, base):
        return mine
    if _same(mine, base):
        return theirs
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping) and isinstance(base, Mapping | _Missing):
        before = base if isinstance(base, Mapping) else {}
        found = {
            name: _joined(before.get(name, _MISSING), mine.get(name, _MISSING), theirs.get(name, _MISSING), name)
            for name in dict.fromkeys((*theirs, *mine))
        }
        return {name: value for name, value in found.items() if not isinstance(value, _Missing)}
    if key == "hosts":
        return _joined_hosts(base, mine, theirs)
    raise _ConflictError


def _joined_hosts(*lists: Any) -> list[Any]:
    """Lists of hosts are joined by name; each keeps the order that one of the two has not changed."""
    named = [_by_name(each) for each in lists]
    base, mine, theirs = named
    common = [name for name in base if name in mine and name in theirs]
    orders = [[name for name in each if name in common] for each in named]
    if orders[0] not in orders[1:]:
        raise _ConflictError
    first, second = (theirs, mine) if orders[1] == orders[0] else (mine, theirs)
    found = []
    for name in dict.fromkeys((*first, *second)):
        host = _joined(base.get(name, _MISSING), mine.get(name, _MISSING), theirs.get(name, _MISSING), name)
        if not isinstance(host, _Missing):
            found.append(host)
    return found


def _by_name(hosts: Any) -> dict[str, Any]:
    if not isinstance(hosts, list):
        raise _ConflictError
    names = [str(each.get("name") or each.get("host")) if isinstance(each, Mapping) else str(each) for each in hosts]
    if len(set(names)) < len(names):
        raise _ConflictError
    return dict(zip(names, hosts, strict=True))


def _same(one: Any, other: Any) -> bool:
    """Equal, and of the same kind: 1 is not true."""
    if isinstance(one, _Missing) or isinstance(other, _Missing):
        return one is other
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _comments_lost(base: str, mine: str, theirs: str, joined: str) -> bool:
    """Whether a comment is missing that one side has written, or that both have left."""
    old, one, other, new = (
        Counter(line.strip() for line in _COMMENT.findall(text)) for text in (base, mine, theirs, joined)
    )
    return bool((((one - old) | (other - old)) + (old & one & other)) - new)
