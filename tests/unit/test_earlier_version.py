"""Runs of an earlier version stay in reach: listed, attached to, replayed, stopped and forgotten (tests/data/run-*)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttui.runner.transport.sandbox import Sandbox
from tests.command import disttui
from tests.kept import has_been_reached

RECORDED = Path(__file__).parents[1] / "data" / "run-1ea0f66"


class Place:
    """A viewer that knows the recorded runs, and the two hosts that they ran on, reached over SSH."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self.runs = folder / "disttui" / "runs"
        self.on_hosts = [sandbox.homes[name] / ".disttui" / "runs" for name in ("left", "right")]
        self._folder = folder
        _lay(RECORDED / "viewer", self.runs)
        for name, runs in zip(("left", "right"), self.on_hosts, strict=True):
            _lay(RECORDED / "hosts" / name, runs)
        for known in self.runs.glob("*/run.json"):
            run = json.loads(known.read_text())
            hosts = [{**host, "python": None} for host in run["hosts"]]
            known.write_text(json.dumps({**run, "hosts": hosts, "ssh_config": str(sandbox.config)}))

    def type(self, *words: str) -> tuple[int, str]:
        env = {**os.environ, "XDG_DATA_HOME": str(self._folder), "HOME": str(self._folder)}
        done = disttui(*words, env=env)
        assert "Traceback" not in done.stderr.replace('\n│ Traceback (most recent call last):\n│   File "/home/me/', "")
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Sandbox(["left", "right"], tmp_path / "homes") as sandbox:
        for home in sandbox.homes.values():
            has_been_reached(home)
        yield Place(tmp_path, sandbox)


def _lay(recorded: Path, into: Path) -> None:
    """Copy with the modes that the version gave its folders and files."""
    shutil.copytree(recorded, into)
    for path in (into, *into.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)


def test_a_run_of_an_earlier_version_is_listed_and_shown(place: Place) -> None:
    code, said = place.type("ps", "--json")
    assert code == 0, said
    rows = {row["name"]: row for row in json.loads(said)}
    assert {name: (row["state"], row["attempt"], row["step"], row["note"]) for name, row in rows.items()} == {
        "well": ("finished", 1, 5, ""), "failed": ("failed", 2, 4, ""),
    }  # fmt: skip
    code, said = place.type("runs", "show", "failed")
    assert code == 0
    for words in (
        "disttui 0.1.0, torch 2.13.0", "attempt 1 failed: rank 1 on right raised ValueError: the data of step 3",
        "✗ failed-c1e4 failed after 0:11 at step 4: rank 1 on right raised ValueError", "attempt 1 begins: 2 ranks",
    ):  # fmt: skip
        assert words in said, said
    code, said = place.type("runs", "metrics", "well")
    assert code == 0 and [json.loads(line)["step"] for line in said.splitlines()] == [1, 2, 3, 4, 5] * 2
    code, said = place.type("diagnose", "failed", "--json")
    assert [one["message"] for one in json.loads(said)["causes"]] == [
        "the data of step 3 is damaged", "the data of step 4 is damaged",
    ]  # fmt: skip


def test_a_run_of_an_earlier_version_is_attached_to(place: Place) -> None:
    """By its mirror where that is whole, and else by what its hosts still have."""
    code, said = place.type("attach", "--plain", "well")
    assert code == 0 and "rank 1 of attempt 1: step 5" in said and "✓ well-0335 finished" in said, said
    for host in ("0", "1"):
        shutil.rmtree(next(place.runs.glob("failed-*")) / host)
    code, said = place.type("attach", "--plain", "failed")
    assert code == 1 and "rank 1 of attempt 2: step 4" in said, said
    assert "attempt 1 failed: rank 1 on right raised ValueError: the data of step 3 is damaged" in said
    mirrored = next(place.runs.glob("failed-*"))
    recorded = next((RECORDED / "viewer").glob("failed-*"))
    for path in (file for node in "01" for file in (recorded / node).rglob("*") if file.is_file()):
        if path.name != ".mirror.json":
            assert (mirrored / path.relative_to(recorded)).read_bytes() == path.read_bytes(), path


def test_a_run_of_an_earlier_version_is_stopped_and_forgotten(place: Place) -> None:
    code, said = place.type("stop", "well")
    assert code == 0 and "well-0335 has already finished" in said and "nothing to stop" in said, said
    for name in ("well", "failed"):
        code, said = place.type("runs", "forget", name)
        assert code == 0 and "removed on left, right and here" in said, said
    assert [path for runs in (place.runs, *place.on_hosts) for path in runs.iterdir()] == []
