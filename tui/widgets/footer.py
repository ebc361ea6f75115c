"""The line at the bottom of every screen: the keys that can be used now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from textual import events
from textual.binding import ActiveBinding, Binding
from textual.content import Content
from textual.widget import Widget

from tui.keys import APP

if TYPE_CHECKING:
    from textual.screen import Screen

CALM = 0.5
"""Seconds within which a click is meant for the key that stood there before."""


class KeyHint(NamedTuple):
    """One key of the footer."""

    key: str
    shown: str
    label: str
    everywhere: bool

    @property
    def width(self) -> int:
        """Cells it takes."""
        return len(self.shown) + len(self.label) + bool(self.label)


def _put_in_place(active: list[ActiveBinding], moved: ActiveBinding) -> None:
    """Move a binding that the user's config remaps to its declared position among the bindings of its node."""
    written = [one for base in reversed(type(moved.node).__mro__) for one in vars(base).get("BINDINGS", ())]
    ids = [one.id for one in written if isinstance(one, Binding)]
    if moved.binding.id in ids:
        after = ids[ids.index(moved.binding.id) + 1 :]
        active.remove(moved)
        places = (at for at, one in enumerate(active) if one.node is moved.node and one.binding.id in after)
        active.insert(next(places, len(active)), moved)


class FooterBar(Widget):
    """Keys and labels of the available actions, the focused widget's first; the way back, `?` and the palette are at
    the right. Keys that do not fit are left out, but never the palette, which lists them. A click presses the key."""

    DEFAULT_CSS = """
    FooterBar {
        height: 1;
        dock: bottom;
        padding: 0 1;
        background: $panel;
        color: $muted;
        text-wrap: nowrap;
        pointer: pointer;
    }
    """

    ALLOW_SELECT = False
    GAP = 2

    def __init__(self) -> None:
        super().__init__()
        self._places: list[tuple[int, int, str]] = []
        self._shown: list[KeyHint] = []
        self._before: list[tuple[int, int, str]] = []
        self._calm_from = -inf

    def changed_by_itself(self) -> None:
        """For a moment, ignore clicks where another key is about to come: they are meant for what stood there."""
        self._before, self._calm_from = self._places, monotonic() + CALM

    def render(self) -> Content:
        """Draw the hints that fit."""
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
        """Cells of the hints, each with the gap behind it."""
        return sum(hint.width + self.GAP for hint in hints)

    def _put(self, parts: list[Content | str | tuple[str, str]], hint: KeyHint, at: int) -> int:
        parts += [(hint.shown, "bold $accent"), f" {hint.label}" if hint.label else "", " " * self.GAP]
        self._places.append((at, at + hint.width, hint.key))
        return at + hint.width + self.GAP

    def _hints(self) -> list[KeyHint]:
        found: dict[str, KeyHint] = {}
        # Priority bindings come first: they are the main actions of the screen.
        active = sorted(self.screen.active_bindings.values(), key=lambda one: not one.binding.priority)
        for one in [one for one in active if one.binding.id in self._remapped]:
            _put_in_place(active, one)
        # A widget with many keys leaves room for the screen's.
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
        """Whether the focused widget takes a key as text; Textual knows no character of `slash`."""
        focused, one = self.screen.focused, len(shown) == 1 and shown.isascii()
        return one and focused is not None and focused.check_consume_key(shown, shown)

    @property
    def _remapped(self) -> Mapping[str, str]:
        """Binding id → keys of the user's config."""
        settings = getattr(self.app, "settings", None)
        return settings.keys if settings is not None else {}

    def on_mount(self) -> None:
        """Redraw when the bindings change."""
        self.screen.bindings_updated_signal.subscribe(self, self._follow)

    def _follow(self, screen: Screen[object]) -> None:
        if self.is_attached and screen is self.screen and self._hints() != self._shown:
            self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Press the key under the pointer."""
        if (offset := event.get_content_offset(self)) is None:
            return
        key, before = (_key_at(places, offset.x) for places in (self._places, self._before))
        if key and (key == before or event.time >= self._calm_from):
            self.app.simulate_key(key)


def _key_at(places: Sequence[tuple[int, int, str]], x: int) -> str | None:
    return next((key for start, end, key in places if start <= x < end), None)
