"""Scripts of the user's own: they see what they see under torchrun typed by hand, and their metrics are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.by_hand import by_hand
from tests.cluster.typed import User
from tests.files import new_folder

pytestmark = pytest.mark.torch

_TRAIN = """
import argparse, json, os, re, sys, pathlib
from torch.utils.data import DataLoader, Dataset
{imports}

def seen():
    main = sys.modules["__main__"]
    return {{
        "argv": sys.argv, "path": sys.path, "orig_argv": [re.sub("fd=.*", "fd", word) for word in sys.orig_argv[1:]],
        "cwd": os.getcwd(), "name": __name__,
        "main": [re.sub(" at 0x.*", "", repr(getattr(main, "__%s__" % name, None))) for name in
                 ("name", "file", "package", "spec")],
        "same": main is sys.modules[__name__],
    }}

class Data(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return json.dumps([seen(), helper.WORD])

def only(batch):
    return batch[0]

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    loader = DataLoader(Data(), num_workers=1, multiprocessing_context="spawn", collate_fn=only)
    workers = [json.loads(item) for item in loader]
    record = {{"main": seen(), "workers": workers, "env": dict(os.environ), "words": options.words}}
    options.out.write_text(json.dumps(record))
"""
_ADDED = {
    *("DISTTUI_RUN", "DISTTUI_NODE", "DISTTUI_ATTEMPT", "DISTTUI_TAG", "DISTTUI_DIR"),
    *("DISTTUI_METRICS", "DISTTUI_CHECKPOINTS", "DISTTUI_INSTRUMENT", "PYTHONUNBUFFERED"),
    *("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME"),
}
_OTHER_EACH_TIME = {
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "_",
}


def _differs(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    names = (ours.keys() | theirs.keys()) - _OTHER_EACH_TIME - _ADDED
    return {name: (ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)}


@pytest.mark.parametrize("kind", ["script", "module"])
def test_a_script_sees_what_it_sees_under_torchrun(user: Callable[..., User], kind: str) -> None:
    """argv, path, `__main__`, spawned DataLoader workers and environment, but for the named additions."""
    me = user(1)
    package = new_folder(me.cluster.shared / "pkg")
    (package / "__init__.py").touch()
    (package / "helper.py").write_text("WORD = 'from the helper'\n")
    imports = "import helper" if kind == "script" else "from . import helper"
    (package / "train.py").write_text(_TRAIN.format(imports=imports))
    mine, hand = me.cluster.shared / "mine.json", me.cluster.shared / "hand.json"
    words = ["a b", "--", "-x", "ü"]
    env = {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(me.cluster.shared)}
    start = [str(package / "train.py")] if kind == "script" else ["-m", "pkg.train"]
    [end] = by_hand(
        me.cluster, start[0], [*start[1:], "--out", str(hand), *words], nproc=[1], master="127.0.0.1", env=env
    )
    assert end.returncode == 0, end.stderr
    job = {"script": start[0]} if kind == "script" else {"module": "pkg.train"}
    me.run(me.profile({**job, "args": ["--out", str(mine), *words], "env": {**env, "OMP_NUM_THREADS": "1"}}))
    ours, theirs = (json.loads(path.read_text().replace(path.name, "OUT")) for path in (mine, hand))
    assert _differs(ours.pop("env"), theirs.pop("env")) == {}
    assert ours == theirs
    assert [word for _, word in ours["workers"]] == ["from the helper"] * 2


def test_a_command_in_a_wrapper_after_an_activation(user: Callable[..., User]) -> None:
    """The activation's variables reach it, the profile's win over them, and the wrapper execs what it is given."""
    me = user(1, light=True)
    wrapper = me.script('#!/bin/sh\nFROM_WRAP="$1"; shift; export FROM_WRAP\nexec "$@"\n', "wrap it.sh")
    wrapper.chmod(0o755)
    shell = 'echo "$FROM_ACTIVATE, $BOTH, $FROM_WRAP, $RANK of $WORLD_SIZE, $1, $PWD"'
    new_folder(me.cluster[0].home / "work")
    running = me.run(
        me.profile(
            {
                "command": ["sh", "-c", shell, "sh", "it's $HOME"],
                "wrap": [str(wrapper), "wrap $1"],
                "workdir": "~/work",
                "env": {"BOTH": "the profile's"},
            },
            activate='export FROM_ACTIVATE="acti vated" BOTH=activated; unset HISTFILE',
        )
    )
    assert running.stdout == "node1:0 │ acti vated, the profile's, wrap $1, 0 of 1, it's $HOME, /root/work\n"


def _summary(stderr: str) -> str:
    return next(line for line in stderr.splitlines() if line.startswith("✓"))


def test_metrics_by_a_pattern_without_the_shim(user: Callable[..., User]) -> None:
    """A pattern of the profile finds metrics in any line, also where ranks are not instrumented."""
    me = user(1)
    script = me.script("import sys\nfor n in range(1, 4):\n    print(f'<{n}> err={n / 10}', file=sys.stderr)\n")
    pattern = r"<(?P<step>\d+)> err=(?P<loss>[0-9.]+)"
    profile = me.profile({"script": str(script)}, launch={"instrument": False}, metrics={"pattern": pattern})
    running = me.run(profile)
    assert "loss 0.1 → 0.3" in _summary(running.stderr)
    assert running.stdout.splitlines() == [f"node1:0 │ <{n}> err={n / 10}" for n in (1, 2, 3)]
