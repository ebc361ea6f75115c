"""Libraries of profiles as text and as JSON."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence

from runner.api.libraries import LibraryContent, LibraryProfile
from runner.api.library_edits import Compared
from runner.formatting import amount, duration, when
from runner.ids import short
from runner.library.git import Commit
from runner.profile import Profile
from runner.profile.disclosure import names
from runner.profile.edit import diff
from runner.profile.library import libraries
from runner.profile.origins import origins
from runner.profile.problems import printable
from runner.render.status import GLYPHS
from runner.text import clean
from runner.text.masking import masked

_GAP = "  "


def library_table(found: Sequence[LibraryContent]) -> str:
    """Every library with its profiles."""
    rows = [[_cells(one) for one in each.profiles] for each in found]
    widths = [max(map(len, column)) for column in zip(*(row for group in rows for row in group), strict=True)]
    lines = []
    for content, group in zip(found, rows, strict=True):
        where = printable(content.library.url or str(content.library.folder))
        lines.append(f"{content.library.name}{_GAP}{where}")
        lines += [
            (_GAP + _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
            for row in group
        ]
        if content.problem:
            lines.append(f"{_GAP}✗ {content.problem}")
        elif not group:
            lines.append(f"{_GAP}no profiles")
    return "\n".join(lines)


def library_data(found: Sequence[LibraryContent]) -> list[dict[str, object]]:
    """The same for JSON."""
    return [
        {
            "library": content.library.name,
            "folder": str(content.library.folder),
            "url": content.library.url or None,
            "problem": content.problem or None,
            "profiles": [dict(_data(one)) for one in content.profiles],
        }
        for content in found
    ]


def history_lines(found: Sequence[Commit]) -> list[str]:
    """Commits, one line each."""
    width = max((len(each.author) for each in found), default=0)
    return [
        f"{each.id[:10]}{_GAP}{when(each.time)}{_GAP}{each.author.ljust(width)}{_GAP}{each.subject}" for each in found
    ]


def origin_lines(profile: Profile) -> list[str]:
    """Every value of a profile with the file and line that it comes from; what is in a library by its name there."""
    roots = [(os.path.realpath(each.folder) + "/", f"{each.name}/") for each in libraries()]
    found = origins(profile)
    widest = max((len(one.key) for one in found), default=0)
    lines = []
    for one in found:
        where = os.path.realpath(one.place.source) if one.place.line else one.place.source
        for folder, name in roots:
            where = name + where.removeprefix(folder) if where.startswith(folder) else where
        place = f"{where}:{one.place.line}" if one.place.line else where
        lines.append(f"{clean(one.key).ljust(widest)}{_GAP}{clean(masked(one.value))}{_GAP}# {printable(place)}")
    return lines


def side_by_side(found: Compared) -> str:
    """Two versions of a profile: the keys that differ beside one another; lines where a file cannot be read."""
    titles, changes = found.titles, found.changes
    if changes is None:
        return "\n".join(map(clean, diff(*found.texts)))
    rows = [("", *titles), *((each.key, each.before, each.after) for each in changes)]
    if len(rows) == 1:
        comments = "" if found.texts[0] == found.texts[1] else ": only comments and layout differ"
        return f"{titles[0]} and {titles[1]} say the same{comments}"
    first = min(30, max(len(row[0]) for row in rows))
    half = max(20, (shutil.get_terminal_size((100, 24)).columns - first - 2 * len(_GAP)) // 2)
    lines = []
    for row in rows:
        cells = [_pieces(cell, width) for cell, width in zip(row, (first, half, half), strict=True)]
        for at in range(max(map(len, cells))):
            parts = [cell[at] if at < len(cell) else "" for cell in cells]
            lines.append(
                _GAP.join(part.ljust(width) for part, width in zip(parts, (first, half, half), strict=True)).rstrip()
            )
    return "\n".join(lines)


def _pieces(text: str, width: int) -> list[str]:
    return [text[at : at + width] for at in range(0, len(text), width)] or [""]


def _cells(one: LibraryProfile) -> tuple[str, ...]:
    name, header = clean(one.name), one.header
    if header.problem:
        return name, "✗", "", "", header.problem
    said = [f"shadowed by {clean(one.shadowed_by)}"] if one.shadowed_by else []
    said += [header.description] if header.description else []
    return name, names(header.hosts), _processes(header.processes), _last(one), " · ".join(said)


def _processes(counts: Sequence[int | None]) -> str:
    known = sum(count or 0 for count in counts)
    return "auto" if not all(counts) else amount(known, "process")


def _last(one: LibraryProfile) -> str:
    if one.last is None:
        return "-"
    age = duration(max(0, time.time() - one.last.started))
    return f"{GLYPHS.get(one.last.state, '◌')} {one.last.state} {age} ago"


def _data(one: LibraryProfile) -> Iterator[tuple[str, object]]:
    yield "name", clean(one.entry.name)
    yield "full_name", clean(one.full_name)
    yield "file", printable(str(one.entry.path))
    yield "description", one.header.description
    yield "hosts", list(one.header.hosts)
    yield "processes", list(one.header.processes)
    yield "problem", one.header.problem or None
    yield "shadowed_by", clean(one.shadowed_by) or None
    last = one.last
    yield (
        "last_run",
        {"run": last.run, "id": short(last.run), "state": last.state, "started": last.started} if last else None,
    )
