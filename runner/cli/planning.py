"""The plan of a profile as text: what `plan` shows."""

from __future__ import annotations

import json
import sys

from runner.api.preparing import prepare
from runner.cli import startup
from runner.cli.render.output import put
from runner.cli.running import host_words
from runner.cli.viewing import viewing
from runner.profile import Profile
from runner.render.plan import plan_json, render_plan


def show_plan(
    profile: Profile, sandbox: bool, ssh_config: str | None, accept_new: bool, *, as_json: bool
) -> tuple[str, int]:
    """The plan of a profile, and the exit code of the command that shows it."""
    startup.import_ahead()
    way = viewing(ssh_config, accept_new, profile if sandbox else None)
    with way as viewer, prepare(viewer, profile, host_words(profile, _say)) as prepared:
        planned = prepared.planned
    parts = (planned.plan, planned.recommendation, planned.findings)
    text = json.dumps(plan_json(*parts), indent=2) if as_json else render_plan(*parts)
    return text, 3 if planned.errors else 0


def _say(text: str) -> None:
    # Beside the result, which is the plan alone.
    put(sys.stderr, f"disttui: {text}\n")
