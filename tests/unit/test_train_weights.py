"""Weights of a checkpoint as one file: what other programs read of it, and how little memory it takes."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from click.testing import CliRunner

from disttui.runner.api.pulling import PulledFile
from disttui.runner.api.questions import HostNotice
from disttui.runner.api.rerunning import fetch_weights
from disttui.runner.cli.app import cli
from disttui.runner.errors import InputError
from disttui.runner.train import checkpoint, index
from disttui.runner.train.problem import Problem
from disttui.runner.train.state import Box, HeldTensor
from disttui.runner.train.weights import export
from tests import frameworks
from tests.command import ran
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
    """A checkpoint of three ranks, with rows, columns and boxes of the tensors."""
    layout: dict[str, HeldTensor] = {}
    shares: list[dict[tuple[str, Box], Any]] = [{}, {}, {}]
    for name, tensor in WEIGHTS.items():
        for key, whole in (("weight", tensor), ("exp_avg", torch.zeros_like(tensor))):
            holders = {part: [rank] for rank, part in enumerate(CUTS[name])}
            layout[f"{name}/{key}"] = HeldTensor(tuple(tensor.shape), str(tensor.dtype)[6:], holders)
            for rank, part in enumerate(CUTS[name]):
                shares[rank][f"{name}/{key}", part] = whole[part.slices].clone()
    unfinished = checkpoint.path_of(folder, 5, 1).with_suffix(".tmp")
    entries = [checkpoint.write_parts(unfinished, rank, mine) for rank, mine in enumerate(shares)]
    checkpoint.finish(unfinished, layout, entries, {"step": 5, "samples": 40, "recipe": {}, "scaling": {}, "token": ""})
    return checkpoint.path_of(folder, 5, 1)


def test_torch_reads_the_weights(tmp_path: Path) -> None:
    cut(tmp_path)
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
    assert opened.count(".bin") == 2 * sum(map(len, CUTS.values())), "to compare the bytes, and to copy them"


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
    done = ran(command)
    assert done.stdout == "True\n", done.stderr


def test_a_large_tensor_is_never_in_memory_whole(tmp_path: Path) -> None:
    """64 MB in columns, exported by the job's zip without torch within 40 MB."""
    half = Box((0, 0), (4096, 2048)), Box((0, 2048), (4096, 2048))
    layout = {"large.weight/weight": HeldTensor((4096, 4096), "float32", {half[0]: [0], half[1]: [1]})}
    unfinished = checkpoint.path_of(tmp_path, 1, 1).with_suffix(".tmp")
    entries = [
        checkpoint.write_parts(unfinished, rank, {("large.weight/weight", part): torch.full(part.sizes, float(rank))})
        for rank, part in enumerate(half)
    ]
    checkpoint.finish(unfinished, layout, entries, {"step": 1, "samples": 1, "recipe": {}, "scaling": {}, "token": ""})
    Job(tmp_path).command()
    done = ran(
        [sys.executable, "train.zip", "export", ".", "--to", "model.safetensors"],
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (40 << 20, 40 << 20)),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "model.safetensors: 1 tensors, 16,777,216 parameters of step-000001-a1\n"
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
    data = (folder / request["name"]).read_bytes()
    yield pack_data(0, 0, 0, data)
    yield {"ok": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
"""


def test_weights_of_a_run_are_those_of_its_newest_checkpoint(tmp_path: Path) -> None:
    """On another host, one of whose older checkpoints is broken: that is not looked at."""
    far, here = tmp_path / "far" / "checkpoints", tmp_path / "here"
    here.mkdir()
    far.mkdir(parents=True)
    shutil.copytree(cut(far), far / "step-000004-a1")
    (far / "step-000004-a1" / "bytegpt.json").write_bytes(b"broken")
    shutil.copytree(far / "step-000005-a1", far / "step-000009-a1.tmp")
    body = SERVED.replace("FOLDER", repr(str(far.parent)))
    run = lied(tmp_path, liar(tmp_path, "n1", body))
    said: list[object] = []
    done = fetch_weights(viewer(), run, here / "model.pt", said.append)
    fetched = {str(one.path) for one in said if isinstance(one, PulledFile)}
    assert fetched == {f"{done.checkpoint}/{path.name}" for path in (far / "step-000005-a1").iterdir()}
    assert (str(done.checkpoint), done.tensors) == ("checkpoints/step-000005-a1", 5)
    assert torch.load(here / "model.pt", weights_only=True)["rows.weight"].equal(WEIGHTS["rows.weight"])
    assert [path.name for path in here.iterdir()] == ["model.pt"]


def test_weights_without_a_new_step_come_from_the_resumed_run(tmp_path: Path) -> None:
    """It names the run that they are of; that one may be forgotten here."""
    far = tmp_path / "far" / "checkpoints"
    far.mkdir(parents=True)
    cut(far)
    body = SERVED.replace("FOLDER", repr(str(far.parent)))
    none = 'if request["run"] != "first-0001":\n    yield {"ok": {"files": []}}\n'
    known = lied(tmp_path, liar(tmp_path, "n1", none + body), run="third-0003")
    resumed = replace(known, resume_from="~/.disttui/runs/second-0002/checkpoints")
    replace(
        known, run="second-0002", folder=known.folder.with_name("second-0002"),
        resume_from="~/.disttui/runs/first-0001/checkpoints",
    ).save()  # fmt: skip
    said: list[object] = []
    fetch_weights(viewer(), resumed, tmp_path / "model.pt", said.append)
    told = [news.text for news in said if isinstance(news, HostNotice)]
    assert told[-1] == "third-0003 has saved no checkpoint; using that of first-0001, which it resumed"
    assert torch.load(tmp_path / "model.pt", weights_only=True)["rows.weight"].equal(WEIGHTS["rows.weight"])


def test_weights_of_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    run = lied(tmp_path, liar(tmp_path, "n1", 'yield {"ok": {"files": []}}'))
    with pytest.raises(InputError, match="has saved no checkpoint: searched n1"):
        fetch_weights(viewer(), run, tmp_path / "model.pt")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("weights-")]


def test_the_command_writes_the_weights_of_a_folder_here(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["runs", "weights", str(cut(tmp_path)), "--to", str(tmp_path / "model.safetensors")])
    assert (done.exit_code, done.output) == (
        0,
        f"{tmp_path / 'model.safetensors'}: 5 tensors, 121 parameters of {tmp_path / 'step-000005-a1'}\n",
    )
    (tmp_path / "step-000005-a1" / "rank-1.bin").unlink()
    done = CliRunner().invoke(cli, ["runs", "weights", str(tmp_path), "--to", str(tmp_path / "model.pt")])
    assert isinstance(done.exception, InputError)
    assert "is incomplete: rank-1.bin: No such file" in str(done.exception)


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda path: (path / "rank-2.bin").unlink(), "is incomplete: rank-2.bin: No such file"),
        (lambda path: (path / "rank-1.bin").write_bytes(b"PK"), "is incomplete: rank-1.bin has 2 bytes of"),
        (lambda path: flip(path / "rank-0.bin"), r"columns.weight/weight in rank-0.bin is damaged"),
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


def test_no_tensor_takes_the_place_of_the_header_of_safetensors(tmp_path: Path) -> None:
    forge(cut(tmp_path), lambda index: index["tensors"].update({"__metadata__/weight": index["tensors"].popitem()[1]}))
    with pytest.raises(Problem, match="safetensors has no tensor of the name __metadata__"):
        export(tmp_path, tmp_path / "model.safetensors")


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=10**6, free=100))
    with pytest.raises(Problem, match=r"the tensors are 364 bytes, and 100 are free"):
        export(tmp_path, tmp_path / "model.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["step-000005-a1"]


def forge(path: Path, change: Callable[[Any], object]) -> None:
    """Change the index of a checkpoint."""
    index = json.loads((path / "bytegpt.json").read_text())
    change(index)
    (path / "bytegpt.json").write_text(json.dumps(index))


def forged(**values: Any) -> Callable[[Any], object]:
    """Change a field of `rows.weight/weight`."""
    return lambda index: index["tensors"]["rows.weight/weight"].update(values)


def misplaced(file: Any) -> Callable[[Any], object]:
    """Change the file of its first part."""
    return lambda index: index["tensors"]["rows.weight/weight"]["parts"][0].__setitem__(0, file)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (misplaced("../b"), r"a part lies in '\.\./b'"),
        (misplaced("rank-0.bin/../x"), "a part lies in"),
        (misplaced(7), "is damaged"),
        (misplaced("rank-99.bin"), "is incomplete: rank-99.bin: No such file"),
        (forged(shape=[4, 6, 1]), "other dimensions"),
        (forged(shape=[4, 7]), "the parts of a tensor are not the whole"),
        (forged(shape=[0, 2**62, 2**62], parts=[]), "a tensor is larger than any"),
        (forged(shape=[2**70]), "not the sizes of a tensor"),
        (forged(shape=[1] * 1000), "not the sizes of a tensor"),
        (forged(shape=[True, 24]), "not the sizes of a tensor"),
        (forged(shape=24), "is damaged"),
        (forged(dtype="complex"), "is damaged"),
        (forged(dtype=["float32"]), "is damaged"),
        (forged(parts=None), "is damaged"),
        (lambda index: index.update(tensors=[]), "is damaged"),
        (lambda index: index.update(tensors={"\ud800": index["tensors"].popitem()[1]}), "surrogates not allowed"),
        (lambda index: index.update(scaling={"factor": "x"}), "is damaged"),
        (lambda index: index.update(step=-1), "is damaged"),
        (
            lambda index: index["tensors"].update(
                {f"{name}{at}": one for at in range(99) for name, one in [*index["tensors"].items()]}
            ),
            "its tensors are larger than its files",
        ),
    ],
)
def test_an_index_that_a_stranger_made_gives_one_line(
    tmp_path: Path, change: Callable[[Any], object], named: str
) -> None:
    forge(cut(tmp_path), change)
    with pytest.raises(Problem, match=named) as raised:
        export(tmp_path, tmp_path / "model.pt")
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000005-a1"]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"format": 3}', b'{"format": ' + b"9" * 5000]
)
def test_what_is_no_index_gives_one_line(tmp_path: Path, content: bytes) -> None:
    (cut(tmp_path) / "bytegpt.json").write_bytes(content)
    with pytest.raises(Problem, match=r"bytegpt\.json is damaged"):
        export(tmp_path, tmp_path / "model.pt")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["bytegpt.json", "rank-0.bin"])
def test_a_pipe_in_a_strangers_checkpoint_is_not_waited_for(tmp_path: Path, name: str) -> None:
    path = cut(tmp_path) / name
    size = path.stat().st_size
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Problem, match="not a regular file" if name == "bytegpt.json" else f"has 0 bytes of {size}"):
        export(tmp_path, tmp_path / "model.pt")


def test_bad_file_and_folder_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"must end with \.safetensors or \.pt"):
        export(cut(tmp_path), tmp_path / "model.bin")
    (tmp_path / "empty").mkdir()
    with pytest.raises(Problem, match="holds no checkpoint"):
        export(tmp_path / "empty", tmp_path / "model.pt")
    with pytest.raises(Problem, match="No such file or directory"):
        export(tmp_path / "none", tmp_path / "model.pt")
    with pytest.raises(Problem, match=r"nowhere/model\.pt: No such file or directory"):
        export(tmp_path, tmp_path / "nowhere" / "model.pt")
