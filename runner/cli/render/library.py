"""Libraries of profiles as text and as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from runner.api.libraries import LibraryContent, LibraryProfile
from runner.formatting import amount, duration
from runner.ids import short
from runner.profile.disclosure import names
from runner.profile.problems import printable
from runner.render.status import GLYPHS
from runner.text import clean

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


def _cells(one: LibraryProfile) -> tuple[str, ...]:
    name, header = clean(one.entry.name), one.header
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
