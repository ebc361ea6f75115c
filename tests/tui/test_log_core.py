"""The log view's core: whatever comes in whatever pieces, every line has one place and keeps it."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from disttui.runner.text import LineMaker
from disttui.tui.log.ansi import runs, safe_text
from disttui.tui.log.engine import Reading, SearchProgress
from disttui.tui.log.index import LineIndex
from disttui.tui.log.merge import LINE, SHIFT
from disttui.tui.log.rows import LogFilter, Rows
from disttui.tui.log.search import Pattern
from disttui.tui.log.sources import AttemptLog, LogSources
from disttui.tui.log.view import LogViewState
from tests.files import new_file, new_folder
from tests.tui.demo_log import Writer
from tests.unit.waiting import wait_for

BITS = st.sampled_from(
    [
        *(b"a", b"bc", b" ", b"\t", b"\n", b"\n\n", b"\r", b"\r\n", b"[red]", b"x" * 9, b"\xff", b"\x00", b"\x08"),
        *(b"\x1b[31m", b"\x1b[0;1;48;5;9m", b"\x1b[2J", b"\x1b]52;c;aGk=\x07", b"\x1b]0;title", b"\x1b"),
        *(b"\x9b", b"\xc2\x9b31m", b"\xe2\x80\xae", b"\xe2\x80\x8b"),
        *(b"\xe4\xbd\xa0", b"\xc3\xa9", b"\xf0\x9f\x99\x82"),
    ]
)
BYTES = st.lists(BITS, max_size=30).map(b"".join)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def read_all(index: LineIndex) -> list[bytes]:
    return [index.line(number) for number in range(len(index))]


def expected_lines(data: bytes, limit: int) -> tuple[list[str], str]:
    """The whole lines and the unfinished one, each cut at `limit` bytes and made safe by LineMaker."""
    pieces = [[line[at : at + limit] for at in range(0, max(1, len(line)), limit)] for line in data.split(b"\n")]
    unfinished = pieces[-1].pop()
    return [text for line in pieces for piece in line for text in LineMaker().feed(piece + b"\n")], "".join(
        LineMaker().feed(unfinished + b"\n")
    )


@given(st.lists(BYTES, max_size=6), st.integers(1, 40), st.integers(4, 70))
def test_chunks_of_any_size_give_the_lines_of_linemaker(pieces: list[bytes], chunk: int, limit: int) -> None:
    with (
        folder() as here,
        patch("disttui.tui.log.index.LINE_LIMIT", limit),
        patch("disttui.tui.log.index.CHUNK", chunk),
    ):
        index, data = LineIndex(here / "log"), b""
        for piece in pieces:
            data += piece
            with (here / "log").open("ab") as file:
                file.write(piece)
            index.look()
            while index.grow():
                pass
            lines, unfinished = expected_lines(data, limit)
            assert [safe_text(raw) for raw in read_all(index)] == lines
            assert safe_text(index.tail()) == unfinished
        assert index.split(index.chunk(0, len(index)), 0, len(index)) == read_all(index)


@given(BYTES)
def test_colours_change_no_text_and_nothing_steers_the_terminal(raw: bytes) -> None:
    raw = raw.replace(b"\n", b"")
    assert [safe_text(raw)] == LineMaker().feed(raw + b"\n")
    text = "".join(piece for piece, _ in runs(raw))
    assert all(character.isprintable() or character == "\t" for character in text)
    assert "\u202e" not in text and "\u200b" not in text


def test_colours_survive_a_carriage_return() -> None:
    folded = runs(b"\x1b[31mold progress\x1b[0m tail\r\x1b[1mnew")
    assert "".join(text for text, _ in folded) == "new progress tail"
    assert [text for text, style in folded if style and style.bold] == ["new"]
    assert [text for text, style in folded if style and style.color] == [" progress"]


def test_nonsense_in_colours_is_skipped() -> None:
    raw = b"\x1b[38m\x1b[38;2;1m\x1b[48;5m\x1b[99999999999m\x1b[;;m\x1b[38;5;900mtext"
    assert safe_text(raw) == "text"


LOG = st.lists(st.sampled_from(["same", "other", "loss 1.5", "\x1b[31mloss\x1b[0m 2", "löss", "", "a\rb"]), max_size=12)
STEPS = st.lists(st.dictionaries(st.integers(0, 3), LOG, max_size=4), max_size=8)
PATTERNS = st.sampled_from(
    [
        Pattern("loss"),
        Pattern("loss", inverse=True),
        Pattern("LOSS", case=True),
        Pattern("l.ss [12]$", regex=True),
        Pattern("^$", regex=True),
        Pattern("ÖSS"),
        Pattern("loss 2", case=True),
        Pattern("b", case=True),
    ]
)
CHOICES = st.builds(
    LogFilter,
    ranks=st.none() | st.frozensets(st.integers(0, 4), max_size=3),
    patterns=st.lists(PATTERNS, max_size=2).map(tuple),
    fold=st.booleans(),
)


def poll(log: AttemptLog) -> None:
    log._discover_at = 0.0
    log.poll(time.monotonic() + 10)


def all_lines(log: AttemptLog, places: Iterator[int] | range) -> list[tuple[int, str]]:
    return [(log.source_of(log.order.items[at]).rank, safe_text(log.read(log.order.items[at]))) for at in places]


def _has(pattern: Pattern, text: str) -> bool:
    return (pattern.expression.search(text) is not None) != pattern.inverse


def fits(choice: LogFilter, rank: int, text: str) -> bool:
    return (choice.ranks is None or rank in choice.ranks) and all(_has(pattern, text) for pattern in choice.patterns)


@settings(deadline=None)
@given(STEPS, CHOICES, st.integers(0, 30), st.integers(1, 9))
def test_rows_are_the_lines_that_fit_whenever_they_come(
    steps: list[dict[int, list[str]]], choice: LogFilter, start: int, block: int
) -> None:
    with folder() as here, patch("disttui.tui.log.rows.BLOCK", block), patch("disttui.tui.log.merge.BLOCK", block):
        writer = Writer(here)
        log = LogSources(here).open(1)
        with patch("disttui.tui.log.merge.HOLD", 0.0):
            poll(log)
            rows = Rows(log, choice, 0 if choice.fold else min(start, len(log.order)))
            before: list[int] = []
            for step in steps:
                writer.write(step)
                poll(log)
                assert list(log.order.items[: len(before)]) == before, "a line changed its place"
                before = list(log.order.items)
                while rows.step():
                    pass
        everything = all_lines(log, range(len(log.order)))
        expected = [at for at, (rank, text) in enumerate(everything) if fits(choice, rank, text)]
        assert rows.complete
        if choice.fold:
            assert sum(rows.counts) == len(expected)
            places = [
                place for row in range(len(rows)) for place in expected[sum(rows.counts[:row]) :][: rows.count(row)]
            ]
            assert places == expected
            for row in range(len(rows)):
                first = expected.index(rows[row])
                group = [everything[place] for place in expected[first : first + rows.count(row)]]
                assert len({text for _, text in group}) == 1
                assert len({rank for rank, _ in group}) == len(group)
        else:
            assert [rows[row] for row in range(len(rows))] == expected
        for place in range(len(everything)):
            assert rows.row_at(place) == len([at for at in (rows[row] for row in range(len(rows))) if at < place])


@settings(deadline=None)
@given(STEPS, st.integers(1, 5))
def test_every_line_has_one_place_in_the_order_of_time(steps: list[dict[int, list[str]]], batch: int) -> None:
    with folder() as here, patch("disttui.tui.log.merge.BATCH", batch):
        writer = Writer(here)
        for step in steps:
            writer.write(step)
        log = LogSources(here, ["node1"]).open(1)
        poll(log)
        places = list(log.order.items)
        for source in log.sources:
            own = [entry & LINE for entry in places if entry >> SHIFT == source.number]
            assert own == list(range(len(source.index)))
        times = [log.time_of(entry) for entry in places]
        assert times == sorted(times)


def test_lines_of_two_hosts_are_merged_by_corrected_time(tmp_path: Path) -> None:
    for node, times in ((0, (10.0, 12.0)), (1, (111.0, 113.0))):
        attempt = new_folder(tmp_path / str(node) / "attempt-1")
        (attempt / f"rank-{node}.log").write_text("one\ntwo\n")
        notes = [{"t": t, "sizes": {str(node): 4 * (turn + 1)}} for turn, t in enumerate(times)]
        (attempt / "growth.jsonl").write_text("not json\n" + "".join(json.dumps(note) + "\n" for note in notes))
    log = LogSources(tmp_path, offsets={1: 100.0}).open()
    poll(log)
    assert all_lines(log, range(4)) == [(0, "one"), (1, "one"), (0, "two"), (1, "two")]


def test_a_truncated_log_starts_a_generation_and_loses_nothing(tmp_path: Path) -> None:
    attempt = new_folder(tmp_path / "0" / "attempt-1")
    path = new_file(attempt / "rank-0.log", "one\ntwo\nunfinished")
    log = LogSources(tmp_path).open()
    poll(log)
    assert all_lines(log, range(len(log.order))) == [(0, "one"), (0, "two")]
    path.rename(attempt / "rank-0.log~3")
    path.write_text("three\n")
    with patch("disttui.tui.log.merge.HOLD", 0.0):
        poll(log)
        poll(log)
    assert [text for _, text in all_lines(log, range(len(log.order)))] == ["one", "two", "unfinished", "three"]
    again = LogSources(tmp_path).open()
    poll(again)
    assert {text for _, text in all_lines(again, range(len(again.order)))} == {"one", "two", "unfinished", "three"}


def test_line_times_can_be_queried_while_a_host_is_added(tmp_path: Path) -> None:
    """A thread adds the logs that the screen asks about: once in 1,000 looks, the dictionary changed meanwhile."""
    log = LogSources(tmp_path).open()

    class Reader:
        @property
        def found(self) -> bool:
            log._growth[len(log._growth)] = Reader()  # type: ignore[assignment]
            return False

    log._growth[0] = Reader()  # type: ignore[assignment]
    log._growth[1] = Reader()  # type: ignore[assignment]
    assert not log.timed


def test_a_tail_only_mirror_knows_where_it_begins(tmp_path: Path) -> None:
    attempt = new_folder(tmp_path / "0" / "attempt-2")
    (attempt / "rank-5.log").write_text("\0" * 4096 + "late\n")
    (tmp_path / "0" / ".mirror.json").write_text(json.dumps({"attempt-2/rank-5.log": [0, 4096]}))
    (attempt / "growth.jsonl").write_text('{"t": 1, "sizes": {"5": 4000}}\n{"t": 50, "sizes": {"5": 4101}}\n')
    log = LogSources(tmp_path).open()
    poll(log)
    assert (log.attempt, log.ranks, log.sources[0].index.base) == (2, [5], 4096)
    assert [log.read(entry) for entry in log.order.items] == [b"late"]
    assert 49 < log.time_of(log.order.items[0]) <= 50


def test_a_rank_that_is_chosen_twice_in_a_row_is_shown(tmp_path: Path) -> None:
    attempt = new_folder(tmp_path / "0" / "attempt-1")
    for rank in range(2):
        (attempt / f"rank-{rank}.log").write_text("one\n")
    seen: list[SearchProgress] = []
    reading = Reading(LogSources(tmp_path), seen.append)
    one_rank = LogViewState(LogFilter(frozenset([1])))
    reading.set(one_rank)
    thread = threading.Thread(target=reading.engine.run)
    thread.start()
    try:
        wait_for(lambda: seen and seen[-1].complete and seen[-1].count == 1)
        reading.set(one_rank)
        # Only what is found for the work that is wanted now is shown.
        wait_for(lambda: any(progress.work is reading.work for progress in seen))
    finally:
        reading.engine.stop()
        thread.join()
