"""The dashboard of a run, its log, and replays."""

from __future__ import annotations

from tests.tui.scenes import Scene, in_replay

SCENES = (Scene("dashboard-failed", (160, 44), act=in_replay("E", "E", "E", "E")),)
