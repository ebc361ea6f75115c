"""Run ids: a name and 64 random bits; only as many digits are shown and typed as distinguish a run from others."""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Iterable, Sequence

from disttui.runner.errors import InputError
from disttui.runner.protocol import names as protocol_names
from disttui.runner.text import clean


def new_run_id(name: str, known: Iterable[str]) -> str:
    """Return a new id that begins with the profile's name; its short form is unique among `known`."""
    known = list(known)
    while True:
        run = f"{name}-{secrets.token_hex(8)}"
        if short(run, known) == short(run):
            return run


def short(run: str, among: Iterable[str] = ()) -> str:
    """A run's short id, with four of its digits, or more if an id in `among` begins in the same way."""
    length = len(protocol_names.short(run))
    others = [other for other in among if other != run]
    while length < len(run) and any(other.startswith(run[:length]) for other in others):
        length += 1
    return run[:length]


def pick(text: str, names: Sequence[str], host: str | None = None) -> str:
    """The one of `names` that equals or begins with `text`.

    Args:
        host: The host that the names come from; None: this machine.

    Raises:
        InputError: No name matches, or several do; similar ids are suggested.
    """
    if text in names:
        return text
    fits = [name for name in names if text and name.startswith(text)]
    if len(fits) == 1:
        return fits[0]
    shown = clean(text)[:100]
    if fits:
        raise InputError(f"{shown!r} is ambiguous: {', '.join(fits[:10])}", "Type more of the id.")
    meant = _near(text, names)
    if meant:
        cure = f"Did you mean {' or '.join(meant)}?"
    elif host is not None:
        cure = f"List its runs: disttui ps --host {host}"
    else:
        cure = "List runs: disttui ps. If it was started elsewhere, add --host with one of its hosts."
    raise InputError(f"no run {shown!r} is known {'here' if host is None else f'on {host}'}", cure)


def _near(text: str, names: Sequence[str]) -> list[str]:
    # difflib takes quadratic time.
    if len(text) > 60:
        return []
    ends = {name: name.rpartition("-")[2] for name in names}
    whole = difflib.get_close_matches(text.lower(), names, 3, 0.75)
    parts = difflib.get_close_matches(text.lower(), list(ends.values()), 3, 0.75)
    return list(dict.fromkeys([*whole, *(name for name in names if ends[name] in parts)]))[:3]
