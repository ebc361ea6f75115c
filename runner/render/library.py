"""Renders libraries of profiles, and the result of syncing one, as text and as data for JSON."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from disttui.runner.api.libraries import LibraryContent, LibraryProfile
from disttui.runner.api.library_edits import Compared
from disttui.runner.formatting import amount, duration, when
from disttui.runner.ids import short
from disttui.runner.library.git import Commit
from disttui.runner.library.syncing import Synced
from disttui.runner.profile.effects import names
from disttui.runner.profile.library import INVENTORIES, libraries
from disttui.runner.profile.nodes import MappingNode, Node, ScalarNode, SequenceNode
from disttui.runner.profile.problems import SourceLocation, printable
from disttui.runner.profile.save import diff, inline
from disttui.runner.profile.schema import Profile
from disttui.runner.render.status import GLYPHS
from disttui.runner.text import clean
from disttui.runner.text.masking import masked

_GAP = "  "


def library_table(found: Sequence[LibraryContent]) -> str:
    """A table of every library with its profiles and inventories."""
    rows = [[_cells(one) for one in (*each.profiles, *each.inventories)] for each in found]
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
    """The libraries and their profiles as data for JSON."""
    return [
        {
            "library": content.library.name,
            "folder": str(content.library.folder),
            "url": content.library.url or None,
            "problem": content.problem or None,
            "profiles": [_data(one) for one in content.profiles],
            "inventories": [
                {"name": one.full_name, "hosts": list(one.header.hosts), "problem": one.header.problem or None}
                for one in content.inventories
            ],
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
    """Every value of a profile with its file and line, one per line."""
    found = list(_placed(profile))
    widest = max((len(one.key) for one, _ in found), default=0)
    return [f"{clean(one.key).ljust(widest)}{_GAP}{clean(masked(one.value))}{_GAP}# {place}" for one, place in found]


def origin_data(profile: Profile) -> list[dict[str, object]]:
    """Every value of a profile with its file and line, as data for JSON."""
    return [
        {"key": clean(one.key), "value": clean(masked(one.value)), "place": place} for one, place in _placed(profile)
    ]


def _placed(profile: Profile) -> Iterator[tuple[Origin, str]]:
    """Yield every value with its `file:line`; files in a library as `library/path`."""
    roots = [(os.path.realpath(each.folder) + "/", f"{each.name}/") for each in libraries()]
    for one in _leaves(profile.tree, "") if profile.tree else ():
        where = os.path.realpath(one.place.source) if one.place.line else one.place.source
        for folder, name in roots:
            where = name + where.removeprefix(folder) if where.startswith(folder) else where
        yield one, printable(f"{where}:{one.place.line}" if one.place.line else where)


def side_by_side(found: Compared) -> str:
    """Two versions of a profile: keys that differ in columns, or a line diff if a file cannot be parsed."""
    titles, changes = found.titles, found.changes
    if changes is None:
        return "\n".join(map(clean, diff(*found.texts)))
    rows = [("", *titles), *((each.key, each.before, each.after) for each in changes)]
    if len(rows) == 1:
        comments = "" if found.texts[0] == found.texts[1] else ": only comments and layout differ"
        return f"{titles[0]} and {titles[1]} have the same values{comments}"
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
    is_inventory = one.entry.name.startswith(f"{INVENTORIES}/")
    rest = ("", "", "inventory") if is_inventory else (_processes(header.processes), _last(one), " · ".join(said))
    return name, names(header.hosts), *rest


def _processes(counts: Sequence[int | None]) -> str:
    known = sum(count or 0 for count in counts)
    return "auto" if not all(counts) else amount(known, "process")


def _last(one: LibraryProfile) -> str:
    if one.last is None:
        return "-"
    age = duration(max(0, time.time() - one.last.started))
    return f"{GLYPHS.get(one.last.state, '◌')} {one.last.state} {age} ago"


def _data(one: LibraryProfile) -> dict[str, object]:
    last = one.last
    return {
        "name": clean(one.entry.name),
        "full_name": clean(one.full_name),
        "file": printable(str(one.entry.path)),
        "description": one.header.description,
        "hosts": one.header.hosts,
        "processes": one.header.processes,
        "problem": one.header.problem or None,
        "shadowed_by": clean(one.shadowed_by) or None,
        "last_run": {**last._asdict(), "id": short(last.run)} if last else None,
    }


class Origin(NamedTuple):
    """A value of a profile, and its source location."""

    key: str
    value: str
    """As written in YAML, on one line."""
    place: SourceLocation


def _leaves(node: Node, key: str) -> Iterator[Origin]:
    if isinstance(node, MappingNode) and node.entries:
        for name, (_, value) in node.entries.items():
            yield from _leaves(value, f"{key}.{name}" if key else name)
    elif isinstance(node, SequenceNode) and node.items:
        places = {(item.place.source, item.place.line) for item in node.items}
        if len(places) == 1 and all(isinstance(item, ScalarNode) for item in node.items):
            texts = [_text(item) for item in node.items if isinstance(item, ScalarNode)]
            yield Origin(key, f"[{', '.join(texts)}]", node.items[0].place)
            return
        for at, item in enumerate(node.items):
            yield from _leaves(item, f"{key}.{at}")
    else:
        text = _text(node) if isinstance(node, ScalarNode) else "{}" if isinstance(node, MappingNode) else "[]"
        yield Origin(key, text, node.place)


def _text(node: ScalarNode) -> str:
    return node.text if node.plain else inline(node.text)


_LISTED = 10


def synced_data(done: Synced) -> dict[str, object]:
    """The result of a sync as data for JSON."""
    return {
        "cloned": done.cloned,
        "received": list(done.received),
        "sent": done.sent,
        "saved": list(done.by_hand),
        "not_saved": dict(done.left),
        "conflicts": dict(done.kept),
    }


def synced_lines(name: str, done: Synced) -> list[str]:
    """The result of a sync as lines, with conflicts and what was not saved."""
    words = ["cloned"] if done.cloned else []
    words += [f"{amount(len(done.received), 'file')} received"] if done.received else []
    words += [f"{amount(done.sent, 'edit')} sent"] if done.sent else []
    lines = [f"{name}: {', '.join(words) or 'nothing new'}"]
    lines += [f"{_GAP}{clean(file)}: your manual edit was saved" for file in done.by_hand[:_LISTED]]
    if (more := len(done.by_hand) - _LISTED) > 0:
        lines.append(f"{_GAP}… and {more} more manually edited files")
    lines += [f"{_GAP}▲ {clean(file)}: your edit was not saved: {clean(why)}" for file, why in done.left]
    for file, other in done.kept:
        mine, theirs = clean(other.rpartition(".")[0]), clean(file.rpartition(".")[0])
        lines.append(f"{_GAP}▲ {theirs}: conflict; your version is {name}/{mine}")
        lines.append(f"{_GAP}  → disttui library diff {name}/{theirs}")
    if done.hooks_left_out:
        lines.append(f"{_GAP}▲ the repository's hooks were skipped: others can change them")
        lines.append(f"{_GAP}  → use SSH or HTTPS, or let only you and root write the repository, its config and hooks")
    return lines
