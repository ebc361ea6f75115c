"""How the examples go on where hosts share no disk, and one of them has lost its own; frameworks are played."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("torch")
import torch.distributed as dist

pytestmark = pytest.mark.torch
EXAMPLES = Path(__file__).parents[2] / "examples"
Example = Callable[[str], ModuleType]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    """Loads an example as rank 0 of two hosts; their checkpoints are in host-0 and host-1."""
    monkeypatch.setenv("DISTTUI_CHECKPOINTS", str(tmp_path / "host-0"))
    monkeypatch.delenv("DISTTUI_RESUME_FROM", raising=False)
    for name in ("accelerate", "accelerate.utils", "lightning", "lightning.pytorch.callbacks"):
        monkeypatch.setitem(sys.modules, name, MagicMock(LightningModule=object))
    monkeypatch.setitem(sys.modules, "lightning.pytorch.strategies", MagicMock(DDPStrategy=object))
    for host in ("host-0", "host-1"):
        (tmp_path / host).mkdir()

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / "train.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def other_has(monkeypatch: pytest.MonkeyPatch, module: ModuleType, theirs: Any) -> None:
    """What the other host gives to a gathering of objects."""

    def all_gather_object(found: list[Any], mine: Any) -> None:
        found[:] = [mine, theirs]

    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "all_gather_object", all_gather_object)
    monkeypatch.setattr(module, "gather_object", lambda mine: [*mine, theirs], raising=False)


def test_empty_disk_of_one_host_deletes_no_checkpoint_elsewhere(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epoch in (1, 2):
        (tmp_path / "host-0" / f"epoch-{epoch}").mkdir()
        (tmp_path / "host-0" / f"epoch={epoch}.ckpt").touch()
    before = sorted((tmp_path / "host-0").iterdir())
    accelerate, lightning, ddp = map(example, ("accelerate", "lightning", "ddp"))
    other_has(monkeypatch, accelerate, ("node2", set()))
    with pytest.raises(SystemExit, match=r"^epoch-2 is not in \S+host-0 of node2, and no other is on all hosts\. Is"):
        accelerate.load_newest(MagicMock(is_local_main_process=True))
    with pytest.raises(SystemExit, match=r"^epoch=2\.ckpt is not in \S+host-0 of node2, and no other is on all"):
        lightning.newest_checkpoint()
    other_has(monkeypatch, ddp, True)
    with pytest.raises(SystemExit, match=r"^newest\.pt is on the host of rank 1 and not on that of rank 0, which"):
        ddp.newest_checkpoint()
    assert sorted((tmp_path / "host-0").iterdir()) == before


def test_epoch_on_one_host_is_replaced_once_all_have_saved(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = example("accelerate")
    mine = tmp_path / "host-0"
    for epoch in (1, 2, 3):
        (mine / f"epoch-{epoch}").mkdir()
        (mine / f"epoch-{epoch}" / "old").touch()
    other_has(monkeypatch, module, ("node2", {1}))
    loaded: list[str] = []
    seen: list[list[str]] = []

    def save_state(folder: str) -> None:
        Path(folder).mkdir()
        Path(folder, "new").touch()

    accelerator = SimpleNamespace(
        is_local_main_process=True,
        load_state=loaded.append,
        save_state=save_state,
        wait_for_everyone=lambda: seen.append(sorted(path.name for path in mine.iterdir())),
    )
    assert module.load_newest(accelerator) == 1
    assert loaded == [str(mine / "epoch-1")]
    module.save(accelerator, 2)
    assert seen == [[".epoch-2.part", "epoch-1", "epoch-3"]], "an old one would be mixed with the other host's new one"
    files = sorted(str(path.relative_to(mine)) for path in mine.glob("*/*"))
    assert files == ["epoch-1/old", "epoch-2/new", "epoch-3/old"]


def test_lightning_removes_the_old_checkpoint_before_barrier(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = example("lightning").OnEachHost()
    path = tmp_path / "host-0" / "epoch=2.ckpt"
    path.write_text("old")
    done: list[Any] = []
    strategy.local_rank = 0
    strategy.barrier = lambda: done.append(path.exists())
    strategy.checkpoint_io = SimpleNamespace(save_checkpoint=lambda *arguments: done.append(arguments))
    strategy.save_checkpoint({}, str(path))
    assert done == [False, ({}, str(path), None)]
