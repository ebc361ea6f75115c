"""Which run is meant by an id or its beginning."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from runner.errors import InputError
from runner.text import clean


def pick(text: str, names: Sequence[str], host: str | None = None) -> str:
    """The one of `names` that is meant by an id or its beginning.

    Args:
        host: Where the names were read; None: here.

    Raises:
        InputError: There is none, or more than one: it lists the near ones.
    """
    if text in names:
        return text
    fits = [name for name in names if text and name.startswith(text)]
    if len(fits) == 1:
        return fits[0]
    shown = clean(text)[:100]
    if fits:
        raise InputError(f"{shown!r} may be any of {', '.join(fits[:10])}", "Give more of the id.")
    meant = _near(text, names)
    if meant:
        cure = f"Did you mean {' or '.join(meant)}?"
    elif host is not None:
        cure = f"See its runs: disttui ps --host {host}"
    else:
        cure = "See all: disttui ps. A run that was started elsewhere is found by --host, any of its hosts."
    raise InputError(f"no run {shown!r} is known {'here' if host is None else f'on {host}'}", cure)


def _near(text: str, names: Sequence[str]) -> list[str]:
    # difflib is quadratic; nobody mistypes so long an id.
    if len(text) > 60:
        return []
    ends = {name: name.rpartition("-")[2] for name in names}
    whole = difflib.get_close_matches(text.lower(), names, 3, 0.75)
    parts = difflib.get_close_matches(text.lower(), list(ends.values()), 3, 0.75)
    return list(dict.fromkeys([*whole, *(name for name in names if ends[name] in parts)]))[:3]
