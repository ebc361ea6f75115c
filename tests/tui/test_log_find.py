"""Finding in a log: a second search, expressions that take for ever, and that what is quick finds the same."""

from __future__ import annotations

import asyncio
import re
import signal
import string
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disttui.runner.text import LINE_LIMIT
from disttui.tui.log import Pattern
from disttui.tui.log.ansi import safe_text
from disttui.tui.log.index import LineIndex
from disttui.tui.log.rows import Stretch
from disttui.tui.log.search import TRIALS, Literal, limited
from tests.files import new_file
from tests.tui.demo_log import Writer
from tests.tui.log_kit import cursor_line, log_view, type_in
from tests.tui.snap import press, screen_text, until


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


async def test_a_second_search_takes_the_place_of_the_first(writer: Writer) -> None:
    writer.steps(0, 60)
    async with log_view(writer) as (app, pilot):
        await pilot.press("g")
        await type_in(pilot, "slash", "loss")
        await until(pilot, lambda: "/ “loss” 1 of" in screen_text(app))
        await type_in(pilot, "slash", "checkpoint at step 5")
        await until(pilot, lambda: "saved checkpoint at step 50" in cursor_line(app))
        await press(pilot, "slash", "end", "0", "enter", shows="/ “checkpoint at step 50” 1 of 4")


FOR_EVER = r"(\w+\s*)+$"
BAIT = "a" * 60 + " !"


@pytest.mark.slow
async def test_an_endless_expression_is_stopped_and_blocks_nothing(writer: Writer) -> None:
    writer.steps(0, 20)
    writer.write({0: [BAIT]})
    async with log_view(writer) as (app, pilot):
        view, stall = app.log_view, Stall()
        await press(pilot, "slash", "ctrl+r", *FOR_EVER, "enter", shows="it takes too long")
        assert stall.end() < 1.0, "its lines are on the screen, and are not marked for long either"
        await pilot.press("escape")
        await type_in(pilot, "ampersand", FOR_EVER)
        await until(pilot, lambda: "✗ & " in screen_text(app) and "it takes too long" in screen_text(app))
        assert "No matches" in screen_text(app)
        await press(pilot, "escape", "g", "slash", *"checkpoint.at", "enter", shows="/ “checkpoint.at” (regex) 1 of")
        writer.write({0: ["fresh news"]})
        await press(pilot, "G", shows="fresh news")
        assert view.following


class Stall:
    """The longest that the event loop did not come round, without what other processes had the CPUs for."""

    def __init__(self) -> None:
        self._worst = 0.0
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            begun, starved = time.monotonic(), _starved()
            await asyncio.sleep(0.03)  # longer than FRAME, or the app is never idle
            more = {thread: seconds - starved.get(thread, 0.0) for thread, seconds in _starved().items()}
            # Only one of the other threads can hold up this one at a time.
            here = more.pop(str(threading.get_native_id()), 0.0)
            self._worst = max(self._worst, time.monotonic() - begun - here - max(more.values(), default=0.0))

    def end(self) -> float:
        """Look no more; return it in seconds."""
        self._task.cancel()
        return self._worst


def _starved() -> dict[str, float]:
    """Seconds for which each thread of this process could run and had no CPU: one of them may hold up the others."""
    found = {}
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # it has ended
            found[thread.parent.name] = int(thread.read_text().split()[1]) / 1e9
    return found


def test_an_expression_is_interrupted_where_it_is_limited() -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(TimeoutError), limited(0.05):
        re.search(FOR_EVER, BAIT)
    with limited(0.05):
        assert re.search("a!", "a!")
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0), "what comes later is interrupted"
    assert signal.getsignal(signal.SIGVTALRM) is before


CHARACTERS = st.text(st.sampled_from("aAiIkKsS z\t0ſİKéx"), max_size=6)
WORDS = st.text(st.sampled_from("aAiIkKsSz0 "), min_size=1, max_size=3)


@settings(deadline=None)
@given(st.lists(CHARACTERS, max_size=30), st.lists(WORDS, min_size=1, max_size=3), st.booleans(), st.integers(1, 50))
def test_texts_are_found_where_the_expression_would_find_them(
    lines: list[str], words: list[str], case: bool, least: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = new_file(Path(folder) / "log", "".join(f"{line}\n" for line in lines))
        index = LineIndex(path)
        index.look()
        while index.grow():
            pass
        patterns = [Pattern(word, case=case) for word in words]
        expected = [
            number
            for number, line in enumerate(lines)
            if all(one.expression.search(safe_text(line.encode())) for one in patterns)
        ]
        with patch.multiple("disttui.tui.log.rows", LEAST=least, MOST=4 * least):
            stretch = Stretch(index, patterns, 1)
            found = [hit for at in range(0, len(index), 2) for hit in stretch.lines(at, min(at + 2, len(index)))]
        assert found == expected


def test_a_letter_is_missed_only_where_nothing_stands_for_it() -> None:
    everything = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    for text in string.ascii_letters:
        literal = Literal(text, case=False)
        found = re.findall(text, everything, re.IGNORECASE)
        assert {text.lower(), text.upper()} <= {*found}
        assert not any(literal.absent(one.encode()) for one in found), text


def test_many_hits_in_one_chunk(tmp_path: Path) -> None:
    path = new_file(tmp_path / "log", "".join(f"Loss {number}\n" if number % 7 else "rest\n" for number in range(5000)))
    index = LineIndex(path)
    index.look()
    while index.grow():
        pass
    expected = [number for number in range(5000) if number % 7]
    assert list(Stretch(index, [Pattern("loss")], 1).lines(0, 5000)) == expected
    assert list(Stretch(index, [Pattern("l.ss", regex=True)], 1).lines(0, 5000)) == expected
    TRIALS.close()


def test_an_expression_finds_lines_over_the_length_limit(tmp_path: Path) -> None:
    path = new_file(tmp_path / "log", "short\n" + "x" * (LINE_LIMIT + 5) + "end\nshort\n")
    index = LineIndex(path)
    index.look()
    while index.grow():
        pass
    assert list(Stretch(index, [Pattern("e[n]d", regex=True)], 1).lines(0, len(index))) == [2]
    TRIALS.close()


async def test_no_match_is_reported_in_40_columns(writer: Writer) -> None:
    writer.steps(0, 10)
    async with log_view(writer, size=(40, 12)) as (app, pilot):
        await type_in(pilot, "slash", "nosuch")
        await until(pilot, lambda: "/ “nosuch” not found" in screen_text(app))
        await pilot.press("escape")
        await type_in(pilot, "ampersand", "nosuch")
        await until(pilot, lambda: "No matches; esc clears the filter." in screen_text(app))
