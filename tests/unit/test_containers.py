"""Ranks in containers are started, asked, stopped and cleaned up like any others: by a real podman, as root here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.node import procs
from disttui.runner.node.host import HostPart
from disttui.runner.node.serve import runs
from disttui.runner.planning.interop.write import explicit_plan, write
from disttui.runner.profile.load import parse
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.protocol.containers import removal_words, start_words
from tests.command import ran
from tests.unit.launcher_kit import alive
from tests.unit.planning import facts, planned
from tests.unit.runs_kit import SLEEP, Cluster, Make, making, same
from tests.unit.waiting import wait_for

_IMAGE = "localhost/disttui-test:1"
_CONF = """
[engine]
runtime = "runc"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
"""
"""What podman needs where its defaults exceed this machine's limits."""


def _podman(*words: str) -> str:
    return str(ran(["podman", *words], check=True).stdout)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """podman with an image that has nothing in it; skips where none can run."""
    if not shutil.which("podman"):
        pytest.skip("no podman on this machine")
    with pytest.MonkeyPatch.context() as patch:
        conf = tmp_path_factory.mktemp("podman") / "containers.conf"
        conf.write_text(_CONF if shutil.which("runc") else "")
        patch.setenv("CONTAINERS_CONF", str(conf))
        empty = conf.with_name("empty.tar")
        subprocess.run(["tar", "cf", empty, "--files-from", "/dev/null"], check=True)
        try:
            _podman("import", "--quiet", str(empty), _IMAGE)
            _podman(
                "run",
                "--rm",
                "--pid=host",
                "--network=host",
                *(f"--volume={one}:{one}:ro" for one in _SYSTEM),
                _IMAGE,
                "/bin/true",
            )
        except subprocess.CalledProcessError as error:
            pytest.skip(f"podman starts no container here: {error.stderr.strip()[-300:]}")
        yield _IMAGE


_SYSTEM = [path for path in ("/usr", "/bin", "/lib", "/lib64") if Path(path).exists()]


@pytest.fixture
def box(engine: str) -> dict[str, Any]:
    """A container in which the interpreter of these tests runs."""
    # The interpreter of these tests is not in the image; a link to it may lead elsewhere.
    own = {sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1]), str(Path(__file__).parents[2])}
    mounts = [f"{one}:{one}:ro" for one in (*_SYSTEM, *sorted(own)) if not one.startswith("/usr")] + ["/usr:/usr:ro"]
    return {"runtime": "podman", "image": engine, "mounts": list(dict.fromkeys(mounts)), "options": [], "gpus": False}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    yield from making(tmp_path)


def _containers(run: Cluster) -> str:
    return _podman("ps", "--all", "--quiet", "--filter", f"name={run.run}")


def test_containers_train_with_secrets_and_leave_nothing(make: Make, box: dict[str, Any]) -> None:
    job = 'open(f"said-{rank}", "w").write(os.environ["SECRET"] + open("/proc/1/comm").read())\nstep(1)\n'
    run = make(job, [1, 2], container=box).start()
    assert same(run)["state"] == "finished"
    ours = Path("/proc/1/comm").read_text()
    assert {(run.base / f"said-{rank}").read_text() for rank in range(3)} == {"s3cret ☃ $(x)" + ours}
    assert "s3cret" not in json.dumps([run.events(node) for node in (0, 1)])
    assert run.living() == {} and _containers(run) == ""


def test_raising_rank_is_the_cause_and_the_run_restarts(make: Make, box: dict[str, Any]) -> None:
    job = """
step(1)
if attempt == 1 and rank == 1:
    raise ValueError("of rank 1")
if attempt == 1:
    time.sleep(600)
"""
    run = make(job, [1, 1], container=box, launch={"restarts": 1}).start()
    assert same(run)["state"] == "finished"
    assert "of rank 1" in json.dumps([run.events(node) for node in (0, 1)])
    assert run.exit(0)["attempt"] == 2 and _containers(run) == ""


def test_a_stop_asks_each_rank_once_and_kills_what_ignores_it(make: Make, box: dict[str, Any]) -> None:
    job = """
import signal
signal.signal(signal.SIGTERM, lambda *_: open(f"asked-{rank}", "a").write("x"))
open(f"ready-{rank}", "w").close()
while True:
    time.sleep(0.1)
"""
    run = make(job, [2], container=box, launch={"grace": 2}).start()
    for rank in range(2):
        wait_for((run.base / f"ready-{rank}").exists, "the ranks")
    run.stop()
    assert run.exit(0)["state"] == "stopped" and run.exit(0)["left"] == []
    assert [(run.base / f"asked-{rank}").read_text() for rank in range(2)] == ["x", "x"]
    assert run.living() == {} and _containers(run) == ""


def test_when_all_of_ours_is_killed_at_once_nothing_remains(make: Make, box: dict[str, Any]) -> None:
    run = make(SLEEP, [2], container=box).start().wait_ranks()
    ranks = {record["pid"] for record in run.events(0, "rank")}
    up = run.supervisor(0)
    client = next(pid for pid in procs.descendants(procs.table(), up["pid"]) if "podman" in procs.command(pid))
    for pid in (up["warden"]["pid"], up["pid"], client):
        os.kill(pid, 9)
    wait_for(lambda: not any(map(alive, ranks)), "the ranks' end")
    status = runs.status(run.folder(0))
    assert not status["alive"] and run.exit(0)["state"] == "failed"
    assert run.living() == {} and _containers(run) == ""


def test_a_slow_removal_keeps_the_heartbeat(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tmp_path / "docker"
    engine.write_text(
        '#!/bin/bash\n[ "$1" = rm ] && case "$*" in *-1) exec sleep 19;; *) exit 0;; esac\n'
        'while [ "$1" != IMAGE ]; do shift; done; shift; exec "$@"\n'
    )
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    box = {"runtime": "docker", "image": "IMAGE", "mounts": [], "options": [], "gpus": False}
    job = "step(1)\nassert attempt == 2\n"
    run = make(job, [1, 1], container=box, launch={"restarts": 1, "host_timeout": 14}).start()
    end = same(run)
    assert end["state"] == "finished", end


def test_a_missing_image_is_named(make: Make, box: dict[str, Any]) -> None:
    run = make(SLEEP, [1], container={**box, "image": "localhost/no-such-image:1", "options": ["--pull=never"]}).start()
    assert "no-such-image" in same(run)["cause"]["message"]
    assert _containers(run) == ""


def test_words_of_every_runtime() -> None:
    """Variables are named, never given in argv; docker's ranks are processes of the user."""

    def words(runtime: Any, gpus: bool = True, more: Sequence[str] = ("/r",)) -> str:
        box: Any = {"runtime": runtime, "image": "I", "mounts": ["/d", "/s:/t:ro"], "options": ["-o"], "gpus": gpus}
        return " ".join(start_words(box, "/w", mounts=more, variables=["A"], name="n", user=(7, 8)))

    shared = "--rm --interactive --network=host --pid=host --security-opt=label=disable"
    volumes = "--volume=/d:/d --volume=/s:/t:ro --volume=/r:/r --env=A --workdir=/w"
    assert words("podman") == (
        f"podman run {shared} --volume=/dev/shm:/dev/shm --replace --userns=keep-id --name=n {volumes} "
        "--device=nvidia.com/gpu=all -o I"
    )
    assert (
        words("docker")
        == f"docker run {shared} --ipc=host --ulimit=memlock=-1 --user=7:8 --name=n {volumes} --gpus=all -o I"
    )
    assert words("apptainer") == "apptainer exec --bind=/d --bind=/s:/t:ro --bind=/r --pwd=/w --nv -o I"
    assert words("apptainer", gpus=False).count("--nv") == 0
    assert words("docker").count("/d:") == words("docker", more=["/d", "/s", "/t/"]).count("/d:") == 1
    assert "--volume=/s:/s" in words("docker", more=["/s"]) and "/t/" not in words("docker", more=["/t/"])
    assert words("enroot").startswith("enroot start --env=A --mount=/d:/d --mount=/s:/t:ro --mount=/r:/r -o I sh -c ")
    assert removal_words("apptainer", "n") == removal_words(None, "n") == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{image: x}", "runtime"),
        ("{image: x, runtime: podmann}", "did you mean 'podman'?"),
        ("{image: -v, runtime: docker}", "expected an image"),
        ("{image: x, runtime: docker, mounts: [data]}", "expected /folder, ~/folder"),
        ("{image: x, runtime: docker, mounts: ['/a:']}", "expected /folder, ~/folder"),
        ("{image: x, runtime: docker, mounts: ['/a:/b:rx']}", "expected /folder, ~/folder"),
    ],
)
def test_bad_containers_are_refused_where_they_stand(given: str, said: str) -> None:
    with pytest.raises(ProfileErrors, match=said) as caught:
        parse(f"disttui: 1\nhosts: [n1]\njob: {{script: x.py}}\ncontainer: {given}\n", "p.yaml")
    assert str(caught.value).startswith("p.yaml:4")


def test_activate_is_refused_beside_a_container() -> None:
    box = "container: {image: x, runtime: docker}"
    text = f"disttui: 1\nhosts: [n1]\nactivate: conda activate x\njob: {{script: x.py}}\n{box}\n"
    with pytest.raises(ProfileErrors, match="activate would run outside the container"):
        parse(text, "p.yaml")


def test_the_plan_shows_the_container_and_passes_it_to_the_host() -> None:
    it = planned(facts("a100x8"), container={"image": "I", "runtime": "docker", "mounts": ["~/data"]}, num_processes=2)
    assert " ".join(it.plan.hosts[0].command).startswith("docker run --rm --interactive --network=host")
    assert "--gpus=all" in it.plan.hosts[0].command
    spec = it.plan.spec(0, "r-1")
    assert spec["container"] == {"runtime": "docker", "image": "I", "mounts": ["~/data"], "options": [], "gpus": True}


def test_a_container_at_home_is_found_on_the_host_and_by_hand(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    box = {
        "image": "~/a b.sif",
        "runtime": "apptainer",
        "mounts": ["~/data", "~/c:/c:ro"],
        "options": [],
        "gpus": False,
    }
    profile = parse(
        "disttui: 1\nhosts: [n1]\nnum_processes: 1\njob: {script: x.py, workdir: ~/job}\n"
        "container: {image: '~/a b.sif', runtime: apptainer, mounts: [~/data, '~/c:/c:ro']}\n", "p.yaml",
    )  # fmt: skip
    (text,) = write(explicit_plan(profile), "script").files.values()
    mounts = '--bind="$HOME"/data --bind="$HOME"/c:/c:ro --bind="$HOME"/job'
    assert f"apptainer exec {mounts} --pwd=\"$HOME\"/job ~/'a b.sif' " in text
    monkeypatch.setenv("HOME", "/h")
    spec: Any = {**make(SLEEP, [1]).spec(0), "container": box}
    command = HostPart(spec, "/h/runs/r/0", "/h/node.zip", None, {}, 0o077).command(1)
    assert command[2:4] == [b"--bind=/h/data", b"--bind=/h/c:/c:ro"] and b"/h/a b.sif" in command
