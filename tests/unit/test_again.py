"""A run that is run again, from its beginning or from its newest checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disttui.runner.api.rerunning import again
from disttui.runner.profile.load import parse
from disttui.runner.runs.registry import keep, load_run
from tests.files import new_file
from tests.light import light_python
from tests.unit.history_kit import command

_JOB = """
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["DISTTUI_CHECKPOINTS"])
before = os.environ.get("DISTTUI_RESUME_FROM")
seen = [sys.argv[1:], os.environ.get("DISTTUI_RESUME"), (pathlib.Path(before) / "last").read_text() if before else None]
pathlib.Path(os.environ["DISTTUI_DIR"], "seen").write_text(json.dumps(seen))
folder.mkdir(parents=True, exist_ok=True)
if sys.argv[1] == "saves":
    (folder / "last").write_text(os.environ["DISTTUI_RUN"])
"""


def _profile(home: Path, job: str) -> Path:
    (home / "job.py").write_text(_JOB)
    keys = {"disttui": 1, "hosts": ["local"], "num_processes": 1, "python": light_python(home / "light")}
    args = {"script": str(home / "job.py"), "args": [job]}
    return new_file(home / "one.yaml", json.dumps({**keys, "job": args, "launch": {"resume_args": ["--on"]}}))


def _ids(home: Path) -> set[str]:
    return {path.name for path in (home / "disttui" / "runs").iterdir()}


def _told(home: Path, run: str) -> object:
    return json.loads((home / ".disttui" / "runs" / run / "0" / "attempt-1" / "seen").read_text())


@pytest.mark.slow
def test_rerun_resume_saves_to_its_own_checkpoint_folder(tmp_path: Path) -> None:
    done = command(tmp_path, "run", str(_profile(tmp_path, "saves")), "--set", "launch.grace=7")
    assert done.returncode == 0, done.stderr
    (first,) = _ids(tmp_path)
    assert _told(tmp_path, first) == [["saves"], None, None]

    done = command(tmp_path, "rerun", first, "--resume")
    assert done.returncode == 0, done.stderr
    (second,) = _ids(tmp_path) - {first}
    assert second.startswith("one-"), "the name of the file that it came from"
    assert _told(tmp_path, second) == [["saves", "--on"], "1", first]
    saved = tmp_path / ".disttui" / "runs"
    assert [(saved / run / "checkpoints" / "last").read_text() for run in (first, second)] == [first, second]
    known = load_run(tmp_path / "disttui" / "runs" / second)
    assert known.profile["launch"]["grace"] == 7, "what --set said of the run before holds"
    assert known.resume_from == f"~/.disttui/runs/{first}/checkpoints"


@pytest.mark.slow
def test_rerun_resume_without_checkpoint_lists_searched_places(tmp_path: Path) -> None:
    assert command(tmp_path, "run", str(_profile(tmp_path, "silent"))).returncode == 0
    (run,) = _ids(tmp_path)
    done = command(tmp_path, "rerun", run, "--resume")
    assert done.returncode == 2
    assert "has saved no checkpoint: searched local, in ~/.disttui/runs/" in done.stderr
    assert _ids(tmp_path) == {run}, "nothing is started"


def test_rerun_sets_variables_and_options_of_the_run_before(tmp_path: Path) -> None:
    text = "{disttui: 1, hosts: [a], job: {script: x.py, args: [--lr, '${var:lr}', --wd, '${var:wd=0}', --steps, 9]}}"
    environ = {"XDG_DATA_HOME": str(tmp_path)}
    profile = parse(text, "one.yaml", ["var.lr=3e-4"])
    for run, settings, args in (
        ("one-0000000000000001", ["var.lr=1.5e-4"], "--lr 1.5e-4 --wd 0 --steps 9"),
        ("one-0000000000000002", ["var.wd=1", "job.args.steps=5"], "--lr 1.5e-4 --wd 1 --steps 5"),
    ):
        known = load_run(keep(profile, [1], run, environ).folder)
        assert known.profile == profile.as_written()
        profile = again(known, settings).profile
        assert profile.job.args == tuple(args.split())
