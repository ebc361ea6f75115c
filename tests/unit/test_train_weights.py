"""Weights of a checkpoint as one file: what other programs read of it, and how little memory it takes."""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from click.testing import CliRunner

from runner.api.pulling import PulledFile
from runner.api.weights import fetch_weights
from runner.cli.group import cli
from runner.errors import InputError
from runner.train import checkpoint, index, sharded
from runner.train.problem import Problem
from runner.train.state import Box, HeldTensor
from runner.train.weights import Weight, _pickled, export
from tests import frameworks
from tests.unit.liar_kit import liar, lied, viewer
from tests.unit.test_train_run import Job

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

WEIGHTS = {
    "rows.weight": torch.arange(24, dtype=torch.float32).reshape(4, 6),
    "columns.weight": torch.arange(30, dtype=torch.float32).reshape(5, 6).sin(),
    "cube.weight": torch.arange(60, dtype=torch.bfloat16).reshape(3, 4, 5),
    "scalar.weight": torch.tensor(7.5),
    "norm.weight": torch.ones(6),
}
CUTS = {
    "rows.weight": [Box((0, 0), (3, 6)), Box((3, 0), (1, 6))],
    "columns.weight": [Box((0, 0), (5, 2)), Box((0, 2), (2, 4)), Box((2, 2), (3, 4))],
    "cube.weight": [Box((0, 0, 0), (3, 1, 5)), Box((0, 1, 0), (3, 3, 5))],
    "scalar.weight": [Box((), ())],
    "norm.weight": [Box((0,), (6,))],
}


def cut(folder: Path) -> Path:
    """A distributed checkpoint of three ranks, with rows, columns and boxes of the tensors."""
    layout: dict[str, HeldTensor] = {}
    shares: list[dict[tuple[str, Box], Any]] = [{}, {}, {}]
    for name, tensor in WEIGHTS.items():
        for key, whole in (("weight", tensor), ("exp_avg", torch.zeros_like(tensor))):
            holders = {part: [rank] for rank, part in enumerate(CUTS[name])}
            layout[f"{name}/{key}"] = HeldTensor(tuple(tensor.shape), str(tensor.dtype)[6:], holders)
            for rank, part in enumerate(CUTS[name]):
                shares[rank][f"{name}/{key}", part] = whole[part.slices].clone()
    unfinished = checkpoint.path_of(folder, 5, 1).with_suffix(".tmp")
    entries = [sharded.write_parts(unfinished, rank, mine) for rank, mine in enumerate(shares)]
    sharded.finish(unfinished, layout, entries, {"step": 5, "samples": 40, "recipe": {}, "scaling": {}, "token": ""})
    checkpoint.complete(folder, 5, 1)
    return checkpoint.path_of(folder, 5, 1)


def whole(folder: Path) -> Path:
    """The same as one file."""
    tensors = {f"{name}/weight": tensor for name, tensor in WEIGHTS.items()}
    tensors |= {f"{name}/exp_avg": torch.zeros_like(tensor) for name, tensor in WEIGHTS.items()}
    return checkpoint.write(folder, 5, 1, {"tensors": tensors, "step": 5, "samples": 40, "recipe": {}})


@pytest.mark.parametrize("make", [cut, whole])
def test_torch_reads_the_weights_of_either_form(tmp_path: Path, make: Any) -> None:
    make(tmp_path)
    done = export(tmp_path, tmp_path / "model.pt")
    assert (done.tensors, done.parameters) == (5, 24 + 30 + 60 + 1 + 6)
    for mapped in (False, True):
        read = torch.load(tmp_path / "model.pt", weights_only=True, mmap=mapped)
        assert read.keys() == WEIGHTS.keys()
        assert all(read[name].equal(tensor) and read[name].dtype == tensor.dtype for name, tensor in WEIGHTS.items())


def test_each_file_of_parts_is_opened_once_for_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each row of one that was cut into columns."""
    cut(tmp_path)
    opened: list[str] = []
    plain = index.open_regular

    def counted(path: Path) -> Any:
        opened.append(path.suffix)
        return plain(path)

    monkeypatch.setattr(index, "open_regular", counted)
    export(tmp_path, tmp_path / "model.pt")
    assert opened.count(".distcp") == 2 * sum(map(len, CUTS.values())), "to find the bytes, and to copy them"


@pytest.mark.frameworks
def test_safetensors_reads_them_too(tmp_path: Path) -> None:
    cut(tmp_path)
    export(tmp_path, tmp_path / "model.safetensors")
    torch.save(WEIGHTS, tmp_path / "expected.pt")
    program = (
        "import sys, torch, safetensors.torch as s; a = s.load_file(sys.argv[1]); b = torch.load(sys.argv[2]); "
        "print(a.keys() == b.keys() and all(a[k].equal(b[k]) and a[k].dtype == b[k].dtype for k in b))"
    )
    command = [
        str(frameworks.PYTHON),
        "-c",
        program,
        str(tmp_path / "model.safetensors"),
        str(tmp_path / "expected.pt"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "True\n", done.stderr


def test_a_checkpoint_of_another_program_keeps_its_names(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"model.a": WEIGHTS["rows.weight"], "model.b": WEIGHTS["norm.weight"]}, checkpoint_id=tmp_path / "theirs")
    export(tmp_path / "theirs", tmp_path / "model.pt")
    read = torch.load(tmp_path / "model.pt", weights_only=True)
    assert read["model.a"].equal(WEIGHTS["rows.weight"])
    assert read.keys() == {"model.a", "model.b"}


def test_a_large_tensor_is_never_in_memory_whole(tmp_path: Path) -> None:
    """64 MB in columns, exported by the job's zip without torch within 40 MB."""
    half = Box((0, 0), (4096, 2048)), Box((0, 2048), (4096, 2048))
    layout = {"large.weight/weight": HeldTensor((4096, 4096), "float32", {half[0]: [0], half[1]: [1]})}
    unfinished = checkpoint.path_of(tmp_path, 1, 1).with_suffix(".tmp")
    entries = [
        sharded.write_parts(unfinished, rank, {("large.weight/weight", part): torch.full(part.sizes, float(rank))})
        for rank, part in enumerate(half)
    ]
    sharded.finish(unfinished, layout, entries, {"step": 1, "samples": 1, "recipe": {}, "scaling": {}, "token": ""})
    checkpoint.complete(tmp_path, 1, 1)
    Job(tmp_path).command()
    done = subprocess.run(
        [sys.executable, "train.zip", "export", ".", "--to", "model.safetensors"], cwd=tmp_path, capture_output=True,
        text=True, timeout=120, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (40 << 20, 40 << 20)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "model.safetensors: 1 tensors, 16,777,216 numbers of step-000001-a1\n"
    with (tmp_path / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin = file.tell()
        for row in (0, 4095):
            file.seek(begin + row * 4096 * 4)
            assert file.read(4096 * 4) == b"\0\0\0\0" * 2048 + b"\0\0\x80\x3f" * 2048
    assert header["large.weight"] == {"dtype": "F32", "shape": [4096, 4096], "data_offsets": [0, 2**26]}


SERVED = """
from pathlib import Path
import hashlib
folder = Path(FOLDER)
if op == "files":
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = [{"name": str(path.relative_to(folder)), "size": path.stat().st_size, "mtime": 1.0} for path in paths]
    yield {"ok": {"files": files}}
elif op == "fetch":
    data = (folder / NAME).read_bytes()
    yield pack_data(0, 0, 0, data)
    yield {"ok": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
"""


def test_weights_of_a_run_are_those_of_its_newest_checkpoint(tmp_path: Path) -> None:
    """On another host, one of whose older checkpoints is broken: that is not looked at."""
    far, here = tmp_path / "far" / "checkpoints", tmp_path / "here"
    here.mkdir()
    far.mkdir(parents=True)
    whole(far)
    (far / "step-000004-a1.pt").write_bytes(b"broken")
    (far / "step-000009-a1.tmp").write_bytes(b"unfinished")
    body = SERVED.replace("FOLDER", repr(str(far.parent))).replace("NAME", repr("checkpoints/step-000005-a1.pt"))
    run = lied(tmp_path, liar(tmp_path, "n1", body))
    said: list[object] = []
    done = fetch_weights(viewer(), run, here / "model.pt", said.append)
    assert [str(one.path) for one in said if isinstance(one, PulledFile)] == [str(done.checkpoint)]
    assert (str(done.checkpoint), done.tensors) == ("checkpoints/step-000005-a1.pt", 5)
    assert torch.load(here / "model.pt", weights_only=True)["rows.weight"].equal(WEIGHTS["rows.weight"])
    assert [path.name for path in here.iterdir()] == ["model.pt"]


def test_weights_of_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    run = lied(tmp_path, liar(tmp_path, "n1", 'yield {"ok": {"files": []}}'))
    with pytest.raises(InputError, match="has saved no checkpoint: looked on n1"):
        fetch_weights(viewer(), run, tmp_path / "model.pt")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("weights-")]


def test_the_command_writes_the_weights_of_a_folder_here(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["weights", str(cut(tmp_path)), "--to", str(tmp_path / "model.safetensors")])
    assert (done.exit_code, done.output) == (
        0,
        f"{tmp_path / 'model.safetensors'}: 5 tensors, 121 numbers of {tmp_path / 'step-000005-a1'}\n",
    )
    (tmp_path / "step-000005-a1" / "__1_0.distcp").unlink()
    done = CliRunner().invoke(cli, ["weights", str(tmp_path), "--to", str(tmp_path / "model.pt")])
    assert isinstance(done.exception, InputError)
    assert "is incomplete: __1_0.distcp: No such file" in str(done.exception)


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda path: (path / "__2_0.distcp").unlink(), "is incomplete: __2_0.distcp: No such file"),
        (lambda path: (path / "__1_0.distcp").write_bytes(b"PK"), "is incomplete: __1_0.distcp has 2 bytes of"),
        (
            lambda path: flip(path / "__0_0.distcp"),
            r"columns.weight/weight in __0_0.distcp is (incomplete or )?damaged",
        ),
    ],
)
def test_a_harmed_checkpoint_gives_one_line_and_no_file(tmp_path: Path, harm: Any, named: str) -> None:
    harm(cut(tmp_path))
    with pytest.raises(Problem, match=named):
        export(tmp_path, tmp_path / "model.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["step-000005-a1"]


def flip(path: Path) -> None:
    """Turn one bit of the columns' first part."""
    content = bytearray(path.read_bytes())
    content[content.index(bytes(WEIGHTS["columns.weight"][:1, :2].view(torch.uint8).flatten().tolist()))] ^= 1
    path.write_bytes(content)


def archived(path: Path, shape: tuple[int, ...], packed: bytes = b"") -> None:
    """A file of one tensor as torch.save writes it; `packed` is a compressed record of it."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a/data.pkl", _pickled({"x": Weight(shape, "float32", ())}))
        file.writestr("a/data/0", bytes(64))
        if packed:
            file.writestr("a/byteorder", packed, compress_type=zipfile.ZIP_DEFLATED)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda path: archived(path, (0, 2**70)), "no numbers of a tensor"),
        (lambda path: archived(path, (1,) * 1000), "no numbers of a tensor"),
        (lambda path: archived(path, (4,), bytes(1 << 20)), "its records are compressed, or overlap"),
        (lambda path: torch.save({"\ud800": torch.ones(1)}, path), "surrogates not allowed"),
    ],
)
def test_a_file_that_a_stranger_made_gives_one_line_and_takes_neither_memory_nor_disk(
    tmp_path: Path, make: Any, named: str
) -> None:
    make(tmp_path / "step-000005-a1.pt")
    with pytest.raises(Problem, match=f"is incomplete or damaged .*{named}"):
        export(tmp_path, tmp_path / "model.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["step-000005-a1.pt"]


def test_a_tensor_with_many_names_is_written_for_each_but_not_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a layer that is used 24 times; as a .pt file with 400 names, or with a full disk, nothing is written."""
    source, target = tmp_path / "step-000005-a1.pt", tmp_path / "model.safetensors"
    torch.save(dict.fromkeys(map(str, range(24)), torch.ones(4096)), source)
    assert export(source, target).parameters == 24 * 4096
    target.unlink()
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=10**6, free=10**5))
    with pytest.raises(Problem, match=r"the tensors are 393,216 bytes, and 100,000 are free"):
        export(source, target)
    torch.save(dict.fromkeys(map(str, range(400)), torch.ones(4096)), source)
    with pytest.raises(Problem, match=r"400 tensors share their bytes, and would be 6,553,600 as a file, more than"):
        export(source, target)
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def test_no_tensor_takes_the_place_of_the_header_of_safetensors(tmp_path: Path) -> None:
    source = tmp_path / "step-000005-a1.pt"
    torch.save({"__metadata__": torch.ones(2)}, source)
    with pytest.raises(Problem, match="safetensors has no tensor of the name __metadata__"):
        export(source, tmp_path / "model.safetensors")
    assert export(source, tmp_path / "model.pt").parameters == 2


def test_a_tensor_without_numbers_has_no_rows_to_copy(tmp_path: Path) -> None:
    archived(tmp_path / "step-000005-a1.pt", (2**60, 2, 0))
    assert export(tmp_path, tmp_path / "model.safetensors").parameters == 0


def _rename(index: Any, name: str) -> None:
    for place in index.storage_data.values():
        place.relative_path = name


def _flatten(index: Any) -> None:
    for described in index.state_dict_metadata.values():
        described.size = torch.Size((5,))


def _repeat(index: Any) -> None:
    index.state_dict_metadata |= {f"{name}{at}": one for at in range(99) for name, one in _tensors(index)}
    index.storage_data |= {
        replace(key, fqn=f"{key.fqn}{at}"): place for at in range(99) for key, place in [*index.storage_data.items()]
    }


def _enlarge(index: Any) -> None:
    for described in index.state_dict_metadata.values():
        described.size, described.chunks = torch.Size((0, 2**62, 2**62)), []


def _rename_tensor(index: Any) -> None:
    described = next(described for described in index.state_dict_metadata.values() if hasattr(described, "chunks"))
    described.chunks = []
    index.state_dict_metadata["\ud800"] = described


def _share(index: Any) -> None:
    for _, described in _tensors(index):
        described.chunks = 2 * getattr(described, "chunks", [])


def _name_by_numbers(index: Any) -> None:
    index.state_dict_metadata = {(at, at): described for at, (_, described) in enumerate(_tensors(index))}


def _tensors(index: Any) -> list[tuple[str, Any]]:
    return [*index.state_dict_metadata.items()]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda index: _rename(index, "a\0b"), "lies outside"),
        (lambda index: _rename(index, "../b"), "lies outside"),
        (lambda index: _rename(index, "\ud800"), "is incomplete"),
        (_flatten, "has other dimensions"),
        (_repeat, "its tensors are larger than its files"),
        (_share, "its tensors have more parts than there are"),
        (_name_by_numbers, "the name of a tensor is no text"),
        (_enlarge, "is larger than any tensor"),
        (_rename_tensor, "surrogates not allowed"),
    ],
)
def test_an_index_that_a_stranger_made_gives_one_line(tmp_path: Path, change: Any, named: str) -> None:
    path = cut(tmp_path) / ".metadata"
    index = pickle.loads(path.read_bytes())
    change(index)
    path.write_bytes(pickle.dumps(index))
    with pytest.raises(Problem, match=named):
        export(tmp_path, tmp_path / "model.pt")


def test_garbage_is_collected_again_after_an_index_is_read(tmp_path: Path) -> None:
    path = cut(tmp_path) / ".metadata"
    export(tmp_path, tmp_path / "model.pt")
    assert gc.isenabled()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Problem):
        export(tmp_path, tmp_path / "other.pt")
    assert gc.isenabled()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["step-000009-a1.pt", "step-000005-a1/.metadata"])
def test_a_pipe_in_a_strangers_checkpoint_is_not_waited_for(tmp_path: Path, name: str) -> None:
    cut(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(Problem, match="this is no regular file"):
        export(tmp_path, tmp_path / "model.pt")


_TWICE = b")" + 60 * b"2\x86"
"""A tuple that holds another one twice, which holds another one twice …"""
_REMEMBERED = b")" + b"".join(b"\x94h%c\x86" % number for number in range(60))
_KEY = b"ctorch.distributed.checkpoint.metadata\nMetadataIndex\n)\x81}(X\x03\0\0\0fqnX\x01\0\0\0wX\x06\0\0\0offset"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("pickled", "named"),
    [
        (b"\x80\x02}" + _TWICE + b"K\x01s.", "has no place in a checkpoint"),
        (b"\x80\x04}" + _REMEMBERED + b"K\x01s.", "a key is no text, number or short list"),
        (b"\x80\x04}(" + _REMEMBERED + b"K\x01u.", "a key is no text, number or short list"),
        (b"\x80\x04(" + _REMEMBERED + b"\x91.", "a key is no text, number or short list"),
        (b"\x80\x04}" + _KEY + _REMEMBERED + b"ubK\x01s.", "no numbers of a tensor"),
    ],
    ids=["twice", "remembered", "several", "set", "record"],
)
def test_a_few_bytes_whose_key_nests_without_end_take_no_time(tmp_path: Path, pickled: bytes, named: str) -> None:
    (cut(tmp_path) / ".metadata").write_bytes(pickled)
    with pytest.raises(Problem, match=f"is damaged .*{named}"):
        export(tmp_path, tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "step-000009-a1.pt", "w") as file:
        file.writestr("a/data.pkl", pickled)
    with pytest.raises(Problem, match="is incomplete or damaged"):
        export(tmp_path, tmp_path / "model.pt")


def test_bad_names_are_said(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"must end with \.safetensors or \.pt"):
        export(cut(tmp_path), tmp_path / "model.bin")
    (tmp_path / "empty").mkdir()
    with pytest.raises(Problem, match="holds no checkpoint"):
        export(tmp_path / "empty", tmp_path / "model.pt")
    with pytest.raises(Problem, match="No such file or directory"):
        export(tmp_path / "none", tmp_path / "model.pt")
    with pytest.raises(Problem, match=r"nowhere/model\.pt: No such file or directory"):
        export(tmp_path, tmp_path / "nowhere" / "model.pt")
