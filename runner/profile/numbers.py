"""Numbers of a profile: whole ones, seconds and ports, from the text as it was written."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from runner.profile.problems import bad, quoted


def _integer(value: Any, low: int, high: int, expected: str) -> Any:
    if not isinstance(value, str):
        return value
    text = value.strip()
    if re.fullmatch(r"[+-]?0[0-9]+", text):
        raise bad(f"{quoted(text)} begins with 0, which YAML may read as octal", f"write {int(text[:18])}")
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text) or not low <= int(text) <= high:
        raise bad(quoted(value), expected)
    return int(text)


def port_number(value: Any, low: int) -> Any:
    """A port from `low` on."""
    return _integer(value, low, 65535, f"expected a port from {low} to 65535")


def whole(low: int, high: int, *, auto: bool = False) -> BeforeValidator:
    """A whole number from `low` to `high`; `auto` becomes None."""
    expected = f"expected a whole number from {low} to {high:,}" + (" or auto" if auto else "")
    return BeforeValidator(lambda value: None if auto and value == "auto" else _integer(value, low, high, expected))


def seconds(value: Any) -> Any:
    """Seconds, a week at most."""
    if isinstance(value, str):
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?", value) or float(value) > 604_800:
            raise bad(quoted(value), "expected seconds, from 0 to 604800 (a week)")
        return float(value)
    return value


def age(text: str) -> float | None:
    """Seconds that `30d` or `12h` means; None for anything else."""
    found = re.fullmatch(r"(\d{1,6})([dh])", text)
    return int(found[1]) * (86400.0 if found[2] == "d" else 3600.0) if found else None


def size(text: str) -> int | None:
    """Bytes that `500MiB` or `1.5GiB` means, None if it is no size."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?([KMGT])iB", text)
    return int(float(found[1]) * 1024 ** (1 + "KMGT".index(found[2]))) if found else None


def log_size(value: Any) -> Any:
    """Bytes, 1 MiB at least; `none` becomes None."""
    if not isinstance(value, str):
        return value
    found = size(value)
    if value != "none" and (found is None or found < 2**20):
        raise bad(quoted(value), "expected none or a size like 2GiB, 1MiB at least")
    return found


def some_seconds(value: float) -> float:
    """More than 0."""
    if value <= 0:
        raise bad("0 seconds", "expected more than 0")
    return value


def ports(value: Any) -> Any:
    """One port, `first-last` or [first, last] → first and last."""
    shown = quoted(value) if isinstance(value, str) else "this"
    if isinstance(value, str):
        value = value.split("-")
    if not isinstance(value, list):
        return value
    try:
        numbers = [port_number(text.strip() if isinstance(text, str) else "", 1024) for text in value]
    except PydanticCustomError:
        numbers = []
    if not 1 <= len(numbers) <= 2 or numbers[0] > numbers[-1]:
        expected = "expected one from 1024 to 65535, or the first and the last, like 29500-29599"
        raise bad(f"{shown} is no range of ports", expected)
    return [numbers[0], numbers[-1]]
