"""Why a run failed, stalls, waits in a queue, or is not seen: a pane that is shown only in these cases."""

from __future__ import annotations

import time
from typing import ClassVar

from rich.style import Style
from textual.strip import Strip

from runner.diagnose.hang import sentences, standings
from runner.formatting import duration
from runner.ids import short
from runner.protocol.events import Stall
from runner.render.story import ending, stall_lines
from runner.render.waiting import waits_for
from runner.runs.state import RunState
from runner.text import clean
from tui.run.feed import Snapshot
from tui.theme import look
from tui.widgets.drawn import Drawn, line
from tui.widgets.wrap import wrapped


class StoryPane(Drawn):
    """Shows the cause first, then its consequences, then the exception."""

    can_focus = True
    COMPONENT_CLASSES: ClassVar[set[str]] = {"story--quiet"}
    DEFAULT_CSS = """
    StoryPane { & > .story--quiet { color: $muted; } }
    """

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.border_title = "What happened"
        self._lines: list[str] = []
        self._kind = "failed"

    def show(self, snapshot: Snapshot) -> bool:
        """Show a snapshot; return True if there is a story."""
        lines, self._kind = story(snapshot)
        self.border_title = "What it waits for" if self._kind == "queued" else "What happened"
        if lines != self._lines:
            self._lines = lines
            self.refresh(layout=True)
            self.redraw()
        return bool(lines)

    def rows(self, width: int) -> int:
        """Number of rows of the story at a width."""
        return len(wrapped(self._lines, max(10, width)))

    def draw(self, width: int, height: int) -> list[Strip]:
        """Draw as much as fits: the beginning, and the last lines, which contain the exception."""
        lines = wrapped(self._lines, max(10, width))
        bold = len(wrapped(self._lines[:1], max(10, width)))
        if len(lines) > height > 3:
            lines, bold = [*lines[:2], "  …", *lines[-(height - 3) :]], min(bold, 2)
        elif len(lines) > height == 3 and self._kind == "failed" and bold < 3:
            # What was raised; its first row has the type.
            lines, bold = [*lines[:2], *wrapped(self._lines[-1:], max(10, width))], min(bold, 2)
        if 0 < height < len(lines):
            lines = [*lines[: height - 1], f"{lines[height - 1][: width - 2]} …"]
        first = self.component(look(self._kind).css) + Style(bold=True)
        return [line([(text, first)] if at < bold else [text]) for at, text in enumerate(lines)]


def story(snapshot: Snapshot) -> tuple[list[str], str]:
    """The lines of the story, cleaned, and the state that they describe."""
    state = snapshot.state
    result = state.result
    if result is not None and result.get("state") in ("failed", "lost"):
        texts = ending(state, state.elapsed, snapshot.mirror, {})
        head, *rest = (clean(text) for text in texts if text and not text.startswith("logs: "))
        # The header has the run's name.
        return [head.replace(f"{short(state.run)} ", "", 1), *rest], "failed"
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
            since = f" since {time.strftime('%H:%M:%S', time.localtime(last))}" if last else ""
            note = f": {clean(host.link_note).removeprefix(f'{clean(host.name)}: ')}" if host.link_note else ""
            lines.append(f"◇ {clean(host.name)} not seen{since}{note}")
        if len(unseen) > len(shown):
            lines.append(f"◇ and {len(unseen) - len(shown)} more hosts")
        # The last line is never cut out.
        lines.append("  A lost link ends no run; what goes on there is not known until it is back.")
        return lines, "not seen"
    if waits := waits_for(state):
        then = ["  It begins by itself in its turn."] if snapshot.playback is None else []
        return [f"◌ {waits}", *then], "queued"
    return [], "running"


def _stall(state: RunState, stall: Stall, snapshot: Snapshot) -> list[str]:
    """What is known of a stall: it lasts since it was seen; where the ranks are was asked then, and only then."""
    longest = max(stall.get("silent", {}).values(), default=None)
    since = max(0.0, snapshot.now - stall["t"])
    lasted = f" has made a step for {duration(longest + since)}" if longest is not None else " makes steps"
    texts = sentences(standings(state))
    asked = [f"asked {duration(since)} ago"] if texts else []
    if snapshot.playback is None:
        asked.append("d asks every rank again" if texts else "d asks every rank")
    return [f"▲ no rank{lasted}", *(f"  {clean(text)}" for text in [*texts, "; ".join(asked)] if text)]
