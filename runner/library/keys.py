"""What an edit of a profile changes, key by key, with every secret in it masked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from runner.profile.leaks import leaks
from runner.profile.load import plain
from runner.profile.nodes import MappingNode, compose
from runner.profile.problems import ProfileErrors
from runner.profile.render import inline
from runner.text import clean

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
