"""GPUs that others have leased, in the wizard: who to ask, and a start that waits for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api.preparing import ahead, plan_run
from disttui.runner.hosts.facts import with_leases
from disttui.runner.profile.load import parse
from disttui.tui.router import Router
from disttui.tui.wizard import WizardScreen
from tests.tui import top_kit
from tests.tui.snap import press, screen_text, until
from tests.tui.wizard_kit import facts, start, walked


async def test_one_key_queues_a_run_until_leased_gpus_are_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = top_kit.lease("bob\x1b[2J", list(range(8)), uid=4242)
    started: list[Any] = []

    def launch(opened: WizardScreen, *_: Any) -> str:
        started.append(opened._view.planned)
        return "queued-7f3a"

    monkeypatch.setattr(WizardScreen, "_launch", launch)
    monkeypatch.setattr(Router, "open_run", lambda *_, **__: None)
    hosts = {"gpu1": with_leases(facts("a100x8", leases=[lease]))}
    async with walked(tmp_path, hosts, 2, (120, 40)) as (pilot, opened):
        assert "GPUs 0-7: leased: bob" in screen_text(pilot.app), "the hardware says who has it"
        await press(pilot, "enter", "enter", "enter", shows="none of its GPUs is free")
        shown = screen_text(pilot.app)
        assert "bob" in shown and "w queues it until leased GPUs are free" in shown and "w when free" in shown
        await press(pilot, "w", shows="enter queues 8 processes on 1 host")
        shown = screen_text(pilot.app)
        assert "◌ gpu1: bob's llama-7f3a holds GPUs 0, 1" in shown and "none of its GPUs" not in shown
        assert shown.index("When these have ended:") < shown.index("every host has a free GPU"), "which is not so now"
        await press(pilot, "w", shows="none of its GPUs is free")
        await pilot.press("w")
        await start(pilot, opened)
        await until(pilot, lambda: started)
    assert started[0].queued and not started[0].errors


def test_a_queued_run_on_the_cpu_waits_for_other_runs_there() -> None:
    leases = [top_kit.lease("bob", [], uid=4242), top_kit.lease("eve", [0], uid=4243)]
    found = facts("cpu_desk", leases=leases)
    profile = parse("disttui: 1\nhosts: [desk]\njob: {builtin: bytegpt}\n", "x")
    planned = plan_run(profile, [found], {}, queued=True)
    assert not planned.errors
    assert [(host, lease["user"]) for host, _, lease in ahead(planned)] == [("desk", "bob")]
