"""Decodes parsed JSON of other machines to the types of disttui.runner.protocol, and validates it.

A missing or wrongly typed required field invalidates its record; an optional one of the wrong type counts as
absent. In a list of objects and in a table, entries of the wrong type and those after the first `MOST` are left out;
a list of numbers or texts is valid only as a whole. Fields that a type does not define are kept: a newer version may
have written them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache, partial
from itertools import islice
from operator import is_
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from disttui.runner.formatting import number
from disttui.runner.untrusted import records

_T = TypeVar("_T")
_Read = Callable[[Any], Any]

_WRONG: Any = object()

MOST = 1 << 14
"""Entries of a list or table: enough for a run with as many ranks, and few enough to draw."""


class MalformedRecordError(ValueError):
    """A record does not match its type; the message names the field."""


def decode(kind: type[_T], record: Any) -> _T:
    """Decode a record to the TypedDict `kind`. Raises MalformedRecordError."""
    found: _T = _fields(cast("Any", kind))(record)
    return found


@cache
def _fields(kind: Any) -> _Read:
    hints = get_type_hints(kind)
    fields = [(name, _exact(hint), _reader(hint), name in kind.__required_keys__) for name, hint in hints.items()]

    def read(record: Any) -> Any:
        if not isinstance(record, dict):
            raise MalformedRecordError("not an object")
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
    """Return the types of values that need no further check."""
    if type(None) in get_args(hint):
        return frozenset({type(None)}).union(*(_exact(one) for one in get_args(hint)))
    return _PLAIN.get(hint, frozenset())


def _reader(hint: Any) -> _Read:
    """Return a reader for values of other types: it returns the value, its usable part, or _WRONG."""
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


COMPUTED = "computed"
"""Marks a field of a dataclass that hosts cannot set: it keeps its default."""
_LONGEST, _MOST_ITEMS = 4096, 1000
"""Default bounds: characters of a text, and entries of a list."""


class Shown(int):
    """Largest number of characters of a text that is made safe to print: `Annotated[str, Shown(60)]`."""


def build(kind: type[_T], record: Any) -> _T:
    """Decode a record to the dataclass `kind`; annotations set bounds: `Annotated[int, 1024]`, `[str, "regex"]`.

    A wrong or absent field becomes None if allowed, else its default; a flag becomes False, and an entry of a list
    is left out. Any other wrong field raises MalformedRecordError. Texts and lists are cut at their bound. Only texts
    marked `Shown` are made safe to print, since paths must stay unchanged.
    """
    if not isinstance(record, dict):
        raise MalformedRecordError("not an object")
    found = {}
    for name, default, read in _parts(cast("Any", kind)):
        try:
            found[name] = read(record.get(name))
        except MalformedRecordError as error:
            if default is MISSING:
                raise MalformedRecordError(f"{name}: {error}") from None
            found[name] = default
    return kind(**found)


@cache
def _parts(kind: Any) -> list[tuple[str, Any, _Read]]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        (one.name, one.default, _value(hints[one.name], None))
        for one in fields(kind)
        if COMPUTED not in getattr(hints[one.name], "__metadata__", ())
    ]


def _value(hint: Any, bound: Any) -> _Read:
    """Return a reader for the values of a dataclass's field; it raises MalformedRecordError."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _value(inner[0], inner[1])
    if origin is UnionType or type(None) in inner:
        [rest] = [one for one in inner if one is not type(None)]
        if rest is bool:
            return lambda value: value if isinstance(value, bool) else None
        return partial(_otherwise, _value(rest, bound), None)
    if hint is bool:
        return lambda value: value is True
    if hint is str:
        return partial(_text, bound)
    if hint in (int, float):
        return partial(_number, number if hint is float else partial(records.whole, below=bound or records.MOST))
    if origin is tuple:
        return partial(_items, partial(_otherwise, _value(inner[0], None), _WRONG), bound or _MOST_ITEMS)
    return partial(build, hint)


def _otherwise(read: _Read, default: Any, value: Any) -> Any:
    try:
        return read(value)
    except MalformedRecordError:
        return default


def _text(bound: Any, value: Any) -> str:
    if not isinstance(value, str) or (isinstance(bound, str) and not re.fullmatch(bound, value)):
        raise MalformedRecordError("not text")
    return (
        records.text(value, bound)
        if isinstance(bound, Shown)
        else value[: bound if isinstance(bound, int) else _LONGEST]
    )


def _number(read: _Read, value: Any) -> Any:
    if (found := read(value)) is None:
        raise MalformedRecordError("not a number within bounds")
    return found


def _items(read: _Read, most: int, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise MalformedRecordError("not a list")
    return tuple(found for one in value[:most] if (found := read(one)) is not _WRONG)
