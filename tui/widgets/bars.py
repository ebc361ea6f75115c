"""The header and footer of every screen, and the keys of a dialog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from textual import events
from textual.binding import ActiveBinding, Binding
from textual.content import Content
from textual.widget import Widget

from disttui.runner.ids import short
from disttui.runner.text import clean
from disttui.tui.keys import APP
from disttui.tui.theme import state_words
from disttui.tui.widgets.drawn import clicked, part

if TYPE_CHECKING:
    from textual.screen import Screen


class HeaderBar(Widget):
    """One line: the subject, facts, and the state at the right. Facts that do not fit are omitted."""

    DEFAULT_CSS = """
    HeaderBar { height: 1; dock: top; padding: 0 1; background: $panel; color: $foreground; text-wrap: nowrap; }
    """

    ALLOW_SELECT = False
    _title = "disttui"
    _facts: tuple[str, ...] = ()
    _state = _right = ""

    def show(self, title: str, facts: Sequence[str] = (), state: str = "", right: str = "") -> None:
        """Set the texts; redraw if they have changed.

        Args:
            title: Name of the run, profile or screen.
            facts: The most important first.
            state: A word that `disttui.tui.theme.look` knows, shown with its glyph and colour.
            right: Text at the right end, such as the elapsed time.
        """
        words = short(clean(title)), tuple(map(clean, facts)), clean(state), clean(right)
        if words != (self._title, self._facts, self._state, self._right):
            self._title, self._facts, self._state, self._right = words
            self.refresh()

    def render(self) -> Content:
        """Draw the title and the facts from the left, and the state at the right."""
        right = Content.assemble(
            state_words(self._state) if self._state else "",
            "  " if self._state and self._right else "",
            (self._right, "$foreground"),
        )
        room = self.size.width - right.cell_length - 2
        left = Content.styled(self._title, "bold $accent").truncate(max(8, room), ellipsis=True)
        for index, fact in enumerate(self._facts):
            more = Content.styled(("  " if index == 0 else " · ") + fact, "$muted")
            if left.cell_length + more.cell_length > room:
                break
            left = Content.assemble(left, more)
        gap = max(1, self.size.width - left.cell_length - right.cell_length)
        return Content.assemble(left, " " * gap, right)


CLICK_GUARD = 0.5
"""Seconds after a change within which a click is meant for the previous key at its place."""


class KeyHint(NamedTuple):
    """One key of the footer."""

    key: str
    shown: str
    label: str
    everywhere: bool

    @property
    def width(self) -> int:
        return len(self.shown) + len(self.label) + bool(self.label)


def _put_in_place(active: list[ActiveBinding], moved: ActiveBinding) -> None:
    """Move a binding that the user's config remaps to its declared position among those of its node."""
    written = [one for base in reversed(type(moved.node).__mro__) for one in vars(base).get("BINDINGS", ())]
    ids = [one.id for one in written if isinstance(one, Binding)]
    if moved.binding.id in ids:
        after = ids[ids.index(moved.binding.id) + 1 :]
        active.remove(moved)
        places = (at for at, one in enumerate(active) if one.node is moved.node and one.binding.id in after)
        active.insert(next(places, len(active)), moved)


class FooterBar(Widget):
    """Keys and labels of the available actions, the focused widget's first; at the right those to go back, for help and
    for the palette. Keys that do not fit are omitted, except the palette, which lists them. A click presses the key."""

    DEFAULT_CSS = """
    FooterBar {
        height: 1; dock: bottom; padding: 0 1; background: $panel; color: $muted; text-wrap: nowrap; pointer: pointer;
    }
    """

    ALLOW_SELECT = False
    GAP = 2

    def __init__(self) -> None:
        super().__init__()
        self._places: list[tuple[int, int, str]] = []
        self._shown: list[KeyHint] = []
        self._before: list[tuple[int, int, str]] = []
        self._guarded_until = -inf

    def changed_by_itself(self) -> None:
        """For CLICK_GUARD seconds, ignore clicks where the key has changed: they were meant for the previous one."""
        self._before, self._guarded_until = self._places, monotonic() + CLICK_GUARD

    def render(self) -> Content:
        hints = self._shown = self._hints()
        here = [hint for hint in hints if not hint.everywhere]
        always = [hint for hint in hints if hint.everywhere]
        width = self.size.width
        if self._cells(always) > width // 2:
            always[-1] = always[-1]._replace(label="")
        while len(always) > 1 and self._cells([*here[:1], *always]) > width + self.GAP:
            always.pop(-2)
        right = self._cells(always)
        parts: list[Content | str | tuple[str, str]] = []
        self._places, at = [], 0
        for hint in here:
            if at + hint.width + right > width:
                break
            at = self._put(parts, hint, at)
        parts.append(" " * max(0, width - at - right + self.GAP))
        at = max(at, width - right + self.GAP)
        for hint in always:
            at = self._put(parts, hint, at)
        return Content.assemble(*parts)

    def _cells(self, hints: Sequence[KeyHint]) -> int:
        """Cells of the hints, each with the gap after it."""
        return sum(hint.width + self.GAP for hint in hints)

    def _put(self, parts: list[Content | str | tuple[str, str]], hint: KeyHint, at: int) -> int:
        parts += [(hint.shown, "bold $accent"), f" {hint.label}" if hint.label else "", " " * self.GAP]
        self._places.append((at, at + hint.width, hint.key))
        return at + hint.width + self.GAP

    def _hints(self) -> list[KeyHint]:
        found: dict[str, KeyHint] = {}
        # Priority bindings come first, because they are the main actions of the screen.
        active = sorted(self.screen.active_bindings.values(), key=lambda one: not one.binding.priority)
        for one in [one for one in active if one.binding.id in self._remapped]:
            _put_in_place(active, one)
        # A widget with many keys leaves room for those of the screen.
        focused = self.screen.focused
        own = [one for one in active if one.node is focused and one.binding.show]
        later = own[getattr(focused, "FOOTER_KEYS", len(own)) :]
        active = [*(one for one in active if one not in later), *later]
        for _, binding, enabled, _ in active:
            shown = self.app.get_key_display(binding)
            if binding.show and enabled and binding.action not in found and not self._typed(shown):
                found[binding.action] = KeyHint(binding.key, shown, binding.description, binding.group is APP)
        return list(found.values())

    def _typed(self, shown: str) -> bool:
        """Whether the focused widget takes a key as text; `shown`, because Textual has no character for `slash`."""
        focused, one = self.screen.focused, len(shown) == 1 and shown.isascii()
        return one and focused is not None and focused.check_consume_key(shown, shown)

    @property
    def _remapped(self) -> Mapping[str, str]:
        """Binding id → its keys in the user's config."""
        settings = getattr(self.app, "settings", None)
        return settings.keys if settings is not None else {}

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._follow)

    def _follow(self, screen: Screen[object]) -> None:
        if self.is_attached and screen is self.screen and self._hints() != self._shown:
            self.refresh()

    def on_click(self, event: events.Click) -> None:
        if (offset := event.get_content_offset(self)) is None:
            return
        key, before = (_key_at(places, offset.x) for places in (self._places, self._before))
        if key and (key == before or event.time >= self._guarded_until):
            self.app.simulate_key(key)


def _key_at(places: Sequence[tuple[int, int, str]], x: int) -> str | None:
    return next((key for start, end, key in places if start <= x < end), None)


class Key(NamedTuple):
    """A key of `Hints`."""

    key: str
    """Textual's name of the key."""
    shown: str
    does: str


LEAVE = Key("escape", "esc", "cancel")


class Hints(Widget):
    """The keys of a dialog, such as `enter save   esc cancel`; a click on a hint presses its key.

    Args:
        keys: The keys.
        after: A text after the keys.
    """

    DEFAULT_CSS = "Hints { height: auto; color: $muted; pointer: pointer; }"
    ALLOW_SELECT = False
    GAP = 3

    def __init__(self, *keys: Key, after: str = "", classes: str = "quiet") -> None:
        super().__init__(classes=classes)
        self._keys = keys
        self._after = after

    def show(self, *keys: Key) -> None:
        if keys != self._keys:
            self._keys = keys
            self.refresh(layout=True)

    def _rows(self, width: int) -> list[list[Key]]:
        """The keys of each row; keys that do not fit go to the next row."""
        rows: list[list[Key]] = [[]]
        at = 0
        for key in self._keys:
            cells = cell_len(key.shown) + 1 + cell_len(key.does)
            if rows[-1] and at + cells > width:
                rows.append([])
                at = 0
            rows[-1].append(key)
            at += cells + self.GAP
        return rows

    def render(self) -> Content:
        width = self.content_size.width or 80
        lines = [
            Content(" " * self.GAP).join(
                part(Content.assemble((key.shown, "bold $accent"), f" {key.does}"), key.key) for key in row
            )
            for row in self._rows(width)
        ]
        hints = Content("\n").join(lines)
        fits = lines[-1].cell_length + self.GAP + cell_len(self._after) <= width
        return Content.assemble(hints, " " * self.GAP if fits else "\n", self._after) if self._after else hints

    def on_click(self, event: events.Click) -> None:
        if key := clicked(event):
            self.app.simulate_key(key)
