"""`disttui wait`: conditions, exit codes, an answer of at most 2 KB."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api.viewer import Viewer
from disttui.runner.api.waiting import CODES, TIMED_OUT, Condition, Evidence, Waited, conditions, overall, wait
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.render.waiting import MOST, waited_data, waited_text
from disttui.runner.runs.follow import LinkNews
from disttui.runner.runs.following import CaughtUp, Refresh, Update
from disttui.runner.runs.state import RunState, begin, link
from tests.unit.history_kit import command, kept, lines, mirrored
from tests.unit.state_kit import fold

BEGUN = {"t": 1.0, "e": "attempt", "attempt": 1, "master": "a", "port": 1, "world_size": 3}
TRACE = 'Traceback (most recent call last):\n  File "/p/train.py", line 41, in step\nValueError: bad batch\n'


def running(**metrics: Any) -> RunState:
    state = fold(begin("two-7f3a", ("a", "b"), (1, 2)), 0, "events.jsonl", BEGUN)
    for node in (0, 1):
        state = link(state, node, "seen")
    return fold(state, 0, "attempt-1/rank-0.metrics.jsonl", {"t": 2.0, **metrics})


def ended(state: str, **fields: Any) -> dict[str, Any]:
    return {"t": 9.0, "state": state, "code": 0 if state == "finished" else 1, "attempt": 1, **fields}


def test_conditions_are_read_in_their_order() -> None:
    found = conditions("end| step>=40 |loss < 2.5e-1|alarm")
    assert [(one.kind, one.bound) for one in found] == [("end", 0), ("step", 40), ("loss", 0.25), ("alarm", 0)]
    assert {one.kind for one in conditions("running|stall|alarm|step>=1|loss<1")} == set(CODES)


@pytest.mark.parametrize("text", ["", "ends", "step>40", "loss<", "step>=nan", "loss<1e", "end||stall", "step>=1;id"])
def test_invalid_condition_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a condition"):
        conditions(text)


def test_conditions_hold_by_the_state_of_the_run() -> None:
    def met(state: RunState) -> set[str]:
        kinds = ("end", "running", "stall", "alarm")
        return {one for one in kinds if Condition(one).holds(state)}

    state = running(step=40, loss=2.0)
    assert met(state) == {"running"}
    assert Condition("step", 40).holds(state) and not Condition("step", 41).holds(state)
    assert Condition("loss", 2.1).holds(state) and not Condition("loss", 2.0).holds(state)
    assert not Condition("loss", 9.0).holds(running(loss=math.nan))
    assert not Condition("step", 0).holds(running())
    stalled = fold(state, 0, "events.jsonl", {"t": 3.0, "e": "stall", "attempt": 1, "silent": {"1": 30.0}})
    assert met(stalled) == {"stall"}
    assert met(fold(stalled, 0, "events.jsonl", {"t": 4.0, "e": "stall", "attempt": 1, "over": True})) == {"running"}
    full = {"t": 3.0, "e": "alarm", "kind": "disk", "text": "the disk is full"}
    assert met(fold(state, 1, "events.jsonl", full)) == {"running", "alarm"}
    assert met(fold(state, 0, "exit.json", ended("finished"))) == {"end"}
    assert met(begin("two-7f3a", ("a", "b"), (1, 2))) == set()


def mirror(folder: Path, run: str = "two-7f3a", state: str = "failed", loss: float | str = 1.5) -> None:
    known = kept(folder, run)
    error = {
        "t": 8.0, "e": "error", "attempt": 1, "rank": 2, "at": 8.0, "type": "ValueError", "message": "bad batch",
        "traceback": TRACE,
    }  # fmt: skip
    metrics = lines({"t": 2.0, "step": 40, "steps": 300, "loss": 2.5}, {"t": 3.0, "step": 41, "loss": loss})
    files = {"events.jsonl": lines(BEGUN), "attempt-1/rank-0.metrics.jsonl": metrics}
    mirrored(known, 0, {**files, "exit.json": json.dumps(ended(state)), "attempt-1/rank-0.log": "zero\n"})
    log = "".join(f"line {number}\n" for number in range(9))
    second = {"events.jsonl": lines(BEGUN, *([error] if state == "failed" else []))}
    mirrored(known, 1, {**second, "exit.json": json.dumps(ended(state)), "attempt-1/rank-2.log": log})


def test_ended_run_is_answered_with_cause_and_evidence(tmp_path: Path) -> None:
    mirror(tmp_path)
    done = command(tmp_path, "wait", "two-7f3a")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "✗ two-7f3a failed after 0:08 at step 41: rank 2 on b raised ValueError",
        "  step 41 of 300, loss 1.5",
        "  cause: rank 2 on b raised ValueError: bad batch",
        "  at: train.py:41",
        "  log of rank 2 on b:",
        *(f"    line {number}" for number in (6, 7, 8)),
        "  next: disttui diagnose two-7f3a",
    ]
    one = json.loads(command(tmp_path, "wait", "two-7f3a", "--json").stdout)
    assert one["code"] == 1
    [run] = one["runs"]
    assert (run["met"], run["state"], run["step"], run["explain"]["evidence"]["place"]) == (
        "end",
        "failed",
        41,
        "train.py:41",
    )
    assert run["explain"]["evidence"]["lines"] == ["line 6", "line 7", "line 8"]


@pytest.mark.parametrize("loss", [1.5, "nan"])
@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_an_ended_run_closes_as_in_attach(tmp_path: Path, state: str, loss: float | str) -> None:
    """`wait` had a line of its own, without the remarks, and called them a cause."""
    mirror(tmp_path, state=state, loss=loss)
    attached = command(tmp_path, "attach", "two-7f3a")
    closing = attached.stderr[attached.stderr.index(" two-7f3a ") - 1 :].partition("\nlogs: ")[0]
    waited = command(tmp_path, "wait", "two-7f3a").stdout
    assert waited.startswith(f"{closing}\n  step 41 of 300, loss {loss}\n")
    assert ("! the loss is nan" in waited) == (state == "finished" and loss == "nan")
    assert ("cause: " in waited) == (state == "failed")


@pytest.mark.parametrize(
    ("until", "state", "code"),
    [
        ("end", "finished", 0), ("end", "stopped", 130), ("step>=41", "finished", CODES["step"]),
        ("step>=42", "finished", 0), ("running|loss<2", "failed", CODES["loss"]), ("stall", "failed", 1),
    ],
)  # fmt: skip
def test_exit_code_says_which_condition_was_met(tmp_path: Path, until: str, state: str, code: int) -> None:
    mirror(tmp_path, state=state)
    assert command(tmp_path, "wait", "two-7f3a", "--until", until).returncode == code


def test_step_that_comes_after_the_end_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Following:
        mirror = tmp_path
        state = running(step=1)

        def __iter__(self) -> Iterator[Update]:
            yield CaughtUp()
            for node in (0, 1):
                self.state = fold(self.state, node, "exit.json", ended("failed"))
            yield Refresh(0, 0.0)
            self.state = fold(self.state, 0, "attempt-1/rank-0.metrics.jsonl", {"t": 3.0, "step": 1000})
            for node in (0, 1):
                self.state = link(self.state, node, "ended")
            yield Refresh(0, 0.0)

    monkeypatch.setattr("disttui.runner.api.waiting.attach", lambda *_, **__: nullcontext(Following()))
    [found] = wait(Viewer({}), [kept(tmp_path)], "step>=1000")
    assert isinstance(found, Waited) and found.code == CODES["step"]


def test_state_at_the_timeout_does_not_wait_for_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with an unreachable host was "connecting", although the others had told its state."""
    over = threading.Event()

    class Following:
        mirror = tmp_path
        state = running(step=41)

        def __iter__(self) -> Iterator[Update]:
            yield CaughtUp()
            while not over.wait(0.01):
                yield Refresh(0, 0.0)

    @contextmanager
    def attach(*_: Any, **__: Any) -> Iterator[Following]:
        yield Following()
        over.wait()

    monkeypatch.setattr("disttui.runner.api.waiting.attach", attach)
    try:
        [found] = wait(Viewer({}), [kept(tmp_path)], timeout=0.1)
    finally:
        over.set()
    assert isinstance(found, Waited) and found.code == TIMED_OUT
    assert found.state.metrics["step"] == 41


def test_viewer_that_cannot_write_knows_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk, `wait` reported that the supervisors of a run had died."""

    class Following:
        mirror = tmp_path
        state = running(step=41)

        def __iter__(self) -> Iterator[Update]:
            yield CaughtUp()
            yield LinkNews(0, "failed", "rank-0.log: No space left on device")

    monkeypatch.setattr("disttui.runner.api.waiting.attach", lambda *_, **__: nullcontext(Following()))
    [found] = wait(Viewer({}), [kept(tmp_path)])
    assert isinstance(found, DisttuiError) and overall([found]) == 3
    assert "No space left" in str(found)


def test_several_runs_are_waited_for(tmp_path: Path) -> None:
    mirror(tmp_path)
    mirror(tmp_path, "two-8888", "finished")
    done = command(tmp_path, "wait", "two-7f3a", "two-8888", "--any")
    assert done.returncode in (0, 1) and "two-8888" in done.stdout
    both = command(tmp_path, "wait", "two-8888", "two-7f3a", "--json")
    assert both.returncode == 1 and [one["code"] for one in json.loads(both.stdout)["runs"]] == [0, 1]


def test_bad_options_are_named_before_any_run(tmp_path: Path) -> None:
    done = command(tmp_path, "wait", "nope", "--until", "sometime")
    assert done.returncode == 2 and "--until 'sometime': not a condition" in done.stderr
    done = command(tmp_path, "wait", "nope", "--timeout", "soon")
    assert done.returncode == 2 and "--timeout 'soon': not a duration" in done.stderr


def test_unreachable_run_is_an_error(tmp_path: Path) -> None:
    run = kept(tmp_path)
    hosts = tuple(replace(host, host="127.0.0.1", port=9) for host in run.hosts)
    [found] = wait(Viewer({}), [replace(run, hosts=hosts)])
    assert isinstance(found, DisttuiError) and overall([found]) == 3


def test_run_that_could_not_be_started_has_ended(tmp_path: Path) -> None:
    run = kept(tmp_path, problem="port 29500 is in use")
    [found] = wait(Viewer({}), [run])
    assert isinstance(found, Waited) and found.code == 3
    assert "cause: port 29500 is in use" in waited_text([(run, found)])


def test_a_stall_is_as_old_as_the_host_says_last(tmp_path: Path) -> None:
    stall = {"t": 33.0, "e": "stall", "attempt": 1, "silent": {"0": 31.0}, "steps": True}
    state = fold(running(step=1), 0, "events.jsonl", stall)
    words = "cause: no rank has made a step for {}"
    assert words.format("0:31") in waited_text([(kept(tmp_path), Waited(kept(tmp_path), state, "stall", 0))])
    state = fold(state, 0, "telemetry.jsonl", {"t": 187.0, "cpu": 1.0, "ranks": {}})
    assert words.format("3:05") in waited_text([(kept(tmp_path), Waited(kept(tmp_path), state, "stall", 0))])


def test_answer_has_at_most_two_kilobytes(tmp_path: Path) -> None:
    run = kept(tmp_path)
    state = fold(
        running(step=1, loss=1.0), 1, "events.jsonl", {"t": 3.0, "e": "alarm", "kind": "disk", "text": "ü" * 999}
    )
    one = Waited(run, state, "", TIMED_OUT, Evidence(0, "a", "x.py:1", ("日" * 999,) * 3))
    for count in (1, 2, 9, 60):
        found = [(run, one)] * count
        assert len(waited_text(found).encode()) < MOST
        assert waited_text(found).count("● two-7f3a running, step 1") >= min(count, 40)
    for count in (1, 2, 5):
        assert len(json.dumps(waited_data([(run, one)] * count, TIMED_OUT), indent=2)) < MOST


def test_the_most_urgent_code_wins(tmp_path: Path) -> None:
    run = kept(tmp_path)

    def of(*codes: int) -> list[Any]:
        return [Waited(run, run.begin(), "end" if code != TIMED_OUT else "", code) for code in codes]

    assert overall(of(0, 1, 130)) == 1
    assert overall(of(0, TIMED_OUT)) == TIMED_OUT
    assert overall(of(0, CODES["step"])) in (0, CODES["step"])
    assert overall(of(TIMED_OUT, 0), first=True) == 0
