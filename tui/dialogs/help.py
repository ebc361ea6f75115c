"""The help: every key of a screen with its meaning, and shell commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, ClassVar, NamedTuple

from textual import on
from textual.actions import parse
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from disttui.runner.text import clean
from disttui.runner.user.config import config_file
from disttui.tui.keys import GROUPS, SHELL_COMMANDS, VIEW, bind
from disttui.tui.screen import DisttuiModal
from disttui.tui.theme import LOOKS
from disttui.tui.widgets.bars import Hints, Key

_MEANINGS = {
    "running": "running", "waiting": "waiting", "slow": "slow", "failed": "failed or lost",
    "unseen": "not seen: connection lost; the run may continue", "done": "finished", "stopped": "stopped",
}  # fmt: skip

_WIDEST = 92
"""Maximum columns of the box."""
_NARROW = 80
"""Columns below which no ids are shown."""


_KEYS = (Key("escape", "esc", "close"), Key("slash", "/", "search"))
_WHILE_SEARCHING = (Key("escape", "esc", "all keys"),)


class HelpScreen(DisttuiModal[None]):
    """Lists the keys of the screen below by their actions, each with its id in the config."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("help.close", "escape,q,question_mark,f1,enter", "close", "close"),
        bind("help.search", "slash", "search", "search", "show only matching keys"),
        bind("help.down", "j,down", "scroll(1)", "down", show=False, priority=True),
        bind("help.up", "k,up", "scroll(-1)", "up", show=False, priority=True),
    ]
    AUTO_FOCUS = ".box"
    DEFAULT_CSS = """
    HelpScreen #help-search { margin: 0 0 1 0; }
    HelpScreen.-short .prose { display: none; }
    HelpScreen.-searching { .prose, #help-signs, #help-config { display: none; } }
    """

    def __init__(self, over: Screen[Any]) -> None:
        super().__init__()
        self._over = over

    def compose(self) -> ComposeResult:
        """Yield the purpose of the screen, a search field, its keys, the commands and the glyphs."""
        with VerticalScroll(classes="box wide"):
            if purpose := self._over.HELP:
                yield Static(Content(" ".join(purpose.split())), classes="prose")
            yield Input(placeholder="/ searches words and keys", id="help-search")
            with Horizontal(classes="keys"):
                yield Static(classes="words")
                yield Static(classes="ids")
            yield Static(id="help-shell")
            yield Static(_legend(), id="help-signs")
            home = self.disttui.environ.get("HOME") or "~"
            path = str(config_file(self.disttui.environ)).replace(f"{home}/", "~/", 1)
            yield Static(
                Content.styled(f"\nTo remap a key, set its id under `keys:` in {path}", "$muted"), id="help-config"
            )
        yield Hints(classes="hint")

    def on_mount(self) -> None:
        self._show("")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not (action in ("scroll", "search") and isinstance(self.focused, Input))

    def action_scroll(self, rows: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)

    def action_search(self) -> None:
        self.query_one(Input).focus()

    @on(Input.Submitted)
    def _searched(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_close(self) -> None:
        """Clear the search, or close if it is empty."""
        line = self.query_one(Input)
        if line.value:
            line.value = ""
            self.query_one(VerticalScroll).focus()
        else:
            self.dismiss()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._show(event.value)

    def _show(self, looked_for: str) -> None:
        """Show the keys that match, with their meanings and ids."""
        words: list[Any] = []
        ids: list[str] = []
        lines = self._lines()
        fits = [line for line in lines if line.has(looked_for.casefold().split())]
        width = max((len(line.shown) for line in lines), default=0)
        room = self._room(max((len(line.binding.id or "") for line in fits), default=0)) - width - 4
        for title, chosen in self._sections(fits):
            words += [(title, "bold"), "\n"]
            ids.append("")
            for line in chosen:
                first, *more = wrap(line.words, max(20, room)) or [""]
                others = [row for other in line.others for row in wrap(other, max(20, room))]
                words += [("  " + line.shown.ljust(width), "$accent"), f"  {first}\n"]
                words += [" " * (width + 4) + f"{rest}\n" for rest in more]
                words += [(" " * (width + 4) + f"{other}\n", "$muted") for other in others]
                ids += [line.binding.id or "", *[""] * len([*more, *others])]
            words.append("\n")
            ids.append("")
        typed = _commands(looked_for.casefold().split(), self._room(0))
        self.query_one("#help-shell", Static).update(typed)
        if not fits and not typed:
            words.append(("no matching key", "$muted"))
        self.query_one(".words", Static).update(Content.assemble(*words))
        self.query_one(".ids", Static).update(Content.styled("\n".join(ids), "$muted"))
        self.set_class(bool(looked_for.strip()), "-searching")
        self.query_one(Hints).show(*(_WHILE_SEARCHING if looked_for else _KEYS))

    def _room(self, ids: int) -> int:
        """Cells for a key and its meaning, beside ids that are `ids` cells wide."""
        width = self.app.size.width
        return width - 3 if width < _NARROW else min(_WIDEST, width) - 5 - 3 - ids

    def on_resize(self) -> None:
        """Wrap the meanings to the new width, unless the screen is opening or closing: some widgets are missing."""
        if self.is_mounted and self.is_attached:
            self._show(self.query_one(Input).value)

    def _sections(self, lines: Sequence[_Line]) -> Iterator[tuple[str, list[_Line]]]:
        """Yield the keys of the focused widget first, then those of the whole screen, then those of its other panes."""
        focused = self._over.focused
        near = [line for line in lines if focused is not None and any(one in self._near for one in line.nodes)]
        near.sort(key=lambda line: GROUPS.index(line.binding.group or VIEW))
        if near and focused is not None:
            place = f"In {_place(focused)}"
            long = f"{place}, where the cursor is"
            yield long if len(long) <= self._room(0) else place, near
        wide = [line for line in lines if line not in near and _everywhere(line.nodes[0])]
        for group in GROUPS:
            if section := [line for line in wide if (line.binding.group or VIEW) is group]:
                yield group.description, section
        places: dict[str, list[_Line]] = {}
        for line in lines:
            if line not in near and line not in wide:
                places.setdefault(_place(line.nodes[0]), []).append(line)
        for place, section in places.items():
            yield f"In {place}", section

    @property
    def _near(self) -> list[DOMNode]:
        """The focused widget and its ancestors, without the screen."""
        focused = self._over.focused
        if focused is None:
            return []
        return [node for node in focused.ancestors_with_self if isinstance(node, Widget) and node is not self._over]

    def _lines(self) -> list[_Line]:
        """Every key that has an action on the screen: those of its widgets, of the screen and of the app."""
        found: dict[str, tuple[Binding, list[str], list[DOMNode]]] = {}
        every, near = list(self._all()), dict[str, str | None]()
        for node, binding in every:
            if node in self._near:
                near.setdefault(self.app.get_key_display(binding), binding.id)
        for node, binding in every:
            if binding.id and not self._is_taken(node, binding, near):
                # The ten digit keys share one line.
                name, digits = re.subn(r"_\d$", "_0", binding.id)
                _, keys, nodes = found.setdefault(name, (binding, [], []))
                if (shown := "0-9" if digits else self.app.get_key_display(binding)) not in keys:
                    keys.append(shown)
                if node not in nodes:
                    nodes.append(node)
        return [
            _Line(
                binding,
                "0-9" if "0" in keys else " ".join(sorted(keys, key=lambda key: (len(key), not key.isascii()))[:2]),
                re.sub(r"(?i)\brank \d\b", "a rank by its number", binding.tooltip or binding.description),
                nodes,
                list(self._others(name, keys, nodes, found)),
            )
            for name, (binding, keys, nodes) in found.items()
        ]

    def _is_taken(self, node: DOMNode, binding: Binding, near: Mapping[str, str | None]) -> bool:
        """Whether the focused widget takes a key of the whole screen, as text or for an action of its own.

        Args:
            near: The keys of the focused widget, each with the id of its binding.
        """
        shown, focused = self.app.get_key_display(binding), self._over.focused
        if focused is None or not (_everywhere(node) or node in self._near):
            return False
        one = " " if binding.key == "space" else shown
        if len(one) == 1 and one.isascii():
            return not binding.priority and focused.check_consume_key(one, one)
        return near.get(shown, binding.id) != binding.id and _everywhere(node)

    def _others(
        self, name: str, keys: Sequence[str], nodes: Sequence[DOMNode], found: Mapping[str, _Found]
    ) -> Iterator[str]:
        """Yield what a key does in other panes of this screen."""
        for other, (binding, others, places) in found.items():
            # Enter, arrows and digits need no note: every pane has its own.
            same = [key for key in keys if key in others and len(key) == 1 and key.isascii() and not key.isdigit()]
            apart = [node for node in places if node not in nodes]
            if other != name and same and apart and binding.description != found[name][0].description:
                where = "elsewhere" if isinstance(apart[0], Screen) else f"in {_place(apart[0])}"
                yield f"{same[0]} {where}: {binding.description}"

    def _all(self) -> Iterator[tuple[DOMNode, Binding]]:
        for node in (*self._near, *self._over.walk_children(), self._over, self.app):
            if not (node.disabled if hasattr(node, "disabled") else False) and _seen(node):
                for binding in self.disttui.effective_bindings(node):
                    _, action, parameters = parse(binding.action)
                    if node.check_action(action, parameters) is not False:
                        yield node, binding


_Found = tuple[Binding, list[str], list[DOMNode]]


class _Line(NamedTuple):
    """A line of the help."""

    binding: Binding
    shown: str
    words: str
    nodes: Sequence[DOMNode]
    """The widgets where the key does this."""
    others: Sequence[str]
    """Descriptions of what the key does in other panes."""

    def has(self, words: Sequence[str]) -> bool:
        """Whether it contains all words."""
        return _has(f"{self.shown} {self.words} {self.binding.description} {self.binding.id}", words)


def _has(text: str, words: Sequence[str]) -> bool:
    return all(word in text.casefold() for word in words)


def _seen(node: DOMNode) -> bool:
    return not isinstance(node, Widget) or all(
        one.display for one in node.ancestors_with_self if isinstance(one, Widget)
    )


def _everywhere(node: DOMNode) -> bool:
    return isinstance(node, Screen) or not isinstance(node, Widget)


def _place(node: DOMNode) -> str:
    """The name of the pane that contains a widget: its PLACE, its title, or its type."""
    if isinstance(node, Screen):
        return "the screen"
    if not isinstance(node, Widget):
        return "every screen"
    for one in node.ancestors_with_self:
        if place := getattr(one, "PLACE", ""):
            return str(place)
        if isinstance(one, Widget) and not isinstance(one, Screen) and one.border_title:
            words = re.sub(
                r"\[\d\]|· .*|  .*", "", clean(str(one.border_title)).strip()
            ).strip()  # the title without counts and values
            if words:
                return words
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).lower()


def _commands(wanted: Sequence[str], room: int) -> Content:
    """The shell commands that contain all words, with their purposes."""
    fits = [one for one in SHELL_COMMANDS if _has(" ".join(one), wanted)]
    if not fits:
        return Content()
    widest = max(len(one.words) for one in fits)
    parts: list[Any] = [("On the command line\n", "bold")]
    for one in fits:
        name = f"  disttui {one.words:<{widest}}  "
        first, *more = wrap(one.purpose, max(8, room - len(name)))
        parts += [(name, "$accent"), f"{first}\n", *(" " * len(name) + f"{rest}\n" for rest in more)]
    return Content.assemble(*parts)


def _legend() -> Content:
    parts: list[Any] = [("Symbols\n", "bold")]
    for kind, words in _MEANINGS.items():
        parts += ["  ", (LOOKS[kind].glyph, LOOKS[kind].style), f" {words}\n"]
    return Content.assemble(*parts)
