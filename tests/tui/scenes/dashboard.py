"""The dashboard of a run, its log, and replays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from textual.pilot import Pilot

from disttui.runner.runs.registry import find_run
from disttui.runner.runs.state import link
from disttui.tui.app import DisttuiApp
from disttui.tui.dashboard.diagnosis import DiagnosisScreen
from disttui.tui.dashboard.screen import DashboardScreen, RunFound
from disttui.tui.replay.player import Tape
from disttui.tui.run.feed import LiveFeed, RunChanged
from tests.tui import test_blame as blame
from tests.tui.scenes import Scene, in_replay
from tests.tui.snap import until
from tests.tui.synthetic_run import BEGIN, write

RUN = "pair-20260921-7f3a"
STEPS = 40
NOW = BEGIN + 10.5 + STEPS
SILENT = 30.0
"""Seconds since the last word of a host that is out of sight or lost."""

Act = Callable[[Pilot[None]], Awaitable[None]]


class MadeUpDashboard(DashboardScreen):
    """A live run at one moment, from its mirror; no host is reached.

    Args:
        unseen: The hosts whose link is lost.
    """

    def __init__(self, run_id: str, now: float, unseen: Sequence[int] = ()) -> None:
        super().__init__(run_id)
        self._now = now
        self._unseen = unseen

    def _follow(self) -> None:  # type: ignore[override]
        known = find_run(self.run_id, self.disttui.environ)
        tape = Tape(known.folder)
        list(tape.load())
        snapshot = tape.at(self._now)
        for node in self._unseen:
            lost = link(snapshot.state, node, "not seen", "no answer for 30 s; trying again")
            snapshot = replace(snapshot, state=lost, seen={**snapshot.seen, node: self._now - SILENT})
        feed = cast(LiveFeed, SimpleNamespace(stop=lambda: None, earlier=lambda _: None))
        self.post_message(RunFound(known, feed, known.folder))
        self.post_message(RunChanged(snapshot))

    def _tick(self) -> None:
        """The clock stands still."""


def in_run(
    make: Callable[[Path], object], *keys: str, now: float = NOW, unseen: Sequence[int] = (), read_only: bool = False
) -> Act:
    """Open the dashboard of a run that `make` writes, at a moment, and press keys."""

    async def play(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, DisttuiApp)
        app.read_only = read_only
        make(_emptied(app))
        screen = MadeUpDashboard(RUN, now, unseen)
        with patch("disttui.tui.dashboard.run_screen.Ended.look"):
            await app.push_screen(screen)
            await until(pilot, lambda: screen.snapshot is not None)
            await pilot.pause(0.5)
            await _press(pilot, keys)

    return play


def _emptied(app: DisttuiApp) -> Path:
    """The folder of the run, without the run of the picture before."""
    folder = Path(app.environ["XDG_DATA_HOME"]) / "disttui" / "runs" / RUN
    shutil.rmtree(folder, ignore_errors=True)
    return folder


async def _press(pilot: Pilot[None], keys: Sequence[str]) -> None:
    for key in keys:
        await pilot.press(key)
        await pilot.pause(0.1)
    await pilot.pause(0.4)


def replayed(run: str, *keys: str) -> Act:
    """Open the replay of `example`, or of a run in which a rank has failed."""

    async def play(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, DisttuiApp)
        if run != "example":
            _failed(_emptied(app))
        app.router.open_replay(run)
        await until(pilot, lambda: getattr(app.screen, "snapshot", None) is not None)
        await pilot.pause(0.5)
        await _press(pilot, keys)

    return play


def _run(hosts: int, per_host: int, *then: Callable[[Path], object], **named: Any) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        options = {"steps": STEPS, "of": 5000, "ended": False, "names": "node{}", **named}
        write(folder, hosts=hosts, per_host=per_host, **options)
        for one in then:
            one(folder)

    return make


def _event(of: int, kind: str, after: float = NOW - BEGIN - 5, /, **fields: Any) -> Callable[[Path], object]:
    def add(folder: Path) -> None:
        with (folder / f"{of}/events.jsonl").open("a") as file:
            file.write(json.dumps({"t": BEGIN + after, "e": kind, **fields}) + "\n")

    return add


def _cut(folder: Path, names: str) -> None:
    """Drop what came after the last word of a host."""
    for path in folder.glob(names):
        kept = (line for line in path.read_text().splitlines(True) if json.loads(line)["t"] <= NOW - SILENT)
        path.write_text("".join(kept))


def _unseen(*nodes: int) -> Callable[[Path], object]:
    """Hosts of which nothing has come for a while, and whose ranks continue."""

    def cut(folder: Path) -> None:
        for node in nodes:
            _cut(folder, f"{node}/telemetry.jsonl")
            _cut(folder, f"{node}/attempt-1/*.metrics.jsonl")

    return cut


def _gone(node: int) -> Callable[[Path], object]:
    """A host that is gone: without its ranks no other makes a step."""

    def cut(folder: Path) -> None:
        _cut(folder, f"{node}/telemetry.jsonl")
        _cut(folder, "*/attempt-1/*.metrics.jsonl")

    return cut


def _end(
    state: str, code: int, cause: Mapping[str, Any] | None = None, nodes: str = "[0-9]*"
) -> Callable[[Path], object]:
    def add(folder: Path) -> None:
        for place in folder.glob(nodes):
            end = {"t": NOW, "state": state, "code": code, "cause": cause, "attempt": 1, "left": []}
            (place / "exit.json").write_text(json.dumps(end))

    return add


def _only_begun(*events: Mapping[str, Any]) -> Callable[[Path], object]:
    """Nothing but these events of the leader, and no attempt."""

    def cut(folder: Path) -> None:
        for place in folder.glob("[0-9]*"):
            shutil.rmtree(place / "attempt-1")
            (place / "events.jsonl").write_text("")
            (place / "telemetry.jsonl").write_text("")
        (folder / "0/events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))

    return cut


def _silent(folder: Path) -> None:
    """Ranks that have made no step yet."""
    for path in folder.glob("*/attempt-1/*"):
        if path.name.endswith("metrics.jsonl"):
            path.unlink()
        else:
            path.write_text(f"{path.stem}: loading the data set\n")


def _may_restart(folder: Path) -> None:
    for path in folder.glob("*/spec.json"):
        spec = json.loads(path.read_text())
        path.write_text(json.dumps({**spec, "launch": {"restarts": 2}}))


def _second_attempt(folder: Path) -> None:
    """Attempt 1 lost rank 3 after 20 steps; attempt 2 continues from step 16."""
    _may_restart(folder)
    cause = {"node": 1, "rank": 3, "kind": "signal", "code": -9, "at": BEGIN + 30}
    for place in sorted(folder.glob("[0-9]*")):
        node = int(place.name)
        begun = [json.loads(line) for line in (place / "events.jsonl").read_text().splitlines()]
        events = [event for event in begun if event["e"] != "join" and event["t"] < BEGIN + 11]
        if node == 1:
            death = {"t": BEGIN + 30, "e": "death", "attempt": 1, "rank": 3, "pid": 3, "code": -9, "at": BEGIN + 30}
            begun.append(death)
        if node == 0:
            begun.append({"t": BEGIN + 30.1, "e": "failed", "attempt": 1, "cause": cause})
        begun.append({"t": BEGIN + 30.2, "e": "stopping", "attempt": 1, "reason": "failure"})
        begun += [{**event, "t": event["t"] + 30, "attempt": 2} for event in events]
        (place / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in begun))
        (place / "attempt-2").mkdir()
        for path in sorted((place / "attempt-1").iterdir()):
            lines = path.read_text().splitlines(keepends=True)
            half = len(lines) // 2
            if path.name.endswith("metrics.jsonl"):
                records = [json.loads(line) for line in lines]
                second = [{**record, "t": record["t"] + 30, "step": record["step"] + 15} for record in records[:half]]
                (place / "attempt-2" / path.name).write_text("".join(json.dumps(one) + "\n" for one in second))
            else:
                (place / "attempt-2" / path.name).write_text("resumed from step 15\n" + "".join(lines[half:]))
            path.write_text("".join(lines[:half]))
        telemetry = [json.loads(line) for line in (place / "telemetry.jsonl").read_text().splitlines()]
        telemetry += [{**record, "t": record["t"] + telemetry[-1]["t"] - BEGIN + 1} for record in telemetry[:15]]
        (place / "telemetry.jsonl").write_text("".join(json.dumps(one) + "\n" for one in telemetry))
        held = {path.relative_to(place).as_posix(): [0, 0] for path in place.rglob("*") if path.is_file()}
        (place / ".mirror.json").write_text(json.dumps(held))


def _much_has_happened(folder: Path) -> None:
    for at in range(12):
        _event(at % 2, "note", 12 + 2 * at, level=("info", "warning", "error")[at % 3],
               text=f"the file server answers slowly: {at + 1}.4 s for a read of /mnt/data/shards")(folder)  # fmt: skip
    _event(0, "straggler", 45, attempt=1, rank=5, median=0.48, others=0.3, shows=[])(folder)
    _event(1, "alarm", 46, kind="gpu memory", text="GPU 3: 79.1 GiB of 80 GiB used", value=0.99)(folder)
    _event(1, "alarm", 47, kind="throttle", text="GPU 5 throttles: 91 °C", value=91)(folder)


def _failed(folder: Path) -> None:
    """Rank 3 of 8 raises deep in its own code, the others lose their connections."""
    _run(2, 4)(folder)
    frames = "".join(f'  File "/home/ada/train.py", line {line}, in step{line}\n    call()\n' for line in range(8))
    seen = {
        3: ("ValueError", "shard 17 has no tokens: /mnt/data/fineweb/shard-00017.bin is 0 bytes long"),
        5: ("RuntimeError", "Connection closed by peer [10.0.0.1]:29500"),
    }
    for rank, (kind, words) in seen.items():
        node, at = rank // 4, NOW - 2 + rank / 10
        error = {"t": at, "e": "error", "attempt": 1, "rank": rank, "type": kind, "message": words, "at": at}
        text = f"Traceback (most recent call last):\n{frames}{kind}: {words}"
        with (folder / f"{node}/events.jsonl").open("a") as file:
            file.write(json.dumps({**error, "traceback": text}) + "\n")
        with (folder / f"{node}/attempt-1/rank-{rank}.log").open("a") as log:
            log.write(text + "\n")
    cause = {"node": 0, "rank": 3, "kind": "exception", "type": seen[3][0], "message": seen[3][1]}
    _end("failed", 1, cause)(folder)


def _coloured(folder: Path) -> None:
    _run(2, 2)(folder)
    more = (
        "\x1b[1;31mWARNING\x1b[0m gradient norm \x1b[38;5;208m7.4\x1b[0m above \x1b[32m1.0\x1b[0m, clipped\n"
        "config: " + ", ".join(f"layer_{at}: {{heads: {at + 8}, width: {64 * at}}}" for at in range(12)) + "\n"
        "Verlust über 1,83 – Öl, Größe, naïve Ωµ\n"
    )  # fmt: skip
    for path in folder.glob("*/attempt-1/rank-*.log"):
        path.write_text(path.read_text() + more)


_two = _run(2, 8)
_cpu = _run(2, 4, gpus=False)
_joins = tuple({"t": BEGIN + at, "e": "join", "node": at} for at in range(2))
_line = {"t": BEGIN + 3, "e": "note", "level": "info", "text": "queued: node1: bob's llama-7f3a holds GPU 0-3"}
_slow = _event(0, "straggler", attempt=1, rank=5, median=0.48, others=0.3, shows=[])
_node1_lost, _node2_lost = (_event(0, "host", node=node, state="lost", last=NOW - SILENT) for node in (1, 2))
_lost_cause = {"node": 1, "rank": None, "kind": "host lost", "last": NOW - SILENT, "at": NOW - 5}


def _diagnosis() -> Act:
    async def play(pilot: Pilot[None]) -> None:
        await in_run(blame.stalled, now=BEGIN + 75)(pilot)
        app = pilot.app
        assert isinstance(app, DisttuiApp)
        screen = DiagnosisScreen(find_run(RUN, app.environ))
        with patch.object(DiagnosisScreen, "_ask", lambda self: None):
            await app.push_screen(screen)
        words = (
            f"{RUN} is running: attempt 1, last progress 0:01 ago\n"
            "  ranks 0, 2, 3 wait in all_reduce (distributed_c10d.py:2806) for 30 s\n"
            "  rank 1 on node0 has not entered it: it is in load_batch (/home/ada/data.py:5)\n"
            "  called from <module> (/home/ada/projects/pretraining/fineweb/train.py:20)"
        )
        screen.show(words)
        await pilot.pause(0.4)

    return play


def _scene(name: str, act: Act) -> Scene:
    return Scene(f"dash-{name}", (120, 35), act=act)


SCENES = (
    Scene("dashboard-failed", (160, 44), act=in_replay("E", "E", "E", "E")),
    # Lives
    _scene("cpu", in_run(_cpu)),
    _scene("gpu16", in_run(_two)),
    _scene("hosts128", in_run(_run(128, 8, steps=15, names="gpu{:03}"), now=BEGIN + 25.5)),
    _scene("hosts12", in_run(_run(12, 4, names="gpu{:02}.cluster.example.org"))),
    _scene("host1", in_run(_run(1, 2, gpus=False))),
    _scene("nometrics", in_run(_run(2, 4, _silent), now=BEGIN + 9.5)),
    _scene("joining", in_run(_run(2, 4, _only_begun(_joins[0], {"t": BEGIN + 2, "e": "waiting", "missing": [1]})),
                             now=BEGIN + 9)),
    _scene("queued", in_run(_run(2, 4, _only_begun(*_joins, _line)), now=BEGIN + 90)),
    _scene("stopping", in_run(_run(2, 4, _event(0, "stopping", attempt=1, reason="user"),
                                   _event(1, "stopping", attempt=1, reason="user")))),
    _scene("straggler", in_run(_run(2, 4, _slow, slow=5))),
    _scene("stalled", in_run(blame.stalled, now=BEGIN + 75)),
    _scene("events", in_run(_run(2, 4, _much_has_happened, slow=5))),
    _scene("restarted", in_run(_run(2, 4, _second_attempt), now=BEGIN + 61)),
    _scene("lost", in_run(_run(3, 2, _gone(2), _node2_lost, log_lines=11))),
    _scene("unseen1", in_run(_run(2, 8, _unseen(1)), unseen=[1])),
    _scene("unseen2", in_run(_run(2, 8, _unseen(0, 1)), unseen=[0, 1])),
    _scene("unseen5", in_run(_run(6, 2, _unseen(*range(1, 6)), names="gpu{:02}"), unseen=range(1, 6))),
    _scene("readonly", in_run(_cpu, read_only=True)),
    # Ends
    _scene("finished", in_run(_run(2, 4, _end("finished", 0), of=STEPS))),
    _scene("stopped", in_run(_run(2, 4, _event(0, "stopping", attempt=1, reason="user"), _end("stopped", 130)))),
    _scene("failed", in_run(_failed)),
    _scene("leaderlost", in_run(_run(2, 2, _gone(0), _end("lost", 1, {**_lost_cause, "node": 0}, "1")), unseen=[0])),
    _scene("hostlost", in_run(_run(2, 2, _gone(1), _node1_lost, _end("failed", 1, _lost_cause, "0")))),
    # Panes alone, in the order that tab visits them
    *(
        _scene(f"zoom-{name}", in_run(_two, *keys, "z"))
        for name, keys in (
            ("hosts", ("shift+tab",)), ("ranks", ()), ("chart", ("tab",)), ("log", ("shift+tab",) * 2),
            ("events", ("shift+tab",) * 3),
        )
    ),
    _scene("zoom-ranks128", in_run(_run(128, 8, steps=15, names="gpu{:03}"), "z", now=BEGIN + 25.5)),
    _scene("rank", in_run(_two, "1", "2")),
    _scene("rank-failed", in_run(_failed, "w")),
    _scene("pick", in_run(_two, "tab", "c")),
    # Questions and windows
    _scene("stop", in_run(_two, "s")),
    _scene("rerun", in_run(_failed, "r")),
    _scene("diagnosis", _diagnosis()),
    _scene("help", in_run(_two, "question_mark")),
    _scene("help-log", in_run(_two, "ampersand", "escape", "question_mark")),
    _scene("copied", in_run(_failed, "y")),
    # The log
    _scene("log-follow", in_run(_coloured, "shift+tab", "shift+tab")),
    _scene("log-zoom", in_run(_coloured, "ampersand", "escape", "z")),
    _scene("log-paused", in_run(_coloured, "ampersand", "escape", "k", "k", "k")),
    _scene("log-find", in_run(_coloured, "slash", *"loss")),
    _scene("log-found", in_run(_coloured, "slash", *"loss", "enter", "z")),
    _scene("log-missing", in_run(_coloured, "slash", *"nosuch", "enter")),
    _scene("log-filter", in_run(_coloured, "ampersand", *"step", "space", "1", "enter")),
    _scene("log-bad", in_run(_coloured, "ampersand", *"(step", "ctrl+r", "enter")),
    _scene("log-none", in_run(_coloured, "ampersand", *"nosuch", "enter")),
    _scene("log-time", in_run(_coloured, "ampersand", "escape", "t")),
    _scene("log-error", in_run(_failed, "ampersand", "escape", "e")),
    _scene("log-yank", in_run(_coloured, "ampersand", "escape", "k", "k", "y")),
    # Replays
    _scene("replay-end", replayed("example")),
    _scene("replay-begin", replayed("example", "home")),
    _scene("replay-soon", replayed("example", "home", "full_stop", "full_stop")),
    _scene("replay-middle", replayed("example", "end", "less_than_sign", "less_than_sign", "less_than_sign")),
    _scene("replay-event", replayed("example", "home", "e", "e", "e", "e")),
    _scene("replay-speed", replayed("example", "home", "x", "x", "x", "space")),
    _scene("replay-failed", replayed(RUN)),
    _scene("replay-help", replayed("example", "question_mark")),
)  # fmt: skip
