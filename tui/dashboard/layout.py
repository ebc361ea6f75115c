"""Which panes of a run's screen are shown, and where: for the size of the terminal, zoomed, or stacked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.charts.chart import Chart
from tui.dashboard.hosts import HostsPane
from tui.dashboard.load import LoadPane
from tui.dashboard.rank_grid import RankGrid
from tui.dashboard.story import StoryPane

if TYPE_CHECKING:
    from tui.screen import DisttuiScreen

CHARTS = 6
MANY = 128
"""Ranks from which on their grid needs the room of the events."""
STACKED = (80, 20)
"""Columns and rows under which the panes stand under one another, the most important first."""
ROOMY = 30
"""Rows from which on why a run has failed leaves room for all panes."""
LEAST = 4
"""Rows of a pane that shows more than its title."""
EVENTS = 9
"""Rows that the events keep where the load is shown above them."""


class PaneLayout:
    """Lays out the panes of a screen; the styles of its classes are the screen's."""

    def __init__(self, screen: DisttuiScreen) -> None:
        self._screen = screen
        self.pane = "ranks"
        """Id of the pane that has the focus, or had it last."""
        self.zoomed = False
        """Whether that pane is shown alone."""

    @property
    def stacked(self) -> bool:
        """Whether there is too little room for panes side by side."""
        width, height = self._screen.size
        return width < STACKED[0] or height < STACKED[1]

    def tell(self, *, story: bool) -> None:
        """There is something to say of why the run has failed, or no longer."""
        if story != self._screen.has_class("-story"):
            self._screen.set_class(story, "-story")
            self.arrange()

    def arrange(self) -> None:
        """Show what there is room for."""
        screen, alone = self._screen, self.zoomed
        width, height = screen.size
        stack = not alone and self.stacked
        top, beside = self._stacked(height)
        one = self.pane if alone else top if stack else None
        rows = 1 if height < 36 else 2 if height < 70 else 3
        columns = 1 if width < 130 else 2
        for chart in screen.query(Chart):
            number = int(str(chart.id)[5:])
            chart.display = one == chart.id if one else number // 2 < rows and number % 2 < columns
        for row in range(CHARTS // 2):
            charts = [screen.query_one(f"#chart{2 * row + side}") for side in (0, 1)]
            screen.query_one(f"#row{row}").display = any(chart.display for chart in charts)
        crowded = screen.has_class("-many") or (screen.has_class("-story") and height < ROOMY and self.pane != "events")
        for name in ("hosts", "ranks", "log", "events"):
            shown = one == name if one else name != "events" or not crowded
            shown |= stack and name in beside
            screen.query_one(f"#{name}").set_class(not shown, "-off")
        screen.query_one(LoadPane).fit(0 if one or crowded else self._spare())
        screen.query_one("#left").display = one in (None, "hosts", "ranks", "events") or (stack and "hosts" in beside)
        screen.query_one("#charts").display = one is None or one.startswith("chart")
        screen.query_one("#upper").set_class(one == "log", "-off")
        if stack != screen.has_class("-stack"):
            # What was beside the charts comes under them.
            upper, order = screen.query_one("#upper"), ("#left", "#charts")
            first, second = map(screen.query_one, reversed(order) if stack else order)
            upper.move_child(first, before=second)
        screen.set_class(alone, "-alone")
        screen.set_class(stack, "-stack")
        screen.set_class(stack and not top.startswith("chart"), "-listed")
        screen.query_one(StoryPane).styles.max_height = _most_of_story(height)

    def _spare(self) -> int:
        """Rows beside the charts that hosts, ranks and events leave to the load."""
        width, height = self._screen.size
        upper = (height - 4 - self._story_rows()) * 3 // 5
        panes = (self._screen.query_one(HostsPane), self._screen.query_one(RankGrid))
        left = min(76, width * 2 // 5 if width >= 130 else width // 2) - 4
        taken = sum(pane.rows(left) + 1 for pane in panes) + EVENTS
        return max(0, upper - taken - 1)

    def _story_rows(self) -> int:
        """Rows that why the run has failed takes."""
        if not self._screen.has_class("-story"):
            return 0
        width, height = self._screen.size
        return min(_most_of_story(height), self._screen.query_one(StoryPane).rows(width - 2) + 1)

    def _stacked(self, height: int) -> tuple[str, tuple[str, ...]]:
        """What stands at the top where there is no room for all panes, and what else does."""
        room = height - 4 - self._story_rows()
        if room < 2 * LEAST:
            return self.pane, ()
        if self.pane in ("ranks", "events"):
            return self.pane, ("log",)
        top = self.pane if self.pane.startswith("chart") else "chart0"
        if room >= 3 * LEAST:
            return top, ("log", "hosts")
        return "hosts" if self.pane == "hosts" else top, ("log",)

    def names(self, offered: int) -> list[str]:
        """The panes that tab goes through. `offered`: numbers that charts can draw."""
        charts = [f"chart{number}" for number in range(min(CHARTS, max(1, offered)))]
        names = ["hosts", "ranks", *charts, "events", "log"]
        if self._screen.has_class("-alone") or self._screen.has_class("-stack"):
            return names
        return [name for name in names if self._screen.query_one(f"#{name}").display]


def _most_of_story(height: int) -> int:
    """Rows at most of why a run has failed."""
    return 4 if height < 16 else 5 if height < 24 else 7 if height < 40 else 12
