"""A choice of a few words in one line."""

from __future__ import annotations

from disttui.tui.widgets.choices import Cycle
from tests.tui.snap import press
from tests.tui.test_mouse import click
from tests.tui.widget_kit import text_of

WORDS = ("auto", "ddp", "fsdp", "hsdp")


async def test_the_chosen_word_is_in_sight_in_a_narrow_place() -> None:
    cycle = Cycle(WORDS)
    async with text_of(cycle, (24, 3)) as (pilot, shown):
        cycle.remove_class("pane")
        await pilot.pause()
        assert all(word in shown() for word in WORDS[:3]) and "…" in shown(), shown()
        for word in (*WORDS[1:], "auto"):
            await press(pilot, "right")
            assert cycle.value == word and word in shown()
        await press(pilot, "left")
        assert "hsdp" in shown() and "auto" not in shown()
        await click(pilot, "… ")  # for the words that are out of sight on this side
        assert cycle.value == "auto" and "auto" in shown()
        await click(pilot, "ddp")
        assert cycle.value == "ddp"


async def test_the_mark_of_the_focus_stands_before_the_chosen_word() -> None:
    cycle = Cycle(WORDS)
    async with text_of(cycle, (40, 3)) as (pilot, shown):
        for word in WORDS:
            assert f"› {word}" in shown() and shown().count("›") == 1, shown()
            await press(pilot, "right")
