"""The log view's state: following, moving and switching in any order lose neither position nor lines."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from textual.strip import Strip

from disttui.runner.errors import InputError
from disttui.tui.log.contents import PaintedLine
from disttui.tui.log.rows import LogFilter, Rows
from disttui.tui.log.search import Pattern
from disttui.tui.log.sources import LogSources, moment
from disttui.tui.log.view import Lines, LogViewState, follow, go, move, on_screen, page, pause, scroll
from tests.tui.demo_log import Writer

HEIGHT = 5
WIDTH = 7


class AnyOrder(RuleBasedStateMachine):
    """A log of three ranks that grows while a user tries every switch."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.writer = Writer(Path(self.folder.name))
        self.log = LogSources(Path(self.folder.name)).open(1)
        self.view = LogViewState()
        self.tails = 0
        self.grow(data.draw(st.integers(0, 30)))

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def look(self) -> None:
        rows = Rows(self.log, self.view.choice)
        while rows.step():
            pass
        self.lines = Lines(rows, len(rows), self.tails, self.height)

    def height(self, place: int) -> int:
        if not self.view.wrap:
            return 1
        if place >= len(self.log.order):
            return 2
        return PaintedLine(self.log.read(self.log.order.items[place])).height(WIDTH)

    def shown(self) -> list[tuple[int, int]]:
        return [(self.lines.place(row), part) for row, part in page(self.view, self.lines, HEIGHT)]

    @rule(count=st.integers(1, 12))
    def grow(self, count: int) -> None:
        before = [] if not hasattr(self, "lines") else self.shown()
        # A log that got shorter (an unfinished line vanished) is shown to its end; then growing gives the place back.
        full = len(before) == HEIGHT and before[0] >= (self.view.top, self.view.skip)
        texts = ["", "tick", "a line that is wrapped twice or more"]
        number = len(self.log.order)
        self.writer.write({rank: [texts[(number + turn) % 3] for turn in range(count)] for rank in range(3)})
        self.log._discover_at = 0.0
        self.log.settled = False  # waits for no other host, as at the beginning
        self.log.poll(time.monotonic() + 10)
        self.look()
        if full and not self.view.following and before and before[-1][0] < number:
            assert self.shown() == before, "what is read moved while lines came"

    @rule()
    def follow_again(self) -> None:
        self.view = follow(self.view)

    @rule(by=st.integers(-9, 9))
    def scrolls(self, by: int) -> None:
        self.view = scroll(self.paused(), self.lines, HEIGHT, by)

    @rule(by=st.integers(-9, 9))
    def moves(self, by: int) -> None:
        self.view = move(self.paused(), self.lines, HEIGHT, by)
        assert not self.lines or on_screen(self.view, self.lines, HEIGHT)

    @rule(place=st.integers(0, 100), middle=st.booleans())
    def jumps(self, place: int, middle: bool) -> None:
        place = min(place, max(0, len(self.log.order) - 1))
        self.view = go(self.paused(), self.lines, HEIGHT, place, middle=middle)
        assert not self.lines or on_screen(self.view, self.lines, HEIGHT)

    def paused(self) -> LogViewState:
        return pause(self.view, self.lines, HEIGHT, len(self.log.order))

    @rule()
    def pauses(self) -> None:
        before = self.shown()
        self.view = self.paused()
        assert self.shown() == before

    @rule(
        choice=st.builds(
            LogFilter,
            ranks=st.sampled_from([None, frozenset({1}), frozenset({9})]),
            patterns=st.sampled_from([(), (Pattern("tick"),), (Pattern("tick", inverse=True),)]),
            fold=st.booleans(),
        ),
        wrap=st.booleans(),
    )
    def there_and_back(self, choice: LogFilter, wrap: bool) -> None:
        """Whatever is switched on and off again: the same screen."""
        view, before = self.view, self.shown()
        self.view = replace(view, choice=choice, wrap=wrap)
        self.look()
        self.shown()
        self.view = replace(self.view, choice=view.choice, wrap=view.wrap)
        self.look()
        assert self.shown() == before

    @rule(
        changes=st.fixed_dictionaries(
            {}, optional={"fold": st.booleans(), "patterns": st.sampled_from([(), (Pattern("i"),)])}
        )
    )
    def switch(self, changes: dict[str, Any]) -> None:
        self.view = replace(self.view, choice=replace(self.view.choice, **changes))
        self.look()

    @rule()
    def wrap(self) -> None:
        self.view = replace(self.view, wrap=not self.view.wrap, skip=0)
        self.look()

    @rule(tails=st.integers(0, 2))
    def unfinished(self, tails: int) -> None:
        self.tails = tails
        self.look()

    @invariant()
    def the_screen_is_full_and_without_gaps(self) -> None:
        if not hasattr(self, "lines"):
            return
        shown = page(self.view, self.lines, HEIGHT)
        everything = [(row, part) for row in range(len(self.lines)) for part in range(self.lines.height(row))]
        assert len(shown) == min(HEIGHT, len(everything))
        if shown:
            begin = everything.index(shown[0])
            assert shown == everything[begin : begin + HEIGHT]
            assert not self.view.following or shown[-1] == everything[-1]


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestAnyOrder = AnyOrder.TestCase


@pytest.mark.parametrize("text", ["plain words", "wide 你好 and é́ mixed 🙂 end", "tab\there\tend", "", "x" * 30])
@pytest.mark.parametrize("width", [2, 3, 8, 13])
def test_wrapping_loses_no_character(text: str, width: int) -> None:
    line = PaintedLine(text.encode())
    parts = [Strip(line.wrapped(part, width, ())) for part in range(line.height(width))]
    assert all(part.cell_length == width for part in parts)
    assert "".join(part.text for part in parts).replace(" ", "") == line.text.replace(" ", "")


def test_a_very_long_line_is_cut_with_a_mark() -> None:
    line = PaintedLine(b"y" * 60_000)
    assert line.text.startswith("y" * 4096) and "55,904 more characters" in line.text
    assert Strip(line.scrolled(0, 20, ())).text == "y" * 19 + "›"


def test_times_that_can_be_typed() -> None:
    begin = time.mktime((2026, 11, 20, 23, 50, 0, 0, 0, -1))
    assert moment("23:55", begin) == begin + 300
    assert moment("0:10:30", begin) == begin + 1230
    assert moment("+1:30", begin) == moment("+90", begin) == begin + 90
    for wrong in ("", "25:00", "12:61", "noon", "+", "12:3"):
        with pytest.raises(InputError):
            moment(wrong, begin)


def test_a_bad_regular_expression_is_one_clear_error() -> None:
    with pytest.raises(InputError, match="not a regular expression"):
        _ = Pattern("(", regex=True).expression
