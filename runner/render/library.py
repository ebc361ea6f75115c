"""What a sync of a library has done, in words."""

from __future__ import annotations

from runner.formatting import amount
from runner.library.syncing import Synced
from runner.text import clean

_GAP = "  "


def synced_lines(name: str, done: Synced) -> list[str]:
    """What a sync has done."""
    words = ["cloned"] if done.cloned else []
    words += [f"{amount(len(done.received), 'file')} received"] if done.received else []
    words += [f"{amount(done.sent, 'edit')} sent"] if done.sent else []
    lines = [f"{name}: {', '.join(words) or 'nothing new'}"]
    lines += [f"{_GAP}{clean(file)}: your edit by hand is saved" for file in done.by_hand]
    lines += [f"{_GAP}▲ {clean(file)}: your edit is not saved: {clean(why)}" for file, why in done.left]
    for file, other in done.kept:
        mine, theirs = clean(other.rpartition(".")[0]), clean(file.rpartition(".")[0])
        lines.append(f"{_GAP}▲ {theirs}: somebody has changed the same keys; your version is {name}/{mine}")
        lines.append(f"{_GAP}  → disttui library diff {name}/{theirs}")
    if done.hooks_left_out:
        lines.append(f"{_GAP}▲ the repository's hooks did not run: others can change them, and they would run as you")
        lines.append(f"{_GAP}  → reach it by SSH or HTTPS, or let only you and root write it, its config and its hooks")
    return lines
