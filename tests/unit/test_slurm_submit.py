"""What a profile asks of Slurm, and what a login node does with a job that goes wrong; commands stand for Slurm's."""

from __future__ import annotations

import errno
import os
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import pytest

from disttui.runner.api import starting
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import HostError, LinkLostError
from disttui.runner.hosts.ship import node_parcel
from disttui.runner.node import journal
from disttui.runner.node.problem import Problem
from disttui.runner.node.serve import runs
from disttui.runner.node.serve import slurm as serve_slurm
from disttui.runner.node.supervise import slurm
from disttui.runner.profile.load import parse
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.protocol.slurm import Batch, script, submission
from disttui.runner.render.waiting import queue_words
from disttui.runner.runs.registry import KnownRun, find_run, make_folder
from tests.files import new_file

_COMMAND = """#!/bin/sh
echo "$(basename "$0") $*" >> {log}
{does}
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()
    new_file(tmp_path / "node.zip", node_parcel().data, 0o600)
    for name in ("sbatch", "scancel", "squeue"):
        does(tmp_path, name, "echo 4711" if name == "sbatch" else "")
    return tmp_path / "log"


def does(tmp_path: Path, name: str, words: str) -> None:
    new_file(tmp_path / "bin" / name, _COMMAND.format(log=tmp_path / "log", does=words), 0o755)


def submit(tmp_path: Path) -> str:
    spec: Any = {"run": "t-1", "run_dir": str(tmp_path / "runs"), "hosts": ["a", "b"], "target": {"kind": "script"}}
    batch: Any = {"options": [], "cpus": 1, "python": "python3"}
    secrets: Any = {"key": "k", "env": {"TOKEN": "s3cret"}}
    request: Any = {"spec": spec, "launcher_args": [[], []], "secrets": secrets, "batch": batch}
    return runs.submit(request, str(tmp_path / "node.zip"), None)["job"]


def test_the_jobs_id_comes_after_what_a_site_prints(tmp_path: Path, log: Path) -> None:
    does(tmp_path, "sbatch", "echo Welcome to the cluster; echo '4712;cluster'")
    assert submit(tmp_path) == "4712"
    assert submit(tmp_path) == "4712", "a second submission changes nothing"
    assert log.read_text().count("sbatch --parsable") == 1


def test_submission_without_a_job_id_leaves_no_job_or_secrets(tmp_path: Path, log: Path) -> None:
    does(tmp_path, "sbatch", "echo thank you")
    does(tmp_path, "squeue", "echo 4713")
    with pytest.raises(Problem, match="did not print the id"):
        submit(tmp_path)
    assert log.read_text().splitlines()[-1] == "scancel 4713"
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize(("full", "last"), [("1/given", "squeue"), ("0/slurm.json", "scancel 4711")])
def test_full_disk_at_submission_leaves_no_job_or_secrets(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, full: str, last: str
) -> None:
    write = journal.write_json

    def until_full(path: str, data: Any) -> None:
        if path.endswith(full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        write(path, data)

    monkeypatch.setattr(journal, "write_json", until_full)
    with pytest.raises(Problem, match="cannot be written: No space left"):
        submit(tmp_path)
    assert log.read_text().splitlines()[-1].startswith(last)
    assert list((tmp_path / "runs").iterdir()) == []


LONG = "yes 7 | head -c 3000000 | tr -d '\\n'"
ODD = ("printf '\\033]0;x\\007 \\377\\n'", LONG, "yes", "echo '|||||'", "echo -- --help", "echo ²", "kill -9 $$")


@pytest.mark.parametrize("words", ODD)
def test_odd_output_of_sbatch_cancels_no_job_and_leaves_no_run(tmp_path: Path, log: Path, words: str) -> None:
    does(tmp_path, "sbatch", words)
    does(tmp_path, "squeue", words)
    with pytest.raises(Problem):
        submit(tmp_path)
    assert "scancel" not in log.read_text()
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("words", [*ODD, f"printf 'TIMEOUT|N/A|9999-99-99T00:00:00|n[1-9999999]|'; {LONG}"])
def test_whatever_squeue_and_scontrol_say_is_no_traceback(tmp_path: Path, log: Path, words: str) -> None:
    folder = begun(tmp_path)
    (Path(folder).parent / "²").mkdir()
    (Path(folder) / "attempt-²").mkdir()
    does(tmp_path, "squeue", words)
    does(tmp_path, "scontrol", f"printf 'ExitCode='; {LONG}; printf ':'; {LONG}")
    for ask in (
        lambda: runs.status(folder), lambda: serve_slurm._settle(str(Path(folder).parent), _queued(folder), late=True),
        lambda: runs.request_stop(folder, now=False, reason="why"),
    ):  # fmt: skip
        try:
            ask()
        except Problem:
            pass


def _queued(folder: str) -> Any:
    watch = serve_slurm.job_of(folder)
    assert watch is not None
    return watch.now() or {"job": "4711", "state": "FAILED", "reason": "", "start": "", "nodes": []}


def begun(tmp_path: Path) -> str:
    """The folder of a run whose job has begun, and has written no end."""
    submit(tmp_path)
    folder = tmp_path / "runs" / "t-1" / "0"
    (folder / "supervisor.json").write_text("{}")
    serve_slurm._watches.clear()  # another process looks next
    return str(folder)


@pytest.mark.parametrize("job", ["ended", "unknown"])
def test_one_status_call_sees_the_end_of_a_long_ended_job(tmp_path: Path, log: Path, job: str) -> None:
    folder, ended = begun(tmp_path), time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 120))
    unknown = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"
    does(tmp_path, "squeue", f"echo 'TIMEOUT|N/A|{ended}|n1|None'" if job == "ended" else unknown)
    found = runs.status(folder)
    assert (found["alive"], found["exit"] and found["exit"]["state"]) == (False, "failed")
    assert runs.forget(folder) == {}


def test_a_job_that_has_just_ended_may_still_write_its_own_end(tmp_path: Path, log: Path) -> None:
    folder, now = begun(tmp_path), time.strftime("%Y-%m-%dT%H:%M:%S")
    does(tmp_path, "squeue", f"echo 'COMPLETED|N/A|{now}|n1|None'")
    assert runs.status(folder) == {"alive": True, "pid": None, "exit": None, "waits": None}


def test_foreign_job_id_in_slurm_json_is_not_cancelled(tmp_path: Path, log: Path) -> None:
    folder = begun(tmp_path)
    Path(folder, "slurm.json").write_text('{"job": "99", "python": "python3"}')
    does(tmp_path, "squeue", "echo /home/me/other.sh")
    watch = serve_slurm.job_of(folder)
    assert watch is not None
    with pytest.raises(Problem, match="names job 99, which is not this run's"):
        watch.cancel()
    assert "scancel" not in log.read_text()
    does(tmp_path, "squeue", f"echo {folder}/job.sbatch")
    watch.cancel()
    assert log.read_text().splitlines()[-1] == "scancel 99"


def test_slurm_is_polled_seldom_only_while_a_job_runs(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_slurm, "PACE", 0.0)
    folder = begun(tmp_path)
    watch = serve_slurm.job_of(folder)
    assert watch is not None

    def asked() -> int:
        before = log.read_text().count("squeue")
        for _ in range(3):
            watch.now()
        return log.read_text().count("squeue") - before

    does(tmp_path, "squeue", "echo 'PENDING|N/A|N/A||Resources'")
    assert asked() == 3
    does(tmp_path, "squeue", "echo 'RUNNING|N/A|N/A||None'")
    assert asked() == 1
    Path(folder, "stop").write_text("{}")
    assert asked() == 3


def test_user_defaults_of_squeue_and_scancel_are_not_inherited(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("SQUEUE_STATES", "SCANCEL_STATE", "SLURM_JOB_ID", "SLURM_CONF", "SBATCH_ACCOUNT")
    for name in given:
        monkeypatch.setenv(name, "x")
    does(tmp_path, "squeue", "env")
    names = {line.partition("=")[0] for line in slurm.run("squeue").splitlines()}
    assert names.intersection(given) == {"SLURM_CONF", "SBATCH_ACCOUNT"}


def test_endless_output_of_a_slurm_command_is_cut_off(tmp_path: Path, log: Path) -> None:
    does(tmp_path, "squeue", "yes")
    with pytest.raises(Problem, match="squeue did not end in 30 s and 4 MiB of output"):
        slurm.run("squeue")


def test_what_a_site_prints_before_stacks_is_passed_over(tmp_path: Path, log: Path) -> None:
    folder = begun(tmp_path)
    Path(folder, "spec.json").write_text('{"job": "4711", "hosts": ["n1"]}')
    does(tmp_path, "squeue", "echo 'RUNNING|N/A|N/A|n1|None'")
    watch = serve_slurm.job_of(folder)
    assert watch is not None
    does(tmp_path, "srun", "echo Welcome; echo '{\"ranks\": {}}'")
    assert serve_slurm.stacks(folder, watch) == {"ranks": {}}
    does(tmp_path, "srun", "echo Welcome")
    with pytest.raises(Problem, match="node 0 of job 4711 did not report where its ranks are"):
        serve_slurm.stacks(folder, watch)


def test_a_submission_without_an_answer_is_taken_back() -> None:
    """The login node may have submitted the job all the same."""

    class Silent:
        stopped: ClassVar[list[dict[str, Any]]] = []

        def request(self, op: str, **_: Any) -> None:
            raise HostError("login", f"no answer to '{op}' in 180 s", "")

        def submit(self, op: str, **arguments: Any) -> Future[None]:
            self.stopped.append({"op": op, **arguments})
            done: Future[None] = Future()
            done.set_result(None)
            return done

    link: Any = Silent()
    login = starting.Reachable(link, lambda: link)
    plan: Any = type("Plan", (), {"hosts": [], "spec": lambda *_: {"run_dir": "~/runs"}})()
    batch: Any = {}
    known = KnownRun("t-1", Path(), (), {}, "~/runs", 0.0, "ada@desk")
    with pytest.raises(HostError, match="no answer to 'submit'"):
        starting.submit(known, plan, batch, login, {})
    assert [(one["op"], one["run"], one["run_dir"], one["node_rank"]) for one in Silent.stopped] == [
        ("stop", "t-1", "~/runs", 0)
    ]


@pytest.mark.parametrize("reached", [True, False])
def test_a_start_that_may_have_succeeded_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    """The host is lost after the request: only its own answer tells whether the run trains."""

    class Lost:
        def request(self, op: str, **_: Any) -> None:
            raise LinkLostError("login", "the link broke: silent for 10 s")

        def submit(self, *_: Any, **__: Any) -> Future[None]:
            done: Future[None] = Future()
            if reached:
                done.set_result(None)
            else:
                done.set_exception(LinkLostError("login", "the link broke"))
            return done

    viewer = Viewer({"HOME": str(tmp_path)})
    profile = parse("disttui: 1\nname: t\nhosts: [login]\njob: {script: x.py}\n", "t.yaml")
    plan: Any = type("Plan", (), {"batch": {}, "spec": lambda *_: {"run_dir": "~/runs"}})()
    plan.hosts = [type("Host", (), {"num_processes": 2, "launcher_args": ()})]
    planned: Any = type("Planned", (), {"profile": profile, "plan": plan, "facts": []})()
    link: Any = Lost()
    prepared: Any = type("Prepared", (), {"planned": planned, "links": (link,)})()
    monkeypatch.setattr(Viewer, "open_link", lambda *_: link)
    monkeypatch.setattr(starting, "keep_origin", lambda *_: None)
    make_folder(viewer.environ)
    with pytest.raises(LinkLostError, match="silent for 10 s") as caught:
        list(starting._launch(viewer, prepared, None, None, None, (), "t-0123456789abcdef", None))
    run = find_run("t", viewer.environ)
    assert run.settled is reached
    assert ("disttui stop t-01" in caught.value.cure) is not reached
    assert (run.summary()["state"] == "failed") is reached


_HEAD = "disttui: 1\nhosts: [login]\nnum_processes: 2\njob: {command: [x]}\n"
_WRONG = [
    ("slurm: {nodes: 0}\n", "p:5:16: nodes: '0', expected a whole number from 1 to 1,024"),
    ("slurm: {time: soon}\n", "p:5:15: time: 'soon', expected minutes, or like \"1:30:00\" or \"2-12:00\""),
    ("slurm: {partition: a b}\n", "p:5:20: partition: 'a b', expected one word"),
    ("slurm: {options: [--nodes=2]}\n", "p:5:19: options: --nodes has a key of its own, choose it by slurm.nodes"),
    ("slurm: {options: [--array=1-4]}\n", "p:5:19: options: --array is set by disttui, remove it"),
    ("slurm: {options: [--constrain=x]}\n",
     "p:5:19: options: --constrain is not a known option of sbatch, did you mean --constraint?"),
    ("slurm: {options: [mem]}\n",
     "p:5:19: options: 'mem', expected --name=value, or --name for an option without a value"),
    ("slurm: {options: [\"--comment=a\\n--uid=0\"]}\n",
     "p:5:19: options: '--comment=a\\n--uid=0', expected --name=value, or --name for an option without a value"),
    ("launch: {launcher: slurm}\n", "p:5:20: launcher slurm needs the section slurm, add slurm: {nodes: 2}"),
    ("launch: {launcher: mpirun}\nslurm: {nodes: 2}\n",
     "p:5:20: mpirun has not been tried in a Slurm job, expected torchrun or accelerate or slurm"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), _WRONG, ids=[message for _, message in _WRONG])
def test_errors_in_slurm_settings_name_their_place(text: str, message: str) -> None:
    with pytest.raises(ProfileErrors) as caught:
        parse(_HEAD + text, "p")
    assert [str(one) for one in caught.value.problems] == [message]


def test_two_hosts_are_no_login_node() -> None:
    with pytest.raises(ProfileErrors, match="p:2:16: a Slurm job has one login node"):
        parse(_HEAD.replace("[login]", "[login, b]") + "slurm: {nodes: 2}\n", "p")


def test_variables_of_the_login_do_not_override_the_profile() -> None:
    """Sbatch prefers them to what a script says, but not to its options."""
    batch: Batch = {"options": ["--account=ours"], "cpus": 8, "python": "python3"}
    assert submission("job.sbatch", batch)[-2:] == ("--account=ours", "job.sbatch")


def test_job_script_follows_the_profile_and_forbids_requeue() -> None:
    text = "slurm: {nodes: 2, partition: gpu, time: 1-0, gpus_per_node: 4, options: [--mem=64G]}\n"
    profile = parse(_HEAD + text, "p")
    assert profile.slurm is not None
    batch: Batch = {"options": profile.slurm.sbatch(), "cpus": 8, "python": "~/venv/bin/python"}
    assert script(batch, "t-1", 2, "/shared/t-1").splitlines() == [
        "#!/bin/sh",
        "#SBATCH --job-name=t-1",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --no-requeue",
        "#SBATCH --no-kill",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=/shared/t-1/0/slurm.log",
        "#SBATCH --partition=gpu",
        "#SBATCH --time=1-0",
        "#SBATCH --gres=gpu:4",
        "#SBATCH --mem=64G",
        "test -r /shared/t-1/0/node.zip || exit 73",
        "srun --ntasks-per-node=1 --cpus-per-task=8 --kill-on-bad-exit=1 --no-kill "
        "~/venv/bin/python -I -X utf8 /shared/t-1/0/node.zip slurm-node /shared/t-1",
        "exec ~/venv/bin/python -I -X utf8 /shared/t-1/0/node.zip slurm-end /shared/t-1",
    ]


def test_words_of_the_queue() -> None:
    waiting = queue_words(
        {"job": "7", "state": "PENDING", "reason": "Priority", "start": "2026-01-31T12:00:00", "nodes": []}
    )
    words = "job 7 is queued: Priority (other jobs come first), expected to start at 2026-01-31 12:00:00"
    assert waiting == words
    assert queue_words({"job": "7", "state": "RUNNING", "reason": "", "start": "", "nodes": ["a", "b"]}) == (
        "job 7 runs on a, b"
    )
    assert queue_words({"job": "7", "state": "FAILED", "reason": "x", "start": "", "nodes": []}) == ""
