"""The wizard while other things happen: discovery, a start."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
from textual.widgets import Input

from disttui.runner.api.library import read_profile
from disttui.runner.hosts.discovery import Candidate, Discovered
from disttui.runner.planning.preflight import Finding
from disttui.runner.profile.sections import Host, parse_host
from disttui.tui.dashboard.screen import DashboardScreen
from disttui.tui.dialogs.help import HelpScreen
from disttui.tui.home.screen import HomeScreen
from disttui.tui.wizard import WizardScreen, hosts_screen
from disttui.tui.wizard.draft import HostCheck, WizardState, open_draft
from disttui.tui.wizard.hosts import SANDBOX_ROW, HostTable
from disttui.tui.wizard.hosts_screen import HostProber
from tests.files import new_file
from tests.tui.snap import press, screen_text, until
from tests.tui.wizard_kit import HOSTS, record, states, type_text, walked, wizard
from tests.tui.wizard_kit import start as begin
from tests.unit.waiting import wait_for


class Slow:
    """A function that answers when the test lets it."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.asked, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.asked.set()
        assert self.go_on.wait(60)
        return self._answer


async def test_what_is_being_typed_stays_in_its_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that are found meanwhile do not take the focus: `q` is a letter of a name."""
    record(monkeypatch, HOSTS)
    find = Slow([Discovered("ssh", (Candidate("gpu7", "ssh"),))])
    monkeypatch.setattr(hosts_screen, "find_all", find)
    async with wizard(tmp_path) as (pilot, opened):
        await until(pilot, find.asked.is_set)
        await type_text(pilot, "gp")
        find.go_on.set()
        await until(pilot, lambda: "gpu7" in screen_text(pilot.app))
        await type_text(pilot, "uq")
        assert opened.query_one("#names", Input).value == "gpuq"


async def test_down_goes_to_the_first_host_that_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of the ssh config come above `local`, which is listed before they are known."""
    record(monkeypatch, HOSTS)
    find = Slow([Discovered("ssh", (Candidate("gpu7", "ssh"), Candidate("gpu8", "ssh")))])
    monkeypatch.setattr(hosts_screen, "find_all", find)
    async with wizard(tmp_path) as (pilot, opened):
        await until(pilot, lambda: find.asked.is_set() and "local" in screen_text(pilot.app))
        find.go_on.set()
        await until(pilot, lambda: "gpu7" in screen_text(pilot.app))
        await press(pilot, "down", then=lambda: opened.query_one(HostTable).has_focus)
        assert opened.query_one(HostTable).key == "gpu7"


def test_a_host_is_connected_to_once_whatever_is_asked() -> None:
    """Each connection may ask for a password or a code."""
    posted, opened, slow = list[HostCheck](), list[Host](), Slow(Mock(closed=False))
    target: Any = Mock(post_message=lambda message: posted.append(message.state))

    def connect(host: Host) -> Any:
        opened.append(host)
        return slow()

    prober = HostProber(target, connect)
    asked: list[Any] = []
    with patch("disttui.tui.wizard.hosts_screen.facts_over", side_effect=lambda link, host, what: asked.append(what)):
        for what in ("first", "then"):
            prober.start("box", parse_host("box"), what)  # type: ignore[arg-type]
            assert slow.asked.wait(60)
        slow.go_on.set()
        wait_for(lambda: posted[-1].state == "ready")
        prober.start("box", parse_host("box"), "again")  # type: ignore[arg-type]
        wait_for(lambda: len(asked) == 2)
    assert len(opened) == 1 and asked == ["then", "again"]


async def test_keys_of_the_list_act_on_what_they_name(tmp_path: Path) -> None:
    names = ["gpu1", "desk", "down"]
    async with walked(tmp_path, HOSTS, 1, names=names) as (pilot, opened):
        table = opened.query_one(HostTable)
        await press(pilot, "tab", then=lambda: table.key == "down")  # which the notes are about
        table.select(SANDBOX_ROW)
        await pilot.press("x", "r")
        await pilot.pause()
        assert states(opened) == {"gpu1": "ready", "desk": "ready", "down": "failed"}, "the sandbox is not ticked"
        await press(pilot, "X", then=lambda: opened._view.draft.hosts == ["gpu1", "desk"])
        no_torch = Finding("error", "desk", "no torch", "")
        with patch.object(WizardState, "errors", lambda _, state: [no_torch] if state.name == "desk" else []):
            await press(pilot, "X", then=lambda: opened._view.draft.hosts == ["gpu1"])
        await press(pilot, "X", then=lambda: "No host is unusable" in [one.message for one in pilot.app._notifications])


async def test_a_sandbox_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with patch("disttui.runner.transport.sandbox.Sandbox", side_effect=full):
        async with wizard(tmp_path) as (pilot, opened):
            await press(pilot, "down", then=lambda: opened.query_one(HostTable).has_focus)
            opened.query_one(HostTable).select(SANDBOX_ROW)
            await press(pilot, "space", shows="cannot create the sandbox: No space left on device")


async def test_a_slurm_profile_in_the_sandbox_is_a_problem(tmp_path: Path) -> None:
    text = "disttui: 1\nhosts: [login]\nslurm: {nodes: 2}\nnum_processes: 1\njob: {script: x.py}\n"
    draft = open_draft(read_profile(str(new_file(tmp_path / "q.yaml", text))), {})
    assert draft.profile
    played = draft.with_hosts(["node1"], sandbox=True)
    assert played.profile is None and played.problems == ("a sandbox has no Slurm",)


async def test_a_start_is_not_left_and_its_dashboard_waits_for_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Slow("demo-1a2b")
    monkeypatch.setattr(WizardScreen, "_launch", start)
    monkeypatch.setattr(DashboardScreen, "_follow", lambda _: None)
    async with walked(tmp_path, HOSTS, 5, names=["gpu1"]) as (pilot, opened):
        await begin(pilot, opened)
        await until(pilot, start.asked.is_set)
        await press(pilot, *["escape"] * 6, then=lambda: opened._at == 0)
        await press(pilot, "escape")
        assert pilot.app.screen_stack[-1] is opened, "it may be left before it has a run to show"
        await pilot.press("f1")
        start.go_on.set()
        await pilot.pause(0.5)
        assert isinstance(pilot.app.screen, HelpScreen) and pilot.app.screen_stack[-2] is opened
        await press(pilot, "escape", then=lambda: isinstance(pilot.app.screen, DashboardScreen))
        assert [type(screen) for screen in pilot.app.screen_stack] == [HomeScreen, DashboardScreen]
