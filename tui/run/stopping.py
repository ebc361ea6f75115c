"""Stops a run, whether a screen shows it or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.api.ending import StopAsked, catch_up, stop
from runner.api.finding import find_run
from runner.api.news import HostNotice
from runner.render.stopping import stopped_lines

if TYPE_CHECKING:
    from tui.shell import Shell


def end(app: Shell, run_id: str) -> None:
    """Stop a run on all its hosts and complete its mirror; call it in a thread. Raises DisttuiError."""

    def tell(news: HostNotice | StopAsked) -> None:
        if isinstance(news, HostNotice):
            app.notify(f"{news.host}: {news.text}")

    viewer = app.viewer()
    run = find_run(viewer, run_id)
    for line in stopped_lines(stop(viewer, run, tell=tell)):
        app.notify(line)
    catch_up(viewer, run)
