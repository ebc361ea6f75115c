"""Runs that wait for what others have leased: who goes when, and what becomes of those that are killed."""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from runner.api import listing as api_listing
from runner.api import viewer as api_viewer
from runner.api.leasing import Moved, _moved, dropped, move
from runner.api.leasing import who as ask_who
from runner.cli.group import cli
from runner.errors import HostError, InputError
from runner.node import leases, procs
from runner.node.problem import Problem
from runner.node.serve import listing, runs
from runner.node.serve.leasing import list_leases
from runner.profile import parse
from runner.protocol.leases import LATEST, LinePlace
from runner.render.leases import moved_line
from runner.runs.registry import KnownHost, KnownRun, keep
from runner.runs.remote import Reached
from tests.unit.runs_kit import SLEEP, Cluster, Make, making, same
from tests.unit.waiting import wait_for
from tui.inventory import read_shelf

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")


@pytest.fixture
def cluster(leases_of_the_tests: Path, tmp_path: Path) -> Iterator[Make]:
    yield from making(tmp_path)
    for path in leases_of_the_tests.iterdir():
        path.unlink()


def queued(order: float, nodes: int = 1, priority: int = 0, code: Any = None) -> dict[str, Any]:
    turns = list(reversed(range(nodes)))
    return {"queue": {"priority": priority, "order": order, "turns": turns, "code": code}, "by": "alice@laptop"}


def in_line(run: Cluster) -> str:
    def look() -> str:
        return next((e["text"] for e in run.events(0, "note") if e["text"].startswith("in line: ")), "")

    return str(wait_for(look, "its place in the line"))


def test_a_queued_run_says_whom_it_waits_for_and_begins_within_two_seconds_of_that_runs_end(cluster: Make) -> None:
    """Two hosts; from the exit of the first to the attempt of the second."""
    first = cluster(SLEEP, gpus=[0, 1])
    first.start()
    first.wait_ranks()
    second = cluster(SLEEP, [1, 1], gpus=[1], **queued(100.0, 2))
    second.start()
    assert f"'s {first.run} holds GPUs 0, 1" in in_line(second)
    assert not second.path(0, "attempt-1").exists(), "nothing of it runs while it waits"
    first.stop()
    end = first.exit(0)["t"]
    began = second.wait_event(0, "attempt")["t"]
    assert began - end < 2.0
    second.wait_ranks()
    assert {one["state"] for one in leases.look().leases} == {"held"}
    second.stop(1)
    assert same(second)["state"] == "stopped"
    assert leases.look().leases == []


def test_a_killed_run_hands_over_too_and_a_killed_waiter_is_passed(cluster: Make) -> None:
    first, dead, later = (
        cluster(SLEEP, gpus=[0]),
        cluster(SLEEP, gpus=[0], **queued(1.0)),
        cluster(SLEEP, gpus=[0], **queued(2.0)),
    )
    for run in (first, dead, later):
        run.start()
    assert dead.run in in_line(later)
    for run in (dead, first):
        up = run.supervisor(0)
        for who in (up["warden"], up):
            os.kill(who["pid"], signal.SIGKILL)
    killed = time.time()
    assert later.wait_event(0, "attempt")["t"] - killed < 5.0


def rebooted(*died: Cluster) -> None:
    """What a host has after a power cut: these runs' files, of another boot, whose pids are those of new processes."""
    new = procs.identity(os.getpid())
    pid, start = f'"pid":{new["pid"]}', f'"start_time":{new["start_time"]}'
    for run in died:
        up = run.supervisor(0)
        for who in (up, up["warden"]):
            os.kill(who["pid"], signal.SIGKILL)
            wait_for(lambda: not procs.alive(who), "its death")  # noqa: B023 - called at once
        lease = next(path for path in leases_folder().iterdir() if run.run.encode() in path.read_bytes())
        for path in (run.path(0, "supervisor.json"), lease):
            text = re.sub(r'"pid": ?\d+', pid, path.read_text().replace(new["boot_id"], "0" * 36))
            path.write_text(re.sub(r'"start_time": ?\d+', start, text))


def leases_folder() -> Path:
    return Path(os.environ[leases.VARIABLE])


def test_after_a_reboot_no_gpu_is_leased_and_a_run_that_was_in_line_says_what_has_happened(
    cluster: Make, tmp_path: Path
) -> None:
    """Also where a stranger has locked the files that are left."""
    first, second, beside = (
        cluster(SLEEP, gpus=[0]),
        cluster(SLEEP, gpus=[0], **queued(1.0)),
        cluster(SLEEP, gpus=[1], **queued(2.0)),
    )
    for run in (first, second):
        run.start()
    in_line(second)
    rebooted(first, second)
    strangers = [path.open("rb") for path in leases_folder().iterdir()]
    try:
        for file in strangers:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert leases.look().leases == []
        again = cluster(SLEEP, gpus=[0])
        for run in (again, beside):
            run.start()
        beside.wait_event(0, "attempt")
        assert {(one["run"], one["state"]) for one in leases.look().leases} == {
            (again.run, "held"),
            (beside.run, "held"),
        }
    finally:
        for file in strangers:
            file.close()
    rows = {str(row["run"]): row for row in listing.list_runs(str(second.run_dir(0)), None)}
    assert (rows[second.run]["state"], rows[second.run]["dropped"]) == ("lost", "the host was started anew")
    assert not rows[first.run]["dropped"] and not rows[again.run]["dropped"]
    said = f"out of line: the host was started anew; queue it again: disttui rerun {second.run} --when-free"
    environ = {"XDG_DATA_HOME": str(tmp_path / "data")}
    text = "disttui: 1\nhosts: [{name: host0, host: local}]\njob: {script: x.py}\n"
    text += f"launch: {{run_dir: {second.run_dir(0)}}}"
    keep(parse(text, "mine.yaml"), [1], second.run, environ)
    shown = [CliRunner().invoke(cli, words, env=environ).output for words in (["queue", "host0"], ["ps"])]
    assert shown[0].splitlines()[-1] == f"{second.run}: {said}"
    assert shown[1].splitlines()[-1].endswith(f"({said})")
    assert [row.cause for row in read_shelf(environ, time.time()).runs] == [said], "the home screen"
    assert runs.status(second.folder(0))["exit"] == second.exit(0), "who attaches writes its end"
    (row,) = listing.list_runs(str(second.run_dir(0)), second.run)
    assert (row["state"], row["dropped"]) == ("failed", "the host was started anew")


def test_the_queue_of_a_host_waits_for_no_other_and_shows_no_run_of_another_host_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path)}

    def known(run: str, name: str, host: str) -> None:
        text = f"disttui: 1\nname: {name}\nhosts: [{{name: box1, host: {host}}}]\njob: {{script: x.py}}\n"
        keep(parse(text, "mine.yaml"), [1], run, environ)

    known("mine-0a", "mine", "local")
    known("other-0b", "other", "far")
    asked = []

    def answers(hosts: Any, wanted: Any, *_: object) -> Any:
        asked.extend(hosts)
        rows = [{"run": run, "node_rank": 0, "state": "lost", "dropped": "why"} for run in ("mine-0a", "other-0b")]
        return dict.fromkeys(wanted, rows), {}

    monkeypatch.setattr(api_listing, "_ask", answers)
    with api_viewer.Viewer(environ) as viewer:
        local = ask_who(viewer, ["local"], gpus=False).places
        assert [row["run"] for row in dropped(viewer, local)] == ["mine-0a"]
        known("mine-0c", "mine", "far")
        assert not dropped(viewer, local), "it was run again since then, elsewhere"
    assert set(asked) == {("local", None, None)}


class Viewer:
    """A viewer whose hosts are those of runs of `runs_kit`."""

    def __init__(self, run: Cluster) -> None:
        self.host = "host"
        self._run = run

    def reach(self, _: object) -> Reached:
        link: Any = self
        return Reached(dict.fromkeys(range(len(self._run.nproc)), link))

    def submit(self, op: str, node_rank: int, **request: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            if op == "leases":
                done.set_result(list_leases({"gpus": False}))
            else:
                done.set_result(runs.move(self._run.folder(node_rank), request["priority"], request["order"]))
        except Problem as problem:
            done.set_exception(HostError("host", problem.what))
        return done

    def close(self) -> None:
        pass


def moved(run: Cluster, **to: Any) -> Moved:
    viewer: Any = Viewer(run)
    hosts = tuple(KnownHost(f"host{node}", "local") for node in range(len(run.nproc)))
    return move(viewer, KnownRun(run.run, run.base, hosts, {}, "", 0.0, "me"), **to)


def test_a_run_that_is_moved_to_the_front_on_all_its_hosts_begins_before_those_that_came_before(cluster: Make) -> None:
    first, second = cluster(SLEEP, gpus=[0]), cluster(SLEEP, gpus=[0], **queued(1.0, priority=3))
    third = cluster(SLEEP, [1, 1], gpus=[0], **queued(2.0, 2))
    for run in (first, second, third):
        run.start()
    assert second.run in in_line(third)
    third.wait_event(0, "join", node=1)
    assert moved(third, to="first") == Moved(LinePlace(-3, 0.999, third.run), True, 0, 1)
    assert moved(second, to="last") == Moved(LinePlace(-3, 1.0, second.run), False, 1, 0), "it is already"

    def places() -> list[int]:
        return [one["priority"] for one in leases.look().leases if one["run"] == third.run]

    wait_for(lambda: places() == [3, 3], "its place on both hosts")
    first.stop()
    third.wait_event(0, "attempt")
    assert not second.events(0, "attempt")
    with pytest.raises(InputError, match="is not in line"):
        moved(third, to="last")
    assert moved(second, priority=-7) == Moved(LinePlace(7, 1.0, second.run), True, 0, 0)
    with pytest.raises(Problem, match="not in line on this host"):
        runs.move(first.folder(0), 0, 1.0)


def test_a_queued_run_whose_supervisor_left_no_word_or_that_was_stopped_was_ended_by_no_reboot(tmp_path: Path) -> None:
    folder = tmp_path / "mine-1" / "0"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({"run": "mine-1", "node_rank": 0, "queue": {"order": 1.0}}))
    for word in (None, "{", '{"pid": 1}'):
        if word is not None:
            (folder / "supervisor.json").write_text(word)
        (row,) = listing.list_runs(str(tmp_path), None)
        assert (row["state"], row["dropped"]) == ("lost", "its supervisor left no word")
    (folder / "stop").touch()
    (row,) = listing.list_runs(str(tmp_path), None)
    assert not row["dropped"]


def test_a_run_that_has_taken_its_first_host_is_in_line_and_a_supervisor_that_is_gone_is_said_at_once(
    leases_of_the_tests: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mine-1" / "0"
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700)
    (folder / "spec.json").write_text(json.dumps({"run": "mine-1", "node_rank": 0, "queue": {"order": 1.0}}))
    mine = leases.take(leases.new_text("mine-1", 0, [0], "", order=1.0))
    runs.move(str(folder), 0, 1.0)
    before = time.monotonic()
    with pytest.raises(Problem, match="its supervisor does not answer"):
        runs.move(str(folder), 3, 1.0)
    assert time.monotonic() - before < runs._UP / 2
    mine.release()
    with pytest.raises(Problem, match="not in line on this host"):
        runs.move(str(folder), 3, 1.0)


def test_a_queued_run_is_stopped_while_it_waits(cluster: Make) -> None:
    first, second = cluster(SLEEP, gpus=[0]), cluster(SLEEP, [1, 1], gpus=[0], **queued(1.0, 2))
    first.start()
    second.start()
    in_line(second)
    second.wait_event(0, "join", node=1)
    second.stop()
    assert same(second)["state"] == "stopped"
    assert [one["run"] for one in leases.look().leases] == [first.run]


def test_others_who_change_their_leases_all_the_time_neither_fill_the_disk_nor_take_the_processor(
    cluster: Make, leases_of_the_tests: Path
) -> None:
    first, second = cluster(SLEEP, gpus=[0]), cluster(SLEEP, gpus=[0, 1], **queued(1.0))
    first.start()
    second.start()
    in_line(second)
    text = leases.new_text("", 0, [1], "bob@desk")
    until, turn = time.monotonic() + 1.5, 0
    before = _seconds_used(second)
    while time.monotonic() < until:
        turn += 1
        other = leases_of_the_tests / f"{leases.PREFIX}{turn % 50:016x}"
        other.write_text(json.dumps({**text, "note": f"{turn}"}))
        time.sleep(0.001)
    used = _seconds_used(second) - before
    notes = [note for note in second.events(0, "note") if note["text"].startswith("in line: ")]
    assert len(notes) <= 5
    assert used < 0.4, f"{used} s of processor time in 1.5 s"
    second.stop()
    assert second.exit(0)["state"] == "stopped"


def _seconds_used(run: Cluster) -> float:
    fields = Path(f"/proc/{run.supervisor(0)['pid']}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_queued_runs_on_the_cpu_run_one_after_the_other_and_the_more_urgent_first(cluster: Make) -> None:
    first = cluster(SLEEP, **queued(1.0))
    first.start()
    first.wait_ranks()
    late, urgent = cluster("pass", **queued(2.0)), cluster("pass", **queued(3.0, priority=5))
    for run in (late, urgent):
        run.start()
        in_line(run)
    beside = cluster(SLEEP)
    beside.start()
    beside.wait_event(0, "attempt")
    beside.stop()
    beside.exit(0)
    first.job.write_text("")
    first.stop()
    ends = [run.exit(0) for run in (urgent, late)]
    assert [end["state"] for end in ends] == ["finished", "finished"]
    assert urgent.events(0, "verdict")[0]["t"] <= late.events(0, "attempt")[0]["t"]


def test_code_that_has_changed_since_it_was_queued_is_said_and_git_is_not_asked(
    cluster: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    old = {"script": "0" * 64, "folder": None, "git": None, "nccl_line": None}
    run = cluster(SLEEP, **queued(1.0, code=old))
    run.start()
    changed = f"the code in {tmp_path} has changed since this run was queued: it runs as it is now"
    run.wait_event(0, "note", text=changed)
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("to", "others", "said"),
    [
        ("first", (-100, 0.0), "box-000a is not first: 1 run before it cannot be passed: disttui queue"),
        ("first", (-100, 1.0), "box-000a is first now, with priority 100: disttui queue"),
        ("first", (0, 8.0), "box-000a is first already"),
        ("last", (100, math.nextafter(LATEST, 0)), "box-000a is not last: 1 run behind it cannot be passed: "),
        ("last", (100, LATEST - 0.0005), "box-000a is last now, with priority -100: disttui queue"),
        ("last", (0, 6.0), "box-000a is last already"),
    ],
)
def test_a_move_in_the_line_says_whether_the_run_has_its_place_now(
    to: Literal["first", "last"], others: tuple[int, float], said: str
) -> None:
    """Another user's run has the outermost priority and time that there are."""
    own, other = LinePlace(0, 7.0, "box-000a"), LinePlace(*others, "a" if to == "first" else "z")
    place = _moved(own, [other], to, None)
    done = Moved(place, place != own, int(other < place), int(other > place))
    assert moved_line(own.run, done, to).startswith(said) and 0 <= place.order < LATEST


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("move x --first --last", "queue move needs one new place for RUN"),
        ("move x --last --priority 3", "queue move needs one new place for RUN"),
        ("move x", "queue move needs one new place for RUN"),
        (
            "mvoe x",
            "queue: mvoe is no command\n  → disttui queue move; or, for a host of this name: disttui queue list",
        ),
        ("--json move x", "queue: move is a command, behind options\n  → disttui queue move; or"),
    ],
)
def test_a_command_of_the_queue_that_is_misspelled_names_no_host(words: str, said: str) -> None:
    result = CliRunner().invoke(cli, ["queue", *words.split()])
    assert isinstance(result.exception, InputError) and said in str(result.exception)


def test_behind_queue_a_shell_offers_its_commands_and_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def offered(incomplete: str, *before: str) -> list[str]:
        shell = ShellComplete(cli, {}, "disttui", "_COMPLETE")
        return [str(one.value) for one in shell.get_completions(["queue", *before], incomplete)]

    assert {"list", "move", "local"} <= set(offered(""))
    assert (offered("mo"), offered("loc")) == (["move"], ["local"])
    assert "local" in offered("", "list") and "move" not in offered("", "list")
    assert "local" in offered("", "box1") and "move" not in offered("", "box1"), "one host more"


def test_a_queued_run_whose_lease_was_removed_makes_another_and_still_waits_for_its_turn(
    cluster: Make, leases_of_the_tests: Path
) -> None:
    first, second = cluster(SLEEP, gpus=[0]), cluster(SLEEP, gpus=[0], **queued(1.0))
    first.start()
    second.start()
    in_line(second)
    next(path for path in leases_of_the_tests.iterdir() if second.run.encode() in path.read_bytes()).unlink()

    def state() -> list[str]:
        return [one["state"] for one in leases.look().leases if one["run"] == second.run]

    wait_for(lambda: state() == ["waiting"], "its new lease")
    assert not second.path(0, "attempt-1").exists()
    first.stop()
    second.wait_event(0, "attempt")
    assert state() == ["held"]
