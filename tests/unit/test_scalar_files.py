"""Metrics are read from the files that a job writes for TensorBoard, Weights & Biases and spreadsheets."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disttui.runner.node import procs
from disttui.runner.node.observe import scalar_files
from disttui.runner.node.observe.harvest import Harvest
from disttui.runner.node.observe.scalar_files import ScalarFiles
from disttui.runner.node.observe.scalar_formats import MalformedFileError, Sample, ScalarFile, crc32c, decoder, masked
from tests.files import new_file, new_folder
from tests.unit.waiting import wait_for

DATA = Path(__file__).parents[1] / "data" / "foreign"
EVENTS = DATA / "events.out.tfevents.1795323783.node1.1.0"
WANDB = DATA / "run.wandb"
TABLE = DATA / "metrics.csv"


def samples(path: Path) -> list[Sample]:
    with closing(ScalarFile(str(path), str(path))) as file:
        return file.read(1 << 20)


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def record(data: bytes) -> bytes:
    size = struct.pack("<Q", len(data))
    return size + struct.pack("<I", masked(size)) + data + struct.pack("<I", masked(data))


def scalar(tag: str, value: float, step: int, when: float) -> bytes:
    summary = field(1, field(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
    return record(b"\x09" + struct.pack("<d", when) + b"\x10" + varint(step) + field(5, summary))


def history(step: int, **values: object) -> bytes:
    items = b"".join(field(1, field(2, k.encode()) + field(16, json.dumps(v).encode())) for k, v in values.items())
    return field(2, items + field(2, b"\x08" + varint(step)))


def wandb(records: list[bytes]) -> bytes:
    """A file as its writer makes it, records in parts where a block of 32 KiB ends."""
    out = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
    for data in records:
        rest, begun = data, False
        while True:
            left = 32768 - len(out) % 32768
            if left < 7:
                out += bytes(left)
                continue
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = {(False, False): 1, (False, True): 2, (True, True): 3, (True, False): 4}[begun, bool(rest)]
            out += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            begun = True
            if not rest:
                break
    return out


def test_the_checksum_is_the_one_of_its_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_a_tensorboard_file_gives_its_scalars() -> None:
    found = samples(EVENTS)
    assert [(one.step, one.values) for one in found] == [
        *((step, {"loss": 2.5 - step / 40, "lr": 0.001}) for step in (0, 10, 20, 30)),
        (40, {"loss": 1.5, "lr": 0.001, "val_loss": 1.75, "a_tensor": 0.5}),
    ]
    assert found[0].t == pytest.approx(1795323783, abs=60)


def test_a_wandb_file_gives_its_history() -> None:
    found = samples(WANDB)
    assert [(one.step, one.values) for one in found[:5]] == [
        (step, {"loss": 2.5 - step / 40, "lr": 0.001, "nested_acc": 0.5}) for step in (0, 10, 20, 30, 40)
    ]
    assert found[5].values == {"loss": "nan", "big": "inf", "step": 60}
    assert found[0].t == pytest.approx(1795323787, abs=60)


def test_lightnings_table_gives_its_rows() -> None:
    found = samples(TABLE)
    assert found[0] == Sample(9, None, {"epoch": 0, "loss": 0.8169226050376892})
    assert found[10] == Sample(99, None, {"epoch": 0, "val_loss": 0.6912412047386169})
    assert len(found) == 22


def test_a_wandb_record_goes_over_the_end_of_a_block(tmp_path: Path) -> None:
    path = tmp_path / "run-1.wandb"
    written = wandb([history(step, loss=step / 4, text="x" * 211) for step in range(1000)])
    assert len(written) > 200_000
    path.write_bytes(written)
    assert [one.step for one in samples(path)] == list(range(1000))


@pytest.mark.parametrize("path", [EVENTS, WANDB, TABLE], ids=lambda path: path.suffix or path.name)
def test_a_file_is_read_as_it_grows_by_any_number_of_bytes(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    growing = new_file(tmp_path / path.name)
    file = ScalarFile(str(growing), str(growing))
    found: list[Sample] = []
    for byte in range(0, len(whole), 37):
        with growing.open("ab") as out:
            out.write(whole[byte : byte + 37])
        found += file.read(1 << 20)
    file.close()
    values = [(one.step, name, value) for one in found for name, value in one.values.items() if name != "epoch"]
    assert sorted(map(str, values)) == sorted(
        str((one.step, name, value)) for one in samples(path) for name, value in one.values.items() if name != "epoch"
    )


def test_table_rewritten_with_a_new_column_repeats_no_value(tmp_path: Path) -> None:
    path = new_file(tmp_path / "metrics.csv", "epoch,step,train_loss\n0,9,0.5\n0,19,0.4\n")
    file = ScalarFile(str(path), str(path))
    assert [one.step for one in file.read(1 << 20)] == [9, 19]
    with path.open("w") as out:
        out.write("epoch,step,train_loss,val_loss\n0,9,0.5,\n0,19,0.4,\n0,19,,0.7\n")
    assert file.read(1 << 20) == [Sample(19, None, {"epoch": 0, "val_loss": 0.7})]
    file.close()


def test_the_batches_of_a_validation_are_no_steps_of_the_run(tmp_path: Path) -> None:
    """Lightning with `on_step=True` in validation_step: the count of its batches stands in the column `step`."""
    path = tmp_path / "metrics.csv"
    head = "epoch,step,train_loss_epoch,train_loss_step,valid_loss_epoch,valid_loss_step"
    rows = ["0,59,,2.29,,", ",18,,,,2.2982", ",19,,,,2.3011", "0,59,,,2.3057,", "0,59,2.3040,,,"]
    path.write_text("\n".join([head, *rows]) + "\n")
    assert [one.record() for one in samples(path)] == [
        {"step": 59, "epoch": 0, "loss": 2.29},
        {"valid_loss_step": 2.2982},
        {"valid_loss_step": 2.3011},
        {"step": 59, "epoch": 0, "val_loss": 2.3057},
        {"step": 59, "epoch": 0, "train_loss_epoch": 2.304},
    ]


def test_a_validations_own_folder_gives_no_training_loss(tmp_path: Path) -> None:
    for folder in ("train", "validation"):
        new_file(tmp_path / folder / EVENTS.name, scalar("epoch_loss", 1, 1, 1) + scalar("loss", 0.5, 1, 1))
    assert samples(tmp_path / "train" / EVENTS.name)[0].values == {"epoch_loss": 1, "loss": 0.5}
    assert samples(tmp_path / "validation" / EVENTS.name)[0].values == {"epoch_loss": 1, "val_loss": 0.5}


def test_a_trainers_summary_is_no_metric(tmp_path: Path) -> None:
    path = tmp_path / EVENTS.name
    tags = {
        "train/loss": 0.5,
        "train/train_loss": 2.5,
        "train/train_runtime": 9,
        "train/total_flos": 1,
        "train_loss": 3,
    }
    path.write_bytes(b"".join(scalar(tag, value, 200, 1) for tag, value in tags.items()))
    assert [one.values for one in samples(path)] == [{"loss": 0.5}, {"loss": 3}]


def test_pictures_are_passed_over_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / EVENTS.name
    with path.open("wb") as out:
        size = struct.pack("<Q", 1 << 30)
        out.write(scalar("loss", 1, 1, 1) + size + struct.pack("<I", masked(size)))
        out.seek((1 << 30) + 4, os.SEEK_CUR)
        out.write(scalar("loss", 0.5, 2, 1))
    pieces: list[int] = []
    read = os.pread

    def count(file: int, size: int, offset: int) -> bytes:
        pieces.append(len(piece := read(file, size, offset)))
        return piece

    monkeypatch.setattr(os, "pread", count)
    assert [one.values["loss"] for one in samples(path)] == [1, 0.5]
    assert sum(pieces) < 4 << 20


@settings(max_examples=300, deadline=None)
@given(data=st.data(), path=st.sampled_from([EVENTS, WANDB, TABLE]))
def test_no_bytes_do_more_than_end_the_reading_of_their_file(data: st.DataObject, path: Path) -> None:
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + 1] = data.draw(st.binary(max_size=12))
    found: list[Sample] = []
    reader = decoder(str(path))
    assert reader
    try:
        reader.take(bytes(whole), 0, found)
    except MalformedFileError:
        pass
    json.loads(json.dumps([one.values for one in found]), parse_constant=pytest.fail)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_valid_checksums_do_not_make_odd_messages_fatal(message: bytes) -> None:
    for name, whole in (("events.out.tfevents.1", record(message)), ("run-1.wandb", wandb([message]))):
        reader = decoder(name)
        assert reader
        try:
            reader.take(whole, 0, [])
        except MalformedFileError:
            pass


WRITER = """
import sys, time
file = open(sys.argv[1], sys.argv[2])
print("open", flush=True)
for line in sys.stdin:
    file.write(bytes.fromhex(line))
    file.flush()
    print("written", flush=True)
"""


class Writer:
    """A rank that holds a file open, and writes what it is given."""

    def __init__(self, path: Path, mode: str = "wb", cwd: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=cwd,
        )  # fmt: skip
        self._wait()

    def write(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data.hex() + "\n")
        self.process.stdin.flush()
        self._wait()

    def _wait(self) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline()

    def end(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@contextmanager
def writing(path: Path, mode: str = "wb", cwd: Path | None = None) -> Iterator[Writer]:
    one = Writer(path, mode, cwd)
    try:
        yield one
    finally:
        one.end()


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Harvest]:
    """An attempt of rank 0, whose job runs in `work`."""
    monkeypatch.setattr(scalar_files, "_EVERY", (0.0, 0.0))
    (tmp_path / "work").mkdir()

    def make(node: int = 0) -> Harvest:
        return Harvest(str(tmp_path), [0], None, ScalarFiles(str(tmp_path / "work"), time.time(), "t-1", node))

    return make


def records(folder: Path) -> list[dict[str, Any]]:
    path = folder / "rank-0.metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [{name: value for name, value in json.loads(line).items() if name != "t"} for line in lines]


def test_a_ranks_tensorboard_file_becomes_its_metrics(tmp_path: Path, begin: Callable[..., Harvest]) -> None:
    harvest = begin()
    with writing(tmp_path / EVENTS.name) as rank:
        pids = {0: rank.process.pid}
        rank.write(scalar("train/loss", 0.5, 7, time.time()))
        harvest.poll(pids)
        assert records(tmp_path) == [{"loss": 0.5, "step": 7}]
        # What it writes last, after the last search, and as it ends.
        rank.write(scalar("train/loss", 0.25, 8, time.time()))
    harvest.poll(pids, last=True)
    harvest.poll(pids, last=True)
    assert records(tmp_path) == [{"loss": 0.5, "step": 7}, {"loss": 0.25, "step": 8}]
    seen = [json.loads(line)["t"] for line in (tmp_path / "rank-0.metrics.jsonl").read_text().splitlines()]
    assert seen == sorted(seen) and abs(seen[0] - time.time()) < 60


def test_briefly_open_tensorboard_file_is_found_by_its_name(tmp_path: Path, begin: Callable[..., Harvest]) -> None:
    harvest = begin(node=1)
    folder = new_folder(tmp_path / "work/runs/one")
    with writing(tmp_path / "note.txt") as rank:
        pid, now, host = rank.process.pid, int(time.time()), socket.gethostname()
        for number, name in enumerate((
            f"{now}.{host}.{pid}.0",
            f"{now}.{host}.{os.getpid()}.0",
            f"{now}.elsewhere.{pid}.0",
            f"{now - 3600}.{host}.{pid}.0",
        )):  # fmt: skip
            (folder / f"events.out.tfevents.{name}").write_bytes(scalar("loss", number, 1, time.time()))
        harvest.poll({0: pid})
    assert records(tmp_path) == [{"loss": 0, "step": 1}]


def test_a_file_of_another_run_is_not_read(tmp_path: Path, begin: Callable[..., Harvest]) -> None:
    harvest = begin()
    other = tmp_path / "work" / EVENTS.name
    with writing(other) as another, writing(tmp_path / "note.txt") as rank:
        another.write(scalar("loss", 9, 1, time.time()))
        with writing(other, "rb"):
            harvest.poll({0: rank.process.pid})
    assert records(tmp_path) == []


def test_a_file_that_a_rank_only_reads_is_not_its_metrics(tmp_path: Path, begin: Callable[..., Harvest]) -> None:
    harvest, path = begin(), tmp_path / EVENTS.name
    path.write_bytes(scalar("loss", 9, 1, time.time()))
    with writing(path, "rb") as rank:
        harvest.poll({0: rank.process.pid})
    assert records(tmp_path) == []


def test_values_of_an_earlier_attempt_in_a_file_are_skipped(tmp_path: Path, begin: Callable[..., Harvest]) -> None:
    path = new_file(tmp_path / EVENTS.name, scalar("loss", 9, 1, time.time() - 60))
    harvest = begin()
    with writing(path, "ab") as rank:
        rank.write(scalar("loss", 0.5, 2, time.time()))
        harvest.poll({0: rank.process.pid})
    assert records(tmp_path) == [{"loss": 0.5, "step": 2}]


def test_a_value_that_the_log_tells_is_not_doubled_by_a_file(tmp_path: Path, begin: Callable[..., Harvest]) -> None:
    harvest = begin()
    (tmp_path / "rank-0.log").write_text("step 8 loss 0.5\n")
    with writing(tmp_path / EVENTS.name) as rank:
        now = time.time()
        rank.write(scalar("loss", 0.5, 8, now) + scalar("grad_norm", 3, 9, now) + scalar("lr", 2, 7, now))
        harvest.poll({0: rank.process.pid})
    assert records(tmp_path) == [{"step": 8, "loss": 0.5}, {"grad_norm": 3, "step": 9}, {"lr": 2}]


def test_loss_logged_without_steps_is_read_from_a_file(tmp_path: Path, begin: Callable[..., Harvest]) -> None:
    harvest = begin()
    log = new_file(tmp_path / "rank-0.log", "Loss: 0.9\n")
    with writing(tmp_path / EVENTS.name) as rank:
        now = time.time()
        rank.write(scalar("loss", 0.75, 8, now))
        harvest.poll({0: rank.process.pid})
        log.write_text("Loss: 0.9\nLoss: 0.8\n")
        rank.write(scalar("loss", 0.5, 16, now))
        harvest.poll({0: rank.process.pid})
    assert records(tmp_path) == [{"loss": 0.9}, {"loss": 0.75, "step": 8}, {"loss": 0.5, "step": 16}]


def test_a_script_that_writes_its_own_metrics_needs_no_file(tmp_path: Path, begin: Callable[..., Harvest]) -> None:
    harvest = begin()
    (tmp_path / "rank-0.metrics.jsonl").write_text('{"t": 1, "loss": 1}\n')
    with writing(tmp_path / EVENTS.name) as rank:
        rank.write(scalar("loss", 0.5, 8, time.time()))
        harvest.poll({0: rank.process.pid})
    assert records(tmp_path) == [{"loss": 1}]


def test_damaged_file_is_reported_and_ends_only_its_reading(tmp_path: Path, begin: Callable[..., Harvest]) -> None:
    harvest = begin()
    with writing(tmp_path / EVENTS.name) as rank:
        pids = {0: rank.process.pid}
        with writing(tmp_path / "predictions.csv") as unrelated:
            unrelated.write(b"name,score\na,1\n")
            rank.write(scalar("loss", 0.5, 1, time.time()))
            harvest.poll(pids | {1: unrelated.process.pid})
            rank.write(scalar("loss", 0.4, 2, time.time()) + b"\0" * 64)
            harvest.poll(pids)
            rank.write(scalar("loss", 0.25, 3, time.time()))
            harvest.poll(pids)
    assert records(tmp_path) == [{"loss": 0.5, "step": 1}, {"loss": 0.4, "step": 2}]
    (note,) = harvest.notes
    assert note.startswith("stopped reading metrics from ") and note.endswith("a record whose checksum is wrong")


def test_briefly_open_lightning_table_is_found(tmp_path: Path, begin: Callable[..., Harvest]) -> None:
    old = tmp_path / "work/lightning_logs/version_0/metrics.csv"
    old.parent.mkdir(parents=True)
    shutil.copy(TABLE, old)
    harvest, elsewhere = begin(), Harvest(
        str(tmp_path), [1], None, ScalarFiles(str(tmp_path / "work"), time.time(), "t-1", 1)
    )  # fmt: skip
    with writing(tmp_path / "note.txt") as rank:
        harvest.poll({0: rank.process.pid})
        new_file(tmp_path / "work/lightning_logs/version_1/metrics.csv", "epoch,step,train_loss\n0,9,0.5\n")
        elsewhere.poll({1: rank.process.pid})
        harvest.poll({0: rank.process.pid})
    assert records(tmp_path) == [{"epoch": 0, "loss": 0.5, "step": 9}]
    assert not (tmp_path / "rank-1.metrics.jsonl").exists()


@contextmanager
def training(folder: Path, tag: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that has imported torch, and works in a folder until its input ends."""
    code = "import torch, sys; print('up', flush=True); sys.stdin.read()"
    env = {**os.environ, procs.TAG: tag}
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout and other.stdin and other.stdout.readline()
        yield other


@pytest.mark.torch
def test_other_host_of_a_run_here_is_not_another_training(tmp_path: Path, begin: Callable[..., Harvest]) -> None:
    harvest = begin()
    with training(tmp_path / "work", "t-1/1/1"), writing(tmp_path / "note.txt") as rank:
        (tmp_path / "work/metrics.csv").write_text("epoch,step,train_loss\n0,9,0.5\n")
        harvest.poll({0: rank.process.pid})
    assert records(tmp_path) == [{"epoch": 0, "loss": 0.5, "step": 9}]


@pytest.mark.torch
def test_table_in_a_folder_of_another_training_is_not_read(tmp_path: Path, begin: Callable[..., Harvest]) -> None:
    harvest = begin()
    with training(tmp_path / "work", "t-2/0/1") as other, writing(tmp_path / "note.txt") as rank:
        (tmp_path / "work/metrics.csv").write_text("epoch,step,train_loss\n0,9,0.5\n")
        harvest.poll({0: rank.process.pid})
        assert other.stdin
        other.stdin.close()
        wait_for(lambda: other.poll() is not None, "the other's end")
        harvest.poll({0: rank.process.pid})
        assert records(tmp_path) == []
        (tmp_path / "work/results.csv").write_text("epoch,train_loss\n1,0.5\n")
        harvest.poll({0: rank.process.pid})
    assert records(tmp_path) == [{"epoch": 1, "loss": 0.5}]
