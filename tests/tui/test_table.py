"""A table with more rows than fit: its scroll bar, the wheel, and rows that come while it is scrolled."""

from __future__ import annotations

from textual.events import MouseScrollDown

from disttui.tui.widgets.table import Column, Row, Table
from tests.tui.snap import press
from tests.tui.widget_kit import text_of


def rows(count: int) -> list[Row]:
    return [Row(f"{number}", [f"run {number:03d}"]) for number in range(count)]


async def test_wheel_and_bar_scroll_a_table_but_not_its_cursor() -> None:
    table = Table([Column("name")])
    async with text_of(table, (30, 10)) as (pilot, text):
        table.show(rows(100))
        table.focus()
        await pilot.pause()
        assert "› run 000" in text()
        await pilot._post_mouse_events([MouseScrollDown], table, offset=(4, 4))
        await pilot.pause()
        assert "run 003" in text() and "run 002" not in text() and table.key == "0"
        table.show(rows(101))
        await pilot.pause()
        assert "run 003" in text() and "run 002" not in text(), "rows that come scroll nothing back"
        bar = table.size.width - 1
        await pilot.mouse_down(table, offset=(bar, table.size.height))
        await pilot.mouse_up(table, offset=(bar, table.size.height))
        await pilot.pause()
        assert "run 100" in text() and table.key == "0"
        await press(pilot, "down")
        assert "› run 001" in text(), "the cursor brings its row back"


async def test_a_row_more_brings_the_bar_and_leaves_no_column_out() -> None:
    table = Table([Column("name"), Column("what", rank=1, grows=True)])
    named = [Row(f"{number}", [f"run {number:03d}", "a sentence with many words"]) for number in range(20)]
    # The least that both columns need, and the cell for the bar.
    async with text_of(table, (2 + 7 + 2 + 12 + 1, 10)) as (pilot, text):
        for count in (5, 20, 5):
            table.show(named[:count])
            await pilot.pause()
            assert "run 000  a sentence…" in text() and "run 019" not in text()
