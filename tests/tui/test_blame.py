"""Who brought a run down, or keeps it waiting, is seen in ranks, hosts and log, and `w` goes there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.segment import Segment
from textual.pilot import Pilot

from disttui.runner.api.diagnosing import Diagnosis, keep
from disttui.runner.runs.registry import find_run
from disttui.tui.app import DisttuiApp
from disttui.tui.dashboard.diagnosis import DiagnosisScreen
from disttui.tui.dashboard.run_screen import RunScreen
from disttui.tui.router import First
from tests.tui.snap import press, until
from tests.tui.synthetic_run import BEGIN, write
from tests.tui.test_dashboard import opened, shown

RAISED = "ValueError: batch 7 has no tokens"


def _add(path: Path, *entries: Mapping[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


def failed(folder: Path) -> Path:
    """Rank 2 on the second host raises; rank 0 loses its connection because of it."""
    write(folder, hosts=2, per_host=2, steps=20, gpus=False, ended=False, names="node{}")
    seen = {
        2: ("ValueError", "batch 7 has no tokens"),
        0: ("RuntimeError", "Connection closed by peer [10.0.0.2]:29500"),
    }
    for rank, (kind, words) in seen.items():
        node, at = rank // 2, BEGIN + 31 - rank / 10
        error = {"t": at, "e": "error", "attempt": 1, "rank": rank, "type": kind, "message": words, "at": at}
        _add(folder / f"{node}/events.jsonl", {**error, "traceback": f"{kind}: {words}\n"})
        with (folder / f"{node}/attempt-1/rank-{rank}.log").open("a") as log:
            log.write(f"Traceback (most recent call last):\n{kind}: {words}\n" + "bye\n" * 3)
    for node in range(2):
        end = {"t": BEGIN + 32, "state": "failed", "code": 1, "cause": None, "attempt": 1, "left": []}
        (folder / str(node) / "exit.json").write_text(json.dumps(end))
    return folder


def stalled(folder: Path) -> Path:
    """All ranks but rank 1 wait in a collective."""
    write(folder, hosts=2, per_host=2, steps=20, gpus=False, ended=False, names="node{}")
    silent = {str(rank): 30.0 for rank in range(4)}
    stall = {"t": BEGIN + 60, "e": "stall", "attempt": 1, "since": BEGIN + 30, "pace": 1.0, "silent": silent}
    _add(folder / "0/events.jsonl", {**stall, "steps": True, "stacks": "stacks-1.json"})
    for node in range(2):
        ranks = {}
        for rank in (2 * node, 2 * node + 1):
            places = [("/home/ada/train.py", 20, "<module>")]
            places += (
                [("/home/ada/data.py", 5, "load_batch")]
                if rank == 1
                else [("/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2806, "all_reduce")]
            )
            frames = [{"file": file, "line": line, "function": name, "text": ""} for file, line, name in places]
            ranks[str(rank)] = {"threads": [{"name": "MainThread", "main": True, "frames": frames}], "silent": 30.0}
        record = {"t": BEGIN + 60, "attempt": 1, "ranks": ranks}
        (folder / str(node) / "stacks-1.json").write_text(json.dumps(record))
        held = folder / str(node) / ".mirror.json"
        held.write_text(json.dumps({**json.loads(held.read_text()), "stacks-1.json": [0, 0]}))
    return folder


def stopped(folder: Path, *, ended: bool = True) -> Path:
    """The user stops it: rank 1 ends with an error of its own, rank 2 has to be killed."""
    write(folder, hosts=2, per_host=2, steps=20, gpus=False, ended=False, names="node{}")
    asked = BEGIN + 31
    for node in range(2):
        _add(folder / f"{node}/events.jsonl", {"t": asked, "e": "stopping", "attempt": 1, "reason": "user"})
    error = {"t": asked + 1, "e": "error", "attempt": 1, "rank": 1, "type": "KeyboardInterrupt", "message": "", "at": 0}
    death = {"t": asked + 5, "e": "death", "attempt": 1, "rank": 2, "pid": 2, "code": -9, "at": asked + 5, "grace": 4.0}
    _add(folder / "0/events.jsonl", {**error, "at": asked + 1, "traceback": "KeyboardInterrupt\n"})
    _add(folder / "1/events.jsonl", death)
    end = {"t": asked + 6, "state": "stopped", "code": 130, "cause": None, "attempt": 1, "left": []}
    for node in range(2 * ended):
        (folder / str(node) / "exit.json").write_text(json.dumps(end))
    return folder


def segments(pilot: Pilot[None], screen: RunScreen, words: str) -> list[Segment]:
    """The row of the log that has these words."""
    assert screen.log_view is not None
    lines = screen.log_view.lines
    return next(list(strip) for y in range(lines.size.height) if words in (strip := lines.render_line(y)).text)


async def test_log_marks_the_culprit_and_w_jumps_to_its_error_line(tmp_path: Path) -> None:
    async with opened("replay", str(failed(tmp_path / "run-1")), tmp_path) as (pilot, screen):
        await press(pilot, "end", shows="node1:2✗│ bye")
        assert "node0:0 │ bye" in shown(pilot)
        assert "node1 ✗ failed" in shown(pilot) and "node0 ■ interrupted" in shown(pilot)
        culprit, victim = (segments(pilot, screen, f"{label}│ bye") for label in ("node1:2✗", "node0:0 "))
        assert culprit[1].style != victim[1].style
        await press(pilot, "w", shows=f"▶{RAISED}")
        assert "Log · rank 2" in shown(pilot) and "Connection closed" not in shown(pilot).partition("Log · rank")[2]
        await press(pilot, "w", shows="Log · rank 0")
        await until(pilot, lambda: "▌RuntimeError: Connection closed" in shown(pilot))


async def test_a_blocking_rank_is_marked_in_ranks_hosts_and_log(tmp_path: Path) -> None:
    async with opened("replay", str(stalled(tmp_path / "run-1")), tmp_path) as (pilot, _):
        await press(pilot, "end", shows="▲ 1 blocking")
        assert "node0 ▲ blocking" in shown(pilot) and "node1 ◌ waiting" in shown(pilot)
        assert "◌ 3 waiting" in shown(pilot) and "no rank has made a step" in shown(pilot) and "eta" not in shown(pilot)
        await until(pilot, lambda: "node0:1▲│ step" in shown(pilot))
        await press(pilot, "w", shows=("rank 1 ▲ blocking", "Log · rank 1"))
        await until(pilot, lambda: "▶step 19/20" in shown(pilot))


async def test_a_short_story_leaves_the_events_in_sight(tmp_path: Path) -> None:
    stalled(tmp_path / "run-1")
    async with opened("replay", str(tmp_path / "run-1"), tmp_path, (80, 24)) as (pilot, screen):
        await press(pilot, "end", shows=("─What happened", "─Events"))
        await until(pilot, lambda: screen.query_one("#events").size.height >= 2)


async def test_where_the_log_has_no_room_w_opens_it(tmp_path: Path) -> None:
    async with opened("replay", str(failed(tmp_path / "run-1")), tmp_path, (40, 12)) as (pilot, _):
        await press(pilot, "end", then=lambda: "What happened" in shown(pilot) and "bye" not in shown(pilot))
        await press(pilot, "w", then=lambda: f"▶{RAISED}"[:30] in shown(pilot))


@pytest.mark.parametrize("ended", [False, True])
async def test_who_was_stopped_by_the_user_is_not_marked_as_failed(tmp_path: Path, ended: bool) -> None:
    run = stopped(tmp_path / "run-1", ended=ended)
    async with opened("replay", str(run), tmp_path) as (pilot, _):
        await press(pilot, "end", then=lambda: ("■ 4 stopped" if ended else "▲ 4 stopping") in shown(pilot))
        await until(pilot, lambda: "node0:1 │ step" in shown(pilot) and "node1:2 │ step" in shown(pilot))
        assert "▶" not in shown(pilot) and "✗" not in shown(pilot).partition("─Log")[2]


async def test_a_run_that_finishes_out_of_a_stall_keeps_no_mark_of_it(tmp_path: Path) -> None:
    folder = stalled(tmp_path / "run-1")
    for node in range(2):
        end = {"t": BEGIN + 70, "state": "finished", "code": 0, "cause": None, "attempt": 1, "left": []}
        (folder / str(node) / "exit.json").write_text(json.dumps(end))
    async with opened("replay", str(folder), tmp_path) as (pilot, _):
        await press(pilot, "end", shows="✓ 4 finished")
        await until(pilot, lambda: "node0:1 │ step" in shown(pilot))
        assert "▶" not in shown(pilot)


async def test_w_is_labelled_by_whether_a_rank_is_blamed(tmp_path: Path) -> None:
    async with opened("replay", str(failed(tmp_path / "run-1")), tmp_path) as (pilot, _):
        await until(pilot, lambda: "w culprit" in shown(pilot))
        await press(pilot, "home", shows="w slowest")


async def test_an_earlier_diagnosis_is_shown_when_no_host_answers(tmp_path: Path) -> None:
    folder = stalled(tmp_path / "disttui" / "runs" / "run-1")
    keep(
        folder,
        Diagnosis(1, 1_790_000_070.0, "run-1 is running\nrank 1 has not entered it: it is in load_batch (data.py:5)"),
    )
    names = ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HOME")
    environ = dict.fromkeys(names, str(tmp_path))
    app = DisttuiApp(environ, first=First("replay", ("run-1",)))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: getattr(app.screen, "snapshot", None) is not None)
        await app.push_screen(DiagnosisScreen(find_run("run-1", environ)))
        await until(pilot, lambda: "while it was running, at" in shown(pilot))
        assert "rank 1 has not entered it: it is in load_batch (data.py:5)" in shown(pilot)
        assert "node0" in shown(pilot), "and why nothing is known of it now"
