"""A run, hosts and profiles that attack the terminal they are shown on; `python -m tests.tui.hostile WHAT` is the app.

Every text of theirs is a word that can be looked for, then an attack.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from disttui.runner.hosts.load import load_of
from disttui.runner.runs.watch import HostNow
from disttui.tui.app import DisttuiApp
from disttui.tui.load.feed import TopChanged
from tests.tui.synthetic_run import BEGIN
from tests.tui.top_kit import MadeUpTop, record

TITLE = "OWNED-TITLE"
CLIP = "T1dORUQtQ0xJUA=="
ATTACK = (
    f"\x1b]0;{TITLE}\x07\x1b]52;c;{CLIP}\x07\x1b[2J\x1b[31;7;5m\x1b[?1049l\x1b[8;3;3t\x1bc\x1bP+q544e\x1b\\"
    f"\x9b2J\x9d0;{TITLE}\x9c\x9d52;c;{CLIP}\x9c\u202e\u2066\u200b\ufeff[red][@click=app.quit]x[/]\r\x08\x08\x00\x7f\x0e"
)
BYTES = b"\x9b2J\x9d0;c1\x9c\x1b]52;c;never-ended"


def bad(word: str) -> str:
    """A word with an attack behind it."""
    return word + ATTACK


def mirror(runs: Path, run: str, *, over: bool = True) -> Path:
    """Write the mirror of a failed run of two hosts, or of a running one."""
    place = runs / run
    hosts = [bad("Whost0"), bad("Whost1")]
    spec = {
        "run": run, "hosts": hosts, "nproc": [1, 1], "backend": bad("Wback"), "launch": {"restarts": 1},
        "target": {"kind": "script", "value": bad("Wscript"), "args": ["--strategy", bad("Wstrategy")]},
    }  # fmt: skip
    known = {
        "disttui": 1, "run": run, "profile": {"name": bad("Wname"), "hosts": hosts}, "source": None, "run_dir": "~",
        "hosts": [{"name": host, "host": "127.0.0.1", "port": 9, "nproc": 1} for host in hosts], "started": BEGIN,
        "by": bad("Wby"), "ssh_config": None, "sandbox": False,
    }  # fmt: skip
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps(known))
    for node in (0, 1):
        folder = place / str(node) / "attempt-1"
        folder.mkdir(parents=True)
        (folder.parent / "spec.json").write_text(json.dumps({**spec, "node_rank": node}))
        _lines(folder.parent / "events.jsonl", _events(node))
        _lines(folder.parent / "telemetry.jsonl", (telemetry(BEGIN + second, node) for second in range(60)))
        _lines(folder / f"rank-{node}.metrics.jsonl", _metrics())
        text = f"{ATTACK}Wlog {node}\n".encode() + BYTES + b"\n"
        (folder / f"rank-{node}.log").write_bytes(text * 40 + f"{ATTACK}Wlog".encode())
        (folder.parent / "stacks-1.json").write_text(json.dumps(stacks(node)))
        held = {
            path.relative_to(folder.parent).as_posix(): [0, 0] for path in folder.parent.rglob("*") if path.is_file()
        }
        (folder.parent / ".mirror.json").write_text(json.dumps(held))
        if over:
            (folder.parent / "exit.json").write_text(json.dumps(_exit()))
    return place


def _lines(path: Path, entries: Iterator[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def _events(node: int) -> Iterator[Mapping[str, Any]]:
    said: list[dict[str, Any]] = [
        {"e": "supervisor", "hostname": bad("Whostname"), "boot_id": bad("Wboot"), "pid": 1, "python": bad("Wpy")},
        {"e": "join", "node": node},
        {"e": "dial", "address": bad("Waddress"), "port": 1, "problem": bad("Wproblem")},
        {"e": "attempt", "attempt": 1, "master": bad("Wmaster"), "port": bad("Wport"), "world_size": 2},
        {"e": "launch", "attempt": 1, "pid": 1, "command": bad("Wcommand"), "interface": bad("Winterface")},
        {"e": "rank", "attempt": 1, "rank": node, "local_rank": 0, "pid": 7},
        {"e": "group", "attempt": 1, "rank": node, "world_size": 2, "backend": bad("Wback")},
        {"e": "note", "level": "warning", "text": bad("Wnote")},
        {"e": "alarm", "kind": bad("Wkind"), "text": bad("Walarm"), "value": bad("Wvalue")},
        {"e": "step", "attempt": 1},
        {"e": "straggler", "attempt": 1, "rank": 1, "median": 2.0, "others": 1.0, "shows": [bad("Wshows")]},
        {"e": "stall", "attempt": 1, "since": BEGIN + 30, "pace": 1.0, "silent": {"0": 20, bad("1"): bad("5")},
         "stacks": "stacks-1.json"},
        {"e": "error", "attempt": 1, "rank": node, "type": bad("Wtype"), "message": bad("Werror"), "at": BEGIN + 50,
         "traceback": f"Traceback\n  File {bad('Wfile')}\n{bad('Wtype')}: {bad('Werror')}\n"},
        {"e": "death", "attempt": 1, "rank": node, "pid": 7, "code": -9, "at": BEGIN + 50,
         "oom": {"group": 1, "machine": 1, "kernel": bad("Wkernel"), "limit": bad("9")}},
        {"e": "launcher", "attempt": 1, "code": 1, "error": bad("Wlauncher")},
        {"e": "stopping", "reason": bad("Wreason"), "now": False, "attempt": 1},
        {"e": "left", "processes": [{"pid": bad("9"), "command": bad("Wleft")}]},
        {"e": "verdict", "state": "failed", "code": 1, "attempt": 1, "cause": _CAUSE},
    ]  # fmt: skip
    for second, event in enumerate(said):
        yield {"t": BEGIN + 3 * second, **event}


_CAUSE = {"kind": bad("Wkind"), "host": bad("Whost0"), "rank": 0, "text": bad("Wcause"), "type": bad("Wtype"),
          "message": bad("Werror"), "code": 1, "node": 0}  # fmt: skip


def _exit() -> Mapping[str, Any]:
    return {"t": BEGIN + 55, "state": "failed", "code": 1, "cause": _CAUSE, "attempt": 1, "left": [bad("Wleft")]}


def telemetry(t: float, node: int) -> Mapping[str, Any]:
    """What a host tells every second."""
    said = record(node, 2, t)
    for gpu in said["gpus"]:
        gpu["name"] = bad("Wgpu")
    said["gpus"].append({"index": bad("7"), "name": bad("Wgpu"), "use": bad("50")})
    for process in said["processes"]:
        process |= {"user": bad("Wuser"), "command": bad("Wprocess"), "tag": f"{bad('Wrun')}/0/1"}
    return {**said, "ranks": {str(node): {"cpu": bad("1"), "rss": 1}, bad("9"): {}}, bad("Wfield"): bad("Wvalue")}


def _metrics() -> Iterator[Mapping[str, Any]]:
    for step in range(40):
        yield {"t": BEGIN + 12 + step, "step": step, "steps": 100, "loss": 3 - step / 50, bad("Wmetric"): step,
               "sample": bad("Wsample"), "lr": bad("nan")}  # fmt: skip


def stacks(node: int) -> Mapping[str, Any]:
    """What a host reports about its rank."""
    frame = {"file": bad("/Wframe.py"), "line": 3, "function": bad("Wfunction"), "text": bad("Wline")}
    threads = [{"name": bad("Wthread"), "main": True, "frames": [frame]}]
    rank = {"threads": threads, "t": BEGIN + 33, "pid": 7, "silent": 20, "moved": False, "note": bad("Wnote")}
    return {"t": BEGIN + 33, "attempt": 1, "ranks": {str(node): rank}}


def attack_profiles(folder: Path) -> None:
    """Save profiles with hostile names and contents."""
    folder.mkdir(parents=True)
    name = ATTACK.replace("/", "").replace("\x00", "")
    (folder / f"Wprofile{name}.yaml").write_text(
        f"disttui: 1\nhosts: [ada]\ndescription: {json.dumps(bad('Wdescription'))}\njob: {{builtin: bytegpt}}\n"
    )
    (folder / "aaa.yaml").write_text(f"disttui: 1\nhosts: [ada]\n{json.dumps(bad('Wkey'))}: 1\n")
    (folder / "bbb.yaml").write_bytes(b"disttui: 1\nhosts: [\x1b]0;OWNED-TITLE\x07]\n")


class HostileTop(MadeUpTop):
    """The screen `top` on hostile hosts."""

    def on_mount(self) -> None:
        """Show them."""
        super().on_mount()
        now = BEGIN + 60
        seen = [HostNow(bad(f"Whost{node}"), "seen", load_of(telemetry(now, node)), now) for node in (0, 1)]
        lost = HostNow(bad("Wlost"), "failed", since=now, problem=bad("Wproblem"), cure=bad("Wcure"))
        self.post_message(TopChanged((*seen, lost), now))


def main() -> None:
    """Open `top` on hostile hosts."""
    app = DisttuiApp(os.environ)
    app.call_later(app.push_screen, HostileTop())
    sys.exit(app.run())


if __name__ == "__main__":
    main()
