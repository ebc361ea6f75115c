"""What is read without colours or without our glyphs, and where long lines are broken."""

from __future__ import annotations

import re
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.segment import Segment
from textual.app import App, ComposeResult
from textual.color import Color

from disttui.tui.dashboard.diagnosis import DiagnosisText
from disttui.tui.dashboard.story import StoryPane
from disttui.tui.widgets.drawn import wrapped
from tests.tui import shelf_kit as kit
from tests.tui.shelf_kit import environ
from tests.tui.snap import press, screen_text, until
from tests.tui.synthetic_run import write
from tests.tui.tmux import tmux
from tests.tui.widget_kit import text_of
from tests.tui.wizard_kit import HOSTS, walked

FRAME = "    at /opt/conda/envs/training/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:2806"


def _light(segment: Segment) -> float:
    assert segment.style is not None and segment.style.color is not None
    return Color.from_rich_color(segment.style.color).brightness


async def test_without_colours_a_headline_is_as_bright_as_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    pane = StoryPane(id="story")
    pane._lines = ["✗ rank 3 raised ValueError", "  what followed from it"]
    async with text_of(pane, (60, 10)) as (pilot, _):
        strips = pilot.app.screen._compositor.render_strips(pilot.app.size)
        (head,) = [part for strip in strips for part in strip if "ValueError" in part.text]
        (body,) = [part for strip in strips for part in strip if "followed" in part.text]
        assert _light(head) >= _light(body)
        assert head.style is not None and head.style.bold


async def test_a_story_cut_off_by_its_pane_ends_in_an_ellipsis() -> None:
    for kind, last in (("not seen", "  The run may still be g"), ("failed", "│ ValueError: no such")):
        pane = StoryPane(id="story")
        pane._kind, pane._lines = kind, ["◇ node1 unreachable since 14:14:10: no answer", f"{last} token in shard 17"]
        async with text_of(pane, (30, 4)) as (_, text):
            rows = [row.rstrip() for row in text().splitlines()]
            assert rows[3].startswith(last) and rows[3].endswith(" …") and "…" not in rows[2]


async def test_a_story_is_not_cut_within_its_exception() -> None:
    pane = StoryPane(id="story")
    error = "│ RuntimeError: CUDA error: no kernel image is available for execution on the device"
    pane._lines = [
        "✗ failed after 0:08: rank 2 on node2 raised RuntimeError", "  the same error: ranks 0, 1 on node1",
        "  → Install another torch.", "│ Traceback (most recent call last):", error, "│ CUDA kernel errors",
    ]  # fmt: skip
    async with text_of(pane, (70, 6)) as (_, text):
        rows = [row.rstrip() for row in text().splitlines()][1:]
        assert rows[-2].startswith("│ RuntimeError: CUDA error") and rows[-2].endswith(" …")
        assert rows[-1] == "│ CUDA kernel errors"


def test_every_row_of_a_quoted_line_has_its_margin() -> None:
    rows = wrapped(["│ RuntimeError: no kernel image"], 20)
    assert rows == ["│ RuntimeError: no", "│   kernel image"]


@pytest.mark.parametrize("height", [2, 3, 4, 5, 7])
async def test_cure_of_a_failure_stays_in_a_small_pane(height: int) -> None:
    pane = StoryPane(id="story")
    pane._lines = [
        "✗ failed after 0:12: rank 1 on node2 raised OutOfMemoryError", "  stopped because of it: rank 0 on node1",
        "  → Lower the batch size.", "", "│ Traceback (most recent call last):", "│   train.py:9 in step",
        "│ OutOfMemoryError: CUDA out of memory",
    ]  # fmt: skip
    async with text_of(pane, (70, height + 1)) as (_, text):
        rows = [row.rstrip() for row in text().splitlines()][1:]  # below the title
        assert rows[0].startswith("✗ failed after 0:12") and "  → Lower the batch size." in rows
        assert height < 3 or rows[-1] == "│ OutOfMemoryError: CUDA out of memory"
        assert height in (2, 3, 7) or rows[1] == "  …"


async def test_small_story_drops_pointers_of_a_traceback() -> None:
    pane = StoryPane(id="story")
    code = ["│ Traceback (most recent call last):", "│     step(batch)", "│     ~~~~^^^^^^^", "│ KeyError: 3"]
    pane._lines = ["✗ failed after 0:12: rank 1 on node2 raised KeyError", *code]
    async with text_of(pane, (70, 5)) as (_, text):
        assert [row.rstrip() for row in text().splitlines()][1:] == [pane._lines[0], *code[:2], code[3]]


class _Diagnosis(App[None]):
    def __init__(self, text: str, **named: Any) -> None:
        super().__init__(**named)
        self._told = text

    def compose(self) -> ComposeResult:
        yield DiagnosisText(self._told)


async def test_the_diagnosis_breaks_no_word_of_a_path() -> None:
    app = _Diagnosis(f"rank 0 waits in all_reduce\n{FRAME}")
    async with app.run_test(size=(60, 12)) as pilot:
        await pilot.pause()
        rows = [row.strip() for row in screen_text(app).splitlines() if row.strip()]
    assert rows[0] == "rank 0 waits in all_reduce"
    assert "".join(rows[1:]).replace("at/", "at /") == FRAME.strip()
    assert all(row.endswith("/") or row == "at" for row in rows[1:-1])


@pytest.mark.parametrize("width", [10, 20, 60])
def test_a_broken_line_fits_and_loses_nothing(width: int) -> None:
    wide = "\u5185\u5b58 " * 20, "\u5185" * 70
    for text in (FRAME, "x" * 200, " " * 40 + "word " * 30, "│ " + "x" * 7 + " y" * 9, "short", *wide, ""):
        rows = wrapped([text], width)
        assert max(map(cell_len, rows)) <= width
        assert "".join("".join(rows).replace("│", "").split()) == "".join(text.replace("│", "").split())


async def test_arrow_keys_are_named_in_words_on_ascii_terminals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "__stderr__", TextIOWrapper(BytesIO(), "disttui_ascii"))
    async with walked(tmp_path, HOSTS, 3, (80, 24), names=["gpu1"]) as (pilot, _):
        assert "left less  right more  enter next" in screen_text(pilot.app)
        await press(pilot, "e", shows="space tick   left less   right more")


@pytest.mark.parametrize("reduced", [True, False])
async def test_scroll_bars_use_whole_cells_without_partial_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reduced: bool
) -> None:
    for number in range(40):
        kit.add_profile(tmp_path, f"p{number}", "disttui: 1\nhosts: [one]\njob: {script: a.py}\n")
    if reduced:
        monkeypatch.setattr(sys, "__stderr__", TextIOWrapper(BytesIO(), "disttui_ascii"))
    async with kit.home(tmp_path, size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: kit.shows(app, "› p0"))
        shown = ""
        for _ in range(6):  # a bar of its own, of rows
            await pilot.press("down")
            shown += screen_text(app)
        await press(pilot, "question_mark", shows="searches words and keys")
        for _ in range(6):  # and one of Textual
            await pilot.press("down")
            shown += screen_text(app)
        assert (re.search("[▁-▇]", shown) is None) == reduced


@pytest.mark.tmux
@pytest.mark.parametrize("words", ["LANG=C", pytest.param("TERM=linux LANG=C.UTF-8", marks=pytest.mark.slow)])
def test_charts_and_panes_are_ascii_where_glyphs_are_missing(words: str, tmp_path: Path) -> None:
    write(tmp_path / "data" / "disttui" / "runs" / "run-1", hosts=2, per_host=2, steps=30)
    home = environ(tmp_path, LANG="C.UTF-8")
    without = ("-u", "LC_ALL", "-u", "LC_CTYPE", "-u", "PYTHONUTF8", "-u", "PYTHONIOENCODING")
    command = (
        "env",
        *without,
        *words.split(),
        str(Path(sys.executable).with_name("disttui")),
        "runs",
        "replay",
        "run-1",
    )
    with tmux(tmp_path, command, home, (100, 30)) as terminal:
        shown = terminal.until(r"v finished[\s\S]+\d line")
        assert r"\u" not in shown and "-Hosts---" in shown and "attempt 1" in shown
        assert shown.replace("·", "-").replace("×", "x").isascii()
        assert re.search(r"\| +'*[.:']+", shown), "the chart is drawn with dots"
        terminal.press("q")


def test_a_pointer_that_would_be_broken_is_left_out() -> None:
    assert wrapped(["│ f(x)", f"│ {'^' * 30}", "│ KeyError"], 20) == ["│ f(x)", "│ KeyError"]
    assert wrapped(["│ f(x)", "│ ^^^^"], 20) == ["│ f(x)", "│ ^^^^"]
