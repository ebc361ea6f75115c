"""What a login node does where the submission of a job fails half-way, with commands that stand for Slurm's."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from runner.hosts.ship import node_parcel
from runner.node import journal
from runner.node.problem import Problem
from runner.node.serve import runs

_COMMAND = """#!/bin/sh
echo "$(basename "$0") $*" >> {log}
{does}
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "node.zip").write_bytes(node_parcel().data)
    (tmp_path / "node.zip").chmod(0o600)
    for name in ("sbatch", "scancel", "squeue"):
        does(tmp_path, name, "echo 4711" if name == "sbatch" else "")
    return tmp_path / "log"


def does(tmp_path: Path, name: str, words: str) -> None:
    command = tmp_path / "bin" / name
    command.write_text(_COMMAND.format(log=tmp_path / "log", does=words))
    command.chmod(0o755)


def submit(tmp_path: Path) -> str:
    spec: Any = {"run": "t-1", "run_dir": str(tmp_path / "runs"), "hosts": ["a", "b"], "target": {"kind": "script"}}
    batch: Any = {"options": [], "cpus": 1, "python": "python3"}
    secrets: Any = {"key": "k", "env": {"TOKEN": "s3cret"}}
    request: Any = {"spec": spec, "launcher_args": [[], []], "secrets": secrets, "batch": batch}
    return runs.submit(request, str(tmp_path / "node.zip"), None)["job"]


def test_the_jobs_id_comes_after_what_a_site_prints(tmp_path: Path, log: Path) -> None:
    does(tmp_path, "sbatch", "echo Welcome to the cluster; echo '4712;cluster'")
    assert submit(tmp_path) == "4712"
    assert submit(tmp_path) == "4712", "a second submission changes nothing"
    assert log.read_text().count("sbatch --parsable") == 1


def test_a_submission_without_a_jobs_id_leaves_neither_a_job_nor_secrets(tmp_path: Path, log: Path) -> None:
    does(tmp_path, "sbatch", "echo thank you")
    does(tmp_path, "squeue", "echo 4713")
    with pytest.raises(Problem, match="not said which job"):
        submit(tmp_path)
    assert log.read_text().splitlines()[-1] == "scancel 4713"
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(("full", "last"), [("1/given", "squeue"), ("0/slurm.json", "scancel 4711")])
def test_a_disk_that_is_full_half_way_leaves_neither_a_job_nor_secrets(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, full: str, last: str
) -> None:
    write = journal.write_json

    def until_full(path: str, data: Any) -> None:
        if path.endswith(full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        write(path, data)

    monkeypatch.setattr(journal, "write_json", until_full)
    with pytest.raises(Problem, match="cannot be written: No space left"):
        submit(tmp_path)
    assert log.read_text().splitlines()[-1].startswith(last)
    assert list((tmp_path / "runs").iterdir()) == []
