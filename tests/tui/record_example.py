"""Records the example run anew: `python -m tests.tui.record_example`. Two minutes; needs torch.

A real run: bytegpt on two hosts of the sandbox, rank 3 killed after the second checkpoint, a second attempt. The paths
of the machine that it was recorded on are replaced; nothing else is touched.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

PACKED = Path(__file__).parents[2] / "tui" / "replay" / "example.zip"
KILL_AT = 249
STEPS = 400
ARGUMENTS = ("--steps", str(STEPS), "--batch-size", "4", "--val-interval", "25", "--log-interval", "5")
PASSED = ("run.json", ".mirror.json", "spec.json", "events.jsonl", "telemetry.jsonl", "exit.json", "growth.jsonl")


def record(home: Path) -> Path:
    """Run, kill a rank on the way, and return the mirror."""
    command = [
        *(str(Path(sys.executable).with_name("disttui")), "run", "2node", "--sandbox", "--set", "name=example"),
        *("--set", f"job.args={json.dumps(ARGUMENTS)}", "--set", "launch.restarts=2"),
    ]
    running = subprocess.Popen(command, env={**os.environ, "XDG_DATA_HOME": str(home)}, stdout=subprocess.DEVNULL)
    runs = home / "disttui" / "runs"
    killed = False
    while running.poll() is None:
        time.sleep(0.2)
        killed = killed or any(_kill_when_due(mirror) for mirror in runs.glob("example-*"))
    assert running.returncode == 0, running.returncode
    assert killed
    return next(runs.glob("example-*"))


def _kill_when_due(mirror: Path) -> bool:
    metrics = mirror / "0" / "attempt-1" / "rank-0.metrics.jsonl"
    steps = re.findall(r'"step": ?(\d+)', metrics.read_text()) if metrics.exists() else []
    if not steps or int(steps[-1]) < KILL_AT:
        return False
    for line in (mirror / "1" / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["e"] == "rank" and event["rank"] == 3:
            os.kill(event["pid"], signal.SIGKILL)
            return True
    return False


def pack(mirror: Path, into: Path) -> None:
    """Write what a replay shows, without the paths of this machine."""
    into.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for path in sorted(mirror.rglob("*")):
            if path.is_file() and (path.name in PASSED or path.match("attempt-*/rank-*")):
                text = _growth(path) if path.name == "growth.jsonl" else _without_places(path.read_text())
                packed.writestr(path.relative_to(mirror).as_posix(), text)


def _growth(path: Path) -> str:
    """The sizes of the logs, which are as much shorter as the paths in them: a replay reads when a line came there."""
    lines = []
    for record in map(json.loads, path.read_text().splitlines()):
        for rank, size in record["sizes"].items():
            log = (path.parent / f"rank-{rank}.log").read_bytes()[:size].decode(errors="ignore")
            record["sizes"][rank] = len(_without_places(log).encode())
        lines.append(json.dumps(record) + "\n")
    return "".join(lines)


def _without_places(text: str) -> str:
    text = re.sub(r"/tmp/disttui-sandbox-[^/\"]+/homes/\w+", "/home/me", text)
    text = text.replace(sys.executable, "/home/me/venv/bin/python3")
    text = text.replace(str(Path(sys.executable).parent), "/home/me/venv/bin").replace(sys.prefix, "/home/me/venv")
    text = re.sub(r'("by": ?)"[^"]*"', r'\1"me@laptop"', text)
    text = re.sub(r'("source": ?)"[^"]*"', r"\1null", text)
    return re.sub(r'("hostname": ?)"[^"]*"', r'\1"vm"', text)


def main() -> None:
    """Record and pack."""
    with tempfile.TemporaryDirectory() as home:
        pack(record(Path(home)), PACKED)
    print(f"{PACKED}: {PACKED.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
