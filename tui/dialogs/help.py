"""Every key of a screen, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from tui.config import config_file
from tui.keys import GROUPS, VIEW, bind
from tui.screen import DisttuiModal
from tui.theme import LOOKS
from tui.widgets.hints import Hints, Key

_MEANINGS = {
    "running": "running", "waiting": "waiting", "slow": "slow", "failed": "failed or lost",
    "unseen": "not seen: the link is down, the run may go on", "done": "finished", "stopped": "stopped",
}  # fmt: skip


class HelpScreen(DisttuiModal[None]):
    """The keys of the screen under it, by what they do, with the id by which the config can remap each."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("help.close", "escape,q,question_mark,f1,enter", "dismiss", "close"),
        bind("help.down", "j,down", "scroll(1)", "down", show=False, priority=True),
        bind("help.up", "k,up", "scroll(-1)", "up", show=False, priority=True),
    ]
    AUTO_FOCUS = ".box"

    def __init__(self, over: Screen[Any]) -> None:
        super().__init__()
        self._over = over

    def compose(self) -> ComposeResult:
        """What the screen is for, its keys, the glyphs."""
        with VerticalScroll(classes="box wide"):
            if told := self._over.HELP:
                yield Static(Content(" ".join(told.split())), classes="prose")
            words, ids = self._keys()
            with Horizontal(classes="keys"):
                yield Static(words, classes="words")
                yield Static(ids, classes="ids")
            yield Static(_legend())
            home = self.disttui.environ.get("HOME") or "~"
            path = str(config_file(self.disttui.environ)).replace(f"{home}/", "~/", 1)
            yield Static(Content.styled(f"\nOther keys for an id: `keys:` in {path}", "$muted"))
        yield Hints(Key("escape", "esc", "close"), classes="hint")

    def action_scroll(self, rows: int) -> None:
        """Scroll by rows."""
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)

    def _keys(self) -> tuple[Content, Content]:
        """Keys and words, and beside them the ids."""
        words: list[Any] = []
        ids: list[str] = []
        rows = list(self._rows())
        width = max((len(shown) for _, shown, _ in rows), default=0)
        for group in GROUPS:
            told = [row for row in rows if (row[0].group or VIEW) is group]
            if told:
                words += [(group.description, "bold"), "\n"]
                for _, shown, text in told:
                    words += [("  " + shown.ljust(width), "$accent"), f"  {text}\n"]
                words.append("\n")
                ids += ["", *(binding.id or "" for binding, _, _ in told), ""]
        return Content.assemble(*words[:-1]), Content.styled("\n".join(ids), "$muted")

    def _rows(self) -> Iterator[tuple[Binding, str, str]]:
        """Binding, its keys as shown, its words: of every widget of the screen, the screen and the app."""
        found: dict[str, tuple[Binding, list[str]]] = {}
        for binding in self._all():
            if binding.id:
                shown = self.app.get_key_display(binding)
                keys = found.setdefault(binding.id, (binding, []))[1]
                if shown not in keys:
                    keys.append(shown)
        for binding, keys in found.values():
            yield (
                binding,
                " ".join(sorted(keys, key=lambda key: (len(key), not key.isascii()))[:2]),
                binding.tooltip or binding.description,
            )

    def _all(self) -> Iterator[Binding]:
        for node in (*self._over.walk_children(), self._over, self.app):
            if not (node.disabled if hasattr(node, "disabled") else False):
                for binding in self.disttui.effective_bindings(node):
                    if node.check_action(binding.action, ()) is not False:
                        yield binding


def _legend() -> Content:
    parts: list[Any] = [("Signs\n", "bold")]
    for kind, words in _MEANINGS.items():
        parts += ["  ", (LOOKS[kind].glyph, LOOKS[kind].style), f" {words}\n"]
    return Content.assemble(*parts)
