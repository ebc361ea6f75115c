"""Runs as a viewer keeps them: a profile, a mirror laid into its place, the command on it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from disttui.runner.api.log_lines import LineFilter, logs
from disttui.runner.api.viewer import Viewer
from disttui.runner.cli.logs import LogPrinter
from disttui.runner.profile.load import parse
from disttui.runner.profile.schema import Profile
from disttui.runner.runs.following import CaughtUp
from disttui.runner.runs.registry import KnownRun, keep
from tests.command import disttui

DISTTUI = str(Path(sys.executable).with_name("disttui"))
PROFILE = (
    'disttui: 1\nname: two\nhosts: [a, "bob@b:2222"]\njob: {builtin: bytegpt, args: ["007"]}\nenv: {K: "${env:K}"}'
)


def profile(text: str = PROFILE) -> Profile:
    return parse(text, "two.yaml")


def environ(folder: Path) -> dict[str, str]:
    return {"XDG_DATA_HOME": str(folder), "K": "secret"}


def kept(folder: Path, run: str = "two-7f3a", **known: Any) -> KnownRun:
    return keep(profile(), [1, 2], run, environ(folder), **known)


def mirrored(run: KnownRun, node: int, files: dict[str, str | bytes]) -> None:
    """Lay files into a mirror as a viewer would have written them."""
    folder = run.folder / str(node)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / ".mirror.json").write_text(json.dumps({name: [0, 0] for name in files}))


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def printed(run: KnownRun, wanted: LineFilter) -> str:
    """What `disttui logs` prints of a run whose hosts are not reached."""
    out = io.StringIO()
    printer = LogPrinter(out, io.StringIO(), run)
    for item in logs(Viewer({}), run, wanted):
        assert not isinstance(item, CaughtUp)
        printer.write(item)
    return out.getvalue()


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environ(folder), "HOME": str(folder)}
    return disttui(*words, env=env)
