"""What was said of a run while its ranks could be asked is there after its end, and no file of it grows for ever."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api.diagnosing import ATTEMPTS, LONGEST, NAME, Diagnosis, diagnose, keep, kept
from disttui.runner.api.viewer import Viewer
from disttui.runner.render.diagnosis import diagnosis_data, diagnosis_text
from disttui.runner.runs.registry import find_run
from tests.tui.synthetic_run import write


def test_a_stalls_diagnosis_is_reported_after_the_stop(tmp_path: Path) -> None:
    folder = write(tmp_path / "disttui" / "runs" / "run-1", hosts=1, per_host=2, steps=5)
    run = find_run("run-1", {"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)})
    viewer = Viewer({})
    assert "while it was running" not in diagnosis_text(diagnose(viewer, run))
    keep(folder, Diagnosis(1, 1_790_000_000.0, "run-1 is running\nrank 1 is in load_batch (data.py:5)"))
    found = diagnose(viewer, run, lambda _: "a run that has ended cannot be asked")
    text = diagnosis_text(found)
    assert text.splitlines()[0].startswith("✓ run-1 finished")
    assert "while it was running, at " in text
    assert ":\n  run-1 is running\n  rank 1 is in load_batch (data.py:5)" in text
    kept: Any = diagnosis_data(found)["kept"]
    assert kept[0]["attempt"] == 1


def test_the_last_diagnosis_of_the_newest_attempts_is_kept(tmp_path: Path) -> None:
    for attempt in range(1, 4 * ATTEMPTS):
        keep(tmp_path, Diagnosis(attempt, 1.0, "first"))
        keep(tmp_path, Diagnosis(attempt, 2.0, "x" * 2 * LONGEST))
    found = kept(tmp_path)
    assert [one.attempt for one in found] == list(range(3 * ATTEMPTS, 4 * ATTEMPTS))
    assert {len(one.text) for one in found} == {LONGEST}
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("said", ["", "{}", "[3, {}]", '[{"attempt": "1", "time": 1, "text": "x"}]', "[" * 9999])
def test_a_damaged_file_counts_as_nothing(said: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(said)
    assert list(kept(tmp_path)) == []
    keep(tmp_path, Diagnosis(1, 1.0, "\x1b[2J rank 0 \U0001f468"))
    [one] = kept(tmp_path)
    assert "\x1b" not in one.text and sys.getsizeof(one.text) < 1000
