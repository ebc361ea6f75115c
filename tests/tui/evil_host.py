"""A host that attacks its viewers: it answers as the node program does, with hostile content.

`python -m tests.tui.evil_host FOLDER` takes the node program's place; FOLDER holds what it reports of its run.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from disttui.runner.protocol.frames import pack_data
from tests.answering import Answer, serve
from tests.tui.hostile import bad, mirror, stacks, telemetry

ROOT = Path(__file__).parents[2]


def live_run(home: Path, run: str) -> None:
    """Let a user with this home know a running run on two evil hosts, and have an evil run of `python3`s."""
    kept = mirror(home / "evil", run, over=False)
    known = json.loads((kept / "run.json").read_text())
    for node, host in enumerate(known["hosts"]):
        host.update({"host": "local", "port": None, "python": str(evil_python(home, kept / str(node)))})
    place = home / "data" / "disttui" / "runs" / run
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps(known))


def evil_python(home: Path, folder: Path) -> Path:
    """The interpreter of an evil host."""
    program = home / f"evil-python-{folder.name}"
    program.write_text(f"#!/bin/sh\ncd '{ROOT}' && exec '{sys.executable}' -m tests.tui.evil_host '{folder}'\n")
    program.chmod(0o755)
    return program


def _answers(request: Mapping[str, Any], folder: Path) -> Iterator[Answer]:
    """What is said to a request: frames without their `id`, and pieces of files."""
    op = request["op"]
    if op == "telemetry":
        while True:
            yield {"event": telemetry(time.time(), 0)}
            time.sleep(0.5)
    elif op == "mirror":
        for number, path in enumerate(sorted(path for path in folder.rglob("[!.]*") if path.is_file())):
            name, data = path.relative_to(folder).as_posix(), path.read_bytes()
            yield {"event": {"file": number, "name": name, "generation": 0, "size": len(data), "start": 0}}
            yield pack_data(number, 0, 0, data)
        yield {"event": {"caught_up": True}}
    elif op == "stacks":
        yield {"ok": stacks(0)}
    elif op == "status":
        yield {"ok": {"alive": True, "pid": 1, "exit": None}}
    else:
        yield {"error": {"what": bad("Wrefused"), "cure": bad("Wcure")}}


def main() -> None:
    """Answer for a folder until nobody asks any more."""
    folder = Path(sys.argv[1])
    serve(lambda request: _answers(request, folder), bad("Wlogin"), bad("3.11"))


if __name__ == "__main__":
    main()
