"""Hosts that hold different versions of a script are named before the start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.hosts.facts import Code, HostFacts
from disttui.runner.node.probe import code as module
from disttui.runner.node.probe.report import probe
from tests.command import ran
from tests.files import new_file
from tests.unit.planning import facts, planned

SCRIPT = {"script": "train.py"}


def fingerprint(folder: Path, **request: Any) -> Code | None:
    asked: Any = {"workdir": str(folder), "gpus": False, **(request or {"script": "train.py"})}
    answer = probe(asked)
    return HostFacts.from_json(json.loads(json.dumps(answer))).code


def sources(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        new_file(folder / name, text)
    return folder


CURE = "Copy the same code to all hosts, or set launch.allow_differences (--allow-differences)"


def found(one: Path, other: Path, level: str = "error", **request: str) -> list[str]:
    hosts = [
        replace(facts(name), code=fingerprint(at, **request))
        for name, at in (("cpu_desk", one), ("cpu_container", other))
    ]
    job = {"module": request["module"]} if request else SCRIPT
    return [line for line in planned(*hosts, job=job).found(level) if "interpreters" not in line and "differ" in line]


def test_a_script_that_differs_between_hosts_is_an_error(tmp_path: Path) -> None:
    one, other = (
        sources(tmp_path / "a", {"train.py": "VERSION = 'A'"}),
        sources(tmp_path / "b", {"train.py": "VERSION = 'B'"}),
    )
    assert found(one, other) == [f"None: train.py differs: node1 ≠ node2 → {CURE}"]
    sources(other, {"train.py": "VERSION = 'A'"})
    assert found(one, other) == []


def test_a_file_beside_it_that_differs_is_an_error(tmp_path: Path) -> None:
    one, other = (sources(tmp_path / name, {"train.py": "import model", "model/net.py": "x = 1"}) for name in "ab")
    assert found(one, other) == []
    sources(other, {"model/net.py": "x = 2"})
    assert found(one, other) == [f"None: the Python files next to train.py differ: node1 ≠ node2 → {CURE}"]
    sources(other, {"model/net.py": "x = 1", "model/new.py": ""})
    assert len(found(one, other)) == 1, "a file that only one has"


def test_differences_may_be_allowed(tmp_path: Path) -> None:
    hosts = [
        replace(facts(name), code=fingerprint(sources(tmp_path / name, {"train.py": name})))
        for name in ("cpu_desk", "cpu_container")
    ]
    it = planned(*hosts, job=SCRIPT, launch={"allow_differences": True})
    assert it.found("error") == []
    assert f"None: train.py differs: node1 ≠ node2 → {CURE}" in it.found("warning")


def test_script_differing_from_this_machine_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = replace(facts("cpu_desk"), code=fingerprint(sources(tmp_path / "host", {"train.py": "old"})))
    here = sources(tmp_path / "here", {"train.py": "new"})

    def differs(instead: str = "") -> str:
        send = f"Set `job.sync: {here}`{instead} to send it at every start. Or copy{CURE.removeprefix('Copy')}"
        return f"None: train.py differs: this machine ≠ node1 → {send}"

    same_path = {**SCRIPT, "workdir": str(here)}
    assert planned(host, job=same_path).found("error") == [differs(" in place of `job.workdir`")]
    monkeypatch.chdir(here)
    assert planned(host, job=SCRIPT).found("error") == [differs()]
    assert planned(host, job=SCRIPT, hosts=[{"host": "local"}]).found("error") == []
    (here / "train.py").write_text("old")
    assert planned(host, job=SCRIPT).found("error") == []


def test_a_wrapped_script_on_one_host_alone_is_an_error() -> None:
    there, gone = facts("cpu_desk"), facts("cpu_container")
    there = replace(there, workdir=replace(there.workdir, script="/w/train.py", script_exists=True))
    gone = replace(gone, workdir=replace(gone.workdir, script="/w/train.py", script_exists=False))
    job = {**SCRIPT, "wrap": ["env"]}
    assert "node2: the script /w/train.py does not exist" in planned(there, gone, job=job).found("error")[0]
    assert planned(gone, gone, job=job).found("error") == []
    assert planned(there, gone, job=job, launch={"allow_differences": True}).found("error") == []


def test_a_file_of_a_command_is_compared_as_a_script(tmp_path: Path) -> None:
    folders = [sources(tmp_path / name, {"run.sh": f"echo {name}", "data.bin": "\0"}) for name in "ab"]
    words = ["bash", "-e", "data.bin", "run.sh", "a.py"]
    codes = [fingerprint(folder, command=words) for folder in folders]
    assert codes[0] and codes[0].file == "run.sh"
    hosts = [replace(facts("cpu_desk"), code=code) for code in (*codes, None)]
    job = {"command": words}
    assert planned(*hosts[:2], job=job).found("error") == [f"None: run.sh differs: node1 ≠ node2 → {CURE}"]
    assert planned(hosts[0], hosts[2], job=job).found("error") == [f"None: run.sh is not on node2 → {CURE}"]
    assert fingerprint(tmp_path, command=["/bin/sh", "-c", "a/run.sh x"]) is None


@pytest.mark.parametrize(
    ("line", "alone"),
    [
        ("torchrun --nproc_per_node=2 x.py", True),
        ("exec python -m torch.distributed.run x.py", True),
        ("# torchrun x.py", False),
        ("torchrun --nnodes 2 --node-rank $RANK x.py", False),
    ],
)
def test_command_with_its_own_launcher_is_warned_about(tmp_path: Path, line: str, alone: bool) -> None:
    code = fingerprint(sources(tmp_path, {"run.sh": f"#!/bin/bash\n\n{line}\n"}), command=["bash", "run.sh"])
    host = replace(facts("cpu_desk"), code=code)
    seen = [
        one
        for one in planned(host, host, job={"command": ["bash", "run.sh"]}, num_processes=1).found("warning")
        if "its own launcher" in one
    ]
    assert bool(seen) is alone
    if alone:
        assert "line 3 of run.sh starts its own launcher in each of 2 processes: each may train alone" in seen[0]


def test_files_that_are_not_job_code_are_left_out(tmp_path: Path) -> None:
    one, other = (sources(tmp_path / name, {"train.py": "pass"}) for name in "ab")
    sources(other, {"__pycache__/x.py": "1", ".hidden/x.py": "1", "venv/pyvenv.cfg": "", "venv/lib/x.py": "1"})
    sources(other, {"wandb/run-1/code.py": "1", "log.txt": "1", ".git/config": ""})
    (other / "loop").symlink_to(other)
    assert found(one, other) == []


def test_a_package_is_compared_as_a_whole(tmp_path: Path) -> None:
    one, other = (
        sources(tmp_path / name, {"pkg/train.py": "x", "pkg/__init__.py": "", "other.py": "1"}) for name in "ab"
    )
    sources(other, {"other.py": "2"})
    assert found(one, other, module="pkg.train") == []
    sources(other, {"pkg/net.py": "2"})
    assert "next to pkg.train differ" in found(one, other, module="pkg.train")[0]
    assert fingerprint(tmp_path, module="torch.distributed.run") is None


def test_a_folder_that_is_too_large_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (sources(tmp_path / name, {"train.py": "x"}) for name in "ab")
    sources(other, {f"f{number}.py": "" for number in range(20)})
    monkeypatch.setattr(module, "_MOST_FILES", 10)
    assert found(one, other) == []
    known = fingerprint(other)
    assert known and known.script and known.folder is None


@pytest.mark.git
def test_the_commits_are_named(tmp_path: Path) -> None:
    def git(folder: Path, *words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        return ran(["git", *who, *words], cwd=folder, check=True).stdout

    one, other = (sources(tmp_path / name, {"train.py": "x = 1"}) for name in "ab")
    for folder in (one, other):
        git(folder, "init", "-q")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", folder.name)
    heads = [git(folder, "rev-parse", "HEAD")[:7] for folder in (one, other)]
    if heads[0] != heads[1]:
        assert (
            f"the checked-out commits differ: node1 ({heads[0]}) ≠ node2 ({heads[1]})"
            in found(one, other, "warning")[0]
        )
    sources(other, {"train.py": "x = 2"})
    assert f"train.py differs: node1 ({heads[0]}) ≠ node2 ({heads[1]} with changes)" in found(one, other)[0]


@pytest.mark.parametrize("text", ["init_process_group('nccl')", 'dist.init_process_group(\n  backend="nccl")'])
def test_a_script_that_asks_for_nccl_on_the_cpu_is_a_warning(tmp_path: Path, text: str) -> None:
    code = fingerprint(sources(tmp_path, {"train.py": f"import torch\n{text}\n"}))
    (seen,) = planned(replace(facts("cpu_desk"), code=code), job=SCRIPT).found("warning")
    assert "node1: line 2 of train.py creates a process group with nccl, but no GPU found → " in seen
    assert planned(replace(facts("a100x8"), code=code), job=SCRIPT).found("warning") == []


def test_nccl_arguments_without_a_gpu_are_a_warning() -> None:
    cpu_torch = replace(facts("a100x8").interpreters[0], torch="2.13.0+cpu", cuda=None)
    without = replace(facts("a100x8"), interpreters=(cpu_torch,))
    for args in (["--backend", "nccl"], ["--dist-backend=nccl"]):
        job = {**SCRIPT, "args": args}
        (seen,) = planned(facts("cpu_desk"), job=job).found("warning")
        assert "job.args set backend nccl, but no GPU found" in seen
        seen = "\n".join(planned(without, job=job, launch={"backend": "gloo"}).found("warning"))
        assert "job.args set backend nccl, but torch 2.13.0+cpu of /opt/venv" in seen


@pytest.mark.parametrize(
    "code", [None, [], "x", {}, {"script": [], "folder": {}, "git": 1, "nccl_line": "x"}, {"script": "\x1b[2J" * 20}]
)
def test_a_host_that_lies_about_its_code_breaks_nothing(code: Any) -> None:
    data = json.loads((Path(__file__).parents[1] / "data" / "facts" / "cpu_desk.json").read_text())
    host = HostFacts.from_json({**data, "code": code})
    assert host.code in (None, Code(*[None] * 6))
    assert planned(host, host, job=SCRIPT).found("error") == []
