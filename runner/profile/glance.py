"""YAML text → the data of a profile, for lists of thousands: nothing is kept of it but what the schema checks.

What is wrong, unusual or made of several files is left to `load.parse`, which knows the place of everything.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from runner.profile.nodes import MAX_DEPTH, MAX_NODES, NULLS, UNPRINTABLE
from runner.profile.references import MEANT

_LONGEST = 64 * 1024
_SPECIAL = re.compile("[\0\ud800-\udfff]")
_INSIDE = {
    ("profile", "env"): "env",
    ("profile", "hosts"): "hosts",
    ("profile", "job"): "job",
    ("job", "env"): "env",
    ("host", "env"): "env",
}
"""Where a mapping stands, and a key of it → where its value stands; "": where no variables are."""


def glance(text: str) -> dict[str, object] | None:
    """What `load.parse` would have the schema check; None: ask `load.parse`."""
    if len(text) > _LONGEST or "${var:" in text or UNPRINTABLE.search(text):
        return None
    try:
        return _Glancer(text).data()
    except (_UnusualError, yaml.YAMLError, ValueError, OverflowError):
        return None


class _UnusualError(Exception):
    """`load.parse` is to read this."""


class _Glancer:
    def __init__(self, text: str) -> None:
        self._next = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text).get_event
        self._left = MAX_NODES

    def data(self) -> dict[str, object]:
        """The data of the one document. Raises _UnusualError, or what PyYAML does."""
        self._next()  # StreamStart
        if type(self._next()) is not yaml.DocumentStartEvent:
            raise _UnusualError
        found = self._value(self._next(), 0, "profile")
        self._next()  # DocumentEnd
        is_one = type(self._next()) is yaml.StreamEndEvent
        if not is_one or not isinstance(found, dict) or not found.keys().isdisjoint(("extends", "var")):
            raise _UnusualError
        if isinstance(found.get("hosts"), dict):  # of an inventory
            raise _UnusualError
        return found

    def _value(self, event: Any, depth: int, where: str) -> object:
        kind = type(event)
        self._left -= 1
        if event.anchor is not None or kind is yaml.AliasEvent or event.tag is not None:
            raise _UnusualError
        if depth > MAX_DEPTH or self._left < 0:
            raise _UnusualError
        if kind is yaml.ScalarEvent:
            return None if event.value in NULLS and not event.style else self._text(event.value, where)
        if kind is yaml.SequenceStartEvent:
            inner, items = "host" if where == "hosts" else "", []
            while type(event := self._next()) is not yaml.SequenceEndEvent:
                items.append(self._value(event, depth + 1, inner))
            return items
        return self._mapping(depth + 1, where)

    def _mapping(self, depth: int, where: str) -> dict[str, object]:
        found: dict[str, object] = {}
        empty = []
        while type(event := self._next()) is not yaml.MappingEndEvent:
            if type(event) is not yaml.ScalarEvent or event.anchor is not None or event.tag is not None:
                raise _UnusualError
            key = self._text(event.value, "")
            if key in found or key == "<<":
                raise _UnusualError
            inner = "value" if where == "env" else _INSIDE.get((where, key), "")
            found[key] = value = self._value(self._next(), depth, inner)
            if value is None and where != "env":
                empty.append(key)
        for key in empty:
            del found[key]
        return found

    def _text(self, text: str, where: str) -> str:
        if "$" in text and where != "value" and MEANT.search(text):
            raise _UnusualError
        if "\0" in text if text.isascii() else _SPECIAL.search(text):
            raise _UnusualError
        return text
