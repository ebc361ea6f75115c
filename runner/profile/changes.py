"""What a profile says, line by line, and how two differ: what runs, where and with which secrets comes first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from runner.profile.disclosure import foreign_lines, shown_words
from runner.profile.problems import printable
from runner.profile.schema import Profile

_MOST_LINES = 200
_LONGEST = 1000
"""Characters of a line that is shown."""
_SHOWN_ABOVE = frozenset((
    "job.builtin", "job.script", "job.module", "job.command", "job.args", "job.wrap", "job.outputs",
    "launch.resume_args", "on_end.command", "on_end.webhook",
))  # fmt: skip
"""Keys that `foreign_lines` has in full."""
_OF_A_HOST = ("host", "name", "user", "port")
"""The same of a host: they stand in the line `hosts`."""
_FIRST = ("env.", "job.env.", "hosts.")


def difference(before: Profile | None, now: Profile) -> list[str]:
    """What is new (`+`) and what is gone (`-`) from one profile to another, as safe text; None: all is new."""
    old = _lines(before) if before else {}
    new = _lines(now)
    lines = []
    for key in {**new, **old}:
        gone = [text for text in old.get(key, ()) if text not in new.get(key, ())]
        added = [text for text in new.get(key, ()) if text not in old.get(key, ())]
        lines += [*(f"- {key}: {text}" for text in gone), *(f"+ {key}: {text}" for text in added)]
    return lines


def bounded(lines: list[str]) -> list[str]:
    """As many lines as a person reads, each of a length that a terminal shows; what is left out is said."""
    shown = [
        line if len(line) <= _LONGEST else f"{line[:_LONGEST]}… ({len(line) - _LONGEST:,} more characters)"
        for line in lines[:_MOST_LINES]
    ]
    more = len(lines) - _MOST_LINES
    return [*shown, f"… and {more:,} more lines: read the file"] if more > 0 else shown


def flat(data: Mapping[str, object]) -> dict[str, str]:
    """The data of a profile as `job.env.A` → text; a list of words is one line, a host goes by its name."""
    return dict(_flat(data, ""))


def _lines(profile: Profile) -> dict[str, list[str]]:
    """Key → its lines, those that decide what runs first."""
    found: dict[str, list[str]] = {}
    for key, text in foreign_lines(profile):
        if key != "env":  # the names alone; the values come below
            more = ""
            if key == "hosts" and not text.isascii():
                more = f", in ASCII: {ascii(text)[1:-1]}"  # letters of other alphabets look like ours
            if key == "on_end.webhook":
                more = f" ({_digest(profile.on_end.webhook or '')})"  # two addresses may differ in what is not shown
            found.setdefault(key, []).append(text + more)
    rest = flat(profile.as_written())
    for key in sorted(rest, key=lambda key: not key.startswith(_FIRST)):
        of_host = key.startswith("hosts.") and key.rpartition(".")[2] in _OF_A_HOST and key.count(".") == 2
        if key not in _SHOWN_ABOVE and not of_host:
            found.setdefault(printable(key), []).append(printable(rest[key]))
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _flat(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and path == "hosts":
        known: set[str] = set()
        for at, host in enumerate(value):
            one = host if isinstance(host, Mapping) else {"host": host}
            # A dot would look like a key, and of two hosts with one name neither may hide the other.
            name = str(one.get("name") or one.get("host") or at).replace(".", "_")
            name = f"{name}#{at}" if name in known else name
            known.add(name)
            yield from _flat(one, f"hosts.{name}")
    elif isinstance(value, list) and any(isinstance(one, Mapping | list) for one in value):
        for at, one in enumerate(value):
            yield from _flat(one, f"{path}.{at}")
    else:
        yield path, _text(value)


def _text(value: object) -> str:
    if isinstance(value, list):
        return shown_words(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
