"""The status line and the closing story, from folded states."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.cli.render.live import TextPrinter
from disttui.runner.formatting import amount, code_words, count, duration, gibibytes, when
from disttui.runner.protocol.events import Death, Error, Stall
from disttui.runner.protocol.slurm import Queued
from disttui.runner.render.status import eta, host_words, progress, status_line
from disttui.runner.render.story import describe, ending
from disttui.runner.render.waiting import stage, waits_for
from disttui.runner.runs.condition import run_word
from disttui.runner.runs.contents import EventLine, read_content
from disttui.runner.runs.state import RunState, begin, link, queue_up
from disttui.tui.run.events import Moment, add, moment
from tests.unit.state_kit import fold


def training(nodes: int = 2) -> RunState:
    names = tuple(f"node{n + 1}" for n in range(nodes))
    state = begin("demo-1a2b", names, (1,) * nodes)
    for node in range(nodes):
        state = link(state, node, "seen")
        word = {"t": 100.0, "e": "attempt", "attempt": 1, "master": "10.0.0.1", "port": 29501, "world_size": nodes}
        state = fold(state, node, "events.jsonl", word)
        for step in (10, 20):
            values = {"t": 100.0 + step, "step": step, "steps": 100, "loss": 5 - step / 10, "tokens_per_s": 41_200}
            state = fold(state, node, f"attempt-1/rank-{node}.metrics.jsonl", values)
    return state


def finish(state: RunState, record: dict[str, Any]) -> RunState:
    for host in state.hosts:
        state = fold(state, host.node, "exit.json", record)
    return state


def test_progress_and_eta() -> None:
    assert progress(training()) == (20, 100)
    assert eta(training()) == 80.0


def paced(*marks: tuple[float, int]) -> RunState:
    """A run of one rank whose bar has shown these steps of 100,000 at these times."""
    state = begin("demo-1a2b", ("node1",), (1,))
    word = {"t": 0.0, "e": "attempt", "attempt": 1, "master": "10.0.0.1", "port": 29501, "world_size": 1}
    state = fold(state, 0, "events.jsonl", word)
    for t, step in marks:
        values = {"t": t, "step": step, "steps": 100_000}
        state = fold(state, 0, "attempt-1/rank-0.metrics.jsonl", values)
    return state


def test_an_attempt_that_is_being_ended_has_no_eta() -> None:
    state = fold(training(), 1, "events.jsonl", {"t": 121.0, "e": "stopping", "attempt": 1, "why": "failure"})
    line = status_line(state, 33, 200)
    assert "eta" not in line
    assert "step 20/100  loss 3 (rank 0)  41.2k tok/s  0:33  node1 ● running  node2 ▲ stopping" in line


def test_a_run_that_no_longer_steps_has_no_eta() -> None:
    state = paced((0, 0), (10, 100), (20, 200))
    for t, left in ((22.0, True), (60.0, False)):
        state = fold(state, 0, "telemetry.jsonl", {"t": t})
        assert (eta(state) is not None) is left


def test_the_steps_before_a_checkpoint_do_not_shorten_the_eta() -> None:
    """Trainer's bar goes from 0 to the first step after the checkpoint; other loops pass over steps one by one."""
    assert eta(paced((0, 0), (10, 50_000))) is None
    assert eta(paced((0, 0), (10, 50_000), (20, 50_010))) == 49_990
    passed = [(float(t), 1000 * t) for t in range(1, 51)]
    trained = [(float(t), 50_000 + t - 50) for t in range(51, 240)]
    assert eta(paced(*passed, *trained)) == 100_000 - trained[-1][1]


def test_the_eta_counts_the_pauses_of_the_later_part() -> None:
    """After every 10 steps of a second each comes a validation of 10 s."""
    marks = [(float(t), t // 20 * 10 + min(t % 20, 10)) for t in range(1, 2001)]
    left = eta(paced(*marks))
    assert left is not None
    assert abs(left - 2 * (100_000 - 1000)) < 2000


def test_status_line_fits_and_says_what_matters() -> None:
    line = status_line(training(), 33, 200)
    for word in ("20 %", "step 20/100", "loss 3", "41.2k tok/s", "eta 1:20", "node1 ● running", "node2 ● running"):
        assert word in line


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (
            112,
            "━━━╸────────────  20 %  step 20/100  loss 3 (rank 0)  41.2k tok/s  eta 1:20  node1 ● running"
            "  node2 ● running",
        ),
        (109, "━╸──────  20 %  step 20/100  loss 3 (rank 0)  41.2k tok/s  eta 1:20  node1 ● running  node2 ● running"),
        (89, "━━━╸────────────  20 %  step 20/100  loss 3 (rank 0)  41.2k tok/s  eta 1:20  ● 2 running"),
        (81, "━╸──────  20 %  step 20/100  loss 3 (rank 0)  41.2k tok/s  eta 1:20  ● 2 running"),
        (70, "step 20/100  loss 3  41.2k tok/s  eta 1:20  ● 2 running"),
        (50, "step 20/100  loss 3  eta 1:20  ● 2 running"),
        (40, "step 20/100  eta 1:20  ● 2 running"),
    ],
)
def test_a_narrow_status_line_leaves_out_what_matters_least(columns: int, line: str) -> None:
    assert status_line(training(), 33, columns) == line
    assert len(line) < columns
    odd = status_line(link(training(), 1, "not seen"), 33, 70)
    assert odd == "step 20/100  loss 3  eta 1:20  ● 1 running  ◇ 1 not seen (node2)"


def test_a_status_line_that_cannot_fit_says_that_it_is_cut() -> None:
    assert status_line(training(), 33, 20).endswith("…") and len(status_line(training(), 33, 20)) == 19
    assert status_line(training(), 33, 0) == ""


def test_many_hosts_are_counted() -> None:
    state = link(training(6), 4, "not seen")
    assert host_words(state) == "● 5 running  ◇ 1 not seen (node5)"


def test_silent_ranks_count_as_running_after_some_seconds() -> None:
    state = link(begin("r", ("a",), (2,)), 0, "seen")
    for rank in (0, 1):
        assert host_words(state).endswith(("joining", "starting ranks"))
        seen = {"t": 10.0 + rank, "e": "rank", "attempt": 1, "rank": rank, "pid": 9}
        state = fold(state, 0, "events.jsonl", seen)
    assert host_words(fold(state, 0, "telemetry.jsonl", {"t": 15.5})) == "a ◌ loading"
    assert host_words(fold(state, 0, "telemetry.jsonl", {"t": 16.5})) == "a ● running"


@pytest.mark.parametrize("begins", ["queued: ", "in line: "])  # the second: of earlier versions
def test_a_run_is_queued_until_its_first_attempt(begins: str) -> None:
    state = begin("r", ("a", "b"), (1, 1))
    assert (run_word(state), stage(state)) == ("connecting", "connecting to the hosts"), "it may run for days"
    for node in (0, 1):
        state = link(state, node, "seen")
    assert (run_word(state), stage(state)) == ("joining", "reading past events"), "it may run for days"
    up = {"t": 0.5, "e": "note", "level": "info", "text": "the supervisor is up"}
    assert stage(fold(state, 0, "events.jsonl", up)) == "waiting for the hosts to join"
    note = {"t": 1.0, "e": "note", "level": "info", "text": f"{begins}a: bob's x holds GPU 0"}
    waiting = fold(state, 0, "events.jsonl", note)
    assert (run_word(waiting), host_words(waiting)) == ("queued", "a ◌ queued  b ◌ queued")
    assert waits_for(waiting) == "queued: a: bob's x holds GPU 0"
    begun = {"t": 2.0, "e": "attempt", "attempt": 1, "master": "127.0.0.1", "port": 1, "world_size": 2}
    assert run_word(fold(waiting, 0, "events.jsonl", begun)) == "starting"
    job: Queued = {"job": "12", "state": "PENDING", "reason": "Resources", "start": "", "nodes": []}
    assert run_word(queue_up(state, job)) == "queued"


def test_before_anything_is_known() -> None:
    line = status_line(begin("r", ("a", "b"), (1, 1)), 3, 100)
    assert line == "0:03  a ◌ connecting  b ◌ connecting"


def test_ended_run_without_a_step_shows_step_unknown() -> None:
    state = begin("r", ("a",), (1,))
    assert stage(finish(state, {"state": "finished", "code": 0})) == "step unknown"
    assert stage(finish(paced((1.0, 1200)), {"state": "finished", "code": 0})) == "step 1,200"


def test_a_hostile_host_cannot_steer_the_status_line() -> None:
    state = fold(training(), 0, "attempt-1/rank-0.metrics.jsonl", {"t": 1.0, "step": "\x1b[2J\nx", "loss": "\x07"})
    assert "\x1b" not in status_line(state, 1, 200)
    assert "\n" not in status_line(state, 1, 200)


def test_the_story_of_success() -> None:
    lines = ending(finish(training(), {"state": "finished", "code": 0}), 65, Path("logs"), {})
    assert lines == ["✓ demo-1a2b finished in 1:05: 2 ranks on 2 hosts  loss 4 → 3 (rank 0)  41.2k tok/s", "logs: logs"]


def test_a_single_loss_is_not_shown_as_a_change() -> None:
    state = fold(paced((1.0, 9)), 0, "attempt-1/rank-0.metrics.jsonl", {"t": 2.0, "loss": 4.42})
    assert ending(finish(state, {"state": "finished", "code": 0}), 5, Path("logs"), {})[0].endswith("  loss 4.42")


def test_the_story_of_a_failure_ends_with_the_true_exception() -> None:
    state = training()
    trace = 'Traceback (most recent call last):\n  File "t.py", line 3, in main\nValueError: boom \x1b[31m'
    error = {"t": 130.0, "e": "error", "attempt": 1, "rank": 1, "type": "ValueError", "message": "boom"}
    state = fold(state, 1, "events.jsonl", {**error, "traceback": trace})
    peer = {**error, "rank": 0, "type": "RuntimeError", "message": "Connection closed by peer"}
    state = fold(state, 0, "events.jsonl", {**peer, "traceback": "RuntimeError: Connection closed by peer"})
    cause = {"node": 1, "rank": 1, "kind": "exception", "type": "ValueError", "message": "boom"}
    state = finish(state, {"state": "failed", "code": 1, "cause": cause})
    lines = ending(state, 30, Path("logs"), {})
    assert lines[0] == "✗ demo-1a2b failed after 0:30 at step 20: rank 1 on node2 raised ValueError"
    assert lines[1] == "  stopped because of it: rank 0 on node1"
    assert lines[-1] == "│ ValueError: boom "
    assert "\x1b" not in "\n".join(lines)


def three(*events: tuple[int, dict[str, Any]]) -> RunState:
    """A run of two ranks on node1 and one on node2, which have failed as given."""
    state = begin("demo-1a2b", ("node1", "node2"), (2, 1))
    for node, rank in ((0, 0), (0, 1), (1, 2)):
        state = fold(state, node, "events.jsonl", {"t": 1.0, "e": "rank", "attempt": 1, "rank": rank, "pid": 9})
    for node, event in events:
        state = fold(state, node, "events.jsonl", {"t": 5.0, "at": 5.0, "attempt": 1, **event})
    return finish(state, {"state": "failed", "code": 1, "attempt": 1, "cause": None})


def boom(rank: int, message: str = "boom", at: float = 5.0) -> dict[str, Any]:
    return {"e": "error", "rank": rank, "type": "ValueError", "message": message, "traceback": "", "at": at}


def test_every_rank_is_reported_once_and_truly() -> None:
    lines = ending(three((0, boom(0)), (1, boom(2, at=5.1))), 3, Path("logs"), {})
    assert lines[1:3] == ["  the same error: rank 2 on node2", "  stopped because of it: rank 1 on node1"]
    lines = ending(three((0, boom(0)), (0, boom(1, "other", 5.2))), 3, Path("logs"), {})
    assert lines[1:3] == [
        "  failed as well: rank 1 on node1 raised ValueError",
        "  stopped because of it: rank 2 on node2",
    ]
    exited = {"e": "death", "rank": 2, "code": 3, "pid": 9}
    assert ending(three((1, exited)), 3, Path("logs"), {})[1] == "  stopped because of it: ranks 0, 1 on node1"
    state = three((1, exited))
    done = fold(state, 0, "attempt-1/ranks.jsonl", {"t": 4.0, "e": "exit", "rank": 0, "code": 0})
    assert ending(done, 3, Path("logs"), {})[1] == "  stopped because of it: rank 1 on node1"


def test_earlier_attempts_have_their_causes() -> None:
    state = training()
    lost = {"node": 1, "rank": None, "kind": "host lost", "message": "its supervisor has ended", "last": 99.0}
    for number, cause in ((1, {"node": 0, "rank": 0, "kind": "signal", "code": -6}), (2, lost)):
        state = fold(state, 0, "events.jsonl", {"t": 9.0, "e": "failed", "attempt": number, "cause": cause})
    word = {"t": 100.0, "e": "attempt", "attempt": 3, "master": "10.0.0.1", "port": 29501, "world_size": 2}
    state = fold(state, 0, "events.jsonl", word)
    lines = ending(finish(state, {"state": "finished", "code": 0, "attempt": 3}), 65, Path("logs"), {})
    assert lines[0].startswith("✓ demo-1a2b finished in 1:05: 2 ranks on 2 hosts, in attempt 3")
    assert lines[1].startswith("  attempt 1 failed: rank 0 on node1 ended with SIGABRT")
    words = f"  attempt 2 failed: host lost: node2, last heartbeat {when(99)} (its supervisor has ended)"
    assert lines[2:] == [words, "logs: logs"]
    gone = {"node": 0, "rank": None, "kind": "supervisor lost", "message": "killed by signal 9", "last": 90.0}
    lines = ending(finish(state, {"state": "failed", "code": 1, "attempt": 3, "cause": gone}), 65, Path("logs"), {})
    assert lines[0].endswith(f": supervisor lost: node1, last heartbeat {when(90)} (killed by signal 9)")
    last = {"node": 0, "rank": 1, "kind": "exit", "code": 3}
    lines = ending(finish(state, {"state": "failed", "code": 1, "attempt": 3, "cause": last}), 65, Path("logs"), {})
    assert "ended with exit code 3" in lines[0]
    assert lines[1].startswith("  attempt 1 failed: rank 0 on node1 ended with SIGABRT")


def test_the_timeline_says_how_ranks_ended() -> None:
    texts = {-15: "rank 1 ended with the attempt", -6: "rank 1 ended with SIGABRT ("}
    for code, text in texts.items():
        described = describe(training(), 0, Death(t=1.0, e="death", attempt=1, rank=1, code=code))
        assert described and described.text.startswith(text)


def test_long_message_in_the_timeline_ends_with_an_ellipsis() -> None:
    for length, last in ((300, "x"), (301, "…")):
        error = Error(t=1.0, e="error", attempt=1, rank=0, type="ImportError", message=f"{'x' * length}\nmore")
        described = describe(training(), 0, error)
        assert described and described.text.startswith("rank 0 raised ImportError: xxx")
        assert described.text.endswith(f"xx{last}")


def test_timeline_names_a_lone_rank_ended_with_its_attempt() -> None:
    state = training()
    moments: tuple[Moment, ...] = ()
    for rank, words in enumerate(("rank 0 ended with the attempt", "ranks ended with the attempt")):
        seen = moment(Death(t=1.0, e="death", attempt=1, rank=rank, code=-15), 0, 1.0, state)
        assert seen
        moments = add(moments, seen)
        assert (moments[-1].count, moments[-1].text) == (rank + 1, words)


def test_stall_is_described_as_no_progress_shown() -> None:
    """They may import modules from a slow disk, or work without a word."""
    state = training()
    stall = Stall(t=1.0, e="stall", attempt=1, since=0.0, silent={"0": 43.4, "1": 60.0}, stacks="stacks-1.json")
    shown = moment(stall, 0, 1.0, state)
    assert shown and shown.text == "no rank has shown progress for 43 s"


def test_live_view_and_timelines_have_one_text_for_an_event() -> None:
    state, err = training(), StringIO()
    printer = TextPrinter(StringIO(), err, ("node1", "node2"), 2, colour=False)
    for record in (
        {"e": "note", "text": "the disk is nearly full"}, {"e": "alarm", "kind": "disk", "text": "disk", "over": True},
        {"e": "host", "node": 1, "state": "lost"}, {"e": "failed", "attempt": 1, "cause": None},
        {"e": "straggler", "rank": 1, "median": 2.0, "others": 1.0}, {"e": "ungrouped", "attempt": 1},
    ):  # fmt: skip
        content = read_content("events.jsonl", {"t": 9.0, **record})
        assert isinstance(content, EventLine)
        printer.record(state, 0, content)
        shown, said = moment(content.event, 0, 9.0, state), err.getvalue().splitlines()[-1]
        assert shown and said.removeprefix("disttui: ").removeprefix("node1: ") == shown.text


def test_a_host_is_reported_as_not_seen_once_per_kind_of_reason() -> None:
    """Some reasons have a date, as that of a certificate that is checked anew at each try."""
    state, err = training(), StringIO()
    printer = TextPrinter(StringIO(), err, ("node1", "node2"), 2, colour=False)
    for reason in ("refused at 09:26:31", "refused at 09:26:33", "no route", "refused at 09:26:37", "no route"):
        printer.link(state, 1, "not seen", reason)
    assert err.getvalue().count("unreachable since") == 2
    printer.link(state, 1, "seen", "")
    printer.link(state, 1, "not seen", "no route")
    assert err.getvalue().count("unreachable since") == 3


def test_a_failed_attempt_is_reported_when_the_next_begins() -> None:
    err = StringIO()
    printer = TextPrinter(StringIO(), err, ("node1", "node2"), 2, colour=False)
    cause = {**boom(1), "node": 1, "kind": "exception"}
    record = {"t": 9.0, "e": "failed", "attempt": 1, "cause": cause}
    printer.record(fold(training(), 0, "events.jsonl", record), 0, read_content("events.jsonl", record))
    assert err.getvalue() == "disttui: attempt 1 failed: rank 1 on node2 raised ValueError: boom\n"


def stalled(*moved: int, entered: float | None = None) -> RunState:
    """Two ranks that stand still, or go on without a word (`moved`), as they were asked at time 150.

    Args:
        entered: When they entered their newest collective, and left it.
    """
    state = fold(training(), 0, "events.jsonl", {"t": 150.0, "e": "stall", "attempt": 1, "stacks": "stacks-1.json"})
    for rank in (0, 1):
        frames = [{"file": "data.py", "line": 3 + rank, "function": "load_batch"}]
        ranks: dict[str, dict[str, Any]] = {
            str(rank): {"threads": [{"main": True, "frames": frames}], "recorder": {}, "t": 150.0, "silent": 31.0}
        }
        if entered is not None:
            call = {"collective_seq_id": 7, "process_group": ["0", ""], "time_created_ns": int(entered * 1e9)}
            status = {"0": {"last_enqueued_collective": 7, "last_completed_collective": 7}}
            ranks[str(rank)]["recorder"] = {"gloo": {"pg_status": status, "entries": [call]}}
        ranks[str(rank)]["moved"] = rank in moved
        state = fold(state, rank, "stacks-1.json", {"t": 151.0, "attempt": 1, "ranks": ranks})
    return state


def test_why_a_run_stood_still_is_known_after_it_was_stopped() -> None:
    """What its ranks answered at the stall stays with the run: `show`, `diagnose` and a replay read it there."""
    lines = ending(finish(stalled(), {"state": "stopped", "code": 130, "attempt": 1}), 65, Path("logs"), {})
    assert lines[1:3] == [
        "  it stalled: rank 0 is in load_batch (data.py:3) for 31 s",
        "  it stalled: rank 1 is in load_batch (data.py:4) for 31 s",
    ]


def test_a_stall_is_as_long_as_it_lasted_up_to_the_end() -> None:
    state = fold(stalled(), 0, "events.jsonl", {"t": 180.0, "e": "stopping", "attempt": 1, "reason": "user"})
    lines = ending(finish(state, {"state": "stopped", "code": 130, "attempt": 1}), 65, Path("logs"), {})
    assert lines[1] == "  it stalled: rank 0 is in load_batch (data.py:3) for 61 s"


def test_a_rank_whose_child_computes_did_not_stand_still() -> None:
    state = stalled()
    child = {"pid": 7, "command": "python", "note": "running"}
    frames = [{"file": "data.py", "line": 3, "function": "load_batch"}]
    answer = {"threads": [{"main": True, "frames": frames}], "t": 150.0, "silent": 31.0, "children": [child]}
    state = fold(state, 0, "stacks-1.json", {"t": 151.0, "attempt": 1, "ranks": {"0": answer}})
    lines = ending(finish(state, {"state": "stopped", "code": 130, "attempt": 1}), 65, Path("logs"), {})
    assert "  when it stalled: rank 0's child process 7 (python): no stack, running" in lines


def test_ranks_that_continued_silently_are_not_called_stalled() -> None:
    """As in imports of half a minute, one of whose ranks was killed soon after."""
    for end in ("stopped", "failed"):
        lines = ending(finish(stalled(0, 1), {"state": end, "code": 1, "attempt": 1}), 65, Path("logs"), {})
        assert not any("it stalled" in line for line in lines)


def test_stall_lines_name_a_rank_that_keeps_working() -> None:
    lines = ending(finish(stalled(1), {"state": "stopped", "code": 130, "attempt": 1}), 65, Path("logs"), {})
    assert lines[1:3] == [
        "  when it stalled: rank 0 is in load_batch (data.py:3) for 31 s",
        "  when it stalled: rank 1 is in load_batch (data.py:4), and keeps working",
    ]


@pytest.mark.parametrize("entered", [125.0, 149.0])
def test_silent_training_is_not_reported_as_a_stall(entered: float) -> None:
    """A slow epoch, whose next line ends the stall; then a rank is killed."""
    over = {"t": 180.0, "e": "stall", "attempt": 1, "stacks": "stacks-1.json", "over": True}
    state = fold(stalled(entered=entered), 0, "events.jsonl", over)
    cause = {"node": 1, "rank": 1, "kind": "signal", "code": -9, "at": 190.0}
    lines = ending(finish(state, {"state": "failed", "code": 1, "cause": cause, "t": 190.0}), 65, Path("logs"), {})
    assert any("it stalled" in line and "when it" not in line for line in lines) is (entered < 140)


@pytest.mark.parametrize(
    ("end", "t", "seen"), [("failed", 230.0, True), ("failed", 1000.0, False), ("stopped", 230.0, False)]
)
def test_log_lines_of_a_watchdog_do_not_end_its_stall(end: str, t: float, seen: bool) -> None:
    """Its ranks log again, which looks like life, and then fail for having stood still."""
    over = {"t": 180.0, "e": "stall", "attempt": 1, "stacks": "stacks-1.json", "over": True}
    state = fold(stalled(), 0, "events.jsonl", over)
    cause = {"node": 0, "rank": 0, "kind": "signal", "code": -6, "at": 229.0}
    state = finish(state, {"state": end, "code": 1, "attempt": 1, "cause": cause, "t": t})
    lines = ending(state, 65, Path("logs"), {})
    words = "  before that it stalled: rank 0 is in load_batch (data.py:3) for 31 s"
    assert (words in lines) is seen
    assert any("it stalled" in line and "when it" not in line for line in lines) is seen


def test_the_story_of_a_signal() -> None:
    cause = {"node": 0, "rank": 0, "kind": "signal", "code": -9}
    lines = ending(finish(training(), {"state": "failed", "code": 1, "cause": cause}), 30, Path("logs"), {})
    assert "rank 0 on node1 ended with SIGKILL (killed, by the kernel's out-of-memory killer" in lines[0]
    assert code_words(3) == "exit code 3" and code_words(130) == "exit code 130"
    assert code_words(139) == "exit code 139, as shells report SIGSEGV (invalid memory access in native code)"
    assert code_words(-64) == "SIGRTMAX"
    assert code_words(None) == "an unknown exit code"


def test_run_whose_folder_was_removed_is_lost_with_that_reason() -> None:
    state = link(training(1), 0, "gone", "its run folder was removed")
    [line, _] = ending(state, 3, Path("logs"), {})
    assert line == "✗ demo-1a2b is lost: its run folder on node1 was removed; its ranks were ended with it"
    assert run_word(state) == "lost", "the dashboard called it running"


def test_a_host_whose_run_folder_is_gone_is_lost() -> None:
    state = link(training(), 1, "gone", "its run folder was removed")
    assert (run_word(state), host_words(state)) == ("running", "node1 ● running  node2 ✗ lost")


def test_run_with_only_ended_hosts_reachable_is_not_running() -> None:
    end = {"t": 130.0, "state": "lost", "code": 1, "cause": {"node": 0, "kind": "host lost"}, "attempt": 1, "left": []}
    state = fold(training(), 1, "exit.json", end)
    assert run_word(state) == "running", "its first host is seen, and has the last word"
    assert run_word(link(state, 0, "not seen", "no answer for 30 s")) == "not seen"


def test_report_of_a_killed_launcher_omits_its_earlier_output() -> None:
    cause = {"node": 1, "kind": "launch", "message": "torchrun was ended by SIGKILL", "code": -9}
    state = finish(training(), {"state": "failed", "code": 1, "cause": cause})
    lines = ending(state, 3, Path("logs"), {"node2": "UserWarning: Failed to initialize NumPy\n"})
    assert "torchrun on node2 was ended by SIGKILL (killed" in lines[0]
    assert lines[-1] == "logs: logs"


def test_a_failed_launch_shows_what_torchrun_said() -> None:
    cause = {"node": 1, "kind": "launch", "message": "torchrun ended with 1"}
    state = finish(training(), {"state": "failed", "code": 1, "cause": cause})
    lines = ending(state, 3, Path("logs"), {"node2": "usage: …\nerror: unrecognised\n"})
    assert lines[-1] == "│ error: unrecognised"


def test_one_is_no_plural() -> None:
    (only,) = ending(finish(training(1), {"state": "finished", "code": 0}), 65, Path("logs"), {})[:1]
    assert "1 rank on 1 host" in only
    assert [amount(n, noun) for n, noun in ((1, "process"), (2, "process"), (0, "file"))] == [
        "1 process", "2 processes", "0 files",
    ]  # fmt: skip


def test_numbers() -> None:
    assert [duration(s) for s in (0, 37, 751, 3727, 273_100)] == ["0:00", "0:37", "12:31", "1:02:07", "3 d 03:51"]
    assert [count(v) for v in (0, 7.25, 940, 41_234, 1.3e6, 2e9)] == ["0", "7.2", "940", "41.2k", "1.3M", "2.0G"]
    assert [gibibytes(v) for v in (2**30 * 11.2, 2**20 * 640)] == ["11.2 GiB", "640 MiB"]
