"""Leases of a host's GPUs: two who start at once, what a killed run leaves, and other users who cheat."""

from __future__ import annotations

import encodings.ascii  # noqa: F401 - other users may not read this interpreter's files: what they need is loaded
import errno
import fcntl
import grp  # noqa: F401
import json
import os
import pwd  # noqa: F401
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disttui.runner.api.leasing import HostLeases, lease, queue, release
from disttui.runner.cli.lease import _seconds
from disttui.runner.errors import DisttuiError, HostError
from disttui.runner.hosts.facts import read_leases, with_leases
from disttui.runner.node import folders, leases, procs
from disttui.runner.node.host import HostPart
from disttui.runner.node.loop import Loop
from disttui.runner.node.probe import gpu
from disttui.runner.node.problem import Problem
from disttui.runner.node.serve import runs
from disttui.runner.node.serve.leasing import Claims
from disttui.runner.node.supervise.line import Line
from disttui.runner.node.supervise.supervisor import Supervisor
from disttui.runner.profile.sections import Host
from disttui.runner.protocol.leases import LeaseText, Wish, holder, in_the_way
from disttui.runner.render.leases import queue_json, render_queue, render_who
from tests.files import new_file, new_folder
from tests.neighbours import UID
from tests.unit.planning import facts, planned
from tests.unit.runs_kit import SLEEP, Make, making
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")
OTHER = UID - 1


@pytest.fixture
def place(leases_of_the_tests: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(gpu, "facts", lambda *_: [{"index": index} for index in range(2000)])
    for path in leases_of_the_tests.iterdir():  # of runs that tests before this one have killed
        path.unlink()
    yield leases_of_the_tests
    for child in Child.living.copy():
        child.kill()
    for path in leases_of_the_tests.iterdir():
        path.unlink()


@pytest.fixture
def cluster(tmp_path: Path, place: Path) -> Iterator[Make]:
    yield from making(tmp_path)


class Child:
    """A process of another user that has done one thing, said what came of it, and lives until it is killed."""

    living: ClassVar[set[Child]] = set()

    def __init__(self, uid: int, do: Callable[[], Any]) -> None:
        self._said, said = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setgid(uid)
                os.setuid(uid)
                os.write(said, json.dumps(do()).encode())
                os.close(said)
                time.sleep(600)
            except BaseException:
                os.write(said, json.dumps(traceback.format_exc()).encode())
            finally:
                os._exit(1)
        os.close(said)
        self.living.add(self)

    def said(self) -> Any:
        with open(self._said, "rb") as pipe:  # noqa: PTH123 - a descriptor
            return json.loads(pipe.read())

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.living.remove(self)


def start(run: str, gpus: list[int], at: float = 0.0) -> Callable[[], str]:
    """What a host does for a start: empty, or why it is refused."""

    def do() -> str:
        time.sleep(max(0.0, at - time.monotonic()))
        try:
            leases.take(leases.new_text(run, 0, gpus, "alice@laptop"))
        except Problem as problem:
            return problem.what
        return ""

    return do


@pytest.mark.root
def test_two_users_racing_for_gpus_have_exactly_one_winner(place: Path) -> None:
    """And after kill -9 of everything no lease is left that counts: the next round begins on free GPUs."""
    for turn in range(50):
        at = time.monotonic() + 0.02
        names = {UID: f"llama-{turn:016x}", OTHER: f"bert-{turn:016x}"}
        both = {uid: Child(uid, start(names[uid], [0, 1], at)) for uid in (UID, OTHER)}
        said = {uid: child.said() for uid, child in both.items()}
        winners = [uid for uid, why in said.items() if why == ""]
        assert len(winners) == 1, said
        winner, loser = winners[0], UID + OTHER - winners[0]
        assert names[winner][:-12] in said[loser]
        assert "GPUs 0, 1" in said[loser]
        assert [(one["uid"], one["run"]) for one in leases.look().leases] == [(winner, names[winner])]
        for child in both.values():
            child.kill()
        assert leases.look() == ([], "")
    assert len(list(place.iterdir())) <= 2, "a user's next start removes what the last has left"


@pytest.mark.root
def test_two_starts_without_the_folders_lock_never_both_win(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user may hold that lock for ever: the starts wait for it in vain, and go on by the files alone."""
    monkeypatch.setattr(leases, "_TURN", 0.0)
    for turn in range(20):
        at = time.monotonic() + 0.02
        both = [Child(uid, start(f"r{uid}-{turn}", [3], at)) for uid in (UID, OTHER)]
        said = [child.said() for child in both]
        assert all(why == "" or "holds GPU 3" in why for why in said), said
        assert said.count("") <= 1
        for child in both:
            child.kill()


def test_run_holds_its_gpu_lease_until_it_ends(cluster: Make) -> None:
    first = cluster(SLEEP, gpus=[0, 1], by="alice@laptop").start().wait_ranks()
    (held,) = leases.look().leases
    assert (held["run"], held["gpus"], held["by"]) == (first.run, [0, 1], "alice@laptop")
    assert held["pid"] == first.supervisor(0)["pid"]
    second = cluster("pass", gpus=[1, 2])
    with pytest.raises(Problem, match=f"'s {first.run} holds GPUs 0, 1"):
        second.start()
    assert not second.path(0, "supervisor.json").exists()
    beside = cluster(SLEEP, gpus=[2]).start().wait_ranks()
    second.job.write_text("")
    second.changes["ignore_leases"] = True
    second.start()
    assert second.exit(0)["state"] == "finished"
    first.stop()
    assert first.exit(0)["state"] == "stopped"
    assert [one["run"] for one in leases.look().leases] == [beside.run]


def test_who_waits_sees_how_far_the_run_is(place: Path) -> None:
    held = leases.take(leases.new_text("llama-7f3a000011112222", 0, [0], "a@b", since=time.time() - 3600))
    for step, steps in ((True, 100), ("41", 100), (-1, 100), (None, None), (41, 100)):
        held.note_progress(step, steps)
    assert "'s llama-7f3a holds GPU 0, 41 % done, about 86 min left" in leases.holders(leases.look().leases)
    held.release()


def test_progress_is_noted_without_walking_the_run_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_file(tmp_path / "attempt-2" / "rank-0.metrics.jsonl", '{"t": 1.0, "step": 41, "steps": 100}\n')
    at_work: Any = Supervisor.__new__(Supervisor)
    at_work._lease = held = leases.take(leases.new_text("llama-1", 0, [0], "a@b"))
    at_work._host = SimpleNamespace(path=lambda name: str(tmp_path / name))
    at_work._member = SimpleNamespace(number=2)
    monkeypatch.setattr(os, "walk", None)
    at_work._note_progress()
    assert [(one["step"], one["steps"]) for one in leases.look().leases] == [(41, 100)]
    held.release()


def test_runs_on_the_cpu_do_not_exclude_each_other(cluster: Make) -> None:
    both = [cluster(SLEEP), cluster(SLEEP)]
    for run in both:
        run.start()
    assert {one["run"] for one in leases.look().leases} == {run.run for run in both}


def test_killed_supervisor_keeps_its_lease_until_ranks_end(cluster: Make) -> None:
    run = cluster("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP, gpus=[0]).start()
    run.wait_ranks()
    up = run.supervisor(0)
    os.kill(up["pid"], signal.SIGKILL)
    run.exit(0)
    wait_for(lambda: not leases.look().leases, "the warden's release")
    assert run.living() == {}

    run = cluster(SLEEP, gpus=[0]).start()
    up = run.supervisor(0)
    for who in (up["warden"], up):
        os.kill(who["pid"], signal.SIGKILL)
    wait_for(lambda: not procs.alive(up), "its death")
    wait_for(lambda: not leases.look().leases, "the death of its warden, which holds the lease as well")
    leases.take(leases.new_text("next-1", 0, [0], "")).release()


def test_gpus_stay_leased_until_the_warden_has_cleaned_up(cluster: Make) -> None:
    run = cluster(SLEEP, gpus=[0]).start()
    up = run.supervisor(0)
    os.kill(up["warden"]["pid"], signal.SIGSTOP)
    os.kill(up["pid"], signal.SIGKILL)
    wait_for(lambda: not procs.alive(up), "its death")
    with pytest.raises(leases.Taken, match=f"{run.run} holds GPU 0"):
        leases.take(leases.new_text("next-1", 0, [0], ""))
    os.kill(up["warden"]["pid"], signal.SIGCONT)
    run.exit(0)
    wait_for(lambda: not leases.look().leases, "the warden's release")


def test_locked_lease_lapses_if_its_warden_died_early(place: Path, tmp_path: Path) -> None:
    """Its parent is another process by then: it may live for ever."""
    spec: Any = {
        "run": "mine-1", "node_rank": 0, "hosts": ["h0"], "nproc": [1], "target": {}, "master": None, "gpus": [0],
        "launch": {"grace": 1.0, "host_timeout": 9.0, "restarts": 0}, "metrics_pattern": None,
    }  # fmt: skip
    warden = Child(UID, lambda: None)
    warden.said()
    identity = procs.identity(warden.pid)
    warden.kill()
    held = leases.take(leases.new_text("mine-1", 0, [0], ""))
    supervisor = os.fork()
    if supervisor == 0:
        try:
            Supervisor(HostPart(spec, str(tmp_path), "", None, {"key": "00" * 32}, 0o022), identity, held).open()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitpid(supervisor, 0)[1] == 0
    held.close()
    (path,) = place.iterdir()
    locks = _keep(path)
    assert json.loads(path.read_bytes())["pid"] == supervisor
    assert leases.look().leases == []
    assert not procs.alive(json.loads((tmp_path / "supervisor.json").read_bytes())["warden"])
    os.close(locks)


def test_claims_pass_to_the_supervisor_without_a_gap(cluster: Make) -> None:
    run, claims = cluster(SLEEP, gpus=[4]), Claims()
    claims.take({"run": run.run, "node_rank": 0, "gpus": [4], "by": "a@b"})
    before = leases.look().leases
    assert [one["pid"] for one in before] == [os.getpid()]
    runs.start({"spec": run.spec(0), "secrets": run.secrets()}, str(run.zip), None, claims)
    (after,) = leases.look().leases
    assert (after["since"], after["pid"]) == (before[0]["since"], run.supervisor(0)["pid"])
    claims.take({"run": "other-1", "node_rank": 0, "gpus": [5], "by": "a@b"})
    claims.release({"run": "other-1"})
    assert [one["run"] for one in leases.look().leases] == [run.run]


@pytest.mark.root
def test_reservation_keeps_others_out_and_lets_its_owner_in(place: Path) -> None:
    take = {"gpus": [0], "by": "alice@laptop", "note": "debugging"}
    lent = Child(UID, lambda: Claims().take({**take, "seconds": 600.0}))  # type: ignore[typeddict-item]
    lent.said()
    lent.kill()
    with pytest.raises(Problem, match=r"nobody reserved GPU 0 for 10 min more \(debugging\)"):
        leases.take(leases.new_text("mine-1", 0, [0], "root@laptop"))
    leases.take(leases.new_text("mine-1", 0, [1], "root@laptop")).release()
    leases.take(leases.new_text("mine-2", 0, [], "root@laptop")).release()
    own = Child(UID, start("theirs-1", [0]))
    assert own.said() == ""
    own.kill()
    theirs = next(path for path in place.iterdir() if b'"hand"' in path.read_bytes())
    assert leases.release_by_hand(None) == [], "nobody releases what is another's"
    late = json.loads(theirs.read_bytes()) | {"until": time.time() - 1}
    theirs.write_bytes(json.dumps(late).encode())
    assert leases.look().leases == []


class OneHost:
    """A viewer whose host box1 is this machine, and whose other hosts cannot be reached."""

    environ: ClassVar[dict[str, str]] = {}

    def ask(self, host: Host, op: str, _: object, /, *, timeout: float, **request: Any) -> Any:
        if host.name != "box1":
            raise HostError(host.name, "cannot be reached", "")
        return {"lease": Claims().take, "release": Claims().release}[op](request)  # type: ignore[operator]


def test_reservation_failing_on_one_host_changes_no_lease(place: Path) -> None:
    viewer: Any = OneHost()
    assert lease(viewer, ["box1"], [0], seconds=600.0, note="mine") == ("box1",)
    with pytest.raises(HostError, match="box2: cannot be reached"):
        lease(viewer, ["box1", "box2"], [0, 1], seconds=60.0)
    assert [(one["gpus"], one["note"]) for one in leases.look().leases] == [([0], "mine")]
    done = release(viewer, ["box1", "box2"])
    assert str(done["box2"]) == "box2: cannot be reached" and not isinstance(done["box1"], DisttuiError)
    assert [one["note"] for one in done["box1"]] == ["mine"]
    assert leases.look().leases == []


@pytest.mark.parametrize("text", ["2026-11-22T18:00+05:00", "2026-11-22T13:00Z"])
def test_a_moment_with_its_time_zone_is_that_moment(text: str) -> None:
    assert _seconds(text, 1795341600.0) == 10800.0


@pytest.mark.root
def test_the_whole_host_by_hand_keeps_runs_on_the_cpu_out_too(place: Path) -> None:
    lent = Child(UID, lambda: Claims().take({"gpus": None, "by": "alice@laptop"}))
    lent.said()
    lent.kill()
    with pytest.raises(Problem, match="reserved the whole host until released"):
        leases.take(leases.new_text("mine-1", 0, [], "root@laptop"))


@pytest.mark.root
def test_forged_lease_names_its_owner_and_malformed_is_ignored(place: Path) -> None:
    forged = {**leases.new_text("llama-1", 0, [0], "alice@laptop"), "user": "alice", "uid": 0}
    squat = {**leases.new_text("", 0, [1], "alice@laptop"), "pid": 0}
    wrong: list[Any] = [
        {}, [], 7, {**squat, "gpus": "all"}, {**squat, "gpus": [-1]}, {**squat, "gpus": list(range(65))},
        {**squat, "since": -1},
        {**squat, "until": 1e300}, {**squat, "kind": "king"}, {**squat, "run": "../x"}, {**squat, "note": "x" * 201},
        {**squat, "note": "x\nn2: alice reserved GPU 0"}, {**squat, "by": "alice\x1b[2J@laptop"},
        {**squat, "round": 10**9}, {**squat, "round": True}, {**squat, "round": -1}, {**squat, "count": -1},
        {**squat, "state": "waiting"}, {**squat, "pid": "1"},
    ]  # fmt: skip

    def forge() -> str:
        for number, text in enumerate([forged, squat, *wrong]):
            new_file(place / f"disttui-lease-{number}", json.dumps(text).encode())
        (place / "disttui-lease-deep").write_bytes(b"[" * 4000)
        (place / "disttui-lease-long").write_bytes(b" " * 5000)
        (place / "disttui-lease-link").symlink_to("/etc/passwd")
        os.mkfifo(place / "disttui-lease-fifo")
        return ""

    child = Child(UID, forge)
    child.said()
    found = leases.look().leases
    assert [(one["uid"], one["user"], one["gpus"]) for one in found] == [(UID, "nobody", [1])], "the other has no lock"
    shown = render_who([HostLeases("box1", read_leases(found), facts("a100x8").gpus, "", time.time(), 0)])
    (row,) = [line for line in shown.splitlines() if "GPU 1 " in line]
    assert "nobody's reservation, until released" in row
    assert "none of theirs: ask, or use --ignore-leases" in row
    assert "alice" not in shown
    leases.take(leases.new_text("mine-1", 0, [1], "root@laptop"), ignore=True).release()
    child.kill()


@pytest.mark.root
def test_dead_lease_locked_by_another_user_does_not_count(place: Path) -> None:
    dead = Child(UID, start("llama-1", [0]))
    assert dead.said() == ""
    (path,) = place.iterdir()

    dead.kill()
    held = Child(OTHER, lambda: _keep(path))
    held.said()
    assert leases.look().leases == []
    held.kill()


@pytest.mark.root
def test_thousands_of_files_of_another_user_hide_no_lease(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_MOST", 5)
    held = leases.take(leases.new_text("mine-1", 0, [0], "root@laptop"))

    def flood() -> str:
        for number in range(40):
            (place / f"disttui-lease-!{number}").touch()
        return ""

    flooded = Child(UID, flood)
    assert flooded.said() == ""
    seen = leases.look()
    assert [one["run"] for one in seen.leases] == ["mine-1"]
    assert re.search(r"^\S+ has 5 or more files in .* named like leases, which slows every reading", seen.problem)
    with pytest.raises(leases.Taken):
        leases.take(leases.new_text("other-1", 0, [0], "bob@desk"))
    held.release()


@pytest.mark.parametrize(("run", "offered"), [("other-1", True), ("", False)], ids=["run", "by hand"])
def test_a_refused_lease_by_hand_suggests_no_options_of_run(place: Path, run: str, offered: bool) -> None:
    held = leases.take(leases.new_text("mine-1", 0, [0], "ann@desk"))
    with pytest.raises(leases.Taken) as caught:
        leases.take(leases.new_text(run, 0, [0], "bob@desk"))
    assert ("--when-free" in caught.value.cure) == ("--ignore-leases" in caught.value.cure) == offered
    held.release()


def test_a_gpu_that_the_host_does_not_have_is_not_leased(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "facts", lambda *_: [{"index": index} for index in (0, 1)])
    with pytest.raises(Problem, match="this host has no GPU 99") as problem:
        Claims().take({"gpus": [1, 99], "by": "alice@laptop"})
    assert "choose from 0, 1" in problem.value.cure
    monkeypatch.setattr(gpu, "facts", lambda problems, _: problems.append("nvidia-smi hangs") or [])
    Claims().take({"gpus": [99], "by": "alice@laptop"})
    assert len(leases.release_by_hand(None)) == 1


def test_gpus_can_be_reserved_where_nvidia_smi_lists_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on hosts with AMD's GPUs, or without nvidia-smi in PATH."""
    monkeypatch.setattr(gpu, "facts", lambda *_: [])
    monkeypatch.setattr("disttui.runner.node.serve.leasing._DEVICES", ("/dev/null",))
    Claims().take({"gpus": [1], "by": "alice@laptop"})
    assert [one["gpus"] for one in leases.look().leases] == [[1]]
    assert len(leases.release_by_hand([1])) == 1


def test_gpus_of_a_host_without_gpus_are_not_leased(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "facts", lambda *_: [])
    monkeypatch.setattr("disttui.runner.node.serve.leasing._DEVICES", ("/dev/no-gpu*",))
    with pytest.raises(Problem, match="this host has no GPU") as problem:
        Claims().take({"gpus": [0], "by": "alice@laptop"})
    assert "omit --gpus" in problem.value.cure
    assert list(place.iterdir()) == []


def test_release_of_some_gpus_keeps_the_rest_of_the_lease(place: Path) -> None:
    Claims().take({"gpus": [1, 2, 3], "by": "alice@laptop", "seconds": 600.0, "note": "mine"})
    (before,) = leases.look().leases
    (gone,) = Claims().release({"gpus": [2, 7]})["leases"]
    assert gone["gpus"] == [2]
    (left,) = leases.look().leases
    assert (left["gpus"], left["note"], left["until"]) == ([1, 3], "mine", before["until"])
    assert leases.release_by_hand([2]) == [], "it is free"
    assert [one["gpus"] for one in leases.release_by_hand([1, 3])] == [[1, 3]]
    assert list(place.iterdir()) == []


def test_release_of_single_gpus_of_a_whole_host_is_refused(place: Path) -> None:
    Claims().take({"gpus": None, "by": "alice@laptop"})
    with pytest.raises(Problem, match="you have leased the whole host"):
        leases.release_by_hand([2])
    assert len(leases.release_by_hand(None)) == 1


def test_failed_turn_keeps_the_start_of_the_wait(place: Path) -> None:
    held = leases.take(leases.new_text("first-1", 0, [0], ""))
    waits = leases.take(leases.new_text("second-1", 0, [0], "", state="waiting", order=1.0, since=5.0))

    def since() -> float:
        return next(one["since"] for one in leases.look().leases if one["run"] == "second-1")

    assert not waits.take_turn() and since() == 5.0
    held.release()
    assert waits.take_turn() and since() > 5.0, "since it has its GPUs"
    waits.wait()
    assert since() == 5.0, "another host had no room"
    waits.release()


def test_quota_limits_gpus_per_user_and_host(place: Path) -> None:
    def wish(run: str, gpus: list[int], by: str = "alice@laptop", **more: Any) -> LeaseText:
        return leases.new_text(run, 0, gpus, by, quota=2, **more)

    held = leases.take(wish("first-1", [0, 1]))
    with pytest.raises(leases.Taken, match=r"the `quota` of 2 GPUs per user would be .*'s first-1 holds GPUs 0, 1"):
        leases.take(wish("second-1", [2]))
    with pytest.raises(leases.Taken, match="this run uses 3 GPUs, but the host's `quota` is 2 per user"):
        leases.take(wish("second-1", [2, 3, 4], state="waiting", order=1.0))
    leases.take(wish("others-1", [2], "bob@desk")).release()
    leases.take(wish("over-1", [2]), ignore=True).release()
    waits = leases.take(wish("second-1", [2], state="waiting", order=1.0))
    seen = HostLeases("box1", read_leases(leases.look().leases), (), "", time.time(), 0)
    assert "first-1" in render_queue(queue([seen]))
    assert not waits.take_turn()
    held.release()
    assert waits.take_turn()
    waits.release()
    Claims().take({"gpus": None, "by": "alice@laptop"})
    with pytest.raises(leases.Taken, match=r"`quota` of 2 GPUs per user would be .* reserved the whole host"):
        leases.take(wish("second-1", [2]))
    mine = read_leases(leases.look().leases)
    assert in_the_way(Wish("run", "", [2], False, mine[0]["uid"], "alice", None, 2), mine) == list(mine)
    leases.release_by_hand(None)


def test_a_quota_counts_runs_on_the_cpu(place: Path) -> None:
    def run(name: str, by: str = "alice@laptop", gpus: Sequence[int] = ()) -> LeaseText:
        return leases.new_text(name, 0, list(gpus), by, quota=2)

    held = [leases.take(run(name)) for name in ("first-1", "second-1")]
    with pytest.raises(leases.Taken, match=r"`quota` of 2 CPU runs per user would be .*first-1 holds CPUs"):
        leases.take(run("third-1"))
    leases.take(run("others-1", "bob@desk")).release()
    leases.take(run("gpus-1", gpus=[0, 1])).release()
    host = facts("a100x8", leases=read_leases(leases.look().leases), euid=os.getuid())
    it = planned(with_leases(host, "alice@laptop"), hosts=[{"quota": 2}], launch={"backend": "gloo"})
    assert "node1: this run would exceed the `quota` of 2 CPU runs per user: you have 2" in it.found("error")[0]
    held.pop().release()
    leases.take(run("third-1")).release()
    held.pop().release()


def test_a_run_in_line_takes_any_gpu_that_is_released(place: Path) -> None:
    first = leases.take(leases.new_text("first-1", 0, [0], ""))
    other = leases.take(leases.new_text("other-1", 0, [1, 2, 3], ""))
    text = leases.new_text("any-1", 0, [0, 1, 2, 3], "", state="waiting", order=1.0, count=2)
    waits = leases.take(text)
    assert not waits.take_turn()
    other.release()
    leases.take(leases.new_text("listed-1", 0, [3], "")).release()
    with pytest.raises(leases.Taken, match="any-1 is queued before it for any 2 of 4 GPUs"):
        leases.take(leases.new_text("listed-1", 0, [1], ""))
    assert waits.take_turn()
    held = next(one for one in leases.look().leases if one["run"] == "any-1")
    assert (held["state"], held["gpus"], held["count"]) == ("held", [1, 2], None)
    waits.wait()
    first.release()
    assert waits.take_turn() and waits.text["gpus"] == [0, 1]
    waits.release()


def test_a_note_of_two_lines_becomes_one(place: Path) -> None:
    Claims().take({"gpus": [0], "by": "alice@lap\ntop", "note": "until\n noon\x1b[2J"})
    assert [(one["by"], one["note"]) for one in leases.look().leases] == [("alice@lap top", "until noon?[2J")]
    leases.release_by_hand(None)


def test_note_may_have_newer_unicode_but_nothing_invisible(place: Path) -> None:
    newer = "\U0001fae8\U000e0fff"  # an emoji that Python 3.8 does not know, and one that no Python knows
    for note, counts in ((newer, True), ("\u202e", False), ("\x9b", False), ("\u2028", False), ("\ud800", False)):
        text = leases.new_text("", 0, [0], "alice@laptop", note=note)
        path = new_file(place / "disttui-lease-1", json.dumps(text).encode())
        assert bool(leases.look().leases) is counts, note
        leases.take(leases.new_text("next-1", 0, [1], "")).release()
        assert path.exists() is counts, "a start removes what no longer counts"


def test_further_names_of_a_lease_hide_no_other_of_its_owner(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_MOST", 3)
    both = [leases.take(leases.new_text(f"mine-{number}", 0, [number], "")) for number in range(2)]
    for number in range(10):
        (place / f"disttui-lease-!{number}").hardlink_to(both[0].path)
    asked: list[int] = []

    def user_name(uid: int) -> str:
        asked.append(uid)
        return "me"

    monkeypatch.setattr(folders, "user_name", user_name)
    assert {one["run"] for one in leases.look().leases} == {"mine-0", "mine-1"}
    assert len(asked) == 1, "a directory server is asked once for each user"
    for one in both:
        one.release()
    Claims().take({"gpus": [7], "by": "", "note": ""})
    path = next(path for path in place.iterdir() if b'"hand"' in path.read_bytes())
    (place / "disttui-lease-!").hardlink_to(path)
    assert len(leases.release_by_hand(None, path.name)) == 1
    assert leases.look().leases == []


def test_waiting_leases_beyond_the_limit_are_left_out(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_MOST_OF_ONE", 2)
    held = leases.take(leases.new_text("held-1", 0, [0], ""))
    held.path = str(Path(held.path).rename(place / "disttui-lease-z"))
    waiting = [
        leases.take(leases.new_text(f"waits-{number}", 0, [0], "", state="waiting", order=100.0 - number))
        for number in range(3)
    ]
    seen = leases.look()
    assert {one["run"] for one in seen.leases} == {"held-1", "waits-2"}
    assert "has more than 2 leases" in seen.problem
    for one in (held, *waiting):
        one.release()


def test_leases_of_others_hold_when_none_can_be_created(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = leases.take(leases.new_text("first-1", 0, [0], ""))

    def full(*_: object) -> leases.HeldLease:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(leases, "_make", full)
    for state in ("held", "waiting"):
        with pytest.raises(leases.Taken, match=r"first-1 holds GPU 0; cannot create a lease in .*: No space left"):
            leases.take(leases.new_text("second-1", 0, [0], "", state=state, order=1.0))
    for gpus, ignore in (([1], False), ([0], True)):
        with pytest.raises(Problem, match="cannot create a lease") as problem:
            leases.take(leases.new_text("second-1", 0, gpus, ""), ignore=ignore)
        assert not isinstance(problem.value, leases.Taken)
    held.release()


def in_line(run: str, order: float = 1.0) -> leases.HeldLease:
    return leases.take(leases.new_text(run, 0, [0], "", state="waiting", order=order))


def test_queued_run_with_unwritable_lease_keeps_its_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, loop, told = in_line("mine-1"), Loop(), []
    line = Line(loop, held, lambda room, why: told.append((room, why)))
    line.look()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full)
        assert not line.take()
        assert not line.take()
        line.look()
        Path(held.path).unlink()
        line._not_before = 0.0
        line.look()
        assert list(place.iterdir()) == []
    why = f"cannot write its lease ({held.path}: No space left on device)"
    assert told == [(True, ""), (False, why)]
    assert line.take()
    assert [(one["run"], one["state"]) for one in leases.look().leases] == [("mine-1", "held")]
    behind = in_line("other-1", 2.0)
    assert not behind.take_turn()
    behind.release()
    line.close()
    held.release()


def test_waiting_run_polls_a_huge_folder_rarely(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at 200,000 files takes half a second."""
    held, loop, clock = in_line("mine-1"), Loop(), [100.0]
    waits: list[float] = []
    monkeypatch.setattr(loop, "after", lambda seconds, callback: waits.append(seconds))
    line = Line(loop, held, lambda room, why: None)
    look = leases.look

    def slow() -> leases.Seen:
        clock[0] += 0.5
        return look()

    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: clock[0])
        line._look_again()
        patch.setattr(leases, "look", slow)
        line._look_again()
    assert waits == [0.5, 0.5, 10.0]
    held.release()


def test_queued_run_without_a_lease_does_not_start(place: Path, monkeypatch: pytest.MonkeyPatch, cluster: Make) -> None:
    def full(*_: object) -> leases.HeldLease:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(leases, "_make", full)
    run = cluster(
        SLEEP, gpus=[0], queue={"round": 0, "order": 1.0, "any_of": None, "lasts": False, "turns": [0], "code": None}
    )
    with pytest.raises(Problem, match=r"cannot create a lease in .*: No space left"):
        run.start()


def test_a_waiting_lease_that_fails_half_way_holds_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken, somebody else is in the way, and it cannot be written back."""
    other, held, write, written = leases.take(leases.new_text("other-1", 0, [0], "")), in_line("mine-1"), os.pwrite, []

    def full(fd: int, data: bytes, at: int) -> int:
        written.append(data)
        return write(fd, data, at) if len(written) < 2 else write(fd, data[:100], at)

    look = leases._look
    with monkeypatch.context() as patch:
        patch.setattr(leases, "_look", lambda *where: look(*where) if written else leases.Seen([], ""))
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            held.take_turn()
    assert not held.take_turn()
    assert ("mine-1", "waiting") in [(one["run"], one["state"]) for one in leases.look().leases]
    other.release()
    assert held.take_turn()
    held.release()


def test_warden_taking_over_a_queued_run_holds_its_gpus(place: Path) -> None:
    held = in_line("mine-1")
    wardens = leases.HeldLease(os.dup(held.fd), held.path, held.text)
    assert held.take_turn()
    held.note_progress(41, 100)
    wardens.adopt()
    assert [(one["state"], one["step"]) for one in leases.look().leases] == [("held", 41)]
    wardens.release()
    held.close()


def test_removed_lease_file_is_recreated_before_a_turn(place: Path) -> None:
    held, behind = in_line("mine-1"), in_line("other-1", 2.0)
    Path(held.path).unlink()
    assert held.take_turn()
    assert not behind.take_turn()
    assert ("mine-1", "held") in [(one["run"], one["state"]) for one in leases.look().leases]
    held.release()
    behind.release()


def test_folder_locked_by_another_user_does_not_block_the_queue(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, keeps = in_line("mine-1"), _keep(place)
    monkeypatch.setattr(leases, "_TURN", 3600.0)
    assert held.take_turn()
    os.close(keeps)
    held.release()


def test_a_lease_that_nobody_could_read_is_refused(place: Path) -> None:
    with pytest.raises(Problem, match="this lease is too large"):
        Claims().take({"gpus": list(range(65)), "by": "alice@laptop"})
    with pytest.raises(Problem, match="this lease is too large") as problem:
        Claims().take({"gpus": [1024], "by": "alice@laptop", "seconds": 1e300})
    assert "numbers below 1024, an earlier end" in problem.value.cure
    longest = "\U0001f600" * 200
    Claims().take({"gpus": list(range(64)), "by": longest, "note": longest})
    assert len(leases.release_by_hand(None)) == 1
    assert list(place.iterdir()) == []


def _keep(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


@pytest.mark.parametrize("mode", [0o777, 0o1755, 0o755])
def test_unsafe_lease_folder_is_reported_and_the_run_starts(
    cluster: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    folder = new_folder(tmp_path / "odd", mode)
    monkeypatch.setenv("DISTTUI_LEASES", str(folder))
    assert "cannot store leases in" in leases.look().problem
    with pytest.raises(Problem) as problem:
        leases.folder()
    cures = {0o777: "let root own it and its parents", 0o1755: "chmod 1777", 0o755: "chmod 1777"}
    assert cures[mode] in problem.value.cure
    if mode == 0o777:
        run = cluster("pass", gpus=[0]).start()
        assert run.exit(0)["state"] == "finished"
        assert "cannot store leases" in run.events(0, "note")[0]["text"]
        assert list(folder.iterdir()) == []


def test_start_on_leased_gpus_names_the_holder_and_free_gpus() -> None:
    """By recorded GPUs; the plan takes free ones where the profile lists none."""
    held = {
        **leases.new_text("llama-7f3a000011112222", 0, [0, 1], "alice@laptop", since=0.0),
        "user": "alice",
        "uid": 7,
    }
    held.update(step=41, steps=100)
    host = facts("a100x8", time=7200.0, leases=read_leases([held]))
    leased = with_leases(host, "bob@desk")
    listed = planned(leased, hosts=[{"gpus": [1, 2]}])
    (error,) = [line for line in listed.found("error") if "GPU" in line]
    assert error.startswith(
        "node1: GPU 1 is held by alice's llama-7f3a, 41 % done, about 3 h left → Ask alice, choose others"
    )
    assert "wait (`disttui run --when-free`), or start anyway (`disttui run --ignore-leases`)" in error
    assert "free: 2, 3, 4, 5, 6, 7" in error
    assert planned(leased).recommendation.hosts[0].gpus == (2, 3, 4, 5, 6, 7)
    held["gpus"] = None
    full = planned(with_leases(facts("a100x8", leases=read_leases([held])), "bob@desk"))
    assert any("none of its GPUs is free" in line or "the host is held by" in line for line in full.found("error"))
    mine = planned(
        with_leases(facts("a100x8", leases=read_leases([{**held, "uid": host.euid, "kind": "hand", "run": ""}])))
    )
    assert not [line for line in mine.found("error") if "held" in line]


_LIE = st.fixed_dictionaries(
    {},
    optional={
        name: st.none()
        | st.booleans()
        | st.integers(-(10**400), 10**400)
        | st.floats()
        | st.text(max_size=8)
        | st.lists(st.integers(-1, 10**30) | st.text(max_size=2), max_size=3)
        | st.sampled_from(["waiting", "hand", "\x1b[2J", "\ud800", 0, 1, 1.0, 41, [0, 1]])
        for name in (*LeaseText.__annotations__, "user", "uid")
    },
)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(lies=st.lists(_LIE, max_size=4))
def test_whatever_a_host_says_of_its_leases_can_be_shown(lies: list[dict[str, Any]]) -> None:
    told = {**leases.new_text("r-1", 0, [0], "a@b", state="waiting", order=1.0), "user": "a", "uid": 1}
    found = read_leases([{**told, **lie} for lie in lies])
    host = HostLeases("box1", found, facts("a100x8").gpus, "", 0.0, 0)
    waiting = queue([host])
    shown = render_who([host]) + render_queue(waiting)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", shown)
    json.dumps([asdict(host), queue_json(waiting)], allow_nan=False)


def test_run_with_two_node_ranks_on_one_host_is_listed_once() -> None:
    def lease(run: str, node_rank: int, gpus: list[int]) -> dict[str, Any]:
        text = leases.new_text(run, node_rank, gpus, "ada@laptop")
        return {**text, "user": "ada", "uid": 1, "since": 1000.0 + node_rank}

    on_gpus = [lease("duo-2b2b", rank, gpus) for rank, gpus in enumerate(([1], [1], [2]))]
    held = read_leases([lease("pair-1a1a", 0, []), lease("pair-1a1a", 1, []), *on_gpus])
    shown = render_who([HostLeases("box1", held, facts("a100x8").gpus, "", 1060.0, 1)])
    assert shown.count("pair-1a1a") == 1 and shown.count("duo-2b2b") == 2, shown


def test_a_clock_that_no_host_has_costs_its_figures_alone() -> None:
    told = {**leases.new_text("r-1", 0, [], "a@b", step=1, steps=2**53 - 1), "user": "a", "uid": 1}
    found = read_leases([told, {**told, "run": "r-2", "state": "waiting", "gpus": None}])
    for moment in (1e308, 1e15, -1e308):
        host = HostLeases("box1", found, (), "", moment, 0)
        shown = f"{render_who([host])}\n{render_queue(queue([host]))}"
        assert ("about years" in shown) == (moment > 0) and max(map(len, shown.splitlines())) < 120
    assert "% done, about years left" in holder(found[0], found[0]["since"] + 1)


def test_thousands_of_waiting_runs_are_cheap_to_list() -> None:
    told = {**leases.new_text("r-1", 0, list(range(64)), "a@b", state="waiting"), "user": "a", "uid": 1}
    many = read_leases([{**told, "run": f"r-{number}", "order": number} for number in range(10_000)])
    waiting = queue([HostLeases("box1", many, (), "", 0.0, 0)])
    assert sum(len(part.ahead) for run in waiting for part in run.hosts) < 20_000
