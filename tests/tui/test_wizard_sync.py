"""The wizard sends the folder of a script that lies in the current one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from disttui.tui.app import DisttuiApp
from disttui.tui.router import First
from disttui.tui.wizard import WizardScreen
from disttui.tui.wizard.draft import Draft
from disttui.tui.wizard.job import Field, JobStep, _put
from tests.tui.shelf_kit import environ
from tests.tui.snap import until


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("")
    monkeypatch.chdir(folder)
    return folder


def job(draft: Draft) -> dict[str, object]:
    return dict(draft.data["job"])


def test_a_script_of_this_folder_is_sent_with_it(project: Path) -> None:
    draft = Draft({"hosts": ["node1"], "job": {"script": ""}})
    typed = _put(draft, "script", "train.py")
    assert job(typed) == {"script": "train.py", "sync": str(project)}
    assert job(_put(typed, "script", "train.pyx")) == {"script": "train.pyx"}
    assert job(typed.with_job("builtin", "bytegpt")) == {"builtin": "bytegpt"}
    assert job(_put(typed, "workdir", "~/there")) == {"script": "train.py", "workdir": "~/there"}


def test_a_script_on_the_hosts_is_left_there(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = Draft({"hosts": ["node1"], "job": {"script": ""}})
    for script in (str(project / "train.py"), "~/train.py", "other.py"):
        assert "sync" not in job(_put(draft, "script", script))
    there = Draft({"hosts": ["node1"], "job": {"script": "", "workdir": "~/x"}})
    assert "sync" not in job(_put(there, "script", "train.py"))
    monkeypatch.setenv("HOME", str(project))
    assert "sync" not in job(_put(draft, "script", "train.py")), "a whole home is never sent"


def test_script_given_to_the_command_is_the_job(project: Path, tmp_path: Path) -> None:
    async def play() -> None:
        app = DisttuiApp(environ(tmp_path), first=First("script", (project / "train.py",)))
        async with app.run_test() as pilot:
            await until(pilot, lambda: isinstance(app.screen, WizardScreen) and app.screen.is_mounted)
            await until(pilot, lambda: "script" in job(cast(WizardScreen, app.screen)._view.draft))
            opened = cast(WizardScreen, app.screen)
            assert job(opened._view.draft) == {"script": "train.py", "sync": str(project)}
            opened.query_one(JobStep).show(opened._view)
            assert opened.query_one("#field-workdir", Field).placeholder == f"when empty: a copy of {project}"

    asyncio.run(play())
