"""A run keeps where it comes from: two runs are compared by it, and a rerun says what has changed since."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.ids import short
from disttui.runner.node.probe.code import state
from disttui.runner.protocol.limits import CODE_DIFF
from disttui.runner.runs.notes import NAME, load_provenance
from disttui.runner.sync.collect import git_state
from tests.command import ran
from tests.unit.test_effects import command

TOKEN = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7" + "yZ"


def git(folder: Path, *words: str) -> str:
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    return ran(["git", *words], cwd=folder, env={**os.environ, **who}, check=True).stdout.strip()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A git repository with a script in it."""
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("print('one')\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


@pytest.mark.git
def test_the_code_is_kept_as_it_was(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = git(code, "rev-parse", "HEAD")
    assert state(str(code), "train.py") == {
        "folder": str(code),
        "head": head,
        "diff": "",
        "cut": False,
        "untracked": [],
    }
    (code / "train.py").write_text("print('two')\n")
    (code / "new.py").touch()
    git(code, "config", "diff.external", f"touch {code}/ran")
    (code / ".gitattributes").write_text("*.py diff=evil\n")
    git(code, "config", "diff.evil.textconv", f"touch {code}/ran")
    found = state(str(code.parent), "code/train.py")
    assert found["folder"] == str(code) and "-print('one')\n+print('two')\n" in found["diff"]
    assert found["untracked"] == [".gitattributes", "new.py"] and not (code / "ran").exists()
    (code / "train.py").write_text("x\n" * CODE_DIFF)
    found = state(str(code), None)
    assert found["cut"] and len(found["diff"]) == CODE_DIFF
    monkeypatch.setenv("HOME", str(code))
    assert state("~", None)["head"] is None, "the differences of a whole home are nobody's business"


@pytest.mark.git
@pytest.mark.parametrize("of", ["clean", "process", "include", "submodule", "user"])
def test_no_filter_of_the_repository_is_run(code: Path, monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    """Its configuration comes with the code; that of the user, such as LFS, counts."""
    script, evil, at = code / "train.py", f"touch {code}/ran; cat", code
    if of == "submodule":
        at = code / "sub"
        git(code, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(code), "sub")
        git(code, "commit", "-qm", "two")
        script = at / "train.py"
    (code / ".git/info/attributes").write_text("*.py filter=e.v\n")
    if of == "include":
        (code / ".git/more").write_text(f'[filter "e.v"]\n  clean = "{evil}"\n  required = true\n')
        git(code, "config", "include.path", "more")
    elif of == "user":
        monkeypatch.setenv("HOME", str(code.parent))
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        git(code, "config", "--global", "filter.e.v.clean", evil)
    else:
        git(at, "config", f"filter.e.v.{'process' if of == 'process' else 'clean'}", evil)
        info = git(at, "rev-parse", "--git-path", "info")
        (at / info).mkdir(exist_ok=True)
        (at / info / "attributes").write_text("*.py filter=e.v\n")
    script.write_text("print('two')\n")
    for here in (False, True):
        (code / "ran").unlink(missing_ok=True)
        diff = git_state(code).diff if here else state(str(code), "train.py")["diff"]
        assert of == "submodule" or "+print('two')\n" in diff
        assert (code / "ran").exists() == (of == "user")


@pytest.mark.git
def test_a_filter_that_cannot_be_switched_off_keeps_git_out(code: Path) -> None:
    """`git -c` takes no name with an equals sign."""
    (code / ".gitattributes").write_text("*.py filter=a=b\n")
    git(code, "config", "filter.a=b.clean", f"touch {code}/ran; cat")
    (code / "train.py").write_text("print('two')\n")
    assert state(str(code), "train.py")["head"] is None and not (code / "ran").exists()
    found = git_state(code)
    assert found.commit and not found.diff and not (code / "ran").exists()


@pytest.mark.git
@pytest.mark.torch
def test_two_runs_are_compared_by_what_was_kept_of_them(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path))
    profile = tmp_path / "p.yaml"
    job = f"{{script: train.py, workdir: {code}, env: {{KEY: '${{env:KEPT_SECRET}}'}}}}"
    profile.write_text(
        f"disttui: 1\nname: p\nhosts: [local]\nnum_processes: 1\npython: {sys.executable}\n"
        f"launch: {{run_dir: {tmp_path}/runs}}\njob: {job}\n"
    )
    secret = "kept-as-a-secret-7q"
    done = command(tmp_path, "run", str(profile), "--set", f"job.env.HF_TOKEN={TOKEN}", KEPT_SECRET=secret)
    assert done.returncode == 0, done.stderr
    (code / "train.py").write_text(f"print('two')\nprint('step 1 loss 2.5')\n# {secret}\n")
    [first] = (tmp_path / "disttui" / "runs").iterdir()
    again = ("rerun", first.name, "--set", "job.args=[--fast, yes]", "--when-free")
    done = command(tmp_path, *again, KEPT_SECRET=secret)
    assert done.returncode == 0, done.stderr
    assert f"changed since {short(first.name)}: local: the job's code has changed" in done.stderr
    [second] = (path for path in (tmp_path / "disttui" / "runs").iterdir() if path != first)
    spec = json.loads((tmp_path / "runs" / second.name / "0" / "spec.json").read_text())
    assert spec["queue"]["turns"] == [0], "it was queued"

    kept = load_provenance(first)
    assert kept and kept.code and kept.code.where == "local" and kept.code.commit == git(code, "rev-parse", "HEAD")
    assert kept.hosts[0].torch and kept.hosts[0].facts and kept.hosts[0].facts.hostname
    assert kept.command[1:] == ("run", str(profile), "--set", "job.env.HF_TOKEN=***")
    assert stat.S_IMODE((first / NAME).stat().st_mode) == 0o600
    assert TOKEN not in (first / NAME).read_text() and secret not in (second / NAME).read_text()

    data: Any = json.loads(command(tmp_path, "runs", "diff", "--json", "--local", first.name, second.name).stdout)
    assert data["runs"] == [first.name, second.name] and data["unknown"] == []
    assert {"key": "job.args", "before": None, "after": "--fast yes"} in data["profile"]
    uncommitted = next(one for one in data["code"] if one["key"] == "uncommitted")
    assert (uncommitted["before"], uncommitted["after"]) == ("none", "4 changed lines")
    assert "++print('two')" in data["changes"] and "++# ***" in data["changes"]
    assert data["versions"] == data["facts"] == []
    assert {one["key"] for one in data["result"]} - {"seconds"} == {"step", "loss"}
    text = command(tmp_path, "runs", "diff", "--local", first.name, second.name, KEPT_SECRET=secret).stdout
    assert "  job.args  nothing → --fast yes" in text and "the same: versions, facts" in text
    (first / NAME).write_text("{}" * 3)
    text = command(tmp_path, "runs", "diff", "--local", first.name, second.name).stdout
    assert "command, code, versions and hosts were not recorded" in text and "versions, facts" not in text
    assert command(tmp_path, "runs", "diff", first.name, "nothing").returncode == 2
