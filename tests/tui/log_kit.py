"""A log view in an app of its own, played with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from textual.pilot import Pilot

from tests.tui.demo_log import DemoLog, Writer
from tests.tui.snap import screen_text, until

Scenario = Callable[[DemoLog, Pilot[None]], object]


def play(writer: Writer, scenario: Scenario, *, size: tuple[int, int] = (100, 30)) -> None:
    """Open the app on the writer's mirror and play a scenario in it."""

    async def main() -> None:
        app = DemoLog(writer.mirror)
        async with app.run_test(size=size) as pilot:
            lines = sum(len(path.read_bytes().splitlines()) for path in writer.mirror.glob("*/attempt-*/rank-*.log"))
            if lines:
                await until(pilot, lambda: app.log_view.lines.lines.count > 0)
            await scenario(app, pilot)  # type: ignore[misc]

    asyncio.run(main())


async def type_in(pilot: Pilot[None], key: str, text: str) -> None:
    """Open a prompt by its key and answer it."""
    await pilot.press(key, *text, "enter")


def top_line(app: DemoLog) -> str:
    return screen_text(app).splitlines()[0]


def cursor_line(app: DemoLog) -> str:
    return next(line for line in screen_text(app).splitlines() if line.startswith("▌"))
