"""What a profile says, line by line, and how two differ: what runs, where and with which secrets comes first.

The user says yes or no by these lines, and who wrote the profile wants a yes: nothing in it may hide another part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import zip_longest
from operator import getitem
from typing import Any, NamedTuple

from disttui.runner.profile import leaks
from disttui.runner.profile.effects import command_text, effect_lines, logins, shown_words
from disttui.runner.profile.effects import effects as all_effects
from disttui.runner.profile.problems import printable
from disttui.runner.profile.schema import NOTIFY_KINDS, Profile
from disttui.runner.text.masking import MASK, masked

_MOST_LINES = 200
_LONGEST = 1000
"""Characters of a line that is shown."""
_ROOM = 200
"""Further ones for the key, and for the note about those that are omitted."""
_AROUND = 40
"""Characters that are shown before those that differ."""
_SHOWN_ABOVE = frozenset((
    "job.builtin", "job.script", "job.module", "job.command", "job.args", "job.wrap", "job.outputs",
    "launch.resume_args", "on_end.command", "on_end.webhook", *(f"notify.{kind}" for kind in NOTIFY_KINDS),
))  # fmt: skip
"""Keys that `effect_lines` has in full."""
_OF_A_HOST = ("host", "name", "user", "port")
"""The same of a host: they stand in the lines `hosts`."""
_REPEATED = ("python", "activate")
"""Keys of the profile, or of a host, that `effect_lines` has in full where they are used as they are written."""
_FIRST = ("env.", "job.env.", "hosts.")
_ALWAYS = ("hosts:", "job.", "launch.resume_args:", "on_end.", "notify.", "${")
"""Beginnings of lines that are shown however many others there are, as are those of all that runs."""


class _Statement(NamedTuple):
    text: str
    shown: str
    """Without secrets."""
    repeats: str = ""
    """The text of another line of the same side that says it as well."""


class Change(NamedTuple):
    """A line of a difference."""

    text: str
    always: bool
    """Whether it is shown however many others there are."""


def difference(before: Profile | None, now: Profile) -> list[Change]:
    """What is new (`+`) and what is gone (`-`) from one profile to another, as safe text; None: all is new."""
    effects = [list(effect_lines(each)) for each in (now, before) if each]
    new = _lines(now, effects[0])
    old = _lines(before, effects[1]) if before else {}
    left, come = _repeated(old, new), _repeated(new, old)
    run = {key: None for lines in effects for key, _ in lines}
    lines = []
    # What runs comes before hosts and secrets, of which there may be many.
    for key in {**dict.fromkeys(key for key in run if not key.startswith("${")), **new, **old}:
        texts, others = ({line.text for line in each.get(key, ())} for each in (new, old))
        gone = [line.shown for line in old.get(key, ()) if line.text not in texts and line.repeats not in left]
        added = [line.shown for line in new.get(key, ()) if line.text not in others and line.repeats not in come]
        if key == "hosts" and [one for one in old.get(key, ()) if one.text in texts] != [
            one for one in new[key] if one.text in others
        ]:
            added.append(f"in another order: {', '.join(one.shown for one in new[key])}")
        cut = [_cut(*pair) for pair in zip_longest(gone, added)]
        always = key in run or (f"{key}:".startswith(_ALWAYS) and not key.startswith("job.env."))
        lines += [Change(f"- {key}: {text}", always) for text, _ in cut if text is not None]
        lines += [Change(f"+ {key}: {text}", always) for _, text in cut if text is not None]
    return lines


def _repeated(lines: Mapping[str, list[_Statement]], others: Mapping[str, list[_Statement]]) -> set[str]:
    """The texts of what runs that only one side has, so that they are shown."""
    ours, theirs = ({line.text for key in _REPEATED for line in each.get(key, ())} for each in (lines, others))
    return ours - theirs


def bounded(lines: list[Change]) -> list[str]:
    """As many lines as a person reads, each of a length that a terminal shows; what is left out is said.

    What runs and which secrets go where is never left out.
    """
    always = [at for at, line in enumerate(lines) if line.always]
    others = [at for at, line in enumerate(lines) if not line.always]
    room = max(0, _MOST_LINES - len(always))
    shown = [_short(lines[at].text, room=_ROOM) for at in sorted([*always, *others[:room]])]
    more = len(others) - room
    return [*shown, f"… and {more:,} more lines: read the file"] if more > 0 else shown


def _cut(gone: str | None, added: str | None) -> tuple[str | None, str | None]:
    """Two texts in one another's place, cut to where they differ; or one text by itself."""
    if gone is None or added is None or gone == added:
        return None if gone is None else _short(gone), None if added is None else _short(added)
    before = alike(gone, added)
    after = min(alike(gone[::-1], added[::-1]), len(gone) - before, len(added) - before)
    before, after = max(0, before - _AROUND), max(0, after - _AROUND)
    return _short(gone, before, after), _short(added, before, after)


def alike(one: Sequence[object], other: Sequence[object]) -> int:
    """How many characters, or lines, are the same from the first on."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _short(text: str, before: int = 0, after: int = 0, room: int = 0) -> str:
    """A text of a length that a terminal shows: without what is as before, then without its middle."""
    if len(text) <= _LONGEST + room:
        return text
    middle = text[before : len(text) - after]
    if (more := len(middle) - _LONGEST) > 0:
        half = _LONGEST // 2
        middle = f"{middle[:half]}… ({more:,} more characters: read the file) …{middle[-half:]}"
    same = "({:,} characters as before)"
    return f"{same.format(before) + ' …' if before else ''}{middle}{'… ' + same.format(after) if after else ''}"


def flat(data: Mapping[str, object]) -> dict[str, str]:
    """The data of a profile as `job.env.A` → text; a list of words is one line, a host goes by its name."""
    return dict(_flat(data, ""))


def _lines(profile: Profile, effects: list[tuple[str, str]]) -> dict[str, list[_Statement]]:
    """Key → its lines, those that decide what runs, and where, first."""
    found: dict[str, list[_Statement]] = {"hosts": [_Statement(*[_with_ascii(login)] * 2) for login in logins(profile)]}
    for key, text in effects:
        # Two addresses may differ in what is not shown.
        section, _, name = key.partition(".")
        address = getattr(getattr(profile, section), name) if section in ("on_end", "notify") else ""
        more = f" ({_digest(address)})" if isinstance(address, str) and address else ""
        found.setdefault(key, []).append(_statement(text + more))
    said: dict[tuple[str, str], str] = {}
    for key in _REPEATED:
        commands = (command_text(one) for one in all_effects(profile) if one.key == key)
        said |= {(key, command): line.text for command, line in zip(commands, found.get(key, ()), strict=True)}
    data = profile.as_written()
    rest, shown = flat(data), flat(_without_leaks(data))
    for key in sorted(rest, key=lambda key: not key.startswith(_FIRST)):
        if key not in _SHOWN_ABOVE and not (_is_of_host(key) and key.rpartition(".")[2] in _OF_A_HOST):
            seen = rest if key in found else shown  # the same as what runs, which is not masked
            text = printable(rest[key])
            above, _, last = key.rpartition(".")
            # A variable may also be called python.
            repeats = said.get((last, text), "") if not above or _is_of_host(key) else ""
            found.setdefault(printable(key), []).append(_statement(text, printable(seen[key]), repeats))
    return found


def _is_of_host(key: str) -> bool:
    """Whether it is a key of a host itself, as `hosts.NAME.python`."""
    return key.startswith("hosts.") and key.count(".") == 2


def _statement(text: str, shown: str | None = None, repeats: str = "") -> _Statement:
    # What only looks like a secret may be a command, or the name of one: of what runs it is shown.
    return _Statement(text, masked(text if shown is None else shown, guesses=False), repeats)


def _with_ascii(login: str) -> str:
    """A login; letters of other alphabets look like ours."""
    return login if login.isascii() else f"{login}, in ASCII: {ascii(login)[1:-1]}"


def _without_leaks(data: Mapping[str, object]) -> dict[str, object]:
    """The data of a profile, with what looks like a secret masked in its own place alone."""
    copied: Any = json.loads(json.dumps(data))
    for leak in leaks.in_data(data):
        *path, last = leak.path
        if path != ["hosts"] and not (path[:1] == ["hosts"] and last in _OF_A_HOST):  # these are parts of keys
            inner = reduce(getitem, path, copied)
            inner[last] = str(inner[last]).replace(leak.value, MASK)
    return {**copied}


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
