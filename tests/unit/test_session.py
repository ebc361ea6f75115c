"""A viewer whose run is taken away, through a real link to this machine."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from threading import Timer

import pytest

from runner.run.link import Link
from runner.run.session import Session, Signals
from runner.run.state import begin
from runner.show.live import TextPrinter
from runner.transport.local import LocalConnection


def _link(node: int = 0) -> Link:
    return Link(LocalConnection("local"), "local", sys.executable)


@pytest.mark.parametrize("delay", [0.0, 1.5])
def test_a_removed_run_folder_ends_the_viewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay: float) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "runs" / "r-1" / "0"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text("{}")
    err = io.StringIO()
    session = Session(
        begin("r-1", ("node1",), (1,)),
        TextPrinter(io.StringIO(), err, ("node1",), 1, colour=False),
        Signals(),
        folder=tmp_path / "mirror",
        request={"run": "r-1", "run_dir": str(tmp_path / "runs")},
        reopen=_link,
    )
    removal = Timer(delay, shutil.rmtree, [folder])
    removal.start()
    assert session.follow([_link()]) == 1
    removal.join()
    assert "node1: its run folder is gone" in err.getvalue()
