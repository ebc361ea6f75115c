"""From parsed JSON to the types of runner.protocol: what comes from another machine is read here once, or refused.

A required field that is missing or of another kind costs its record, any other that is of another kind is as if it were
absent. Of a list of objects, and of an object that is a table, what is of another kind is left out; a list of numbers
or texts counts as a whole. Fields that a type does not name are kept: a newer version may have written them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
_Read = Callable[[Any], Any]

_WRONG: Any = object()


class MalformedError(ValueError):
    """A record is not as its type says; names the field."""


def decode(kind: type[_T], record: Any) -> _T:
    """`record` as a TypedDict has it. Raises MalformedError."""
    found: _T = _fields(cast("Any", kind))(record)
    return found


@cache
def _fields(kind: Any) -> _Read:
    hints = get_type_hints(kind)
    fields = [(name, _reader(hint), name in kind.__required_keys__) for name, hint in hints.items()]

    def read(record: Any) -> Any:
        if not isinstance(record, dict):
            raise MalformedError("no object")
        found = record
        for name, reader, required in fields:
            value = record.get(name, _WRONG)
            good = reader(value) if value is not _WRONG else _WRONG
            if good is value and good is not _WRONG:
                continue
            if good is _WRONG and required:
                raise MalformedError(name)
            if name in record:
                found = dict(found) if found is record else found
                if good is _WRONG:
                    del found[name]
                else:
                    found[name] = good
        return found

    return read


def _reader(hint: Any) -> _Read:
    """What takes a value and returns it, what is usable of it, or _WRONG."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin is Literal:
        return lambda value: value if isinstance(value, str) and value in inner else _WRONG
    if origin is list:
        return _items(inner[0])
    if origin is dict:
        return _table(_reader(inner[1]))
    if type(None) in inner:
        [rest] = [one for one in inner if one is not type(None)]
        reader = _reader(rest)
        return lambda value: None if value is None else reader(value)
    if hasattr(hint, "__required_keys__"):
        return _nested(hint)
    raise TypeError(f"no reader for {hint}")


def _items(hint: Any) -> _Read:
    reader = _reader(hint)
    drops = hasattr(hint, "__required_keys__")

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            return _WRONG
        found = [reader(one) for one in value]
        if all(one is old for one, old in zip(found, value, strict=True)):
            return value
        kept = [one for one in found if one is not _WRONG]
        return kept if drops or len(kept) == len(found) else _WRONG

    return read


def _table(reader: _Read) -> _Read:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            return _WRONG
        found = {name: reader(one) for name, one in value.items()}
        return {name: one for name, one in found.items() if one is not _WRONG}

    return read


def _nested(hint: Any) -> _Read:
    def read(value: Any) -> Any:
        try:
            return _fields(hint)(value)
        except MalformedError:
            return _WRONG

    return read


def _is(kind: type) -> _Read:
    return lambda value: value if isinstance(value, kind) else _WRONG


def _whole(value: Any) -> Any:
    return value if isinstance(value, int) and not isinstance(value, bool) else _WRONG


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else _WRONG


_PLAIN: Mapping[Any, _Read] = {
    int: _whole, float: _number, str: _is(str), bool: _is(bool), object: lambda value: value,
}  # fmt: skip
