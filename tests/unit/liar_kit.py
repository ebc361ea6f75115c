"""Hosts that lie: what answers there is written in the test, and speaks the node program's language."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from textwrap import dedent, indent

from disttui.runner.api.viewer import Viewer
from disttui.runner.runs.registry import KnownHost, KnownRun
from disttui.runner.transport import Connector

ROOT = Path(__file__).parents[2]
PROGRAM = """\
import json, os, struct, sys, time
sys.path.insert(0, {root!r})
from disttui.runner.protocol.frames import HEADER, pack_data
from tests.answering import serve
def answers(request):
    op = request["op"]
{body}
    yield {{"error": {{"what": "not asked for in this test: " + op, "cure": ""}}}}
serve(answers)
"""


def liar(folder: Path, name: str, body: str, nproc: int = 1, host: str = "local") -> KnownHost:
    """A host of this name.

    Args:
        body: Of a generator `answers(request)`, with `op` at hand: yields frames without their `id`, or bytes.
    """
    number = len(list(folder.glob("liar-*.py")))
    script, program = folder / f"liar-{number}.py", folder / f"liar-{number}"
    script.write_text(PROGRAM.format(root=str(ROOT), body=indent(dedent(body), "    ")))
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{script}'\n")
    program.chmod(0o755)
    return KnownHost(name, host, python=str(program), nproc=nproc)


def lied(folder: Path, *hosts: KnownHost, run: str = "lied-1a2b") -> KnownRun:
    """A run on these hosts that is known under `folder`, as XDG_DATA_HOME has it."""
    known = KnownRun(
        run, folder / "disttui" / "runs" / run, hosts, {"name": "lied"}, "~/.disttui/runs", time.time(), "me"
    )
    known.save()
    return known


def viewer(data: Path | None = None) -> Viewer:
    """A viewer of hosts that are this machine.

    Args:
        data: Where its runs are, as XDG_DATA_HOME has it.
    """
    return Viewer({} if data is None else {"XDG_DATA_HOME": str(data), "HOME": str(data)})


def connector() -> Connector:
    """The way to hosts that are this machine."""
    return viewer().connector()
