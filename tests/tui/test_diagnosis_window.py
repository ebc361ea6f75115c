"""What the diagnosis window said of a stall can be read after the stop."""

from __future__ import annotations

from pathlib import Path

from disttui.runner.api.diagnosing import Diagnosis, keep
from disttui.runner.runs.registry import find_run
from disttui.tui.app import DisttuiApp
from disttui.tui.dashboard.diagnosis import DiagnosisScreen
from disttui.tui.router import First
from tests.tui.snap import until
from tests.tui.test_blame import stalled
from tests.tui.test_dashboard import shown


async def test_an_earlier_diagnosis_is_shown_when_no_host_answers(tmp_path: Path) -> None:
    folder = stalled(tmp_path / "disttui" / "runs" / "run-1")
    keep(
        folder,
        Diagnosis(1, 1_790_000_070.0, "run-1 is running\nrank 1 has not entered it: it is in load_batch (data.py:5)"),
    )
    names = ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HOME")
    environ = dict.fromkeys(names, str(tmp_path))
    app = DisttuiApp(environ, first=First("replay", ("run-1",)))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: getattr(app.screen, "snapshot", None) is not None)
        await app.push_screen(DiagnosisScreen(find_run("run-1", environ)))
        await until(pilot, lambda: "while it was running, at" in shown(pilot))
        assert "rank 1 has not entered it: it is in load_batch (data.py:5)" in shown(pilot)
        assert "node0" in shown(pilot), "and why nothing is known of it now"
