"""Hosts followed side by side, and the commands `top` and `orphans` on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.address import Address
from disttui.runner.api.orphan_search import orphans, top
from disttui.runner.api.viewer import Viewer
from disttui.runner.cli.ending import render_orphans
from disttui.runner.errors import HostError, InputError, LinkLostError
from disttui.runner.hosts.answers import read_answer
from disttui.runner.hosts.load import load_of
from disttui.runner.hosts.survey import CONNECTS
from disttui.runner.node import leases, procs
from disttui.runner.protocol.requests import Orphan
from disttui.runner.render.top import render_top, top_json
from disttui.runner.runs.places import chosen
from disttui.runner.runs.registry import KnownHost
from disttui.runner.runs.remote import reach_hosts
from disttui.runner.runs.watch import HostNow, HostsWatch
from disttui.runner.transport import Connector
from disttui.runner.transport.base import HostConnection, RefusePrompts
from disttui.runner.transport.connector import HostConnector
from tests.unit.waiting import wait_for

ENVIRON = {"XDG_DATA_HOME": "/nonexistent"}


class Stuck:
    """A way on which no host ever answers, but for this machine."""

    def __init__(self, way: Connector) -> None:
        self._way = way
        self.released = threading.Event()

    def connect(self, address: Address) -> HostConnection:
        if not address.is_local:
            self.released.wait(120)
            raise HostError(address.host, "it never answered")
        return self._way.connect(address)

    def close(self) -> None:
        self.released.set()


@pytest.fixture
def connector() -> Iterator[HostConnector]:
    made = HostConnector(None, RefusePrompts())
    yield made
    made.close()


def host_of(watch: HostsWatch, name: str) -> HostNow:
    return next(host for host in watch.now() if host.name == name)


def test_silent_host_delays_no_other_and_can_be_abandoned(
    connector: HostConnector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("DISTTUI_LEASES", str(tmp_path))
    stuck = Stuck(connector)
    watch = HostsWatch(chosen(["silent", "local"], None, ENVIRON), lambda _: stuck, interval=0.2)
    watch.start()
    try:
        wait_for(lambda: host_of(watch, "local").state == "seen", "this machine")
        assert host_of(watch, "silent").state == "connecting"
        load = wait_for(lambda: (seen := host_of(watch, "local").load) and seen.cpu is not None and seen, "rates")
        assert load.mem_total > 1 << 28 and load.cpus == os.cpu_count()
        assert any(process.pid == os.getpid() or process.user for process in load.processes)
        assert host_of(watch, "silent").leases is None
        wait_for(lambda: host_of(watch, "local").leases == (), "its leases")
        held = leases.take(leases.new_text("", 0, [3], "alice@desk"))
        taken = wait_for(lambda: host_of(watch, "local").leases, "who has leased what")
        assert [one["gpus"] for one in taken] == [[3]]
        held.release()
        wait_for(lambda: host_of(watch, "local").leases == (), "the end of the lease")
        watch.leave("silent")
        assert [host.name for host in watch.now()] == ["local"]
        stuck.close()
        wait_for(lambda: "watch silent" not in [one.name for one in threading.enumerate()], "the end of its thread")
        assert [host.name for host in watch.now()] == ["local"], "it stays left whatever comes of it"
    finally:
        watch.close()
        stuck.close()


def test_hosts_that_are_cut_off_keep_no_stop_from_the_others(
    connector: HostConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, and wherever in the list."""
    monkeypatch.setattr("disttui.runner.transport.base.PATIENCE", 0.2)
    stuck, here = Stuck(connector), CONNECTS + 4
    hosts = {node: KnownHost(f"off{node}", f"off{node}") for node in range(here)}
    reached = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(
            reach_hosts, {**hosts, here: KnownHost("local", "local")}, stuck, 60.0, lambda node, _: reached.set()
        )
        try:
            assert reached.wait(30), "while the others are still waited for"
        finally:
            stuck.close()
        with done.result(60) as found:
            assert list(found.links) == [here] and len(found.errors) == here


def node_programs() -> list[int]:
    table = procs.table()
    below = procs.descendants(table, os.getpid())
    return [pid for pid in below if "sys.stdin.buffer.readline" in procs.command(pid) and not table[pid].dead]


def test_lost_link_is_shown_and_reconnected(connector: HostConnector) -> None:
    before = set(node_programs())
    with closing(HostsWatch(chosen(["local"], None, ENVIRON), lambda _: connector, interval=0.2)) as watch:
        watch.start()
        wait_for(lambda: host_of(watch, "local").state == "seen", "this machine")
        for pid in set(node_programs()) - before:
            os.kill(pid, 9)
        lost = wait_for(lambda: (now := host_of(watch, "local")).state == "not seen" and now, "the loss")
        assert lost.load is not None and "link broke" in lost.problem, "the last load stays"
        wait_for(lambda: host_of(watch, "local").state == "seen", "its return", 20.0)


def test_link_lost_before_any_data_is_reconnected(connector: HostConnector, monkeypatch: pytest.MonkeyPatch) -> None:
    back, tries = threading.Event(), list[str]()

    class Breaking:
        def connect(self, address: Address) -> HostConnection:
            tries.append(address.host)
            if len(tries) > 1:
                assert back.wait(60)
                return connector.connect(address)
            raise LinkLostError(address.host, "the link broke: nothing heard for 7 s")

        def close(self) -> None:
            back.set()

    monkeypatch.setattr("disttui.runner.runs.watch.AGAIN", (0.01,))
    watch = HostsWatch(chosen(["local"], None, ENVIRON), lambda _: Breaking(), interval=0.2)
    watch.start()
    try:
        lost = wait_for(lambda: (now := host_of(watch, "local")).state == "not seen" and now, "the loss")
        assert "nothing heard for 7 s" in lost.problem and lost.since
        back.set()
        wait_for(lambda: host_of(watch, "local").state == "seen", "its return")
    finally:
        back.set()
        watch.close()


def test_a_host_that_was_never_reached_waits_for_retry(
    connector: HostConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    class Refusing:
        def connect(self, address: Address) -> HostConnection:
            if address.is_local:
                return connector.connect(address)
            tries.append(address.host)
            raise HostError(address.host, "refused", "Ask somebody.")

        def close(self) -> None:
            pass

    monkeypatch.setattr("disttui.runner.runs.watch.AGAIN", (0.01,))
    with closing(
        HostsWatch(chosen(["somewhere", "local"], None, ENVIRON), lambda _: Refusing(), interval=0.2)
    ) as watch:
        watch.start()
        failed = wait_for(lambda: (now := host_of(watch, "somewhere")).state == "failed" and now, "the refusal")
        assert (failed.problem, failed.cure) == ("refused", "Ask somebody.")
        for _ in range(2):  # telemetry of another host, each after an interval
            heard = host_of(watch, "local").heard
            wait_for(lambda: host_of(watch, "local").heard != heard, "a later moment")  # noqa: B023 (called here)
        assert len(tries) == 1, "a password is not asked for again and again"
        watch.retry()
        wait_for(lambda: len(tries) == 2, "the second try")


@pytest.mark.parametrize("record", [{}, {"t": "now"}, {"t": float("nan")}, {"t": True}])
def test_records_without_a_time_are_none(record: dict[str, Any]) -> None:
    assert load_of(record) is None


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("/usr/bin/python3 -m http.server", "python3 -m http.server"),
        ("/opt/python -u /home/a/node-1a2b.zip shim script train.py --steps 3", "python train.py --steps 3"),
        ("python -u /home/a/node-1a2b.zip shim module pkg.train -x", "python -m pkg.train -x"),
        ("python -u /home/a/node-1a2b.zip shim script /home/a/train-3c4d.zip --steps 3", "bytegpt --steps 3"),
    ],
)
def test_command_of_a_rank_is_that_of_its_script(line: str, shown: str) -> None:
    load = load_of({"t": 1.0, "processes": [{"pid": 1, "command": line}]})
    assert load is not None and load.processes[0].command == shown


def test_nonsense_of_a_host_counts_as_not_reported() -> None:
    evil = "\x1b[2Jx\n" * 500
    gpus = [{"index": -1}, {"index": 0, "name": evil, "use": "100"}, None, 7] + [{"index": 1}] * 500
    rows = [{"pid": 1, "user": evil, "command": evil, "tag": 7, "gpus": "0", "cpu": float("inf")}, {"pid": None}, []]
    load = load_of({"t": 1.0, "cpu": "1", "mem_used": None, "gpus": gpus, "processes": rows * 300, "cpus": -4})
    assert load is not None and (load.cpu, load.mem_used, load.cpus) == (None, None, None)
    assert 1 < len(load.gpus) <= 64 and load.gpus[0].use is None and "\x1b" not in load.gpus[0].name
    assert 0 < len(load.processes) <= 200
    first = load.processes[0]
    assert (first.run, first.gpus, first.cpu) == ("", (), None) and "\x1b" not in first.command + first.user
    assert "\x1b" not in render_top((HostNow("a" + evil, "seen", load, 1.0),))


def test_profile_writable_by_others_sets_no_interpreter(tmp_path: Path) -> None:
    profile = tmp_path / "theirs.yaml"
    profile.write_text(
        "disttui: 1\nhosts: [a, {host: b, python: /own/python}]\npython: /x/python\njob: {script: x.py}\n"
    )
    own = [place.host.python for place in chosen([], profile, ENVIRON)]
    assert own == ["/x/python", "/own/python"]
    profile.chmod(0o666)
    found = chosen([str(profile)], None, ENVIRON)
    assert [(place.name, place.host.python) for place in found] == [("a", None), ("b", None)]


def test_places_by_name_by_profile_and_bad_ones(tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text("disttui: 1\nhosts: [alice@alpha:2222, beta]\njob: {builtin: bytegpt}\n")
    places = chosen([str(profile)], None, ENVIRON)
    assert [(place.host.host, place.host.user, place.host.port) for place in places] == [
        ("alpha", "alice", 2222), ("beta", None, None),
    ]  # fmt: skip
    assert [place.name for place in chosen(["gamma", "local", "gamma"], None, ENVIRON)] == ["gamma", "local"]
    assert "local" in [place.name for place in chosen([], None, ENVIRON)]
    with pytest.raises(InputError, match="is not a host"):
        chosen(["two words"], None, ENVIRON)


def test_top_once_of_this_machine_and_of_one_that_is_not_there() -> None:
    with Viewer(ENVIRON) as viewer:
        hosts = top(viewer, ["local", "nobody.invalid"])
    text = render_top(hosts)
    lines = text.splitlines()
    assert [host.state for host in hosts] == ["seen", "failed"]
    assert lines[0].split()[:4] == ["HOST", "CPU", "LOAD", "MEMORY"]
    assert "✗ the name 'nobody.invalid' does not resolve" in text
    assert json.loads(json.dumps(top_json(hosts)))["hosts"][0]["load"]["cpu"] >= 0


def test_orphans_of_this_machine_are_listed_and_ended(tmp_path: Path) -> None:
    viewer = Viewer(ENVIRON)
    run = "orphan" + uuid.uuid4().hex[:8]
    folder = tmp_path / run / "0"
    (folder / "attempt-1").mkdir(parents=True)
    (folder / "exit.json").write_text('{"t": 1.0, "state": "finished", "code": 0}')
    tag = {procs.TAG: f"{run}/0/1", "DISTTUI_DIR": f"{folder}/attempt-1"}
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], env={**os.environ, **tag})
    try:
        wait_for(lambda: procs.tag(child.pid), "its environment")
        found = orphans(viewer, run=run)
        text = render_orphans(found.found, end=False)
        assert not found.problems and f"{child.pid}" in text and "its run has ended" in text
        assert "End them: disttui runs orphans --end local" in text
        found = orphans(viewer, ["local"], run=run, end=True)
        assert not found.left and "1 ended, nothing is left" in render_orphans(found.found, end=True)
        assert child.wait(60) == -9
        assert orphans(viewer, ["local"], run=run).found == {"local": []}
        with pytest.raises(HostError, match="does not resolve"):
            orphans(viewer, ["nobody.invalid"])
    finally:
        viewer.close()
        child.kill()
        child.wait(60)


def test_what_could_not_be_ended_is_named() -> None:
    row: Orphan = {
        "run": "a-1", "node_rank": 0, "attempt": 1, "pid": 7, "user": "u", "command": "x\x1b[2J\ny", "why": "w",
        "age": 61.0, "rss": 1 << 30, "ports": [29500], "gpu_memory": None, "ended": False,
    }  # fmt: skip
    text = render_orphans({"node1": read_answer("orphans", {"found": [row]})["found"]}, end=True)
    assert "could not be ended: node1: pid 7" in text and "29500" in text and "1:01" in text and "\x1b" not in text
