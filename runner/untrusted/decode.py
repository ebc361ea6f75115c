"""Decodes parsed JSON to the types of runner.protocol: data of other machines is checked here once, or refused.

A missing or wrongly typed required field invalidates its record; an optional one of the wrong type counts as
absent. In a list of objects, and in a table, entries of the wrong type are left out, and those after the first `MOST`;
a list of numbers or texts is valid only as a whole. Fields that a type does not name are kept: a newer version may have
written them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice
from operator import is_
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
_Read = Callable[[Any], Any]

_WRONG: Any = object()

MOST = 1 << 14
"""Entries of a list or table: enough for a run of as many ranks, and few enough to be drawn."""


class MalformedRecordError(ValueError):
    """A record does not match its type; names the field."""


def decode(kind: type[_T], record: Any) -> _T:
    """`record` as the TypedDict `kind`. Raises MalformedRecordError."""
    found: _T = _fields(cast("Any", kind))(record)
    return found


@cache
def _fields(kind: Any) -> _Read:
    hints = get_type_hints(kind)
    fields = [(name, _exact(hint), _reader(hint), name in kind.__required_keys__) for name, hint in hints.items()]

    def read(record: Any) -> Any:
        if not isinstance(record, dict):
            raise MalformedRecordError("no object")
        found, get = record, record.get
        for name, exact, reader, required in fields:
            value = get(name, _WRONG)
            if type(value) in exact:  # the common case: telemetry has a hundred fields per second and host
                continue
            good = reader(value) if value is not _WRONG else _WRONG
            if good is _WRONG and required:
                raise MalformedRecordError(name)
            if good is value:
                continue
            found = dict(found) if found is record else found
            if good is _WRONG:
                del found[name]
            else:
                found[name] = good
        return found

    return read


def _exact(hint: Any) -> frozenset[type]:
    """The types of values that need no further check."""
    if type(None) in get_args(hint):
        return frozenset({type(None)}).union(*(_exact(one) for one in get_args(hint)))
    return _PLAIN.get(hint, frozenset())


def _reader(hint: Any) -> _Read:
    """A reader for values of other types: it returns the value, its usable part, or _WRONG."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return lambda value: _WRONG
    if hint is object:
        return lambda value: value
    if origin is Literal:
        return lambda value: value if isinstance(value, str) and value in inner else _WRONG
    if origin is list:
        return _objects(_fields(inner[0])) if hasattr(inner[0], "__required_keys__") else _list(_exact(inner[0]))
    if origin is dict:
        return _table(_exact(inner[1]), _reader(inner[1]))
    if type(None) in inner:
        [rest] = [one for one in inner if one is not type(None)]
        return _reader(rest)
    if hasattr(hint, "__required_keys__"):
        return _nested(_fields(hint))
    raise TypeError(f"no reader for {hint}")


def _list(exact: frozenset[type]) -> _Read:
    return lambda value: value if isinstance(value, list) and exact.issuperset(map(type, value)) else _WRONG


def _objects(read_one: _Read) -> _Read:
    nested = _nested(read_one)

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            return _WRONG
        found = [nested(one) for one in value[:MOST]]
        if len(found) == len(value) and all(map(is_, found, value)):
            return value
        return [one for one in found if one is not _WRONG]

    return read


def _table(exact: frozenset[type], reader: _Read) -> _Read:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            return _WRONG
        found = {name: one if type(one) in exact else reader(one) for name, one in islice(value.items(), MOST)}
        return {name: one for name, one in found.items() if one is not _WRONG}

    return read


def _nested(read_one: _Read) -> _Read:
    def read(value: Any) -> Any:
        try:
            return read_one(value)
        except MalformedRecordError:
            return _WRONG

    return read


_PLAIN: Mapping[Any, frozenset[type]] = {
    int: frozenset({int}), float: frozenset({int, float}), str: frozenset({str}), bool: frozenset({bool}),
}  # fmt: skip
