"""What can be said of one host alone, by keys: which GPUs, how many processes, how it is reached, which Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from disttui.runner.profile.load import parse
from disttui.tui.wizard import WizardScreen
from disttui.tui.wizard.dialogs import SaveScreen
from disttui.tui.wizard.host_form import FormTable, HostForm
from tests.tui.snap import press, screen_text, until
from tests.tui.wizard_kit import facts, record, walked, wizard

TWO = {"gpu1": facts("a100x8"), "gpu2": facts("mixed_gpus")}


async def edit(pilot: Pilot[None], opened: WizardScreen, host: int) -> None:
    """From the step Processes to the form of a host."""
    opened.query_one("#per-host").focus()
    await pilot.press("g", *["down"] * host, "e")
    await until(pilot, lambda: isinstance(pilot.app.screen, HostForm) and pilot.app.screen.focused)
    await pilot.pause()


def choose(pilot: Pilot[None], row: str) -> None:
    pilot.app.screen.query_one(FormTable).select(row)


def said(opened: WizardScreen, host: int) -> Mapping[str, Any]:
    return opened._view.draft.said(host)


async def test_gpus_are_chosen_and_the_effect_is_shown_at_once(tmp_path: Path) -> None:
    async with walked(tmp_path, TWO, 3) as (pilot, opened):
        await edit(pilot, opened, 1)
        assert "gpu1 8 + gpu2 2 = 10 processes" in screen_text(pilot.app)
        choose(pilot, "gpu-0")
        await press(pilot, "space", then=lambda: said(opened, 1) == {"host": "gpu2", "gpus": [1]})
        await until(pilot, lambda: "gpu1 8 + gpu2 1 = 9 processes" in screen_text(pilot.app))
        choose(pilot, "gpu-2")
        await press(pilot, "space", then=lambda: said(opened, 1)["gpus"] == [1, 2])
        await press(pilot, "a", then=lambda: opened._view.draft.data["hosts"] == ["gpu1", "gpu2"])
        await until(pilot, lambda: "= 10 processes" in screen_text(pilot.app))
        await press(pilot, "escape", then=lambda: pilot.app.screen is opened)


async def test_a_busy_gpu_can_be_taken_and_is_warned_of(tmp_path: Path) -> None:
    async with walked(tmp_path, {"six": facts("a100x6_busy"), "gpu1": facts("a100x8")}, 3) as (pilot, opened):
        assert opened._view.planned is not None
        free = list(opened._view.planned.plan.hosts[0].gpus or ())
        busy = next(gpu.index for gpu in facts("a100x6_busy").gpus if gpu.index not in free)
        await edit(pilot, opened, 0)
        assert "held by" in screen_text(pilot.app)
        choose(pilot, f"gpu-{busy}")
        await press(pilot, "space", then=lambda: said(opened, 0)["gpus"] == sorted([*free, busy]))
        planned = opened._view.planned
        assert f"GPU {busy}" in " ".join(one.what for one in planned.findings if one.host == "six")


async def test_the_number_of_processes_is_typed_there_too(tmp_path: Path) -> None:
    async with walked(tmp_path, TWO, 3) as (pilot, opened):
        await edit(pilot, opened, 0)
        await press(pilot, "1", "6", then=lambda: said(opened, 0).get("num_processes") == 16)
        await press(pilot, "left", then=lambda: said(opened, 0).get("num_processes") == 15)
        await press(pilot, "a", then=lambda: opened._view.draft.data["hosts"] == ["gpu1", "gpu2"])


async def test_a_number_that_stands_once_for_all_hosts_is_yours_too(tmp_path: Path) -> None:
    async with walked(tmp_path, TWO, 3, names=["gpu2"]) as (pilot, opened):
        await edit(pilot, opened, 0)

        def mark() -> str:
            (found,) = re.findall(r"› processes +\d+ +(\w+)", screen_text(pilot.app))
            return str(found)

        assert mark() == "auto"
        await press(pilot, "right", then=lambda: "num_processes" in opened._view.draft.data)
        await until(pilot, lambda: mark() == "yours")
        await press(pilot, "a", then=lambda: mark() == "auto")


async def test_each_of_several_values_of_a_host_is_given_back_alone(tmp_path: Path) -> None:
    async with walked(tmp_path, TWO, 3) as (pilot, opened):
        await edit(pilot, opened, 0)
        for row in ("num_processes", "python"):
            choose(pilot, row)
            await pilot.press("right")
            await until(pilot, lambda row=row: row in said(opened, 0))  # type: ignore[misc]
        await press(pilot, "a", then=lambda: said(opened, 0).keys() == {"host", "num_processes"})
        choose(pilot, "num_processes")
        await press(pilot, "a", then=lambda: opened._view.draft.data["hosts"] == ["gpu1", "gpu2"])


async def test_what_the_probe_found_is_offered_in_turn(tmp_path: Path) -> None:
    up = [nic for nic in TWO["gpu1"].nics if nic.up]
    found = {
        "interface": [nic.name for nic in up],
        "address": [where for nic in up if not nic.loopback for where in nic.addresses],
        "python": [each.path for each in TWO["gpu1"].interpreters],
    }
    async with walked(tmp_path, TWO, 3) as (pilot, opened):
        await edit(pilot, opened, 0)
        for row, values in found.items():
            offered = list(dict.fromkeys(values))

            def is_said(value: str | None, row: str = row) -> bool:
                return said(opened, 0).get(row) == value

            choose(pilot, row)
            for value in offered:
                await press(pilot, "right", then=partial(is_said, value))
                assert opened._view.planned is not None, opened._view.draft.problems
            await pilot.pause()
            assert "yours" in screen_text(pilot.app)
            await press(pilot, "right", then=lambda: opened._view.draft.data["hosts"] == ["gpu1", "gpu2"])
            await press(pilot, "left", then=partial(is_said, offered[-1]))
            await press(pilot, "a", then=lambda: opened._view.draft.data["hosts"] == ["gpu1", "gpu2"])


TEXT = """\
disttui: 1
name: mine
# two boxes under the desk
hosts:
  - host: gpu1      # the big one
    gpus: [0, 1]    # the others are for the desktop
    env: {NCCL_DEBUG: WARN}
  - gpu2            # the small one

job: {builtin: bytegpt}   # for now
"""


async def test_comments_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch, TWO)
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    async with wizard(tmp_path, profile=path) as (pilot, opened):
        await until(pilot, lambda: opened._at == 4)
        await press(pilot, "escape", "escape", then=lambda: opened._at == 2)
        await edit(pilot, opened, 0)
        choose(pilot, "gpu-1")
        await press(pilot, "space", then=lambda: said(opened, 0)["gpus"] == [0])
        await pilot.press("escape")
        await edit(pilot, opened, 1)
        choose(pilot, "gpu-0")
        await press(pilot, "space", then=lambda: said(opened, 1).get("gpus") == [1])
        await press(pilot, "escape", "enter", "enter", then=lambda: opened._at == 4)
        await press(pilot, "s", then=lambda: isinstance(pilot.app.screen, SaveScreen))
        await press(pilot, "enter", then=lambda: path.read_text() != TEXT)
    after = path.read_text()
    comments = [line.partition("#")[2] for line in TEXT.splitlines() if "#" in line]
    assert [line.partition("#")[2] for line in after.splitlines() if "#" in line] == comments, after
    hosts = parse(after, "mine").hosts
    assert [host.gpus for host in hosts] == [(0,), (1,)] and hosts[0].env == {"NCCL_DEBUG": "WARN"}


async def test_a_python_path_can_be_typed_and_is_validated(tmp_path: Path) -> None:
    async with walked(tmp_path, TWO, 3) as (pilot, opened):
        await edit(pilot, opened, 0)
        choose(pilot, "python")
        await until(pilot, lambda: "enter types a path" in screen_text(pilot.app))
        await pilot.press("enter", "ctrl+u", *"/opt/q/python", "enter")
        await until(pilot, lambda: said(opened, 0).get("python") == "/opt/q/python")
        assert isinstance(pilot.app.screen, HostForm)
        await press(pilot, "enter", "ctrl+u", *"relative/python", "enter", shows="✗")
        assert said(opened, 0).get("python") == "/opt/q/python"
        await press(pilot, "escape", then=lambda: isinstance(pilot.app.focused, FormTable))
        await press(pilot, "escape", then=lambda: pilot.app.screen is opened)
