"""The built-in job for real: under torchrun and without, over gloo on loopback, with a tiny model."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from disttui.runner.hosts.ship import train_parcel
from disttui.runner.train.main import main
from tests.command import ran
from tests.unit.waiting import wait_for

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

TINY = [
    "--layers", "2", "--heads", "2", "--width", "32", "--context", "16", "--warmup", "4", "--val-interval", "6",
    "--val-batches", "3", "--sample", "8",
]  # fmt: skip
CURVE = ["loss", "grad_norm", "lr", "val_loss"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Job:
    """A folder with the job's zip and some data, and the ways to start it there."""

    folder: Path

    def env(self, rank: int = 0) -> dict[str, str]:
        """A rank's environment, without what a surrounding launcher may have left."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DISTTUI_", "TORCHELASTIC"))}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            kept.pop(name, None)
        return {
            **kept,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "DISTTUI_METRICS": str(self.metrics_file(rank)),
            "DISTTUI_CHECKPOINTS": str(self.folder / "checkpoints"),
        }

    def metrics_file(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.metrics.jsonl"

    def metrics(self, rank: int = 0) -> list[dict[str, float]]:
        """The complete records of a rank."""
        return self.records(self.metrics_file(rank))

    @staticmethod
    def records(path: Path) -> list[dict[str, float]]:
        """The complete records of a metrics file."""
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def curve(self) -> list[list[float | None]]:
        """What a run's course is, per step."""
        return self.curve_of(self.metrics_file(0))

    @classmethod
    def curve_of(cls, path: Path) -> list[list[float | None]]:
        """The course in a metrics file."""
        return [[record.get(name) for name in CURVE] for record in cls.records(path) if "loss" in record]

    def command(self, *arguments: str) -> list[str]:
        (self.folder / "train.zip").write_bytes(train_parcel().data)
        data = self.folder / "text.txt"
        if not data.exists():
            words = random.Random(0).choices(["to be", "or not", "that", "is", "the question"], k=4000)
            data.write_text(" ".join(words))
        return [str(self.folder / "train.zip"), *TINY, "--data", str(data), *arguments]

    def alone(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """As one process without a launcher."""
        command = [sys.executable, *self.command(*arguments)]
        return run(command, {**self.env(), **env}, self.folder)

    def here(self, *arguments: str) -> int:
        """As one process, which is this one and has imported torch; returns the exit code."""
        with patch.dict(os.environ, self.env(), clear=True), patch.object(sys, "argv", self.command(*arguments)):
            try:
                main()
            except SystemExit as ended:
                return int(ended.code or 0)
        return 0

    def torchrun(self, ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Under torchrun with a static rendezvous; the metrics of all ranks go to one file, in rank 0's name."""
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--node-rank", "0"]
        place = ["--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        return run([*launcher, *place, *self.command(*arguments)], self.env(), self.folder)

    def ranks(self, count: int, *arguments: str) -> list[subprocess.Popen[str]]:
        """As ranks of our own, started like a launcher would, each with its own metrics file."""
        port, command = str(free_port()), [sys.executable, *self.command(*arguments)]
        place = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
        return [
            subprocess.Popen(
                command,
                env={
                    **self.env(rank), **place, "MASTER_PORT": port, "RANK": str(rank), "LOCAL_RANK": str(rank),
                },
                cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank in range(count)
        ]  # fmt: skip


def run(command: Sequence[str], env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return ran(command, env=env, cwd=folder, timeout=300)


def close(curve: Sequence[Sequence[float | None]], other: Sequence[Sequence[float | None]], limit: float) -> bool:
    """Whether two courses have the same steps and differ nowhere by more than `limit`."""
    return len(curve) == len(other) > 0 and all(
        left is right or (left is not None and right is not None and abs(left - right) <= limit)
        for pair in zip(curve, other, strict=True)
        for left, right in zip(*pair, strict=True)
    )


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """One process, 12 steps of 8 samples, checkpoints after 4, 8 and 12 (of which two are kept)."""
    job = Job(tmp_path_factory.mktemp("reference"))
    assert job.here("--steps", "12", "--batch-size", "8", "--clip", "0.5", "--checkpoint-interval", "4") == 0
    yield job


def test_one_process_trains_and_says_so(reference: Job) -> None:
    records = reference.metrics()
    assert [record["step"] for record in records] == [*range(1, 13), 12]
    assert records[0]["steps"] == 12
    assert records[0]["loss"] == pytest.approx(5.545, abs=0.1)
    assert records[-2]["val_loss"] < records[5]["val_loss"] < 5.5
    assert records[0]["lr"] == pytest.approx(3e-3 / 4)
    assert records[0]["step_time"] > records[0]["forward_time"] > 0
    assert len(str(records[-1]["sample"])) > 0
    assert len(list((reference.folder / "checkpoints").iterdir())) == 2


SAME = ["--steps", "12", "--clip", "0.5", "--checkpoint-interval", "0", "--global-batch", "8"]


def test_killed_and_resumed_it_continues_the_same_curve(job: Job, tmp_path_factory: pytest.TempPathFactory) -> None:
    course = ["--steps", "150", "--batch-size", "4", "--dropout", "0.1", "--checkpoint-interval", "10"]
    undisturbed = Job(tmp_path_factory.mktemp("undisturbed"))
    assert undisturbed.torchrun(2, *course).returncode == 0

    ranks = job.ranks(2, *course)
    wait_for(lambda: len(job.metrics()) >= 25 or ranks[0].poll() is not None, "25 steps", 120)
    for rank in ranks:
        rank.kill()
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [-signal.SIGKILL] * 2, outputs
    job.metrics_file(0).unlink()

    resumed = job.ranks(2, *course, "--resume", "auto")
    outputs = [rank.communicate(timeout=300)[0] for rank in resumed]
    assert [rank.returncode for rank in resumed] == [0, 0], outputs
    assert re.search(r"resumed from \S+step-0000[2-9]0-a1 after step [2-9]0\b", outputs[0])
    rest = job.curve()
    assert close(rest, undisturbed.curve()[-len(rest) :], 1e-6)


def test_rerun_resumes_from_checkpoints_of_the_earlier_run(reference: Job, job: Job) -> None:
    """They lie in a folder of their own; the first that it saves itself comes before them."""
    before = str(reference.folder / "checkpoints")
    (job.folder / "text.txt").write_bytes((reference.folder / "text.txt").read_bytes())
    done = job.alone(*SAME, DISTTUI_RESUME="1", DISTTUI_RESUME_FROM=before)
    assert done.returncode == 0, done.stderr
    assert f"resumed from {before}/step-000012-a1 after step 12" in done.stdout
    done = job.alone(*SAME, DISTTUI_RESUME="1", DISTTUI_RESUME_FROM=f"{before}/step-000008-a1")
    assert "step-000008-a1 after step 8" in done.stdout, done.stderr
    shutil.rmtree(job.folder / "checkpoints", ignore_errors=True)
    nowhere = str(job.folder / "nowhere")
    done = job.alone(*SAME, DISTTUI_RESUME="1", DISTTUI_RESUME_FROM=nowhere)
    assert (done.returncode, f"no complete checkpoint in {nowhere}" in done.stderr) == (2, True), done.stderr


def test_broken_checkpoint_is_named_and_the_one_before_is_used(
    reference: Job, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    """By another strategy than the one that saved it."""
    checkpoints = job.folder / "checkpoints"
    checkpoints.mkdir()
    whole = reference.folder / "checkpoints" / "step-000008-a1"
    for name in (whole.name, "step-000010-a1"):
        shutil.copytree(whole, checkpoints / name)
    os.truncate(checkpoints / "step-000010-a1" / "rank-0.bin", 9000)
    (job.folder / "text.txt").write_bytes((reference.folder / "text.txt").read_bytes())
    assert job.here(*SAME, "--strategy", "fsdp", "--resume", "auto") == 0
    said = capsys.readouterr().out
    assert "step-000010-a1 is incomplete: rank-0.bin has 9,000 bytes of" in said
    assert "resumed from" in said
    assert "will differ" not in said
    assert close(job.curve(), reference.curve()[8:], 1e-4)


def test_what_changes_the_curve_at_a_resume_is_warned_of(reference: Job, job: Job) -> None:
    source = str(reference.folder / "checkpoints")
    done = job.alone("--steps", "12", "--batch-size", "4", "--checkpoint-interval", "0", "--resume", source)
    assert done.returncode == 0
    assert "will differ from the checkpoint's: global batch 4 (was 8)" in done.stdout


def test_model_of_another_shape_cannot_resume(reference: Job, job: Job) -> None:
    source = str(reference.folder / "checkpoints" / "step-000012-a1")
    done = job.alone("--layers", "3", "--checkpoint-interval", "0", "--resume", source)
    assert done.returncode == 2
    assert "made with --layers 2 --heads 2 --width 32, this run has --layers 3 " in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_training_that_diverges_ends_with_one_line(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert job.here("--lr", "1e12", "--steps", "30", "--clip", "0", "--checkpoint-interval", "0") == 1
    assert re.fullmatch(r"bytegpt: the loss is (nan|inf) at step \d+: lower --lr.*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--global-batch", "3"], "--global-batch 3 cannot be divided over 2 ranks"),  # before there is a group
        (["--data", "/no/such"], "--data /no/such: No such file or directory"),  # found out by rank 0
    ],
)
def test_bad_input_is_reported_once_for_all_ranks(job: Job, arguments: list[str], named: str) -> None:
    done = job.torchrun(2, *arguments)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("bytegpt: ")]
    assert len(said) == 1, done.stderr
    assert named in said[0]
    assert "exitcode  : 2" in done.stderr or "exitcode: 2" in done.stderr


@pytest.mark.parametrize(
    ("source", "named"), [("__version__ = '2.4.1+cu121'", "has torch 2.4.1+cu121"), (None, "cannot load torch")]
)
def test_a_torch_that_is_too_old_or_missing_is_named(job: Job, source: str | None, named: str) -> None:
    (job.folder / "torch.py").write_text(source or "raise ImportError('no libtorch')")
    done = job.alone(PYTHONPATH=str(job.folder))
    assert done.returncode == 2
    assert named in done.stderr
    assert "2.6" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_full_disk_costs_the_metrics_not_the_run(job: Job) -> None:
    done = job.alone("--steps", "2", "--checkpoint-interval", "0", DISTTUI_METRICS="/dev/full")
    assert done.returncode == 0
    assert done.stderr == "bytegpt: no metrics: /dev/full: No space left on device\n"


def test_the_group_is_ended_when_nothing_else_holds_it(job: Job) -> None:
    """Otherwise the holder of a lock may wait for gloo's threads that need it, or they abort the process at its end."""
    command = job.command()
    program = f"""
import gc, sys, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
end = dist.destroy_process_group
def checked():
    held = sum(isinstance(one, DistributedDataParallel) for one in gc.get_objects())
    print("held by", held, "loaded in vain", "torch.distributed.checkpoint" in sys.modules)
    end()
dist.destroy_process_group = checked
sys.path.insert(0, {command[0]!r})
from _disttui_train import loop
from _disttui_train.main import main
def interrupted(self):
    raise KeyboardInterrupt
for words in ("--steps 2", "--lr 1e15", "--context 16384", "--val-interval 1"):
    sys.argv = [*{command!r}, *words.split()]
    if words == "--val-interval 1":
        loop.Training.validate = interrupted
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    print("code", code)
"""
    done = run([sys.executable, "-c", program], job.env(), job.folder)
    said = [line for line in done.stdout.splitlines() if line.startswith(("held", "code"))]
    held = "held by 0 loaded in vain False"
    assert said == [held, "code 0", held, "code 1", held, "code 2", held, "code 130"], done.stdout + done.stderr


def test_the_default_profile_learns(job: Job) -> None:
    """One process, from ln 256 to under 2.6 nats a byte in the first 50 of its 300 steps."""
    job.command()
    command = [sys.executable, "train.zip", "--checkpoint-interval", "0"]
    with subprocess.Popen(command, env=job.env(), cwd=job.folder, stdout=subprocess.DEVNULL) as training:
        wait_for(lambda: len(job.metrics()) >= 50 or training.poll() is not None, "50 steps", 200)
        training.kill()
    records = job.metrics()
    assert (records[0]["steps"], records[0]["step"]) == (300, 1)
    assert records[0]["loss"] > 5.4
    assert records[49]["val_loss"] < 2.6
