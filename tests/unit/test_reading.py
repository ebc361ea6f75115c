"""What a viewer may fetch of a run: any byte of it, and nothing beside it."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from runner.node.problem import Problem
from runner.node.serve import reading
from runner.protocol.limits import READ_LIMIT


class Taker:
    def __init__(self) -> None:
        self.data = bytearray()

    def __call__(self, file: int, generation: int, offset: int, data: bytes) -> None:
        assert file == generation == 0
        self.data += data


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "0" / "attempt-1").mkdir(parents=True)
    (folder / "0" / "attempt-1" / "rank-0.log").write_bytes(os.urandom(200_000))
    (folder / "checkpoints" / "step-1").mkdir(parents=True)
    (folder / "checkpoints" / "step-1" / "model.pt").write_bytes(os.urandom(300_000))
    (folder / "results").mkdir()
    (folder / "results" / "link").symlink_to("/etc/passwd")
    (folder / "results" / "note.txt").write_text("good")
    (folder / "outside").symlink_to("/etc")
    os.mkfifo(folder / "results" / "pipe")
    (tmp_path / "secret").write_text("secret")
    return folder


def test_any_bytes_of_a_log(run: Path) -> None:
    whole = (run / "0/attempt-1/rank-0.log").read_bytes()
    for offset, length in ((0, 10), (65_530, 70_000), (199_990, 100), (500_000, 5), (0, 0)):
        taker = Taker()
        place = {"name": "attempt-1/rank-0.log", "offset": offset, "length": length}
        answer = reading.read(str(run / "0"), place, taker, threading.Event())
        assert bytes(taker.data) == whole[offset : offset + length]
        assert answer["end"] == offset + len(taker.data)
    for offset, length in ((-1, 5), (0, READ_LIMIT + 1), (0, -1)):
        with pytest.raises(Problem):
            place = {"name": "attempt-1/rank-0.log", "offset": offset, "length": length}
            reading.read(str(run / "0"), place, taker, threading.Event())


def test_a_read_that_is_cancelled_ends_at_the_next_piece(run: Path) -> None:
    cancelled = threading.Event()
    place = {"name": "attempt-1/rank-0.log", "offset": 0, "length": 200_000}
    answer = reading.read(str(run / "0"), place, lambda *piece: cancelled.set(), cancelled)
    assert answer["end"] == 65_536


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "outside/passwd", "results/link", "results/pipe", "results", "", ".", "a\0b"]
)
def test_nothing_beside_the_run(run: Path, name: str) -> None:
    place = {"name": name, "offset": 0, "length": 10}
    with pytest.raises(Problem):
        reading.read(str(run), place, Taker(), threading.Event())
    with pytest.raises(Problem):
        reading.fetch(str(run), place, Taker(), threading.Event())


def test_files_are_what_jobs_have_left(run: Path) -> None:
    found: list[dict[str, Any]] = reading.files(str(run))["files"]
    assert sorted(file["name"] for file in found) == ["checkpoints/step-1/model.pt", "results/note.txt"]
    assert reading.files(str(run / "nowhere")) == {"files": []}


@pytest.mark.parametrize("offset", [0, 1, 65_536, 299_999, 300_000, 400_000])
def test_a_fetch_goes_on_where_it_was_and_sums_up_the_whole(run: Path, offset: int) -> None:
    whole = (run / "checkpoints/step-1/model.pt").read_bytes()
    taker = Taker()
    place = {"name": "checkpoints/step-1/model.pt", "offset": offset}
    answer = reading.fetch(str(run), place, taker, threading.Event())
    assert bytes(taker.data) == whole[offset:]
    assert answer == {"size": 300_000, "sha256": hashlib.sha256(whole).hexdigest()}
