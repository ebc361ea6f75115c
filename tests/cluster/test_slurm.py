"""Runs that are jobs of Slurm: submitted, queued, followed, stopped and failed, all over SSH to the login node."""

from __future__ import annotations

import json
import re
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from disttui.runner.api.preparing import prepare
from disttui.runner.api.starting import Reachable, submit
from disttui.runner.api.viewer import Viewer
from disttui.runner.profile.load import load
from disttui.runner.runs.registry import keep
from tests.cluster import Cluster
from tests.cluster.slurm import Slurm
from tests.cluster.typed import Running, User, elsewhere, typed

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

_FAILS = """
import os, sys, torch.distributed as dist

dist.init_process_group("gloo")
print("a secret of", len(os.environ["SECRET"]), flush=True)
if dist.get_rank() == 1:
    raise ValueError("boom on rank 1")
dist.barrier()
"""
_REDUCES = """
import sys, torch, torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "has", total.item(), sys.argv[1], flush=True)
dist.destroy_process_group()
"""
_SLEEPS = """
import os, pathlib, time

print("up", (pathlib.Path(__file__).parent / f"up-{os.environ['RANK']}").touch(), flush=True)
while not (pathlib.Path(__file__).parent / "enough").exists():
    time.sleep(0.05)
print("the last line of", os.environ["RANK"], flush=True)
"""
_SMALL = (
    "--layers", "1", "--width", "32", "--context", "32", "--val-batches", "1", "--sample", "0", "--steps", "3",
    "--log-interval", "1",
)  # fmt: skip


@pytest.fixture(scope="module")
def slurm(requires_cluster: None) -> Iterator[Slurm]:
    """One Slurm for all tests: node1 is the login node, node2 and node3 compute."""
    with Cluster(3) as cluster:
        yield Slurm(cluster)


@pytest.fixture
def me(slurm: Slurm, tmp_path: Path) -> Iterator[User]:
    """A user at a machine that reaches the login node alone; runs have a light Python unless they need torch."""
    for path in slurm.cluster.shared.glob("up-*"):
        path.unlink()
    (slurm.cluster.shared / "enough").unlink(missing_ok=True)
    one = User(slurm.cluster, tmp_path, light=True)
    yield one
    one.close()
    slurm.ask("scancel", "--user=root")
    slurm.wait_idle()


def _profile(me: User, job: dict[str, object], *, nodes: int = 2, **keys: object) -> Path:
    launch = {"launcher": "slurm", "run_dir": str(me.cluster.shared / "runs"), "grace": 1}
    return me.profile(job, hosts=["node1"], **{"launch": launch, "slurm": {"nodes": nodes, "time": "10"}, **keys})


def _run(me: User, profile: Path, *options: str, code: int) -> Running:
    """Type `disttui run` and wait for its end."""
    running = me.start(profile, *options)
    assert running.wait() == code, f"{running.stdout}\n{running.stderr}"
    return running


def _wait_up(me: User, running: Running) -> None:
    for rank in range(2):
        running.wait_file(me.cluster.shared / f"up-{rank}")


def _id(me: User) -> str:
    """The id of this user's only run."""
    [folder] = (me.home / ".local/share/disttui/runs").iterdir()
    return folder.name


def _job(slurm: Slurm, me: User) -> str:
    """What Slurm says of the job of this user's only run, once it has ended: that is a moment after the run has."""
    words = ("squeue", "-h", "-t", "all", "-n", _id(me), "-o")
    slurm.wait_for(lambda: slurm.ask(*words, "%T") not in ("PENDING", "RUNNING", "COMPLETING"))
    return slurm.ask("scontrol", "-o", "show", "job", slurm.ask(*words, "%i"))


def _completed(slurm: Slurm, me: User, running: Running) -> None:
    """A run on two nodes has ended: its job is COMPLETED, and nothing secret stays on the disk."""
    assert running.wait() == 0, f"{running.stdout}\n{running.stderr}"
    assert re.search(r"job \d+ runs on node2, node3", running.stderr)
    assert "node3:1 │" in running.stdout, "logs bear the names of the job's nodes"
    assert "JobState=COMPLETED" in _job(slurm, me)
    assert not list((me.cluster.shared / "runs").rglob("given"))


def test_a_run_is_spread_over_two_nodes(slurm: Slurm, me: User) -> None:
    running = me.start(_profile(me, {"script": str(me.script(_SLEEPS))}))
    _wait_up(me, running)
    running.wait_for(lambda: " runs on " in running.stderr)
    (me.cluster.shared / "enough").touch()
    _completed(slurm, me, running)
    assert "node2:0 │ the last line of 0\n" in running.stdout
    assert "node3:1 │ the last line of 1\n" in running.stdout


def test_a_run_on_two_nodes_learns_what_it_learns_without_slurm(slurm: Slurm, me: User) -> None:
    """bytegpt has the same losses as on two processes here."""
    me.python = sys.executable
    text = me.cluster.shared / "text"
    text.write_text("to be or not to be " * 4000)
    job: dict[str, object] = {"builtin": "bytegpt", "args": ["--data", str(text), *_SMALL]}
    running = me.start(_profile(me, job))
    _completed(slurm, me, running)
    sandbox = _run(me, me.profile(job, hosts=["a"], num_processes=2), "--sandbox", code=0)
    there, here = (
        [one["loss"] for one in where.records("attempt-1/rank-0.metrics.jsonl") if "loss" in one]
        for where in (running, sandbox)
    )
    assert len(there) == 3
    assert there == pytest.approx(here, abs=1e-4)


def test_a_rank_that_raises_is_the_cause_and_the_job_fails(slurm: Slurm, me: User) -> None:
    """The story of the end is that of any run, the job is FAILED, and a secret reached the ranks but no file."""
    me.python = sys.executable
    script = me.script(_FAILS)
    profile = _profile(me, {"script": str(script), "env": {"SECRET": "${env:WORD}"}})
    running = me.start(profile, env={"WORD": "a-word-that-nobody-sees"})
    assert running.wait() == 1, running.stderr
    assert "failed" in running.stderr and "rank 1 on node3 raised ValueError" in running.stderr
    assert "stopped because of it: rank 0 on node2" in running.stderr
    assert "node2:0 │ a secret of 23" in running.stdout
    job = _job(slurm, me)
    assert "JobState=FAILED" in job and "ExitCode=1:0" in job
    seen = [path for path in (me.cluster.shared / "runs" / _id(me)).rglob("*") if path.is_file()]
    assert [path for path in seen if b"nobody-sees" in path.read_bytes()] == []
    assert all(path.stat().st_mode & 0o077 == 0 for path in (me.cluster.shared / "runs").glob("*/[01]"))


def test_an_exported_job_script_trains_without_disttui(slurm: Slurm, me: User) -> None:
    me.python = sys.executable
    script = me.script(_REDUCES)
    profile = me.profile({"script": str(script), "args": ["a b"]}, hosts=["node2", "node3"], launch={"backend": "gloo"})
    folder = slurm.cluster.shared / "exported"
    typed(me, "profile", "export", profile, "--to", "sbatch", "-o", folder)
    output = folder / "output"
    job = slurm.ask("sbatch", "--parsable", "-o", str(output), str(folder / "job.sbatch"))
    slurm.wait_for(
        lambda: slurm.ask("squeue", "-h", "-t", "all", "-j", job, "-o", "%T") in ("COMPLETED", "FAILED"), 180
    )
    assert sorted(set(re.findall(r"rank \d of 2 has .*", output.read_text()))) == [
        "rank 0 of 2 has 3.0 a b",
        "rank 1 of 2 has 3.0 a b",
    ], output.read_text()


def test_a_run_is_queued_with_the_reason_and_cancelled(slurm: Slurm, me: User) -> None:
    """While other jobs hold the nodes, run and ps tell why it waits; a stop cancels it, and no job is left."""
    other = slurm.ask("sbatch", "--parsable", "--exclusive", "-N2", "-o", "/dev/null", "--wrap", "sleep 600")
    slurm.wait_for(lambda: slurm.ask("squeue", "-h", "-j", other, "-o", "%T") == "RUNNING")
    profile = _profile(me, {"command": ["true"]})
    running = me.start(profile)
    running.wait_for(lambda: "is queued: Resources (waiting for free nodes)" in running.stderr, 60)
    listed = json.loads(typed(me, "ps", "--json"))
    assert (listed[0]["state"], listed[0]["waits"]) == ("queued", "Resources")
    assert "queued" in typed(me, "ps") and "waiting for free nodes" in typed(me, "ps")
    other_me = elsewhere(me)
    left = _run(other_me, profile, "--detach", "--when-free", code=0)
    assert "--when-free has no effect on a Slurm job" in left.stderr
    assert "is queued" in left.stderr and "disttui attach" in left.stderr
    typed(other_me, "stop", left.stdout.strip())
    running.send(signal.SIGINT)
    assert running.wait() == 130, running.stderr
    slurm.wait_for(lambda: slurm.jobs() == [other])
    assert "stopped" in running.stderr
    assert "JobState=CANCELLED" in _job(slurm, me)


def test_a_run_is_looked_at_and_stopped_from_elsewhere(slurm: Slurm, me: User) -> None:
    """The login node goes away and comes back; from another machine the run is found, and stopped with nothing left."""
    script = me.script(_SLEEPS)
    running = me.start(_profile(me, {"script": str(script)}))
    _wait_up(me, running)
    slurm.login.drop_sessions()
    slurm.login.cut()
    running.wait_for(lambda: "unreachable since" in running.stderr)
    slurm.login.restore()
    run, runs = _id(me), str(me.cluster.shared / "runs")
    other = elsewhere(me)
    listed = typed(other, "ps", "--host", "node1", "--run-dir", runs)
    assert "starting" in listed or "running" in listed  # a quiet script counts as running after some seconds
    where = typed(other, "diagnose", run, "--host", "node1", "--run-dir", runs)
    assert "job.py:6" in where and "ranks 0, 1" in where, "stacks come from the nodes"
    assert "node3:1 " in typed(me, "logs", run)
    said = typed(other, "stop", run, "--host", "node1", "--run-dir", runs, code=0)
    assert "stopped" in said
    slurm.wait_idle()
    slurm.wait_for(lambda: not slurm.jobs())
    assert running.wait() == 130, running.stderr


def test_cancelled_job_is_reported_as_stopped_by_slurm(slurm: Slurm, me: User) -> None:
    """scancel asks every process of the job to end: the story is that of a stop, not of ranks that die."""
    script = me.script(_SLEEPS)
    running = me.start(_profile(me, {"script": str(script)}))
    _wait_up(me, running)
    slurm.ask("scancel", *slurm.jobs())
    assert running.wait() == 130, running.stderr
    assert "Slurm ends the job: cancelled" in running.stderr
    assert "failed" not in running.stderr


def test_link_lost_during_submission_causes_no_second_job(slurm: Slurm, me: User, tmp_path: Path) -> None:
    """The request is repeated on a new link, whether the first has got as far as noting the job's id or not."""
    profile = load(_profile(me, {"command": ["sleep", "600"]}))
    run, jobs = f"twice-{secrets.token_hex(8)}", []
    environ = {**me.environment(), "XDG_DATA_HOME": str(tmp_path)}
    with Viewer(environ, ssh_config=str(me.cluster.ssh_config)) as viewer:
        for _ in range(3):
            with prepare(viewer, profile) as prepared:
                plan = prepared.planned.plan
                assert plan.batch is not None
                login = Reachable(prepared.links[0], lambda: viewer.open_link(profile.hosts[0]))
                known = keep(profile, [1], run, viewer.environ)
                jobs.append(submit(known, plan, plan.batch, login, {}))
            if len(jobs) == 1:
                (me.cluster.shared / f"runs/{run}/0/slurm.json").unlink()
    assert [slurm.ask("squeue", "-h", "-n", run, "-o", "%A")] == [jobs[0]] == [jobs[1]] == [jobs[2]]


def test_run_folder_invisible_to_nodes_is_named_as_the_cause(slurm: Slurm, me: User) -> None:
    """/root is each host's own here, so that the nodes have no such folder."""
    launch = {"launcher": "slurm", "run_dir": "~/runs"}
    running = _run(me, _profile(me, {"command": ["true"]}, launch=launch), code=1)
    assert "cannot see /root/runs/" in running.stderr and "set launch.run_dir" in running.stderr


def test_slurm_refusal_is_quoted(slurm: Slurm, me: User) -> None:
    """A partition that there is not: exit code 3 and no run left behind."""
    running = _run(me, _profile(me, {"command": ["true"]}, slurm={"partition": "nowhere"}), code=3)
    assert "node1: sbatch: invalid partition specified: nowhere" in running.stderr
    assert not (me.cluster.shared / "runs" / _id(me)).exists()


def test_a_job_that_can_never_start_says_why(slurm: Slurm, me: User) -> None:
    """More nodes than the partition has: Slurm keeps the job in its queue."""
    running = me.start(_profile(me, {"command": ["true"]}, nodes=9))
    running.wait_for(lambda: "is queued: PartitionConfig (no nodes of the partition" in running.stderr)
    typed(me, "stop", _id(me))
    assert running.wait() == 130, running.stderr
    slurm.wait_for(lambda: not slurm.jobs())


def test_host_without_slurm_is_not_a_login_node(slurm: Slurm, me: User) -> None:
    """The check before the launch says so; the plan shows the script."""
    profile = _profile(me, {"command": ["true"]}, slurm={"nodes": 2, "options": ["--mem=1G"], "partition": "debug"})
    plan = typed(me, "profile plan", profile)
    assert "#SBATCH --partition=debug\n#SBATCH --mem=1G\n" in plan and "#SBATCH --nodes=2\n" in plan
    refused = typed(me, "profile plan", profile, "--set", "activate=PATH=/nowhere", code=3)
    assert re.search(r"sbatch.* not found: not a Slurm login node", refused), refused


def test_a_node_that_loses_its_power_is_the_cause(slurm: Slurm, me: User) -> None:
    """The run notices it by itself, long before Slurm does. The last test: a booted node comes back late."""
    launch = {"launcher": "slurm", "run_dir": str(me.cluster.shared / "runs"), "grace": 1, "host_timeout": 4}
    script = me.script(_SLEEPS)
    running = me.start(_profile(me, {"script": str(script)}, launch=launch))
    _wait_up(me, running)
    slurm.nodes[1].power_off()
    try:
        assert running.wait() == 1, running.stderr
        assert "host lost: node3" in running.stderr
        state = ("squeue", "-h", "-t", "all", "-n", _id(me), "-o", "%T")
        slurm.wait_for(lambda: slurm.ask(*state) in ("COMPLETING", "CANCELLED"))
    finally:
        slurm.nodes[1].boot()
        slurm.start_node(slurm.nodes[1])
