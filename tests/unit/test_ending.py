"""`disttui stop`, as far as hosts that answer late or not any more are concerned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api import ending
from disttui.runner.api.questions import HostNotice
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import HostError, InputError
from disttui.runner.render.stopping import stopped_lines
from disttui.runner.runs.registry import KnownHost, KnownRun
from disttui.runner.runs.remote import Reached
from tests.unit.liar_kit import liar, lied, viewer
from tests.unit.runs_kit import SLEEP, making

END = '{"t": 1.0, "state": "stopped", "code": 130, "cause": None, "attempt": 1, "left": []}'


def test_a_stop_does_not_wait_for_hosts_that_connect_late(tmp_path: Path) -> None:
    """The second host answers once the first has received the stop, as one that is off or busy does later."""
    heard = tmp_path / "heard"
    body = f"""
    if op == "stop":
        open({str(heard)!r}, "a").close()
        yield {{"ok": {{"stopped": True, "state": "running"}}}}
    yield {{"ok": {{"alive": False, "pid": None, "exit": {END}, "waits": None}}}}
    """
    quick, late = liar(tmp_path, "quick", body), liar(tmp_path, "late", body)
    assert late.python
    program = Path(late.python)
    program.write_text(f"#!/bin/sh\nuntil [ -e '{heard}' ]; do sleep 0.05; done\n{program.read_text()}")
    done = ending.stop(viewer(tmp_path), lied(tmp_path, quick, late))
    assert set(done.ends) == {"quick", "late"} and done.complete


@pytest.mark.parametrize("stored", [True, False])
def test_stop_of_a_vanished_sandbox_relies_on_stored_results(tmp_path: Path, stored: bool) -> None:
    """The command that follows the run ends with it, and its hosts with that command: the links to them break."""
    mirror = tmp_path / "disttui" / "runs" / "lied-1a2b"
    body = """
    if op == "stop":
        yield {{"ok": {{"stopped": True, "state": "running"}}}}
    elif op == "status":
        if {stored}:
            os.makedirs({place!r})
            with open({place!r} + "/exit.json", "w") as file:
                json.dump({end}, file)
        os._exit(0)
    """
    hosts = [
        liar(tmp_path, name, body.format(stored=stored, place=str(mirror / str(node)), end=END))
        for node, name in enumerate(("one", "two"))
    ]
    said: list[object] = []
    done = ending.stop(viewer(tmp_path), lied(tmp_path, *hosts), tell=said.append)
    notices = [news for news in said if isinstance(news, HostNotice)]
    if stored:
        assert not notices and done.complete
        assert stopped_lines(done) == ["lied-1a2b stopped on one, two"]
    else:
        assert {news.host for news in notices} == {"one", "two"} and not done.complete
        assert stopped_lines(done) == ["not confirmed by one, two: repeat the stop when they are reachable"]


def test_process_that_survives_is_named_with_the_reason(tmp_path: Path) -> None:
    process = {"pid": 7, "command": "cat", "why": "it waits in the kernel"}
    end = {"t": 1.0, "state": "stopped", "code": 130, "attempt": 1, "left": [7, 8], "processes": [process]}
    body = f"""
    if op == "stop":
        yield {{"ok": {{"stopped": True, "state": "running"}}}}
    yield {{"ok": {{"alive": False, "pid": None, "exit": {end}, "waits": None}}}}
    """
    done = ending.stop(viewer(tmp_path), lied(tmp_path, liar(tmp_path, "one", body)))
    assert stopped_lines(done)[0] == "could not be ended: one: pid 7 (cat): it waits in the kernel, one: pid 8"


@pytest.mark.parametrize("state", ["stopped", "lost"])
def test_host_that_refuses_the_stop_is_not_reported_as_stopped(tmp_path: Path, state: str) -> None:
    """The others may have stopped by this stop, or have ended before."""
    ended = f"""
    if op == "stop":
        yield {{"ok": {{"stopped": {state == "stopped"}, "state": None}}}}
    yield {{"ok": {{"alive": False, "pid": None, "exit": {END.replace("stopped", state)}, "waits": None}}}}
    """
    frozen = """
    if op == "stop":
        yield {"error": {"what": "its supervisor is frozen", "cure": "add --now"}}
    yield {"ok": {"alive": True, "pid": 7, "exit": None, "waits": None}}
    """
    said: list[object] = []
    hosts = liar(tmp_path, "one", ended), liar(tmp_path, "two", frozen)
    done = ending.stop(viewer(tmp_path), lied(tmp_path, *hosts), tell=said.append)
    assert HostNotice("two", "its supervisor is frozen; add --now") in said
    assert not done.complete
    assert stopped_lines(done) == [
        f"lied-1a2b {state} on one",
        "not confirmed by two: repeat the stop when they are reachable",
    ]


def test_a_run_that_is_being_started_is_not_forgotten(tmp_path: Path) -> None:
    """Its code or data is on the way: no host has heard of it yet."""
    run = lied(tmp_path, liar(tmp_path, "n1", 'yield {"ok": {"runs": [], "more": False}}'))
    here = viewer(tmp_path)
    with pytest.raises(InputError, match="lied-1a2b is being started, or its start was killed"):
        ending.forget(here, run)
    assert run.folder.exists() and ending.old_runs(here, older=-1.0).runs == ()
    replace(run, started=run.started - 2 * 86400).save()
    assert [old.run.run for old in ending.old_runs(here, older=-1.0).runs] == ["lied-1a2b"]


def test_each_host_that_is_gone_is_tried_once_for_all_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        lied(tmp_path, KnownHost("n1", "127.0.0.1", port=9), run=f"gone-{number}")
    asked, reach = list[KnownRun](), Viewer.reach

    def reached(here: Viewer, run: KnownRun, **more: Any) -> Reached:
        asked.append(run)
        return reach(here, run, **more)

    monkeypatch.setattr(Viewer, "reach", reached)
    found = ending.old_runs(viewer(tmp_path), older=0.0)
    assert found.runs == () and len(found.problems) == 3 and len(asked) == 1


def test_stop_works_after_the_interpreter_has_gone(tmp_path: Path) -> None:
    """An environment is moved or made anew while its run trains: any Python of the host can stop it."""
    for cluster in making(tmp_path):
        run = cluster("step(1)\n" + SLEEP).start().wait_ranks()
        gone = str(tmp_path / "moved/bin/python")
        known = lied(tmp_path, KnownHost("one", "local", python=gone), run=run.run)
        said: list[object] = []
        done = ending.stop(viewer(tmp_path), replace(known, run_dir=str(run.run_dir(0))), tell=said.append)
        assert done.complete and not run.living()
        [notice] = [news for news in said if isinstance(news, HostNotice)]
        assert notice.text.startswith(f"{gone} does not exist on this host")
        assert notice.text.endswith("using python3 instead")


_ORPHAN = {
    "run": "lied-1a2b", "node_rank": 1, "attempt": 1, "pid": 7, "user": "u", "command": "c", "why": "w", "age": 1.0,
    "rss": 1, "ports": [], "gpu_memory": None, "ended": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (repr({"ok": {"found": [_ORPHAN]}}), "are left (n2: pid 7)"),
        ('{"error": {"what": "/proc is not mounted", "cure": ""}}', "may be left (n2: /proc is not mounted)"),
    ],
    ids=["found", "not known"],
)
def test_stop_names_processes_of_a_removed_run(second: str, said: str, tmp_path: Path) -> None:
    """Their run folder is gone, so the stop found nothing to stop, and reported success."""
    body = """
    if op == "list":
        yield {"ok": {"runs": []}}
    if op == "orphans" and request["run"] == "lied-1a2b":
        yield FOUND
    yield {"error": {"what": "no run found at /x", "cure": ""}}
    """
    found = {"n1": '{"ok": {"found": []}}', "n2": second}
    run = lied(tmp_path, *(liar(tmp_path, name, body.replace("FOUND", answer)) for name, answer in found.items()))
    run.note_seen({"run": run.run, "node_rank": 0, "state": "running"})
    with pytest.raises(HostError) as raised:
        ending.stop(viewer(tmp_path), run)
    assert said in raised.value.sentence
    assert raised.value.cure == "End them: disttui runs orphans n2 --run lied-1a2b --end"
