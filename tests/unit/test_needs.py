"""What a job needs of a host's environment: a module or a program that is missing, and an `activate` that fails, are
known before the start."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api.log_lines import LineFilter
from disttui.runner.hosts.facts import HostFacts, Needs
from disttui.runner.hosts.survey import probe_request
from disttui.runner.node.probe.report import probe
from disttui.runner.profile.load import parse
from tests.files import new_file, new_folder
from tests.unit.history_kit import kept, lines, mirrored, printed
from tests.unit.planning import facts, planned
from tests.unit.runs_kit import Make


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A working folder with a package, and with files that must not stand in for the standard library's."""
    package = new_folder(tmp_path / "pkg")
    (package / "__init__.py").write_text("raise SystemExit('the probe has imported it')\n")
    (package / "train.py").touch()
    (package / "tool").mkdir()
    for name in ("json.py", "shutil.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')\n")
    new_file(tmp_path / "run.sh", "#!/bin/sh\n", 0o755)
    return tmp_path


def needs(work: Path, job: dict[str, Any], **host: Any) -> Needs:
    data = {"disttui": 1, "hosts": [{"host": "a", **host}], "job": {"workdir": str(work), **job}}
    answer = probe({**probe_request(parse(json.dumps(data), "x"), 0), "gpus": False})
    return HostFacts.from_json(json.loads(json.dumps(answer))).needs


OURS = {"python": sys.executable}
ACTIVATED = {"activate": f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:/bin:/usr/bin"}


@pytest.mark.parametrize("host", [OURS, ACTIVATED], ids=["python", "activate"])
@pytest.mark.parametrize(
    ("module", "missing"),
    [
        ("pkg.train", ""),
        ("pkg.trian", "pkg.trian"),
        ("pkg", "pkg.__main__"),
        ("pkg.tool", None),  # without __init__.py it is found only once its parent is imported
        ("pkg.train.more", "pkg.train.more"),
        ("nosuch.train", "nosuch"),
        pytest.param("torch.distributed.run", "", marks=pytest.mark.torch),
        ("http.server", ""),
    ],
)
def test_a_module_that_is_not_there_is_named(
    work: Path, module: str, missing: str | None, host: dict[str, Any]
) -> None:
    assert needs(work, {"module": module}, **host) == Needs(missing, ())


@pytest.mark.parametrize("host", [{}, ACTIVATED], ids=["login", "activate"])
def test_a_program_that_is_not_there_is_named(work: Path, host: dict[str, Any]) -> None:
    for program, there in (("sh", True), ("nosuch-program", False), ("./run.sh", True), ("./none.sh", False)):
        lacking = () if there else (program,)
        assert needs(work, {"command": [program, "x"]}, **host).programs == lacking
        assert needs(work, {"script": "x.py", "wrap": [program, "x"]}, **host).programs == lacking


@pytest.mark.parametrize("host", [{}, ACTIVATED], ids=["login", "activate"])
def test_a_program_at_home_is_found_there(work: Path, host: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(work))
    assert needs(work, {"command": ["~/run.sh"]}, **host).programs == ()
    assert needs(work, {"command": ["~/none.sh"]}, **host).programs == ("~/none.sh",)


def test_what_the_probe_cannot_know_it_does_not_say(work: Path) -> None:
    assert needs(work, {"module": "nosuch", "wrap": ["sh"]}, **OURS) == Needs(None, ())
    assert needs(work, {"command": ["nosuch"], "env": {"PATH": "/x"}}) == Needs(None, ())
    assert needs(work, {"module": "nosuch", "env": {"PYTHONPATH": "/x"}}, **OURS) == Needs(None, ())
    assert needs(work / "gone", {"module": "nosuch"}, **OURS) == Needs(None, ())


def test_missing_programs_and_modules_keep_a_run_from_starting() -> None:
    desk = facts("cpu_desk")
    bare = replace(desk, needs=Needs(None, ("accelerate",)))
    (seen,) = planned(bare, job={"command": ["accelerate"]}).found("error")
    assert seen == (
        "node1: the program accelerate of `job.command` is not in PATH"
        " → Install it, or correct `job.command`, or add it to PATH in `activate`"
    )
    wrap = {"script": "x.py", "wrap": ["/opt/x/run"]}
    (seen,) = planned(replace(desk, needs=Needs(None, ("/opt/x/run",))), job=wrap).found("error")
    assert "the program /opt/x/run of `job.wrap` does not exist →" in seen
    (seen,) = planned(replace(desk, needs=Needs("pkg", ())), job={"module": "pkg.train"}).found("error")
    assert "has no module pkg" in seen and "`job.module`" in seen
    it = planned(replace(desk, needs=Needs("pkg.train", ())), job={"module": "pkg.train"})
    assert it.found("error") == [] and "no module pkg.train" in it.found("warning")[0]


def test_an_activate_that_fails_is_an_error_before_the_start(work: Path) -> None:
    answer = probe({"activate": "conda-is-not-here activate x", "workdir": str(work), "gpus": False})
    found = HostFacts.from_json(json.loads(json.dumps(answer)))
    assert found.activate_problem.startswith("activate ended with status 127: ")
    host = replace(facts("cpu_desk"), problems=(found.activate_problem,), activate_problem=found.activate_problem)
    (seen,) = planned(host).found("error")
    assert "node1: activate ended with status 127" in seen and "command not found" in seen and "`; true`" in seen


def test_an_activate_that_fails_at_the_start_runs_nothing(cluster: Make, tmp_path: Path) -> None:
    run = cluster(f"open({str(tmp_path / 'ran')!r}, 'w')", activate="echo no such environment; false").start()
    cause = run.exit(0)["cause"]
    assert (cause["kind"], cause["message"]) == ("launch", "activate ended with status 1")
    assert not (tmp_path / "ran").exists()
    assert "no such environment" in run.path(0, "attempt-1/launcher.log").read_text()


def test_a_wrapper_that_is_missing_after_activate_is_named(cluster: Make) -> None:
    run = cluster("", activate="true", wrap=["nosuch-wrapper", "-v"]).start()
    assert run.exit(0)["cause"]["message"] == "cannot start nosuch-wrapper: No such file or directory"


def test_logs_shows_what_a_wrapper_printed(tmp_path: Path) -> None:
    made = kept(tmp_path)
    ended = lines({"t": 12, "state": "finished", "code": 0})
    timed = "\tMaximum resident set size (kbytes): 812\n"
    files: dict[str, str | bytes] = {"attempt-1/rank-0.log": "hello\n", "attempt-1/launcher.log": timed}
    mirrored(made, 0, {**files, "exit.json": ended})
    mirrored(made, 1, {"attempt-1/rank-1.log": "there\n", "exit.json": ended})
    assert printed(made, LineFilter()).splitlines() == [
        "a:0 │ hello", "b:1 │ there", "a:launcher │ \tMaximum resident set size (kbytes): 812",
    ]  # fmt: skip
    assert printed(made, LineFilter(rank=0)) == "a:0 │ hello\n"


def test_a_run_with_a_script_asks_for_nothing_more(work: Path) -> None:
    (work / "x.py").touch()
    assert needs(work, {"script": "x.py"}) == Needs(None, ())
