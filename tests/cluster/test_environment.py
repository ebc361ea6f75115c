"""`job.environment` and `job.setup` on real hosts without shared folders and without a package index."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.typed import User, typed
from tests.unit.test_environment import wheel

pytestmark = [pytest.mark.torch, pytest.mark.timeout(500)]

_TRAIN = """\
import os, sys, torch
import aaa
print(f"rank {os.environ['RANK']} torch {torch.__version__} aaa {aaa.VERSION} {sys.executable}", flush=True)
print("built:", open("built").read().strip(), flush=True)
"""


def project(me: User) -> Path:
    """A folder with a script, a requirements file and a wheel."""
    folder = me.home / "project"
    folder.mkdir()
    (folder / "train.py").write_text(_TRAIN)
    (folder / "requirements.txt").write_text("aaa\ntorch\n")
    wheel(folder / "wheels", "aaa", "1.0", "torch>=2")
    return folder


def test_hosts_get_the_environment_from_the_viewer_and_reuse_it(user: Callable[..., User]) -> None:
    me = user(2)
    folder = project(me)
    environment = {"from": str(folder / "requirements.txt"), "inherit": True, "wheels": str(folder / "wheels")}
    job = {
        "script": "train.py", "sync": {"from": str(folder), "exclude": ["wheels/"]}, "environment": environment,
        "setup": ["echo compiling; echo $DISTTUI_NODE > built"],
    }  # fmt: skip
    profile = me.profile(job)
    planned = typed(me, "profile plan", profile)
    assert "the environment of" in planned and "was not found" in planned
    first = me.run(profile, timeout=240)
    for node in range(2):
        assert re.search(rf"rank {node} torch \S+ aaa 1.0 /root/.cache/disttui/environments/", first.stdout), (
            first.stdout
        )
        assert f"built: {node}" in first.stdout
    assert "environment:" in first.stderr
    logs = typed(me, "logs", first.mirror.name)
    assert logs.count("compiling") == 4, logs  # the command and its output, on both hosts
    checked = typed(me, "check", profile)
    assert "aaa" not in checked and "differs" not in checked, checked

    (folder / "train.py").write_text(_TRAIN + "print('second', flush=True)\n")
    second = me.run(profile)
    assert second.stdout.count("second") == 2
    assert "environment:" not in second.stderr
    for host in me.cluster.hosts:
        found = host.run("ls -d .cache/disttui/environments/*/", check=True).stdout.split()
        assert len(found) == 1, found


def test_hosts_without_an_index_get_wheels_from_the_viewer(user: Callable[..., User]) -> None:
    me = user(2)
    folder = project(me)
    (folder / "train.py").write_text("".join(_TRAIN.splitlines(keepends=True)[:3]))
    (folder / "requirements.txt").write_text("-r more.txt\ntorch\n")
    (folder / "more.txt").write_text("aaa\n")
    wheel(folder / "wheels", "torch", "999.0")
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder / "wheels")}
    environment = {"from": str(folder / "requirements.txt"), "inherit": True}
    job = {"script": "train.py", "sync": {"from": str(folder), "exclude": ["wheels/"]}, "environment": environment}
    profile = me.profile(job)
    failed = me.run(profile, code=3, timeout=240, env={**index, "PIP_FIND_LINKS": str(folder)})
    assert f"{me.cluster[0].name}: requirements.txt cannot be installed" in failed.stderr
    assert (
        "This machine cannot download the wheels either: " in failed.stderr
        and "set job.environment.wheels" in failed.stderr
    )
    first = me.run(profile, timeout=240, env=index)
    for node in range(2):
        assert re.search(rf"rank {node} torch (?!999)\S+ aaa 1.0 /root/.cache/disttui/environments/", first.stdout), (
            first.stdout
        )
    assert "environment: downloading wheels here" in first.stderr
    sent = [path.name for host in me.cluster.hosts for path in host.home.glob(".cache/disttui/wheels/*/*")]
    assert sent == ["aaa-1.0-py3-none-any.whl"] * 2, "the torch that is there is not sent"
    checked = typed(me, "check", profile)
    assert "aaa" not in checked and "differs" not in checked, checked
    assert "environment:" not in me.run(profile).stderr, "it is found again without the wheels"


def test_a_failing_setup_starts_nothing(user: Callable[..., User]) -> None:
    me = user(2, light=True)
    script = me.script("print('ran', flush=True)\n")
    setup = ['if [ "$DISTTUI_NODE" = 1 ]; then echo no room for it; exit 3; fi; sleep 300']
    failed = me.run(me.profile({"script": str(script), "setup": setup}), code=3)
    second = me.cluster[1].name
    assert f"{second}: job.setup:" in failed.stderr and "ended with exit code 3" in failed.stderr
    assert "no room for it" in failed.stderr and "ran" not in failed.stdout


def test_ctrl_c_and_a_killed_viewer_end_the_setup(user: Callable[..., User]) -> None:
    me = user(1, light=True)
    script = me.script("print('ran', flush=True)\n")
    begun = me.cluster[0].home / "begun"
    profile = me.profile({"script": str(script), "setup": ["touch ~/begun; setsid sleep 500 & sleep 500"]})
    for number in (signal.SIGINT, signal.SIGKILL):
        running = me.start(profile)
        running.wait_file(begun)
        running.send(number)
        running.wait()
        assert "Traceback" not in running.stderr
        running.wait_gone(60)
        begun.unlink()
    running = me.start(profile)
    running.wait_file(begun)
    runs = me.cluster[0].home / ".disttui/runs"
    [run] = [path.parent.parent.name for path in runs.glob("*/0/supervisor.json")]
    typed(me, "stop", run)
    assert running.wait() == 3 and "stopped" in running.stderr
    running.wait_gone(10)
    assert (runs / run / "0/exit.json").exists()
