"""The layout of a run's panes: side by side, stacked on small terminals, or one pane zoomed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disttui.tui.charts.chart import Chart
from disttui.tui.dashboard.hosts import HostsPane
from disttui.tui.dashboard.load import LoadPane
from disttui.tui.dashboard.rank_grid import RankGrid
from disttui.tui.dashboard.story import StoryPane

if TYPE_CHECKING:
    from disttui.tui.screen import DisttuiScreen

CHARTS = 6
MANY = 128
"""Number of ranks above which their grid replaces the events."""
STACKED = (80, 20)
"""Columns and rows below which the panes are stacked, the most important first."""
ROOMY = 30
"""Number of rows from which all panes fit below the story of a failure."""
LEAST = 4
"""Minimum rows of a pane that shows more than its title."""
EVENTS = 9
"""Rows that the events keep when the load is shown above them."""


class PaneLayout:
    """Lays out the panes of a screen by setting CSS classes, whose styles the screen defines."""

    def __init__(self, screen: DisttuiScreen) -> None:
        self._screen = screen
        self.pane = "ranks"
        """Id of the pane that has or last had the focus."""
        self.zoomed = False
        """Whether that pane is shown alone."""
        self._charts = 1
        """Number of charts with data; the first is always shown."""

    @property
    def stacked(self) -> bool:
        """Whether the terminal is too small for panes side by side."""
        width, height = self._screen.size
        return width < STACKED[0] or height < STACKED[1]

    def tell(self, *, story: bool, charts: int) -> None:
        """Set whether the story has text, and how many charts have data; arrange the panes if this changes."""
        charts = max(1, min(CHARTS, charts))
        if story != self._screen.has_class("-story") or charts != self._charts:
            self._screen.set_class(story, "-story")
            self._charts = charts
            self.arrange()

    def arrange(self) -> None:
        """Show the panes that fit."""
        screen, alone = self._screen, self.zoomed
        width, height = screen.size
        stack = not alone and self.stacked
        top, beside = self._stacked(height)
        one = self.pane if alone else top if stack else None
        rows = 1 if height < 34 else 2 if height < 70 else 3
        columns = 1 if width < 130 else 2
        for chart in screen.query(Chart):
            number = int(str(chart.id)[5:])
            fits = number < min(self._charts, rows * columns)
            chart.display = one == chart.id if one else fits
        for row in range(CHARTS // 2):
            left, right = (screen.query_one(f"#chart{2 * row + side}") for side in (0, 1))
            place = screen.query_one(f"#row{row}")
            place.display = left.display or right.display
            # In a single column, all charts get the same height.
            place.set_class(columns == 1, "-column")
            place.styles.height = f"{left.display + right.display}fr" if columns == 1 else None
            left.set_class(not right.display or columns == 1, "-last")
        low = screen.has_class("-story") and height < ROOMY and self._left() < LEAST - 1
        crowded = screen.has_class("-many") or (low and self.pane != "events")
        for name in ("hosts", "ranks", "log", "events"):
            shown = one == name if one else name != "events" or not crowded
            shown |= stack and name in beside
            screen.query_one(f"#{name}").set_class(not shown, "-off")
        screen.query_one(LoadPane).fit(0 if one or crowded else self._spare())
        screen.query_one("#left").display = one in (None, "hosts", "ranks", "events") or (stack and "hosts" in beside)
        screen.query_one("#charts").display = one is None or one.startswith("chart")
        screen.query_one("#upper").set_class(one == "log", "-off")
        if stack != screen.has_class("-stack"):
            # In a stack, the charts come before the panes that are otherwise at their left.
            upper, order = screen.query_one("#upper"), ("#left", "#charts")
            first, second = map(screen.query_one, reversed(order) if stack else order)
            upper.move_child(first, before=second)
        screen.set_class(alone, "-alone")
        screen.set_class(stack, "-stack")
        # Hosts and ranks take the rows that they need; the log gets the rest.
        grid = top == "ranks" and "hosts" in beside and not screen.has_class("-many")
        screen.set_class(stack and grid, "-grid")
        self._limit(self._room(height) // 3 if stack and grid else None, alone=crowded and not (one or stack))
        screen.set_class(stack and not grid and not top.startswith("chart"), "-listed")
        screen.query_one(StoryPane).styles.max_height = _most_of_story(height)

    def _spare(self) -> int:
        """Rows beside the charts that hosts, ranks and events leave for the load."""
        return max(0, self._left() - EVENTS - 1)

    def _left(self) -> int:
        """Rows beside the charts that hosts and ranks leave."""
        width, height = self._screen.size
        upper = self._room(height) * 3 // 5
        panes = (self._screen.query_one(HostsPane), self._screen.query_one(RankGrid))
        left = min(76, width * 2 // 5 if width >= 130 else width // 2) - 4
        return upper - sum(pane.rows(left) + 1 for pane in panes)

    def _limit(self, most: int | None, *, alone: bool) -> None:
        """Limit the rows of hosts and ranks; if `alone`, nothing else is beside the charts, so hosts get the rest."""
        hosts, ranks = self._screen.query_one(HostsPane), self._screen.query_one(RankGrid)
        hosts.styles.max_height = ranks.styles.max_height = most
        if alone and not self._screen.has_class("-many"):
            half = self._room(self._screen.size.height) * 3 // 10
            hosts.styles.max_height = max(half, hosts.rows(0) + 1 + min(0, self._left()))

    def _story_rows(self) -> int:
        """Rows of the story with its title; 0 if it is hidden."""
        if not self._screen.has_class("-story"):
            return 0
        width, height = self._screen.size
        return min(_most_of_story(height), self._screen.query_one(StoryPane).rows(width - 2) + 1)

    def _room(self, height: int) -> int:
        """Rows for hosts, ranks, events, charts and log together."""
        return height - 4 - self._story_rows()

    def _stacked(self, height: int) -> tuple[str, tuple[str, ...]]:
        """The pane at the top of a stack, and the other panes to show."""
        room = self._room(height)
        if room < 2 * LEAST:
            return self.pane, ()
        if self.pane in ("ranks", "events"):
            return self.pane, ("log", "hosts") if self.pane == "ranks" and room >= 3 * LEAST else ("log",)
        top = self.pane if self.pane.startswith("chart") else "chart0"
        if room >= 3 * LEAST:
            return top, ("log", "hosts")
        return "hosts" if self.pane == "hosts" else top, ("log",)

    def names(self) -> list[str]:
        """The panes that tab visits."""
        charts = [f"chart{number}" for number in range(self._charts)]
        names = ["hosts", "ranks", *charts, "events", "log"]
        if self._screen.has_class("-alone") or self._screen.has_class("-stack"):
            return names
        return [name for name in names if self._screen.query_one(f"#{name}").display]


def _most_of_story(height: int) -> int:
    """Maximum rows of the story on a terminal with `height` rows."""
    return 4 if height < 16 else 5 if height < 24 else 7 if height < 40 else 12
