"""What a profile asks of Slurm: refused where it is wrong, and the batch script that follows from it."""

from __future__ import annotations

import pytest

from disttui.runner.profile.load import parse
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.protocol.slurm import Batch, script
from disttui.runner.render.waiting import queue_words

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
