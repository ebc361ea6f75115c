"""The base of all screens: header, footer, help, breakpoints, and a notice when the terminal is too small."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.screen import ModalScreen, Screen, ScreenResultType
from textual.widget import Widget

from disttui.tui.keys import APP, CHANGE, bind
from disttui.tui.widgets.bars import FooterBar, HeaderBar

if TYPE_CHECKING:
    from disttui.tui.shell import Shell


class TooSmall(Widget):
    """Shows the required and the actual size; hidden while the screen fits."""

    DEFAULT_CSS = """
    TooSmall { display: none; width: 100%; height: 100%; content-align: center middle; text-align: center; }
    """

    def __init__(self, needs: tuple[int, int]) -> None:
        super().__init__()
        self._needs = needs

    def render(self) -> Content:
        columns, rows = self._needs
        width, height = self.screen.size
        return Content.assemble(
            ("terminal too small", "bold"), f"\nneeds {columns}×{rows}\n", (f"has {width}×{height}", "$state-slow")
        )


class Command(NamedTuple):
    """A command that a screen adds to the palette in addition to its keys."""

    title: str
    help: str
    run: Callable[[], object]


class SizedScreen(Screen[ScreenResultType]):
    """A screen or dialog with classes for the terminal's size."""

    # From 160 columns, each of two panes side by side has room for as many columns as an 80-column screen.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-normal"), (160, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (24, "-medium"), (40, "-tall")]  # noqa: RUF012

    @property
    def disttui(self) -> Shell:
        return cast("Shell", self.app)

    def on_compose(self) -> None:
        """Set the classes before the first layout; Textual sets them visibly late.

        This is before there are children: a class that is set later restyles each of them.
        """
        for breakpoints, cells in zip(
            (self.HORIZONTAL_BREAKPOINTS, self.VERTICAL_BREAKPOINTS), self.app.size, strict=True
        ):
            self.add_class(next(name for least, name in reversed(breakpoints) if cells >= least))


class DisttuiScreen(SizedScreen[None]):
    """A screen of the app. A subclass defines `body`, `BINDINGS` made by `disttui.tui.keys.bind`, and `HELP`.

    Under --read-only, actions whose bindings are in the group `CHANGE` do nothing, and their keys are not shown.
    """

    HELP: ClassVar[str | None] = ""
    """The purpose of this screen in a few sentences, for the top of the help."""
    MIN_SIZE: ClassVar[tuple[int, int]] = (40, 12)
    """Columns and rows below which the screen only shows the size it needs."""
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("screen.back", "q,escape", "back", "back", "back to the previous screen", group=APP)
    ]

    _had_focus: Widget | None = None
    """The widget that had the focus before the terminal became too small."""

    def compose(self) -> ComposeResult:
        yield HeaderBar()
        yield from self.body()
        yield FooterBar()
        yield TooSmall(self.MIN_SIZE)

    def body(self) -> Iterable[Widget]:
        return ()

    def commands(self) -> Iterator[Command]:
        """Yield the commands that the palette offers on this screen in addition to its keys."""
        return iter(())

    @property
    def header(self) -> HeaderBar:
        return self.query_one(HeaderBar)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Refuse actions of the group `CHANGE` under --read-only."""
        return not (self.disttui.read_only and action in self._changes())

    async def action_back(self) -> None:
        await self.disttui.action_back()

    def on_resize(self, event: events.Resize) -> None:
        """Show the required size while the terminal is too small; then restore the focus."""
        columns, rows = self.MIN_SIZE
        small = event.size.width < columns or event.size.height < rows
        if small and not self.has_class("-too-small"):
            self._had_focus = self.focused
        self.set_class(small, "-too-small")
        if not small and self.focused is None and self._had_focus is not None:
            self.call_after_refresh(self._had_focus.focus)

    def on_click(self, event: events.Click) -> None:
        """Focus a pane when its title is clicked; zoom it on a double click if the screen can zoom."""
        widget, _ = self.get_widget_at(event.screen_x, event.screen_y)
        for pane in (one for one in widget.ancestors_with_self if isinstance(one, Widget) and one.has_class("pane")):
            if event.screen_y == pane.region.y and self.title_clicked(pane) and event.chain == 2:
                self.call_later(self.run_action, "zoom")
            return

    def title_clicked(self, pane: Widget) -> bool:
        """Handle a click on the title of a pane; return whether the pane has the focus now."""
        pane.focus()
        return True

    def _changes(self) -> set[str]:
        bindings = self.disttui.effective_bindings(self)
        return {binding.action for binding in bindings if binding.group is CHANGE}


class DisttuiModal(ModalScreen[ScreenResultType], SizedScreen[ScreenResultType]):
    """A dialog over the screen, no larger than its content."""
