"""The wizard asks before it uses a profile that another user can write, and Check shows what a profile runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Static

from disttui.tui.app import DisttuiApp
from disttui.tui.dialogs.prompts import ConfirmScreen
from disttui.tui.wizard import WizardScreen
from disttui.tui.wizard.check import Pane
from tests.files import new_file
from tests.tui.shelf_kit import environ
from tests.tui.snap import press, screen_text, until
from tests.tui.widget_kit import Alone
from tests.tui.wizard_kit import facts, record

PROFILE = """
disttui: 1
hosts: [{host: desk, activate: "source v/bin/activate"}]
job: {builtin: bytegpt, env: {A: "${env:HOME}"}}
on_end: {command: [notify-send, done]}
"""


async def test_an_accepted_profile_opens_as_it_was_when_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(monkeypatch, {"desk": facts("cpu_desk")})
    for name in ("config/disttui", "team"):
        (tmp_path / name).mkdir(parents=True)
    config = tmp_path / "config/disttui/config.yaml"
    config.write_text(f"libraries: [{{name: team, folder: {tmp_path}/team}}]\n")
    for kind in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    base, path = tmp_path / "team/base.yaml", tmp_path / "team/mine.yaml"
    base.write_text(PROFILE)
    path.write_text("disttui: 1\nextends: base\n")
    home = {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("CONFIG", "STATE")}
    app = DisttuiApp(environ(tmp_path, TEXTUAL_ANIMATIONS="none", HOME="/home/ada", **home))
    async with app.run_test(size=(80, 24)) as pilot:
        app.router.open_wizard(path)
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and app.screen.ready)
        assert isinstance(app.screen, ConfirmScreen) and "source v/bin/activate" in app.screen._consequence
        base.write_text(PROFILE.replace("source v/bin/activate", "evil"))
        await press(pilot, "y", then=lambda: isinstance(app.screen, WizardScreen))
        opened = app.screen
        assert isinstance(opened, WizardScreen)
        await until(pilot, lambda: opened._view.draft.hosts)
        assert "source v/bin/activate" in opened._view.draft.text and "evil" not in opened._view.draft.text


@pytest.mark.parametrize("answer", ["n", "y"])
async def test_a_profile_that_everybody_can_write_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    record(monkeypatch, {"desk": facts("cpu_desk")})
    path = new_file(tmp_path / "theirs.yaml", PROFILE, 0o666)
    app = DisttuiApp(environ(tmp_path, TEXTUAL_ANIMATIONS="none", HOME="/home/ada"))
    async with app.run_test(size=(80, 24)) as pilot:
        app.router.open_wizard(path)
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and app.screen.ready)
        asked = app.screen
        assert isinstance(asked, ConfirmScreen)
        assert "every user of this machine can write it" in asked._consequence
        assert "activate: on desk, also during checks: source v/bin/activate" in asked._consequence
        # Its owner changes it again while it is read here.
        path.write_text(PROFILE.replace("source v/bin/activate", "evil"))
        await pilot.press(answer)
        if answer == "n":
            await until(pilot, lambda: app.screen is not asked and all(one.is_finished for one in app.workers))
            assert not isinstance(app.screen, WizardScreen)
            return
        await until(pilot, lambda: isinstance(app.screen, WizardScreen))
        opened = app.screen
        assert isinstance(opened, WizardScreen)
        await until(pilot, lambda: opened._view.planned)
        opened._go(4)
        await pilot.pause()
        text = opened.query_one("#pane-checks", Pane).plain
        assert "activate   on desk, also during checks: source v/bin/activate" in text
        assert "on_end.command on this machine, when the run ends: notify-send done" in text
        assert "${env:HOME} to desk, as A" in text


async def test_a_question_taller_than_the_screen_starts_at_its_top() -> None:
    async with Alone(Static()).run_test(size=(40, 12)) as pilot:
        lines = [f"key{number}: on a host, whose name is long, a command" for number in range(20)]
        pilot.app.push_screen(ConfirmScreen("Open theirs.yaml?", "\n".join(lines), "open"))
        await until(pilot, lambda: "Open theirs.yaml?" in screen_text(pilot.app))
        assert "open y    cancel n" in screen_text(pilot.app) and "key19" not in screen_text(pilot.app)
        await press(pilot, "end", shows="key19")
        assert "open y    cancel n" in screen_text(pilot.app)
