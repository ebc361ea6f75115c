"""Checkpoints of the built-in job: what harms them, and what loads where."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.waiting import wait_for

pytest.importorskip("torch")

import torch

from disttui.runner.train import checkpoint
from disttui.runner.train.problem import Problem
from disttui.runner.train.state import Box, HeldTensor
from tests.unit.test_train_run import SAME, TINY, Job, close

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

WHOLE = torch.arange(24, dtype=torch.float32).reshape(4, 6)
TOP, BOTTOM = Box((0, 0), (3, 6)), Box((3, 0), (1, 6))
LAYOUT = {
    "a/weight": HeldTensor((4, 6), "float32", {TOP: [0], BOTTOM: [1]}),
    "b/weight": HeldTensor((2,), "float32", {Box((0,), (2,)): [0, 1]}),
}


def write(folder: Path, step: int, attempt: int = 1) -> Path:
    """A checkpoint of two ranks, as they write it."""
    unfinished = checkpoint.path_of(folder, step, attempt).with_suffix(".tmp")
    entries = []
    for rank, (part, tensor) in enumerate([(TOP, WHOLE[:3]), (BOTTOM, WHOLE[3:])]):
        mine: dict[tuple[str, Box], Any] = {("a/weight", part): tensor.clone() + step}
        if rank == 0:
            mine["b/weight", Box((0,), (2,))] = torch.ones(2)
        entries.append(checkpoint.write_parts(unfinished, rank, mine))
    checkpoint.finish(
        unfinished, LAYOUT, entries, {"step": step, "samples": 8 * step, "recipe": {}, "scaling": {}, "token": ""}
    )
    return checkpoint.path_of(folder, step, attempt)


def test_any_part_of_a_tensor_is_read_from_the_ranks_parts(tmp_path: Path) -> None:
    read = checkpoint.OpenCheckpoint(write(tmp_path, 0)).read
    assert read("a/weight", Box((0, 0), (4, 6))).equal(WHOLE)
    assert read("a/weight", Box((2, 1), (2, 4))).equal(WHOLE[2:, 1:5])
    assert read("a/weight", Box((3, 5), (1, 1))).equal(WHOLE[3:, 5:])


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        write(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000200-a1", "step-000300-a1"]


def test_newest_attempt_wins_over_later_steps_of_an_older_one(tmp_path: Path) -> None:
    write(tmp_path, 300, attempt=1)
    path = write(tmp_path, 200, attempt=2)
    found, _ = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.path == path
    assert checkpoint.prepare(tmp_path, None) == 3
    assert checkpoint.prepare(tmp_path / "new", None) == 1
    assert checkpoint.prepare(tmp_path, 2) == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Problem, match="DISTTUI_CHECKPOINTS"):
        checkpoint.prepare(tmp_path / "file" / "sub", 1)


def test_next_attempt_removes_unfinished_checkpoints(tmp_path: Path) -> None:
    checkpoint.write_parts(tmp_path / "step-000010-a1.tmp", 0, {})
    checkpoint.write_parts(tmp_path / "step-000020-a2.tmp", 1, {})
    checkpoint.write_parts(tmp_path / "step-000010-a3.tmp", 0, {})
    assert checkpoint.prepare(tmp_path, 2) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["step-000010-a3.tmp"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("file", "harm", "named"),
    [
        ("rank-1.bin", cut, r"rank-1.bin has [\d,]+ bytes of [\d,]+"),
        ("rank-1.bin", Path.unlink, "rank-1.bin: No such file"),
        ("bytegpt.json", Path.unlink, "not a checkpoint of bytegpt: it has no bytegpt.json"),
        ("bytegpt.json", cut, "bytegpt.json is damaged"),
    ],
)
def test_a_broken_one_is_passed_over_and_named(tmp_path: Path, file: str, harm: Any, named: str) -> None:
    good, bad = write(tmp_path, 100), write(tmp_path, 200)
    harm(bad / file)
    found, (note,) = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.path == good
    assert re.search(named, note), note
    assert str(bad) in note


def test_one_of_another_version_is_refused(tmp_path: Path) -> None:
    index = write(tmp_path, 2) / "bytegpt.json"
    index.write_text(index.read_text().replace('"format": 3', '"format": 2'))
    found, (note,) = checkpoint.newest(tmp_path)
    assert found is None
    assert "written by another version of bytegpt" in note


def test_a_flipped_bit_is_found_when_its_part_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, 0)
    content = bytearray((path / "rank-1.bin").read_bytes())
    content[content.index(bytes(WHOLE[3].view(torch.uint8).tolist()))] ^= 1
    (path / "rank-1.bin").write_bytes(content)
    read = checkpoint.OpenCheckpoint(path).read
    assert read("a/weight", TOP).equal(WHOLE[:3])
    with pytest.raises(Problem, match=r"a/weight in rank-1\.bin is damaged"):
        read("a/weight", BOTTOM)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Two ranks of FSDP, 12 steps of 8 samples, distributed checkpoints after 8 and 12."""
    job = Job(tmp_path_factory.mktemp("saved"))
    train(job.folder, {"2": {"saved": job.command(*SAME, "--strategy", "fsdp", "--checkpoint-interval", "4")[1:]}})
    (job.folder / "saved.checkpoints").rename(job.folder / "checkpoints")
    (job.folder / "saved.0.jsonl").rename(job.metrics_file(0))
    yield job


def test_ranks_with_a_shared_disk_save_parts_and_one_can_resume(
    saved: Job, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sorted(path.name for path in (saved.folder / "checkpoints").iterdir()) == [
        "step-000008-a1",
        "step-000012-a1",
    ]
    files = {path.name for path in (saved.folder / "checkpoints" / "step-000008-a1").iterdir()}
    assert files == {"bytegpt.json", "rank-0.bin", "rank-1.bin"}
    shutil.copy(saved.folder / "text.txt", job.folder)
    assert job.here(*SAME, "--resume", str(saved.folder / "checkpoints" / "step-000008-a1")) == 0
    assert "will differ" not in capsys.readouterr().out
    assert close(job.curve(), saved.curve()[8:], 1e-4)


def test_without_a_shared_disk_rank_0_reads_and_writes_for_all(saved: Job, tmp_path: Path) -> None:
    """The host of rank 1 has another run's checkpoint at the same path: nothing of it gets into the model."""
    job = Job(tmp_path)
    shutil.copy(saved.folder / "text.txt", tmp_path)
    for host, step in enumerate(("step-000008-a1", "step-000012-a1")):
        home = tmp_path / f"apart.{host}"
        shutil.copytree(saved.folder / "checkpoints" / step, home / "before" / "step-000008-a1")
    resumed = job.command(*SAME, "--strategy", "fsdp", "--checkpoint-interval", "4", "--resume", "before")[1:]
    train(tmp_path, {"2": {"apart": resumed}})
    said = (tmp_path / "ranks-of-2.0.log").read_text()
    assert "is not the same folder on all hosts: rank 0 gathers each checkpoint and writes it alone" in said
    (path,) = (tmp_path / "apart.0" / "checkpoints").iterdir()
    assert sorted(one.name for one in path.iterdir()) == ["bytegpt.json", "rank-0.bin"]
    assert not (tmp_path / "apart.1" / "checkpoints").exists()
    assert close(job.curve_of(tmp_path / "apart.0.jsonl"), saved.curve()[8:], 1e-4)


def test_sigterm_is_answered_with_a_checkpoint_of_the_last_step(job: Job) -> None:
    """One rank alone gets it: all save the same step and end by SIGTERM, and the next attempt goes on from there."""
    course = ["--steps", "1000", "--batch-size", "4", "--val-interval", "0", "--checkpoint-interval", "100000"]
    ranks = job.ranks(2, *course, "--strategy", "fsdp")
    wait_for(lambda: len(job.metrics()) >= 5 or ranks[0].poll() is not None, "five steps", 120)
    ranks[1].terminate()
    output, *_ = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [-signal.SIGTERM] * 2, output
    said = re.search(r"^SIGTERM: ended after step (\d+) with a checkpoint of step \1$", output, re.MULTILINE)
    assert said, output
    assert len(job.metrics()) == int(said[1])
    (path,) = (job.folder / "checkpoints").iterdir()
    found = checkpoint.OpenCheckpoint(path)
    assert found.progress["step"] == int(said[1])


@pytest.mark.parametrize("interval", ["1", "4"])
def test_sigusr1_saves_a_checkpoint_and_training_continues(job: Job, interval: str) -> None:
    course = ["--steps", "60", "--batch-size", "4", "--val-interval", "0", "--checkpoint-interval", "100000"]
    ranks = job.ranks(2, *course, *(["--sync-interval", interval] if interval != "1" else []))
    wait_for(lambda: len(job.metrics()) >= 5 or ranks[0].poll() is not None, "five steps", 120)
    for rank in ranks:
        rank.send_signal(signal.SIGUSR1)
    output, *_ = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], output
    steps = sorted(checkpoint.OpenCheckpoint(path).progress["step"] for path in (job.folder / "checkpoints").iterdir())
    assert len(steps) == 2 and 5 <= steps[0] < steps[1] == 60


def test_sigterm_ends_a_rank_whose_peers_are_gone(job: Job) -> None:
    """It waits in a collective, where Python runs no signal handlers, for a rank that no longer answers."""
    ranks = job.ranks(2, "--steps", "100000", "--batch-size", "4", "--val-interval", "0")
    try:
        wait_for(lambda: len(job.metrics()) >= 5 or ranks[0].poll() is not None, "five steps", 120)
        ranks[1].send_signal(signal.SIGSTOP)
        ranks[0].terminate()
        assert ranks[0].wait(timeout=60) == 128 + signal.SIGTERM
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


ON_FOUR = {
    "ddp": [], "fsdp": ["--strategy", "fsdp"], "hsdp": ["--dp-replicate", "2", "--dp-shard", "2"], "tp": ["--tp", "2"],
    "fsdp-tp": ["--dp-shard", "2", "--tp", "2"], "pp": ["--pp", "2"], "cp": ["--cp", "2"],
    "pp-tp-file": ["--pp", "2", "--tp", "2", "--checkpoint-format", "file"],
    "fsdp-tp-file": ["--dp-shard", "2", "--tp", "2", "--checkpoint-format", "file"],
}  # fmt: skip


def test_every_layout_saves_the_same_and_resumes_from_others(tmp_path: Path) -> None:
    """Saved by four ranks after step 4, the fifth step of two or four is the one of those that went on.

    What all save in the same names and boxes is the same, so that each can go on from each.
    """
    Job(tmp_path).command()  # makes the text
    course = [
        *TINY,
        "--heads",
        "4",
        "--global-batch",
        "8",
        "--val-interval",
        "0",
        "--val-batches",
        "1",
        "--sample",
        "0",
    ]
    course += ["--steps", "5", "--data", str(tmp_path / "text.txt")]
    train(tmp_path, {"4": {name: [*course, "--checkpoint-interval", "4", *how] for name, how in ON_FOUR.items()}})
    paths = {name: next((tmp_path / f"{name}.checkpoints").glob("step-000004-a1*")) for name in ON_FOUR}
    assert [len([*path.glob("rank-*.bin")]) > 1 for path in paths.values()] == [
        name not in ("ddp", "cp") and "file" not in name for name in paths
    ]
    contents = {name: whole(path) for name, path in paths.items()}
    for name, tensors in contents.items():
        assert tensors.keys() == contents["ddp"].keys()
        assert not [key for key, theirs in contents["ddp"].items() if far(tensors[key], theirs) > 0.01], name
    loads: dict[str, dict[str, list[str]]] = {"2": {}, "4": {}}
    for source in ("ddp", "fsdp-tp"):
        resume = [*course, "--checkpoint-interval", "0", "--resume", str(paths[source])]
        loads["2"] |= {f"{source}-to-{name}-2": [*resume, *ON_FOUR[name]] for name in ("ddp", "fsdp", "tp", "pp", "cp")}
        loads["4"] |= {f"{source}-to-{name}-4": [*resume, *ON_FOUR[name]] for name in ("hsdp", "fsdp-tp")}
    train(tmp_path, loads)
    fifth = Job(tmp_path).curve_of(tmp_path / "ddp.0.jsonl")[4:]
    courses = {name: Job(tmp_path).curve_of(tmp_path / f"{name}.0.jsonl") for runs in loads.values() for name in runs}
    assert len(courses) == 14
    assert not {name: course for name, course in courses.items() if not close(course, fifth, 1e-4)}


def whole(path: Path) -> dict[str, Any]:
    """Every tensor of a checkpoint."""
    opened = checkpoint.OpenCheckpoint(path)
    shapes = {name: stored.shape for name, stored in opened.tensors.items()}
    return {name: opened.read(name, Box((0,) * len(shape), shape)) for name, shape in shapes.items()}


def far(tensor: Any, other: Any) -> float:
    """How far two tensors lie apart, as a share of the second."""
    return float((tensor - other).norm() / other.norm())


def train(folder: Path, runs: Mapping[str, Mapping[str, Sequence[str]]], python: str = sys.executable) -> None:
    """Many runs in few process groups: world size → name → arguments."""
    kit = Path(__file__).with_name("layouts_kit.py")
    env = {**Job(folder).env(), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [python, str(kit), str(folder)], input=json.dumps(runs), env=env, cwd=folder, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, "\n".join(log.read_text()[-3000:] for log in folder.glob("*.log"))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)
