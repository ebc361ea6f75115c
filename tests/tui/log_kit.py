"""A log view in an app of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from tests.tui.demo_log import DemoLog, Writer
from tests.tui.snap import screen_text, until


@asynccontextmanager
async def log_view(writer: Writer, *, size: tuple[int, int] = (100, 30)) -> AsyncIterator[tuple[DemoLog, Pilot[None]]]:
    """The app on the writer's mirror."""
    app = DemoLog(writer.mirror)
    async with app.run_test(size=size) as pilot:
        if any(path.read_bytes() for path in writer.mirror.glob("*/attempt-*/rank-*.log")):
            await until(pilot, lambda: app.log_view.lines.lines.count > 0)
        yield app, pilot


async def type_in(pilot: Pilot[None], key: str, text: str) -> None:
    """Open a prompt by its key and answer it."""
    await pilot.press(key, *text, "enter")


def top_line(app: DemoLog) -> str:
    return screen_text(app).splitlines()[0]


def cursor_line(app: DemoLog) -> str:
    return next(line for line in screen_text(app).splitlines() if line.startswith("▌"))
