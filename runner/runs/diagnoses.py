"""The texts of `diagnose` during a run, kept beside its mirror: after its end its ranks cannot be asked again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runner import private
from runner.formatting import number
from runner.paths import inside
from runner.protocol.regular import open_regular
from runner.text import clean_lines

NAME = "diagnoses.json"
ATTEMPTS = 4
"""The most attempts whose last diagnosis is kept."""
LONGEST = 1 << 16
"""Characters of one that are kept."""


class Diagnosis(NamedTuple):
    """What the ranks of an attempt did when they were last asked."""

    attempt: int
    time: float
    text: str


def keep(folder: Path, new: Diagnosis) -> None:
    """Store a diagnosis in place of the earlier one of its attempt. Raises OSError."""
    others = [one for one in kept(folder) if one.attempt != new.attempt]
    newest = sorted([*others, new._replace(text=new.text[:LONGEST])])[-ATTEMPTS:]
    # Two viewers may ask at once: each writes its own temporary file, and the last one counts.
    passing = inside(folder, f".{NAME}.{os.getpid()}")
    private.write(passing, json.dumps([one._asdict() for one in newest]))
    passing.replace(inside(folder, NAME))


def kept(folder: Path) -> Sequence[Diagnosis]:
    """The stored diagnoses of a run, by attempt; unreadable ones are left out."""
    try:
        with open_regular(inside(folder, NAME)) as file:
            data = json.loads(file.read(8 * ATTEMPTS * LONGEST))
    except (OSError, ValueError, RecursionError):
        return []
    known = [_read(one) for one in data if isinstance(one, Mapping)] if isinstance(data, list) else []
    return sorted(one for one in known if one is not None)[-ATTEMPTS:]


def _read(one: Mapping[str, Any]) -> Diagnosis | None:
    attempt, time, text = one.get("attempt"), number(one.get("time")), one.get("text")
    if not isinstance(attempt, int) or time is None or not isinstance(text, str):
        return None
    return Diagnosis(attempt, time, clean_lines(text)[:LONGEST])
