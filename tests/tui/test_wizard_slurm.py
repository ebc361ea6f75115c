"""A profile for Slurm in the wizard: its login node is the host, and the check shows the batch script."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.files import new_file
from tests.tui.snap import press, screen_text, until
from tests.tui.wizard_kit import facts, record, wizard

_TEXT = """\
disttui: 1
name: queued
hosts: [login]
num_processes: 2
job: {builtin: bytegpt}
slurm: {nodes: 3, partition: gpu}
"""


async def test_a_profile_for_slurm_is_walked_to_its_batch_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(monkeypatch, {"login": facts("neglected")})
    path = new_file(tmp_path / "queued.yaml", _TEXT)
    async with wizard(tmp_path, size=(165, 60), profile=path) as (pilot, opened):
        await until(pilot, lambda: opened._at == 4)
        shown = screen_text(pilot.app)
        assert "#SBATCH --nodes=3" in shown and "#SBATCH --partition=gpu" in shown
        assert "3 nodes" in shown.splitlines()[0] and "1 host" not in shown.splitlines()[0], shown
        await press(pilot, "escape", "escape", then=lambda: opened._at == 2)
        shown = screen_text(pilot.app)
        assert "6 processes" in shown and "slurm-0" in shown


async def test_the_size_of_a_slurm_job_is_counted_in_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = facts("cpu_desk")
    record(monkeypatch, {"login": found})
    path = new_file(tmp_path / "queued.yaml", _TEXT)
    async with wizard(tmp_path, size=(165, 60), profile=path) as (pilot, opened):
        await until(pilot, lambda: opened._at == 4 and opened._view.startable)
        assert "6 processes on 3 nodes" in screen_text(pilot.app)
