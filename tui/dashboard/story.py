"""A run in words: its progress, and a pane that explains why it failed, stalls, is queued, or is unreachable."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from rich.cells import chop_cells
from rich.style import Style
from textual.strip import Strip

from disttui.runner.diagnose.doubts import doubts
from disttui.runner.diagnose.hang import sentences, standings
from disttui.runner.formatting import amount, clock, duration
from disttui.runner.ids import short
from disttui.runner.protocol.events import Stall, silence, stall_text
from disttui.runner.render.status import eta, metric_words, progress
from disttui.runner.render.story import ending, resumption, stall_lines
from disttui.runner.render.waiting import stage, waits_for
from disttui.runner.runs.state import RunState
from disttui.runner.text import clean
from disttui.tui.run.feed import Snapshot
from disttui.tui.theme import look
from disttui.tui.widgets.drawn import POINTER, Drawn, Piece, cells, line, wrapped


class ProgressLine(Drawn):
    """The progress: `step 1,240 / 5,000 ━━━━━╸───── 25 %  eta 0:37:40  attempt 1 of 3`."""

    DEFAULT_CSS = "ProgressLine { height: 1; padding: 0 1; text-style: none; }"
    _snapshot: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        """Draw the texts, with a bar in the remaining room."""
        if self._snapshot is None:
            return []
        snapshot, quiet = self._snapshot, self.component("muted")
        state = snapshot.state
        state_done, left_time = progress(state), eta(state)
        ends: list[list[Piece]] = []
        if left_time is not None:
            ends.append([("  eta ", quiet), f"{duration(left_time):>5}"])
        if state.attempt and (snapshot.setup.attempts > 1 or state.attempt > 1):
            most = max(snapshot.setup.attempts, state.attempt)
            ends.append([("  attempt ", quiet), f"{state.attempt}", (f" of {most}", quiet)])
        if state_done is None:
            words = "local records end before its first step" if snapshot.cut_off else stage(state)
            return [line([(words, quiet), *chain(*ends)])]
        step, steps = state_done
        share = max(0.0, min(1.0, step / steps))
        total = f"{steps:,.0f}"
        left: list[Piece] = [("step ", quiet), f"{step:>{len(total)},.0f}", (f" / {total}  ", quiet)]
        ends.insert(0, [f" {share * 100:3.0f} %"])
        room = width - cells(left) - sum(map(cells, ends))
        while room < 8 and len(ends) > 1:
            room += cells(ends.pop())
        return [line([*left, *self._bar(share, max(0, room)), *chain(*ends)])]

    def _bar(self, share: float, width: int) -> list[Piece]:
        full = int(share * width)
        head = "╸" if full < width else ""
        rest = "─" * (width - full - len(head))
        return [("━" * full + head, self.component("accent")), (rest, self.component("rule"))]


def facts(snapshot: Snapshot, charted: Snapshot) -> list[str]:
    """The facts beside a run's name in the header, the most important first.

    Args:
        charted: The snapshot that the charts show, which provides the metrics, as means over the ranks.
    """
    state = snapshot.state
    found = [amount(len(state.hosts), "host"), amount(state.world_size, "rank")]
    found += [f"job {clean(state.queued['job'])}"] if state.queued is not None else []
    found += [word for word in (snapshot.setup.backend, snapshot.setup.strategy) if word]
    tracks, metrics = charted.history.all, dict(charted.state.metrics)
    for name in metrics:
        mean = tracks[name].at(charted.now) if name in tracks else None
        if mean is not None:
            metrics[name] = mean
    words = metric_words(metrics)
    if len(charted.history.each.get("loss", ())) > 1:
        words = [f"mean {one}" if one.startswith("loss ") else one for one in words]
    return found + words


class StoryPane(Drawn):
    """Shows the cause first, then its consequences, then the exception."""

    can_focus = True
    BORDER_TITLE = "What happened"
    _lines: Sequence[str] = ()
    _kind = "failed"

    def show(self, snapshot: Snapshot) -> bool:
        """Show a snapshot; return whether there is a story."""
        lines, self._kind = story(snapshot)
        self.border_title = "What it waits for" if self._kind == "queued" else self.BORDER_TITLE
        if lines != self._lines:
            self._lines = lines
            self.refresh(layout=True)
            self.redraw()
        return bool(lines)

    def rows(self, width: int) -> int:
        return len(wrapped(self._lines, max(10, width)))

    def draw(self, width: int, height: int) -> list[Strip]:
        """Draw what fits: the beginning, the cure, and the last lines, which contain the exception."""
        room = max(10, width)
        texts = self._lines
        if len(wrapped(texts, room)) > height:
            texts = [text for text in texts if not POINTER.fullmatch(text)]
        lines, head = wrapped(texts, room), wrapped(texts[:1], room)
        bold = len(head)
        at = next((at for at, text in enumerate(texts) if text.startswith("  → ")), 0)
        if len(lines) > height and at:
            cure = wrapped(texts[at : at + 1], room)
            bold = max(1, min(bold, 2, height - len(cure)))
            free = max(0, height - bold - len(cure))
            gap = ["  …"][: free - 1] if free else []
            lines = [*_cut(head, bold, width), *gap, *cure, *_last(texts[at + 1 :], free - len(gap), room)]
        elif len(lines) > height > 3:
            lines, bold = [*lines[:2], "  …", *_last(texts, height - 3, room)], min(bold, 2)
        elif len(lines) > height == 3 and self._kind == "failed" and bold < 3:
            # The last text is the exception, and its first row contains the type.
            lines, bold = [*lines[:2], *wrapped(texts[-1:], room)], min(bold, 2)
        lines = _cut(lines, height, width)
        first = self.component(look(self._kind).css) + Style(bold=True)
        return [line([(text, first)] if at < bold else [text]) for at, text in enumerate(lines)]


def _cut(rows: list[str], most: int, width: int) -> list[str]:
    """The first `most` rows, with an ellipsis at the end if some are omitted."""
    if len(rows) <= most or most < 1:
        return rows
    return [*rows[: most - 1], f"{next(iter(chop_cells(rows[most - 1], width - 2)), '')} …"]


def _last(texts: Sequence[str], most: int, width: int) -> list[str]:
    """The last texts that fit into `most` rows, after the beginning of the text before them."""
    rows: list[str] = []
    for text in reversed(texts):
        if len(rows) < most:
            rows = [*_cut(wrapped([text], width), most - len(rows), width), *rows]
    return rows


def story(snapshot: Snapshot) -> tuple[list[str], str]:
    """The lines of the story, cleaned, and the state whose style they have."""
    state = snapshot.state
    result = state.result
    if state.lost or (result is not None and result.get("state") in ("failed", "lost")):
        texts = ending(state, state.elapsed, snapshot.mirror, {})
        head, *rest = (clean(text) for text in texts if text and not text.startswith("logs: "))
        lacking = [] if state.lost else _lacking(snapshot)
        # The header has the run's name.
        return [head.replace(f"{short(state.run)} ", "", 1), *lacking, *rest], "failed"
    if snapshot.cut_off:
        return ["◇ the rest of this run is not on this machine", *_lacking(snapshot)], "not seen"
    stall = state.hosts[0].story.stall
    if result is None and stall is not None:
        return _stall(state, stall, snapshot), "warning"
    if result is not None and result.get("state") == "stopped" and (texts := stall_lines(state)):
        return [clean(text) for text in texts], "warning"
    unseen = [host for host in state.hosts if host.link == "not seen"]
    if result is None and unseen and snapshot.playback is None:
        shown = unseen if len(unseen) <= 3 else unseen[:2]
        lines = []
        for host in shown:
            last = snapshot.seen.get(host.node)
            since = f" since {clock(last)}" if last else ""
            note = f": {clean(host.link_note).removeprefix(f'{clean(host.name)}: ')}" if host.link_note else ""
            lines.append(f"◇ {clean(host.name)} unreachable{since}{note}")
        if len(unseen) > len(shown):
            lines.append(f"◇ and {len(unseen) - len(shown)} more hosts")
        # The last line is never cut.
        lines.append("  The run may still be going; its state is unknown until the connection is back.")
        return lines, "not seen"
    resumed = resumption(state)
    lines = [*doubts(state), *([resumed.text] if resumed and resumed.anew else [])]
    if lines and (result is None or result.get("state") == "finished"):
        return [f"▲ {line}" for line in lines], "warning"
    if waits := waits_for(state):
        then = ["  It starts automatically when its turn comes."] if snapshot.playback is None else []
        return [f"◌ {waits}", *then], "queued"
    return [], "running"


def _lacking(snapshot: Snapshot) -> list[str]:
    return [f"  {clean(line)}" for line in snapshot.playback.lacking] if snapshot.playback else []


def _stall(state: RunState, stall: Stall, snapshot: Snapshot) -> list[str]:
    """The lines about a stall. The positions of the ranks were queried when it was detected, and may be outdated."""
    since = max(0.0, snapshot.now - stall["t"])
    texts = sentences(standings(state))
    asked = [f"asked {duration(since)} ago"] if texts else []
    if snapshot.playback is None:
        asked.append("d asks every rank again" if texts else "d asks every rank")
    return [
        f"▲ {stall_text(stall, duration(silence(stall) + since))}",
        *(f"  {clean(text)}" for text in [*texts, "; ".join(asked)] if text),
    ]
