"""Two runs side by side, as text and as data."""

from __future__ import annotations

from collections.abc import Iterator

from runner.api.comparing import SECTIONS, Comparison
from runner.ids import short
from runner.text import clean

_LONGEST = 120
"""Characters of a value that is shown beside another."""


def render_comparison(found: Comparison) -> Iterator[str]:
    """The lines of `disttui diff`."""
    one, other = map(short, found.runs)
    yield f"{one} → {other}"
    same = []
    for section in SECTIONS:
        differences = found.of(section)
        if not differences:
            same.append(section)
            continue
        yield ""
        yield section
        width = min(40, max(len(one.key) for one in differences))
        for difference in differences:
            before, after = (_shown(value) for value in (difference.before, difference.after))
            yield f"  {clean(difference.key):<{width}}  {before} → {after}"
    if found.changes:
        yield ""
        yield from (f"  {clean(line)}" for line in found.changes)
    for run in found.unknown:
        yield ""
        yield f"▲ {short(run)}: command, code, versions and hosts were not kept: they are not compared"
    known = [section for section in same if not found.unknown or section in ("profile", "result")]
    if known:
        yield ""
        yield f"the same: {', '.join(known)}"


def comparison_json(found: Comparison) -> dict[str, object]:
    """The same as data."""
    sections: dict[str, object] = {
        section: [{"key": one.key, "before": one.before, "after": one.after} for one in found.of(section)]
        for section in SECTIONS
    }
    return {"runs": list(found.runs), **sections, "changes": list(found.changes), "unknown": list(found.unknown)}


def _shown(value: str | None) -> str:
    if not value:
        return "nothing" if value is None else "''"
    text = clean(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
