"""Every way to divide the built-in job over ranks trains the same model as one process: losses, gradients, text."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest

from disttui.runner.train.layout import ORDER, Flaw, Layout, Sizes, crossings, model_flaws, settle
from tests.command import ran

ROOT = Path(__file__).parents[2]
RECIPE = [
    "--layers", "4", "--heads", "4", "--width", "32", "--context", "16", "--warmup", "2", "--steps", "3",
    "--global-batch", "16", "--clip", "0.5", "--val-interval", "2", "--val-batches", "1", "--sample", "4",
    "--checkpoint-interval", "0",
]  # fmt: skip
LAYOUTS = {
    2: {
        "tp 2": "--tp 2",
        "pp 2": "--pp 2",
        "cp 2": "--cp 2",
        "pp 2 in two rounds": "--pp 2 --accumulate 2",
    },
    4: {
        "ddp": "--strategy ddp",
        "ddp in two rounds": "--strategy ddp --accumulate 2",
        "fsdp": "--strategy fsdp",
        "fsdp in two rounds": "--strategy fsdp --accumulate 2",
        "hsdp 2 x 2": "--dp-replicate 2 --dp-shard 2",
        "ddp x tp": "--strategy ddp --tp 2",
        "fsdp x tp in two rounds": "--strategy fsdp --tp 2 --accumulate 2",
        "pp x ddp": "--pp 2 --strategy ddp",
        "cp x ddp": "--cp 2 --strategy ddp",
        "cp 2 x tp 2": "--cp 2 --tp 2",
        "pp 4": "--pp 4",
    },
    8: {
        "hsdp x tp 2 x 2 x 2": "--dp-replicate 2 --dp-shard 2 --tp 2 --layers 2",
        "hsdp x cp 2 x 2 x 2": "--dp-replicate 2 --dp-shard 2 --cp 2 --layers 2",
        "pp x fsdp x tp 2 x 2 x 2": "--pp 2 --dp-shard 2 --tp 2 --layers 2",
        "pp x cp x tp 2 x 2 x 2": "--pp 2 --cp 2 --tp 2 --layers 2",
    },
}  # fmt: skip
NAMES = [name for layouts in LAYOUTS.values() for name in layouts]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder with the metrics of the layouts to be tested, and of one process: `one` and `one of 2 layers`."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("layouts")
    text = folder / "text.txt"
    text.write_text(" ".join(random.Random(0).choices(["to be", "or not", "that", "is", "the question"], k=2000)))
    recipe = [*RECIPE, "--data", str(text)]
    callspecs = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    wanted = {spec.params.get("name") for spec in callspecs if spec}
    alone = {"one": recipe, "one of 2 layers": [*recipe, "--layers", "2"]}
    worlds = {1: alone if wanted & LAYOUTS[8].keys() else {"one": recipe}}
    for size, layouts in LAYOUTS.items():
        if chosen := {name: [*recipe, *words.split()] for name, words in layouts.items() if name in wanted}:
            worlds[size] = chosen
    kit = [sys.executable, str(Path(__file__).with_name("layouts_kit.py")), str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = ran(kit, input=json.dumps(worlds), env=env, timeout=400)
    logs = "".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.log")))
    assert done.returncode == 0, done.stderr + logs
    return folder


def records(folder: Path, name: str, rank: int = 0) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / f"{name}.{rank}.jsonl").read_text().splitlines()]


@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_a_layout_trains_as_one_process_would(runs: Path, name: str) -> None:
    """Loss and norm of every step, validation, and what the trained model writes."""
    mine, alone = records(runs, name), records(runs, "one of 2 layers" if name in LAYOUTS[8] else "one")
    assert [record["step"] for record in mine] == [1, 2, 3, 3]
    assert alone[0]["grad_norm"] > 1, "else nothing is clipped"
    for key in ("loss", "grad_norm", "val_loss", "lr"):
        want = [record[key] for record in alone if key in record]
        assert [record[key] for record in mine if key in record] == pytest.approx(want, abs=1e-4), key
    assert mine[-1]["sample"] == alone[-1]["sample"]


@pytest.mark.parametrize(
    ("strategy", "hosts", "sizes", "layout"),
    [
        ("auto", [4, 4], Sizes(), Layout("ddp", dp_replicate=8)),
        ("fsdp", [4, 4], Sizes(), Layout("fsdp", dp_shard=8)),
        ("fsdp", [1], Sizes(), Layout("fsdp")),
        ("hsdp", [4, 4], Sizes(), Layout("hsdp", dp_replicate=2, dp_shard=4)),
        ("hsdp", [4, 4], Sizes(tp=2), Layout("hsdp", dp_replicate=2, dp_shard=2, tp=2)),
        ("hsdp", [4, 2], Sizes(), Layout("hsdp", dp_replicate=3, dp_shard=2)),
        ("auto", [4], Sizes(dp_replicate=2), Layout("hsdp", dp_replicate=2, dp_shard=2)),
        ("auto", [4], Sizes(dp_shard=4), Layout("fsdp", dp_shard=4)),
        ("auto", [4], Sizes(dp_shard=1), Layout("ddp", dp_replicate=4)),
        ("ddp", [3, 3], Sizes(tp=2), Layout("ddp", dp_replicate=3, tp=2)),
    ],
)
def test_what_is_not_given_follows(strategy: str, hosts: list[int], sizes: Sizes, layout: Layout) -> None:
    assert settle(sizes, strategy, hosts) == layout
    assert layout.world_size == sum(hosts)


def test_sizes_that_do_not_multiply_name_those_that_would() -> None:
    assert settle(Sizes(tp=3), "auto", [8]) == Flaw(
        "tp", "tp 3 does not divide the 8 processes", "expected tp 1, 2, 4 or 8"
    )
    assert settle(Sizes(tp=2, dp_replicate=3), "auto", [8]) == Flaw(
        "dp_replicate", "dp_replicate 3 × tp 2 = 6 does not divide the 8 processes", "expected dp_replicate 1, 2 or 4"
    )


def test_what_is_offered_instead_would_do() -> None:
    shape = {"layers": 4, "heads": 12, "context": 96}
    for tp in range(1, 13):
        for cp in range(1, 13):
            for flaw in model_flaws(Sizes(tp=tp, cp=cp), **shape):
                offered = flaw.cure.removeprefix("expected ").replace(" or ", ", ").split(", ")
                for size in offered:
                    other = Sizes(tp=tp, cp=cp)._replace(**{flaw.key: int(size)})
                    assert flaw.key not in [one.key for one in model_flaws(other, **shape)], (tp, cp, flaw)


def test_tp_lies_innermost_and_pp_outermost() -> None:
    layout = Layout("hsdp", dp_replicate=2, dp_shard=2, tp=2, pp=2, cp=2)
    assert [layout.coordinates(rank) for rank in (0, 1, 2, 4, 8, 16)] == [
        tuple(int(name == far) for name in ORDER) for far in ("", "tp", "cp", "dp_shard", "dp_replicate", "pp")
    ]
    assert sorted({layout.data_index(rank) for rank in range(32)}) == [0, 1, 2, 3]


def test_groups_that_cross_hosts_are_found() -> None:
    layout = Layout("hsdp", dp_replicate=2, dp_shard=2, tp=2)
    assert not [*crossings(layout, "tp", [4, 4]), *crossings(layout, "dp_shard", [4, 4])]
    assert [*crossings(layout, "dp_replicate", [4, 4])] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [*crossings(Layout(dp_replicate=3, tp=2), "tp", [3, 3])] == [(2, 3)]
    assert next(crossings(Layout(dp_replicate=512 * 1024, tp=2), "tp", [1024] * 1024), None) is None
