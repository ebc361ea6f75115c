"""A viewer whose run or mirror is taken away, through a real link to this machine."""

from __future__ import annotations

import io
import json
import os
import pty
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import pytest

from disttui.runner.api.following import attach
from disttui.runner.api.log_lines import LineFilter, LogLines, _Reading, logs
from disttui.runner.api.viewer import Viewer
from disttui.runner.cli.render.live import TextPrinter
from disttui.runner.cli.render.printer import show_update
from disttui.runner.errors import HostError
from disttui.runner.hosts.link import Link
from disttui.runner.node import procs
from disttui.runner.runs.condition import run_word
from disttui.runner.runs.follow import LinkNews, LogRead, Notice
from disttui.runner.runs.following import TICK, CaughtUp, Following, Refresh, RunControl, StopSent
from disttui.runner.runs.registry import KnownHost, KnownRun
from disttui.runner.runs.state import begin
from disttui.runner.runs.store import HostStore
from disttui.runner.transport.local import LocalConnection
from tests.files import new_file, new_folder
from tests.kept import has_been_reached
from tests.unit.state_kit import fold
from tests.unit.waiting import wait_for


def _link(node: int = 0) -> Link:
    return Link(LocalConnection("local"), "local", sys.executable)


def _run(folder: Path, count: int) -> KnownRun:
    hosts = tuple(KnownHost(f"node{number}", f"node{number}") for number in range(1, count + 1))
    return KnownRun("r-1", folder / "mirror", hosts, {}, str(folder / "runs"), 1.0, "me")


def _followed(session: Following, printer: TextPrinter) -> int:
    for update in session:
        show_update(printer, session.state, update)
    return session.exit_code


@pytest.mark.parametrize("delay", [0.0, 1.5])
def test_a_removed_run_folder_ends_the_viewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay: float) -> None:
    monkeypatch.setenv("HOME", str(has_been_reached(tmp_path)))
    folder = new_folder(tmp_path / "runs" / "r-1" / "0")
    (folder / "spec.json").write_text("{}")
    err = io.StringIO()
    printer = TextPrinter(io.StringIO(), err, ("node1",), 1, colour=False)
    session = Following(_run(tmp_path, 1), tmp_path / "mirror", _link, [_link()])
    removal = Timer(delay, shutil.rmtree, [folder])
    removal.start()
    assert _followed(session, printer) == 1
    removal.join()
    assert "node1: its run folder was removed" in err.getvalue()


def test_stop_without_a_link_is_sent_over_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(has_been_reached(tmp_path)))
    folder = tmp_path / "runs" / "r-1" / "0"
    for each in (folder.parent.parent, folder.parent, folder):
        each.mkdir(0o700)
    (folder / "spec.json").write_text("{}")
    (folder / "supervisor.json").write_text(json.dumps(procs.identity(os.getpid())))
    asked, links, control = Event(), list[Link](), RunControl()
    control.stops = 1

    def reopen(node: int) -> Link:
        assert asked.wait(60)
        links.append(_link())
        return links[-1]

    session = Following(_run(tmp_path, 1), tmp_path / "mirror", reopen, control=control)
    said, received, deadline = list[StopSent](), 0, time.monotonic() + 60
    for update in session:
        assert time.monotonic() < deadline, (said, received)
        if isinstance(update, StopSent):
            said.append(update)
            asked.set()
        if (folder / "stop").exists():
            (folder / "stop").unlink()
            received += 1
            control.leave = received == 2
            links[-1].close()  # it may have been lost: by the next link it is sent again
    assert said == [StopSent(now=False, reached=False)] and received == 2


def test_a_removed_mirror_is_reported_once_with_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(has_been_reached(tmp_path)))
    logs = []
    for node in range(2):
        folder = tmp_path / "runs" / "r-1" / str(node)
        (folder / "attempt-1").mkdir(parents=True)
        (folder / "spec.json").write_text("{}")
        logs += [folder / "attempt-1" / f"rank-{2 * node + local}.log" for local in range(2)]
    for log in logs:
        log.write_text("first\n")
    out, err = io.StringIO(), io.StringIO()
    printer = TextPrinter(out, err, ("node1", "node2"), 4, colour=False)
    session = Following(_run(tmp_path, 2), tmp_path / "mirror", _link, [_link(0), _link(1)])

    def take_away() -> None:
        wait_for(lambda: out.getvalue().count("first") == 4, "the first lines")
        shutil.rmtree(tmp_path / "mirror")
        for log in logs:
            # A new generation: it is opened anew.
            log.unlink()
            log.write_text("second\n" * 2)

    taking = Thread(target=take_away)
    taking.start()
    assert _followed(session, printer) == 1
    assert run_word(session.state) == "not seen", "its screen went on to show a running run"
    taking.join()
    printer.end(session.state, tmp_path / "mirror")
    said = err.getvalue()
    assert said.count("were removed") == 1 and "Free space" not in said, said
    assert "this viewer cannot continue; the run continues" in said
    assert said.count("disttui attach r-1") == 1 and said.count("disttui stop r-1") == 1


def test_attach_to_a_start_that_failed_says_so(tmp_path: Path) -> None:
    """Its hosts may be the reason, and are not waited for."""
    run = replace(_run(tmp_path, 2), problem="node2: cannot be reached")
    run.save()
    err = io.StringIO()
    printer = TextPrinter(io.StringIO(), err, ("node1", "node2"), 2, colour=False)
    with Viewer({}) as viewer, attach(viewer, run) as session:
        assert _followed(session, printer) == 3
        printer.end(session.state, session.mirror)
    assert "could not be started: node2: cannot be reached" in err.getvalue()


def test_unreachable_host_is_reported_once_per_reason(tmp_path: Path) -> None:
    err = io.StringIO()
    names = ("node1", "node2")
    printer = TextPrinter(io.StringIO(), err, names, 2, colour=False)
    known = KnownRun("r-1", tmp_path, tuple(KnownHost(name, name) for name in names), {}, "~", 1.0, "me")
    reading = _Reading(known, list(names), LineFilter(), colours=False)
    state = begin("r-1", names, (1, 1))
    notices: list[Any] = []
    for note in ("", "", "node2: no answer", "node2: no answer", "refused"):
        printer.link(state, 1, "not seen", note)
        notices += reading._take(state, LinkNews(1, "not seen", note))
    assert err.getvalue().count("trying again") == len(notices) == 3, (err.getvalue(), notices)
    assert err.getvalue().count("(no answer); the run may still be going") == 1
    err.truncate(err.seek(0))
    printer.link(state, 1, "seen", "")
    printer.link(fold(state, 0, "exit.json", {"state": "failed", "code": 1}), 1, "not seen", "")
    assert "unreachable since" in err.getvalue() and "may still be going" not in err.getvalue()


def test_logs_that_are_followed_show_every_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(has_been_reached(tmp_path)))
    folder = new_folder(tmp_path / "runs" / "r-1" / "0" / "attempt-1")
    (folder.parent / "spec.json").write_text("{}")
    log = new_file(folder / "rank-0.log", "first\n")
    here = KnownHost("here", "local", python=sys.executable)
    run = KnownRun("r-1", tmp_path / "mirror", (here,), {}, str(tmp_path / "runs"), 1.0, "me")
    run.save()
    control, lines = RunControl(), list[str]()
    with Viewer({}) as viewer:
        for item in logs(viewer, run, follow=True, control=control):
            if isinstance(item, CaughtUp):
                with log.open("a") as file:
                    file.write("second\n")
            elif isinstance(item, LogLines):
                lines += item.lines
                control.leave = "second" in lines
    assert lines == ["first", "second"]


_LINE = b"x" * 99 + b"\n"
_FLOOD = 40_000 * _LINE + b"the last line\n"


def _flooded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownRun:
    """A run that is still running, with a log that a slow viewer needs long for."""
    monkeypatch.setenv("HOME", str(has_been_reached(tmp_path)))
    folder = tmp_path / "runs" / "r-1" / "0"
    for each in (folder.parent.parent, folder.parent, folder, folder / "attempt-1"):
        each.mkdir(0o700)
    (folder / "spec.json").write_text("{}")
    (folder / "supervisor.json").write_text(json.dumps(procs.identity(os.getpid())))
    (folder / "attempt-1" / "rank-0.log").write_bytes(_FLOOD)
    here = KnownHost("here", "local", python=sys.executable)
    return KnownRun("r-1", tmp_path / "mirror", (here,), {}, str(tmp_path / "runs"), 1.0, "me")


def _session(run: KnownRun, control: RunControl) -> Following:
    return Following(run, run.folder, _link, [_link()], control=control)


def _wait_for_mirror(run: KnownRun, *names: str) -> None:
    """Until all of the flood has come, and these files."""
    log = run.folder / "0/attempt-1/rank-0.log"
    wait_for(lambda: log.exists() and log.stat().st_size == len(_FLOOD), "the log")
    wait_for(lambda: all((run.folder / "0" / name).exists() for name in names), ", ".join(names))


class SlowHand:
    """The clock of a viewer, which moves while its terminal writes."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        self.now += 1e-5
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SlowHand:
    clock = SlowHand()
    monkeypatch.setattr("disttui.runner.runs.following.time", clock)
    return clock


def test_slow_viewer_sees_the_end_early_and_its_log_backlog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: SlowHand
) -> None:
    run, shown, known, lags = _flooded(tmp_path, monkeypatch), bytearray(), 0, list[Refresh]()
    session = _session(run, RunControl())
    for update in session:
        if isinstance(update, LogRead):
            if not shown:
                (tmp_path / "runs/r-1/0/exit.json").write_text('{"state": "finished", "code": 0, "t": 2.0}')
                _wait_for_mirror(run, "exit.json")
            shown += update.data
            clock.now += 0.02
        elif isinstance(update, Refresh) and session.state.result is not None and not known:
            known = len(shown)
        elif isinstance(update, Refresh) and update.pending:
            lags.append(update)
    assert bytes(shown) == _FLOOD, "every byte is shown in the end"
    assert 0 < known < len(_FLOOD) / 2, "the end did not wait for the log"
    assert max(lag.pending for lag in lags) > len(_FLOOD) / 2
    assert sorted(lag.behind for lag in lags) == [lag.behind for lag in lags] and lags[-1].behind > 0.5


def test_viewer_that_stalls_at_the_start_of_a_log_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: SlowHand
) -> None:
    run, shown = _flooded(tmp_path, monkeypatch), bytearray()
    (tmp_path / "runs/r-1/0/exit.json").write_text('{"state": "finished", "code": 0, "t": 2.0}')
    for update in _session(run, RunControl()):
        if isinstance(update, LogRead):
            shown += update.data
        # First until there is more than the news of the log, then longer than its pieces are read for.
        if not shown:
            _wait_for_mirror(run)
        elif isinstance(update, LogRead) and update.restart:
            clock.now += 2 * TICK
    assert bytes(shown) == _FLOOD


def test_ctrl_c_after_the_end_skips_what_logs_prints_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: SlowHand
) -> None:
    run, control, shown, said = _flooded(tmp_path, monkeypatch), RunControl(), bytearray(), list[str]()
    (tmp_path / "runs/r-1/0/exit.json").write_text('{"state": "finished", "code": 0, "t": 2.0}')
    session = _session(run, control)
    for update in session:
        assert not isinstance(update, StopSent), "there is nothing to stop"
        if isinstance(update, LogRead):
            if not shown:
                _wait_for_mirror(run, "exit.json")
            shown += update.data
            clock.now += 0.05
            control.stops = int(session.state.result is not None)
        elif isinstance(update, Notice):
            said.append(update.text)
    assert session.exit_code == 0
    assert len(shown) < len(_FLOOD) / 2
    assert len(said) == 1 and "print them: disttui logs r-1" in said[0]
    skipped = float(said[0].partition("MB")[0].removeprefix("skipped "))
    assert len(_FLOOD) / 2 < skipped * 1e6 < 1.05 * len(_FLOOD), "nothing is counted twice"
    with Viewer({}) as viewer:
        lines = [line for item in logs(viewer, run) if isinstance(item, LogLines) for line in item.lines]
    assert "".join(f"{line}\n" for line in lines).encode() == _FLOOD


def test_one_ctrl_c_stops_the_run_and_skips_none_of_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: SlowHand
) -> None:
    run, control, shown = _flooded(tmp_path, monkeypatch), RunControl(), bytearray()
    session = _session(run, control)
    for update in session:
        if isinstance(update, StopSent):
            (tmp_path / "runs/r-1/0/exit.json").write_text('{"state": "stopped", "code": 130, "t": 2.0}')
        elif isinstance(update, LogRead):
            shown += update.data
            control.stops = 1
        assert not isinstance(update, Notice), update
    assert session.state.result is not None and bytes(shown) == _FLOOD


def test_skipping_leaves_out_what_the_host_has_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, control, shown = _flooded(tmp_path, monkeypatch), RunControl(), bytearray()
    monkeypatch.setattr(HostStore, "write", _slowly(HostStore.write))
    session = _session(run, control)
    for update in session:
        if isinstance(update, LogRead):
            shown += update.data
        elif isinstance(update, Refresh) and update.pending > len(_FLOOD) / 2:
            control.skips = 1
        control.leave = shown.endswith(b"the last line\n")
    assert control.skips == 1 and len(shown) < len(_FLOOD) / 2
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(tmp_path))
    with Viewer({}) as viewer:
        lines = [line for item in logs(viewer, run) if isinstance(item, LogLines) for line in item.lines]
    assert "".join(f"{line}\n" for line in lines).encode() == _FLOOD


def _slowly(write: Any) -> Any:
    def slow(*arguments: Any) -> Any:
        time.sleep(0.05)  # a slow link
        return write(*arguments)

    return slow


def test_host_of_a_gone_sandbox_is_never_looked_up_by_name(tmp_path: Path) -> None:
    """The user's own configuration may know a host of that name."""
    config_left = new_file(tmp_path / "config", "")
    for config in (None, str(tmp_path / "gone"), str(config_left)):
        played = (KnownHost("here", "local"),)
        run = KnownRun("r-1", tmp_path, played, {}, "~", 1.0, "me", ssh_config=config, sandbox=True)
        with Viewer({}) as viewer, pytest.raises(HostError, match="ends with its command"):
            viewer.link_to(run, 0)


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_a_dumb_terminal_gets_no_codes(term: str) -> None:
    """As in the shell of an editor: no colours, no line that is redrawn."""
    code = (
        "import pathlib, sys, time\nfrom disttui.runner.runs.state import begin\n"
        "from disttui.runner.cli.render.live import TextPrinter\n"
        "printer = TextPrinter(sys.stdout, sys.stderr, ('node1',), 1, colour=True)\n"
        "printer.log('node1', 'attempt-1/rank-0.log', b'line\\n', restart=False)\n"
        "state = begin('r-1', ('node1',), (1,))\nprinter.refresh(state)\nprinter.end(state, pathlib.Path('logs'))\n"
    )
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], env={**os.environ, "TERM": term},
        stdout=theirs, stderr=theirs, timeout=60, check=False,
    )  # fmt: skip
    os.close(theirs)
    shown = os.read(ours, 10_000)
    os.close(ours)
    assert done.returncode == 0 and b"detached" in shown
    assert (b"\x1b" in shown) == (term != "dumb"), shown
