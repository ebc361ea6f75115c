"""The wizard sends the folder of a script that lies in the current one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import cast

import pytest

from disttui.runner.api.carrying import collect_code
from disttui.runner.profile.load import load
from disttui.tui.app import DisttuiApp
from disttui.tui.router import First, Router
from disttui.tui.wizard import WizardScreen
from disttui.tui.wizard.check import Pane
from disttui.tui.wizard.draft import Draft
from disttui.tui.wizard.job import Field, JobStep, _put
from tests.tui.shelf_kit import environ
from tests.tui.snap import press, screen_text, until
from tests.tui.wizard_kit import HOSTS, record, wizard


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
    alone = {"script": "train.py", "sync": str(project / "train.py")}
    assert job(_put(draft, "script", "train.py")) == alone, "a whole home is never sent"
    (project / "src").mkdir()
    (project / "src/train.py").touch()
    assert "sync" not in job(_put(draft, "script", "src/train.py")), "the script would have another path there"
    assert "sync" not in job(_put(draft, "script", "x" * 300))


async def test_script_given_to_the_command_is_the_job(project: Path, tmp_path: Path) -> None:
    app = DisttuiApp(environ(tmp_path), first=First("script", (project / "train.py",)))
    async with app.run_test() as pilot:
        await until(pilot, lambda: isinstance(app.screen, WizardScreen) and app.screen.is_mounted)
        await until(pilot, lambda: "script" in job(cast(WizardScreen, app.screen)._view.draft))
        opened = cast(WizardScreen, app.screen)
        assert job(opened._view.draft) == {"script": "train.py", "sync": str(project)}
        opened.query_one(JobStep).show(opened._view)
        assert opened.query_one("#field-workdir", Field).placeholder == f"when empty: a copy of {project}"


PROFILE = """disttui: 1
hosts: [gpu1, gpu2]
job: {command: [bash, -c, "true"], sync: .}
"""


def left_out(project: Path) -> Path:
    """A profile whose folder has a secret and what git ignores."""
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    (project / ".gitignore").write_text("data/\n")
    (project / ".env").write_text("TOKEN=1\n")
    (project / "data").mkdir()
    (project / "data/x").write_text("x")
    (project / "mine.yaml").write_text(PROFILE)
    return project / "mine.yaml"


async def test_the_checks_say_what_is_left_out_and_why(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(monkeypatch, HOSTS)
    async with wizard(tmp_path, profile=left_out(project), size=(100, 50)) as (pilot, opened):
        checks = opened.query_one("#pane-checks", Pane)
        await until(pilot, lambda: "not sent" in checks.plain)
        assert "▲ code: 3 files, " in checks.plain
        assert f"B, from {project}; not sent: .env and 1 more; reasons below" in checks.plain
        assert "not sent: .env (8B): looks like a secret" in checks.plain
        assert "not sent: ignored by git, but job.sync.include can name it: data/" in checks.plain
        assert opened._view.startable
        (project / ".env").unlink()
        shutil.rmtree(project / "data")
        await press(pilot, "r", then=lambda: "not sent" not in checks.plain and "· code: 3 files" in checks.plain)


async def test_code_that_cannot_be_sent_prevents_the_start(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(monkeypatch, HOSTS)
    path = left_out(project)
    path.write_text("disttui: 1\nhosts: [gpu1]\njob: {script: train.py, sync: {from: ., exclude: [train.py]}}\n")
    async with wizard(tmp_path, profile=path) as (pilot, opened):
        await until(pilot, lambda: "✗ the code cannot be sent" in screen_text(pilot.app))
        assert "the script is not sent: excluded by train.py" in opened.query_one("#pane-checks", Pane).plain
        assert not opened._view.startable and not opened.check_action("launch", ())


async def test_a_start_that_skips_the_checks_says_what_is_not_sent(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(monkeypatch, HOSTS)
    path, said = left_out(project), list[str]()
    code = collect_code(load(path), environ(tmp_path))
    assert code is not None
    monkeypatch.setattr(WizardScreen, "_launch", lambda self, *_: self.app.call_from_thread(self._sends, code) or "a-1")
    monkeypatch.setattr(WizardScreen, "notify", lambda _, words, **__: said.append(words))
    monkeypatch.setattr(Router, "open_run", lambda *_, **__: None)
    app = DisttuiApp(environ(tmp_path))
    async with app.run_test() as pilot:
        app.router.open_wizard(path, launch=True)
        await until(pilot, lambda: said)
    assert said[0].startswith("code: 3 files") and "not sent: .env (8B): looks like a secret" in said[0]
