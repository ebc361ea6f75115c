"""What a sync of a library has done, in words."""

from __future__ import annotations

from disttui.runner.formatting import amount
from disttui.runner.library.syncing import Synced
from disttui.runner.text import clean

_GAP = "  "
_LISTED = 10


def synced_data(done: Synced) -> dict[str, object]:
    """The same for JSON."""
    return {
        "cloned": done.cloned,
        "received": list(done.received),
        "sent": done.sent,
        "saved": list(done.by_hand),
        "not_saved": dict(done.left),
        "conflicts": dict(done.kept),
    }


def synced_lines(name: str, done: Synced) -> list[str]:
    """What a sync has done."""
    words = ["cloned"] if done.cloned else []
    words += [f"{amount(len(done.received), 'file')} received"] if done.received else []
    words += [f"{amount(done.sent, 'edit')} sent"] if done.sent else []
    lines = [f"{name}: {', '.join(words) or 'nothing new'}"]
    lines += [f"{_GAP}{clean(file)}: your manual edit was saved" for file in done.by_hand[:_LISTED]]
    if (more := len(done.by_hand) - _LISTED) > 0:
        lines.append(f"{_GAP}… and {more} more manually edited files")
    lines += [f"{_GAP}▲ {clean(file)}: your edit is not saved: {clean(why)}" for file, why in done.left]
    for file, other in done.kept:
        mine, theirs = clean(other.rpartition(".")[0]), clean(file.rpartition(".")[0])
        lines.append(f"{_GAP}▲ {theirs}: conflict; your version is {name}/{mine}")
        lines.append(f"{_GAP}  → disttui library diff {name}/{theirs}")
    if done.hooks_left_out:
        lines.append(f"{_GAP}▲ the repository's hooks did not run: others can change them, and they would run as you")
        lines.append(f"{_GAP}  → reach it by SSH or HTTPS, or let only you and root write it, its config and its hooks")
    return lines
