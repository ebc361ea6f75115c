"""What a viewer may fetch of a run: any byte of it, and nothing beside it."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node.problem import Problem
from disttui.runner.node.serve import reading
from disttui.runner.protocol.limits import READ_LIMIT
from disttui.runner.protocol.requests import FetchRequest
from tests.files import new_file

NONE = reading.Outputs("/nowhere", [])


class Taker:
    def __init__(self) -> None:
        self.data = bytearray()

    def __call__(self, file: int, generation: int, offset: int, data: bytes) -> None:
        assert file == generation == 0
        self.data += data


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    new_file(folder / "0" / "attempt-1" / "rank-0.log", os.urandom(200_000))
    new_file(folder / "checkpoints" / "step-1" / "model.pt", os.urandom(300_000))
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
        place: Any = {"name": "attempt-1/rank-0.log", "offset": offset, "length": length}
        answer = reading.read(str(run / "0"), place, taker, threading.Event())
        assert bytes(taker.data) == whole[offset : offset + length]
        assert answer["end"] == offset + len(taker.data)
    for offset, length in ((-1, 5), (0, READ_LIMIT + 1), (0, -1)):
        with pytest.raises(Problem):
            place = {"name": "attempt-1/rank-0.log", "offset": offset, "length": length}
            reading.read(str(run / "0"), place, taker, threading.Event())


def test_a_read_that_is_cancelled_ends_at_the_next_piece(run: Path) -> None:
    cancelled = threading.Event()
    place: Any = {"name": "attempt-1/rank-0.log", "offset": 0, "length": 200_000}
    answer = reading.read(str(run / "0"), place, lambda *piece: cancelled.set(), cancelled)
    assert answer["end"] == 65_536


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "outside/passwd", "results/link", "results/pipe", "results", "", ".", "a\0b"]
)
def test_nothing_beside_the_run(run: Path, name: str) -> None:
    place: Any = {"name": name, "offset": 0, "length": 10}
    with pytest.raises(Problem):
        reading.read(str(run), place, Taker(), threading.Event())
    with pytest.raises(Problem):
        reading.fetch(str(run), NONE, place, Taker(), threading.Event())


def test_files_are_what_jobs_have_left(run: Path) -> None:
    found = reading.files(str(run), NONE)["files"]
    assert sorted(file["name"] for file in found) == ["checkpoints/step-1/model.pt"]
    assert reading.files(str(run / "nowhere"), NONE) == {"files": [], "left_out": []}


@pytest.fixture
def work(run: Path) -> Path:
    """The job's folder of that run, as its spec names it."""
    work = run.parent / "work"
    (work / "out/step-1").mkdir(parents=True)
    (work / "out/step-1/model.pt").write_bytes(b"model")
    (work / "out/link").symlink_to("/etc/passwd")
    (work / "out/away").symlink_to("/etc")
    (work / "away").symlink_to("/etc")
    (work / "note.txt").write_text("note")
    (work / "other").write_text("other")
    names = ["out", "note.txt", "away", "away/passwd", "missing", "../secret", 5]
    (run / "0/spec.json").write_text(json.dumps({"workdir": str(work), "outputs": names}))
    return work


def test_outputs_are_offered_and_no_link_in_them_is_followed(run: Path, work: Path) -> None:
    answer = reading.files(str(run), reading.outputs_of(str(run / "0")))
    names = sorted(file["name"] for file in answer["files"])
    assert names == ["checkpoints/step-1/model.pt", "outputs/note.txt", "outputs/out/step-1/model.pt"]
    assert answer["left_out"] == [
        f"2 symbolic links below {work}/out",
        f"{work}/away is a symbolic link",
        f"{work}/away is a symbolic link",
        f"{work}/missing: No such file or directory",
        f"'../secret' is not a valid name below {work}",
    ]


def test_outputs_alone_are_fetched_from_the_jobs_folder(run: Path, work: Path) -> None:
    outputs = reading.outputs_of(str(run / "0"))
    for name, content in (("outputs/note.txt", b"note"), ("outputs/out/step-1/model.pt", b"model")):
        taker = Taker()
        place = FetchRequest(run="r", node_rank=0, name=name, offset=0)
        reading.fetch(str(run), outputs, place, taker, threading.Event())
        assert bytes(taker.data) == content
    for name in (
        *("outputs", "outputs/", "outputs/other", "outputs/out", "outputs/out/link", "outputs/out/away/passwd"),
        *("outputs/away/passwd", "outputs/../secret", "outputs/out/../other", "outputs//etc/passwd", "outputs/notes"),
    ):
        place = FetchRequest(run="r", node_rank=0, name=name, offset=0)
        with pytest.raises(Problem):
            reading.fetch(str(run), outputs, place, Taker(), threading.Event())


def test_a_run_of_before_has_no_outputs(run: Path) -> None:
    (run / "0/spec.json").write_text('{"workdir": "/"}')
    assert reading.outputs_of(str(run / "0")).names == reading.outputs_of(str(run / "1")).names == []


@pytest.mark.parametrize("offset", [0, 1, 65_536, 299_999, 300_000, 400_000])
def test_fetch_resumes_at_an_offset_and_hashes_the_whole_file(run: Path, offset: int) -> None:
    whole = (run / "checkpoints/step-1/model.pt").read_bytes()
    taker = Taker()
    place: Any = {"name": "checkpoints/step-1/model.pt", "offset": offset}
    answer = reading.fetch(str(run), NONE, place, taker, threading.Event())
    assert bytes(taker.data) == whole[offset:]
    assert answer == {"size": 300_000, "sha256": hashlib.sha256(whole).hexdigest()}
