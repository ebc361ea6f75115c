"""The looks, keys and mouse of the log view, on a mirror that grows."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from textual import events

from disttui.tui.log import Pattern
from disttui.tui.log.status import badge
from tests.tui.demo_log import TRACEBACK, Writer
from tests.tui.log_kit import cursor_line, log_view, top_line, type_in
from tests.tui.snap import SIZES, assert_snapshot, press, screen_text, until


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return Writer(tmp_path)


async def test_follow_shows_what_comes_and_pause_stays(writer: Writer) -> None:
    writer.steps(0, 40)
    async with log_view(writer) as (app, pilot):
        view = app.log_view
        assert view.following and badge(view.lines) == "● FOLLOW"
        writer.write({0: ["fresh news"]})
        await until(pilot, lambda: "fresh news" in screen_text(app))
        await pilot.press("k")
        assert not app.log_view.following
        before = top_line(app)
        known = view.lines.lines.count
        for step in range(40, 80):
            writer.steps(step, step + 1)
        await until(pilot, lambda: view.lines.lines.count >= known + 160)
        assert top_line(app) == before
        assert badge(view.lines) == f"■ PAUSED +{view.lines.lines.count - known}"
        await pilot.press("G")
        assert view.following and "step    79" in screen_text(app)


async def test_find_goes_to_hits_in_order_and_round(writer: Writer) -> None:
    writer.steps(0, 60)
    async with log_view(writer) as (app, pilot):
        view = app.log_view
        await pilot.press("g")
        await type_in(pilot, "slash", "CHECKPOINT at step 3")
        await until(pilot, lambda: "saved checkpoint at step 30" in cursor_line(app))
        await until(pilot, lambda: "1 of 4" in screen_text(app))
        assert "node1:0" in cursor_line(app)
        await pilot.press("n")
        assert "node1:1" in cursor_line(app)
        await pilot.press("N", "N")
        assert "node2:3" in cursor_line(app), "before the first comes the last"
        await type_in(pilot, "slash", "")
        assert "CHECKPOINT" in screen_text(app), "the prompt offers what was searched"
        await pilot.press("escape")
        view.find(Pattern("CHECKPOINT", case=True))
        await until(pilot, lambda: "not found" in screen_text(app))
        assert "node2:3" in cursor_line(app)
        view.find(Pattern("checkpoint at step 20"))
        view.lines.action_begin()
        await until(pilot, lambda: re.search("step 20” (1 of )?4 ", screen_text(app)))
        assert view.lines.view.cursor == 0, "who moves meanwhile stays there"
        await pilot.press("n")
        assert "checkpoint at step 20" in cursor_line(app)


async def test_keys_typed_ahead_are_the_prompts(writer: Writer) -> None:
    writer.steps(0, 60)
    async with log_view(writer) as (app, pilot):
        for key in ("g", "slash", *"checkpoint", "space", *"at", "enter"):
            character = {"slash": "/", "space": " ", "enter": "\r"}.get(key, key)
            app.post_message(events.Key(key, character))
        await until(pilot, lambda: "/ “checkpoint at” 1 of" in screen_text(app))


async def test_a_bad_regular_expression_is_reported_in_the_prompt(writer: Writer) -> None:
    writer.steps(0, 5)
    async with log_view(writer) as (app, pilot):
        await press(pilot, "slash", "ctrl+r", "(", "enter", shows="✗ missing ), unterminated subpattern")
        await pilot.resize_terminal(44, 12)
        await until(pilot, lambda: "/ ( " in screen_text(app) and "✗ missing ), " in screen_text(app))
        await pilot.resize_terminal(100, 30)
        await press(pilot, "backspace", "s", "t", ".", "p", "enter", shows=("of ", "(regex)"))


async def test_end_of_a_long_pattern_stays_visible_when_narrowed(writer: Writer) -> None:
    writer.steps(0, 5)
    async with log_view(writer) as (app, pilot):
        await pilot.press("slash", *"abcdefghijklmnopqrstuvwxyz" * 2)
        await pilot.resize_terminal(44, 12)
        await until(pilot, lambda: re.search(r"^ / [a-z]+xyz +○r ○c", screen_text(app), re.MULTILINE))


async def test_cursor_stays_in_sight_when_the_terminal_shrinks(writer: Writer) -> None:
    writer.steps(0, 100)
    async with log_view(writer) as (app, pilot):
        lines = app.log_view.lines
        lines.jump(200)
        await press(pilot, *["down"] * 10, then=lambda: lines.cursor_seen)
        line = cursor_line(app)[:40]  # a scroll bar follows
        for size in ((80, 12), (100, 30), (80, 10)):
            await pilot.resize_terminal(*size)
            await until(pilot, lambda: lines.cursor_seen)
            assert cursor_line(app)[:40] == line


async def test_filter_and_back_keep_the_line(writer: Writer) -> None:
    writer.steps(0, 100)
    async with log_view(writer) as (app, pilot):
        view = app.log_view
        view.lines.jump(200)
        await pilot.pause()
        before, line = top_line(app), cursor_line(app)
        await type_in(pilot, "ampersand", "checkpoint")
        await until(pilot, lambda: view.lines.lines.count == 39)
        shown = screen_text(app).splitlines()[:28]
        assert all("checkpoint" in text for text in shown)
        await press(pilot, "escape", then=lambda: view.lines.lines.count > 39)
        assert (top_line(app), cursor_line(app)) == (before, line)
        await pilot.press("ampersand", "ctrl+n", *"step", "enter")
        await until(pilot, lambda: "WARNING" in top_line(app) and "step" not in top_line(app))


async def test_ranks_errors_and_the_pager(writer: Writer) -> None:
    writer.steps(0, 100)
    async with log_view(writer) as (app, pilot):
        view = app.log_view
        await press(pilot, "e", then=lambda: TRACEBACK[0] in cursor_line(app))
        await press(pilot, "o")
        assert app.opened == [(writer.path(3), 61)]
        await press(pilot, "3", then=lambda: "rank 3" in screen_text(app) and "node" not in top_line(app))
        assert TRACEBACK[0] in cursor_line(app), "the line is kept where it is a line of the rank"
        await pilot.press("9")
        assert view.lines.view.choice.ranks == frozenset({3}), "there is no rank 9"
        await press(pilot, "a", then=lambda: view.lines.progress.work is view.reading.work)
        await until(pilot, lambda: view.lines.progress.searched and view.lines.progress.complete)
        await press(pilot, "n", then=lambda: TRACEBACK[3] in cursor_line(app))


async def test_a_range_is_copied_by_key_and_by_mouse(writer: Writer) -> None:
    writer.steps(0, 40)
    async with log_view(writer) as (app, pilot):
        await pilot.press("g", "v", "j", "j")
        assert "3 lines selected" in screen_text(app)
        await press(pilot, "y", then=lambda: app.copied)
        assert app.copied[-1].splitlines() == [
            f"node{1 + rank // 2}:{rank} │ saved checkpoint at step 0" for rank in range(3)
        ]
        lines = app.log_view.lines
        await pilot.mouse_down(lines, offset=(20, 4))
        await pilot.hover(lines, offset=(20, 7))
        await pilot.mouse_up(lines, offset=(20, 7))
        await until(pilot, lambda: "4 lines selected" in screen_text(app))
        await press(pilot, "0", then=lambda: "rank 0" in screen_text(app) and "node" not in top_line(app))
        await press(pilot, "escape", "Y", then=lambda: len(app.copied) == 2)
        assert app.copied[-1].count("\n") == 27 and "node1" not in app.copied[-1]


async def test_wheel_and_bar(writer: Writer) -> None:
    writer.steps(0, 200)
    async with log_view(writer) as (app, pilot):
        view = app.log_view
        first = view.lines.shown_places()[0]
        await pilot._post_mouse_events([events.MouseScrollUp], view.lines, button=0)
        assert view.lines.shown_places()[0] == first - 3 and not view.following
        await pilot.click(view.lines, offset=(99, 0))
        assert view.lines.shown_places()[0] == 0
        await pilot.press("f")
        assert view.following


async def test_wrap_and_sideways(writer: Writer) -> None:
    writer.write({0: ["begin " + "x" * 150 + " end"], 1: ["short"]})
    async with log_view(writer) as (app, pilot):
        assert " end" not in screen_text(app) and "›" in screen_text(app)
        await pilot.press(*["right"] * 30)
        assert " end" in screen_text(app) and "begin" not in screen_text(app)
        await pilot.press("w")
        assert " end" in screen_text(app) and "begin" in screen_text(app)


async def test_same_lines_of_several_ranks_are_folded(writer: Writer) -> None:
    writer.steps(0, 40)
    async with log_view(writer) as (app, pilot):
        view = app.log_view
        total = view.lines.lines.count
        await press(pilot, "g", "x", then=lambda: "×4" in top_line(app))
        await until(pilot, lambda: sum(view.lines.lines.rows.counts) == total)
        await press(pilot, "x", then=lambda: view.lines.lines.count == total and "×" not in top_line(app))


async def test_a_progress_bar_that_never_ends_its_line_is_shown(writer: Writer) -> None:
    writer.steps(0, 5)
    async with log_view(writer) as (app, pilot):
        with writer.path(1).open("a") as log:
            log.write("\r 10% done\r 20% done")
        await until(pilot, lambda: "20% done" in screen_text(app))
        assert "10% done" not in screen_text(app)
        await press(pilot, "&", *"20%", "enter", then=lambda: app.log_view.lines.lines.count == 0)
        assert "20% done" in screen_text(app)


async def test_attempts_and_times(writer: Writer) -> None:
    writer.steps(0, 20)
    async with log_view(writer) as (app, pilot):
        view = app.log_view
        await type_in(pilot, "t", "+2")
        await until(pilot, lambda: not view.following)
        assert "step     8" in cursor_line(app)
        await type_in(pilot, "t", "teatime")
        await until(pilot, lambda: "not a time" in screen_text(app))
        await pilot.press("escape", "G")
        second = Writer(writer.mirror, attempt=2, begin=1_800_000_100.0)
        second.write({0: ["attempt two begins"]})
        await until(pilot, lambda: "attempt two begins" in screen_text(app))
        assert "attempt 2, [ shows 1\n" in screen_text(app)
        await press(pilot, "left_square_bracket", shows="step    19")
        assert "attempt 1, latest 2" in screen_text(app)
        await press(pilot, "right_square_bracket", shows="attempt two begins")


async def test_older_lines_are_asked_for_at_the_first(writer: Writer) -> None:
    (writer.path(0)).write_text("\0" * 900 + "late line\n" * 50)
    (writer.mirror / "0" / ".mirror.json").write_text('{"attempt-1/rank-0.log": [0, 900]}')
    async with log_view(writer) as (app, pilot):
        assert not app.older
        await press(pilot, "g", then=lambda: app.older == [(900, 0)])


async def test_a_mirror_that_is_deleted_and_comes_back(writer: Writer) -> None:
    writer.steps(0, 30)
    async with log_view(writer) as (app, pilot):
        shutil.rmtree(writer.mirror)
        for key in ("k", "g", "slash", "x", "enter", "escape", "G", "y", "t", "escape"):
            await pilot.press(key)
            await pilot.pause(0.1)
        Writer(writer.mirror, attempt=2).write({0: ["back again"]})
        await until(pilot, lambda: "back again" in screen_text(app))


async def test_an_attempts_log_stays_until_the_next_one_prints(writer: Writer) -> None:
    writer.write({0: ["the last words of attempt one"]})
    async with log_view(writer) as (app, pilot):
        await until(pilot, lambda: "the last words" in screen_text(app))
        second = Writer(writer.mirror, attempt=2, begin=1_800_000_100.0)
        second.path(0).touch()
        app.log_view.show_attempt(None)
        await until(pilot, lambda: app.log_view.reading.log.settled)
        assert app.log_view.reading.log.attempt == 1
        await until(pilot, lambda: "the last words" in screen_text(app))
        assert "nothing yet" not in screen_text(app)
        second.write({0: ["attempt two begins"]})
        await until(pilot, lambda: "attempt two begins" in screen_text(app))
        await press(pilot, "left_square_bracket", shows="the last words")


async def test_levels_are_coloured_in_lines_without_own_colours(writer: Writer) -> None:
    said = ["12:01 ERROR no space", "UserWarning: old", "DEBUG shapes", "INFO fine", "\x1b[32mERROR in green\x1b[0m"]
    writer.write({0: [*said, "ValueError: no such token", "no errors here"]})
    async with log_view(writer) as (app, pilot):
        await until(pilot, lambda: "no errors here" in screen_text(app))
        body = app.log_view.lines
        found: dict[str, list[str]] = {}
        for y in range(body.size.height):
            for segment in body.render_line(y):
                for level in ("error", "warning", "debug"):
                    if segment.style and segment.text.strip(" ▌│") and segment.style.color == body._ink(level).color:
                        found.setdefault(level, []).append(segment.text)
        assert found["error"] == ["ERROR", "ValueError"]
        assert found["warning"] == ["UserWarning"] and "DEBUG" in found["debug"]


async def test_nothing_yet(writer: Writer) -> None:
    async with log_view(writer) as (app, pilot):
        for key in (*"kjGgvyYoexnNtwa5[", "escape", "pagedown", "end", "left", "right"):
            await pilot.press(key)
            await pilot.press("escape")
        assert "printed nothing yet" in screen_text(app)


async def test_a_log_is_not_called_empty_before_it_is_read(writer: Writer) -> None:
    async with log_view(writer) as (app, pilot):
        await until(pilot, lambda: "printed nothing yet" in screen_text(app))
        lines = app.log_view.lines
        for complete in (False, True):
            lines.take(replace(lines.progress, complete=complete))
            await until(pilot, lambda: ("printed nothing yet" in screen_text(app)) == complete)  # noqa: B023


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_how_it_looks(writer: Writer, size: tuple[int, int]) -> None:
    writer.steps(0, 100)
    async with log_view(writer, size=size) as (app, pilot):
        view = app.log_view
        name = f"log_{size[0]}x{size[1]}"
        await until(pilot, lambda: view.lines.lines.count == 403 and "f follow" in screen_text(app))
        await assert_snapshot(pilot, f"{name}_follow")
        await press(pilot, "e", then=lambda: view.lines.progress.searched and not view.following)
        await press(pilot, "v", "j", "x", shows="×")
        await assert_snapshot(pilot, f"{name}_error_folded")
        await pilot.press("ampersand", *"loss 3.5")
        await until(pilot, lambda: "close" in screen_text(app) and "loss 3.5" in screen_text(app).splitlines()[-2])
        await assert_snapshot(pilot, f"{name}_prompt")
