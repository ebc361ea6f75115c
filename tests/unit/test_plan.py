from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disttui.runner.hosts.facts import HostFacts
from disttui.runner.planning.by_hand import shell_command
from disttui.runner.planning.launchers import target_words
from disttui.runner.planning.plan import counts_line
from disttui.runner.render.plan import plan_json, render_plan
from disttui.runner.text import quote
from tests.files import new_file
from tests.light import light_python
from tests.unit.planning import Planned, facts, planned

DUMP = """#!/bin/sh
''''exec {python} "$0" "$@" # '''
import json, os, sys
names = [name for name in os.environ if name.startswith(("X", "OMP", "CUDA", "GLOO", "NCCL", "ACCELERATE"))]
env = {{name: os.environ[name] for name in names}}
sys.stdout.write(json.dumps({{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": env}}))
"""
# What a profile may hold: anything but NUL and halves of surrogate pairs.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
HOSTILE = TEXT | st.sampled_from(
    ["", "'", '"', "$(touch x)", "`id`", "a\nb", "\n", "x\n\n", "\x1b[31m", "%s%n", "\\", "\\033", "--", "-x", "~", "*",
     "$HOME", "!!", "a b", "é\u202e", "\x7f", "\r", "{a,b}", "#", "=", "\u0085"]
)  # fmt: skip
CLEAN = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}


@pytest.fixture
def dump(tmp_path: Path) -> Iterator[str]:
    """A `python` that writes down how it was called."""
    path = new_file(tmp_path / "py thon", DUMP.format(python=quote(sys.executable)), 0o755)
    yield str(path)


def with_python(host: HostFacts, path: str, home: Path) -> HostFacts:
    return replace(host, home=str(home), interpreters=(replace(host.interpreters[-1], path=path),))


def run(command: str, env: dict[str, str] | None = None) -> Any:
    done = subprocess.run(
        ["/bin/sh", "-c", command], env=CLEAN | (env or {}), capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def shell(it: Planned, rank: int = 0) -> str:
    return shell_command(it.plan, it.plan.hosts[rank])


# The dump is only read, so that examples may share it.
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(args=st.lists(HOSTILE, max_size=4), values=st.lists(HOSTILE, max_size=3))
def test_hostile_arguments_and_variables_survive_the_shell(
    dump: str, tmp_path: Path, args: Sequence[str], values: Sequence[str]
) -> None:
    env = {f"X{index}": value for index, value in enumerate(values)}
    job = {"script": "train.py", "args": list(args), "env": env, "workdir": str(tmp_path)}
    it = planned(with_python(facts("cpu_desk"), dump, tmp_path), job=job)
    seen = run(shell(it))
    assert seen["argv"][-len(args) - 1 :] == ["train.py", *args]
    assert {name: value for name, value in seen["env"].items() if name.startswith("X")} == env
    assert seen["cwd"] == str(tmp_path)


@given(HOSTILE)
def test_a_quoted_word_shows_nothing_that_steers_a_terminal(text: str) -> None:
    assert not set(quote(text)) & {chr(code) for code in (*range(9), *range(11, 32), 127, *range(0x80, 0xA0))}
    done = subprocess.run(["/bin/sh", "-c", f"printf %s {quote(text)}"], capture_output=True, check=True)
    assert done.stdout == text.encode()


def test_the_command_is_the_one_of_the_plan(dump: str, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    it = planned(with_python(facts("cpu_desk"), dump, tmp_path), job={"builtin": "bytegpt", "workdir": "~/p"})
    host = it.plan.hosts[0]
    seen = run(shell(it))
    assert [host.python, *seen["argv"]] == list(host.command)
    assert seen["cwd"] == str(tmp_path / "p")
    assert seen["env"] == {name: host.env[name] for name in ("OMP_NUM_THREADS", "ACCELERATE_USE_CPU")}
    assert host.command[-7:] == (
        f"{tmp_path}/.cache/disttui/train-0123456789abcdef.zip",
        "--strategy", "ddp", "--precision", "fp32", "--backend", "gloo",
    )  # fmt: skip


def test_activate_is_a_line_of_its_own_in_the_jobs_folder(dump: str, tmp_path: Path) -> None:
    (tmp_path / "activate").write_text("export XVENV=on\n")
    it = planned(with_python(facts("cpu_desk"), dump, tmp_path), activate=". ./activate")
    assert run(shell(it))["env"]["XVENV"] == "on"


def test_reference_is_not_resolved_and_fails_by_hand_if_unset(
    dump: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hush-hush")
    it = planned(
        with_python(facts("cpu_desk"), dump, tmp_path), env={"XKEY": "a ${env:TOKEN}'${env:TOKEN}", "XPLAIN": "p"}
    )
    assert it.plan.hosts[0].env["XKEY"] == "a ${env:TOKEN}'${env:TOKEN}"
    spec = it.plan.spec(0, "test-1")
    assert "XKEY" not in spec["env"]
    assert spec["env"]["XPLAIN"] == "p"
    said = render_plan(it.plan, it.recommendation, it.findings) + json.dumps([spec, plan_of(it)])
    assert "hush-hush" not in said
    assert run(shell(it), {"TOKEN": "t\"'$x"})["env"]["XKEY"] == "a t\"'$x't\"'$x"
    done = subprocess.run(["/bin/sh", "-c", shell(it)], env=CLEAN, capture_output=True, check=False)
    assert done.returncode != 0
    assert b"TOKEN" in done.stderr


def plan_of(it: Planned) -> dict[str, Any]:
    return plan_json(it.plan, it.recommendation, it.findings)


def test_unknown_interface_is_taken_from_the_hosts_route(dump: str, tmp_path: Path) -> None:
    both = (with_python(facts("cpu_desk"), dump, tmp_path), with_python(facts("cpu_container"), dump, tmp_path))
    it = planned(*both, hosts=[{}, {}], launch={"master": "127.0.0.2"})
    assert run(shell(it, 1))["env"]["GLOO_SOCKET_IFNAME"] == "lo"
    assert run(shell(it, 1))["env"]["NCCL_SOCKET_IFNAME"] == "=lo"
    known = planned(*both, hosts=[{}, {"interface": "eth1"}])
    assert run(shell(known, 0))["env"]["GLOO_SOCKET_IFNAME"] == "enp5s0"
    assert run(shell(known, 1))["env"]["NCCL_SOCKET_IFNAME"] == "=eth1"
    assert [known.plan.spec(rank, "r")["interface"] for rank in (0, 1)] == [None, "eth1"]


def test_the_spec_is_json_with_the_fields_of_the_format() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    section = page.split("### spec.json")[1].split("###")[0].split("For a `command`")[0]
    it = planned(facts("a100x8"), facts("a100x6_busy"), num_processes=2, job={"command": ["./run", "a"], "wrap": ["w"]})
    spec = json.loads(json.dumps(it.plan.spec(1, "test-1")))
    assert all(f'"{key}":' in section for key in (*spec, *spec["launch"], *spec["target"]))
    assert (spec["node_rank"], spec["hosts"], spec["nproc"]) == (1, ["node1", "node2"], [2, 2])
    assert spec["target"] == {"kind": "command", "value": "./run", "args": ["a"]}
    assert (spec["gpus"], spec["backend"], spec["wrap"], spec["leader"]) == ([0, 1], "nccl", ["w"], None)
    assert spec["profile"] == it.profile.as_written()


def test_the_launcher_and_the_hand_get_the_same_options() -> None:
    it = planned(facts("cpu_desk"), facts("neglected"), num_processes=3)
    for rank, host in enumerate(it.plan.hosts):
        options = it.plan.spec(rank, "test-1")["launcher_args"]
        start = host.command.index("torch.distributed.run") + 1
        assert list(host.command[start : start + len(options)]) == options
        assert options[:6] == ["--nnodes", "2", "--nproc-per-node", "3", "--node-rank", str(rank)]
    assert it.plan.hosts[1].command[start + len(options) :][:4] == (
        "--master-addr", "192.168.1.20", "--master-port", "29500",
    )  # fmt: skip


def test_each_kind_of_job_as_torchrun_wants_it() -> None:
    assert target_words("script", "train.py", ["-m"]) == ("train.py", "-m")
    assert target_words("script", "-odd.py", []) == ("./-odd.py",)
    assert target_words("module", "pkg.train", ["a"]) == ("-m", "pkg.train", "a")
    assert target_words("command", "./run", ["a"]) == ("--no-python", "./run", "a")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (
            {"launch": {"preload": ["torch", "torch._dynamo"]}},
            "torch, torch._dynamo: imported once on each host, which forks its ranks",
        ),
        ({}, "launch.preload is empty"),
        ({"launch": {"launcher": "deepspeed", "preload": ["torch"]}}, "deepspeed starts the ranks"),
        ({"launch": {"instrument": False, "preload": ["torch"]}}, "launch.instrument: false"),
        (
            {"job": {"script": "t.py", "wrap": ["apptainer", "exec", "x.sif"]}, "launch": {"preload": ["torch"]}},
            "job.wrap",
        ),
        ({"job": {"command": ["./run"]}, "launch": {"preload": ["torch"]}}, "job.command"),
    ],
)
def test_the_plan_says_whether_ranks_are_forked(keys: dict[str, Any], why: str) -> None:
    it = planned(facts("a100x8"), **keys)
    forked = why.startswith("torch,")
    assert f"preload       {'' if forked else 'each rank imports for itself: '}{why}\n" in render_plan(
        it.plan, it.recommendation, it.findings
    )
    assert it.plan.spec(0, "test-1")["launch"]["preload"] == (["torch", "torch._dynamo"] if forked else [])


def test_environment_of_gpu_hosts() -> None:
    env = planned(facts("a100x8"), facts("a100x6_busy")).plan.hosts[1].env
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("0,1,3,4", "PCI_BUS_ID")
    # Torch 2.8 knows the old name only.
    assert env["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert "ACCELERATE_USE_CPU" not in env
    box = facts("a100x8")
    newer = replace(box, interpreters=(replace(box.interpreters[0], torch="2.13.0+cu130"),))
    assert planned(newer).plan.hosts[0].env["TORCH_FR_BUFFER_SIZE"] == "2000"


def test_a_cpu_plan_hides_gpus_where_there_may_be_some() -> None:
    gpus, desk = (host.env for host in planned(facts("a100x8"), facts("cpu_desk")).plan.hosts)
    assert gpus["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in desk
    assert gpus["ACCELERATE_USE_CPU"] == desk["ACCELERATE_USE_CPU"] == "true"


def test_the_profiles_environment_wins() -> None:
    env = {"OMP_NUM_THREADS": "3", "ACCELERATE_USE_CPU": "false"}
    it = planned(facts("cpu_desk"), env=env)
    assert env.items() <= it.plan.hosts[0].env.items()
    assert it.plan.hosts[0].reasons["OMP_NUM_THREADS"] == "set in the profile"


def test_a_grace_of_part_of_a_second_is_whole_for_torch() -> None:
    env = planned(facts("cpu_desk"), launch={"grace": 0.5}).plan.hosts[0].env
    assert env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "1"


def test_options_given_in_the_arguments_are_not_doubled() -> None:
    it = planned(facts("cpu_desk"), job={"builtin": "bytegpt", "args": ["--strategy", "fsdp", "--precision=bf16"]})
    assert it.plan.job_args == ("--strategy", "fsdp", "--precision=bf16", "--backend", "gloo")
    assert (it.plan.strategy, it.plan.precision) == ("fsdp", "bf16")


def test_the_counts_line_has_both_words_for_the_number() -> None:
    it = planned(facts("cpu_desk"), facts("neglected"), hosts=[{"num_processes": 4}, {"num_processes": 2}])
    assert counts_line(it.plan) == "node1 4 + node2 2 = 6 processes (Accelerate: num_machines 2, num_processes 6)"
    assert counts_line(planned(facts("cpu_desk"), num_processes=1).plan).startswith("node1 1 = 1 process (")


def test_what_a_host_says_cannot_steer_the_terminal() -> None:
    box = facts("a100x6_busy")
    evil = "\x1b]0;owned\x07\x9b31m\u202e\nnode1: all is well"
    process = replace(box.gpus[2].processes[0], user=evil, command=evil)
    gpus = tuple(replace(gpu, name=evil, processes=(process,) if gpu.processes else ()) for gpu in box.gpus)
    torch = replace(box.interpreters[0], path="/x\x1b[2J/python", torch=f"2.8{evil}", cuda=evil)
    it = planned(replace(box, gpus=gpus, interpreters=(torch,), problems=(evil,)))
    said = render_plan(it.plan, it.recommendation, it.findings)
    assert not set(said) & set("\x1b\x9b\x07\u202e")
    assert "\nnode1: all is well" not in said


def test_the_text_has_counts_reasons_commands_and_findings() -> None:
    it = planned(facts("a100x8"), facts("a100x6_busy", kill_user_processes=True))
    said = render_plan(it.plan, it.recommendation, it.findings)
    for part in (
        "node1 8 + node2 4 = 12 processes",
        "node2: node rank 1, 4 of 12 processes, ranks 8 to 11",
        "2 and 5 are held by alice (python, 11.2 GiB)",
        "▲ warning: node2: systemd ends all your processes",
        "    → Run once there: loginctl enable-linger ada",
        shell(it, 0),
        shell(it, 1),
    ):
        assert part in said


def test_plan_lists_what_several_hosts_share_once() -> None:
    it = planned(*[facts("a100x8", kill_user_processes=True)] * 3)
    said = render_plan(it.plan, it.recommendation, it.findings)
    assert said.count("systemd ends all") == 1 and "▲ warning: node1, node2, node3: systemd ends all" in said
    assert said.count("  python    ") == 1 and said.count("  otherwise       as node1\n") == 2


def test_json_has_the_same() -> None:
    it = planned(facts("a100x8"), facts("neglected"))
    data = json.loads(json.dumps(plan_of(it)))
    assert [host["shell"] for host in data["hosts"]] == [shell(it, rank) for rank in (0, 1)]
    assert data["world_size"] == sum(host["num_processes"] for host in data["hosts"])
    assert {finding["level"] for finding in data["findings"]} >= {"error", "warning"}
    assert data["warnings"][0].keys() == {"host", "text"}


def test_the_printed_command_starts_the_ranks(tmp_path: Path) -> None:
    """That one trains is seen in tests/cluster/test_launch_by_hand.py."""
    script = tmp_path / "say all.py"
    said = "{os.environ['RANK']} {os.environ['WORLD_SIZE']} {os.environ['OMP_NUM_THREADS']} {sys.argv[1:]}"
    script.write_text(f'import os, sys\nos.write(1, f"{said}\\n".encode())\n')
    job = {"script": script.name, "args": ["it's $(nothing)", "a\nb"], "workdir": str(tmp_path)}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = facts("cpu_desk", free_port=probe.getsockname()[1])
    it = planned(with_python(host, light_python(tmp_path / "light"), tmp_path), num_processes=2, job=job)
    command = shell(it).replace(" && env ", " && exec env ", 1)
    with subprocess.Popen(
        ["/bin/sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        try:
            out, err = launcher.communicate(timeout=150)
        finally:
            launcher.terminate()  # torchrun ends its ranks
    assert launcher.returncode == 0, err
    assert sorted(out.splitlines()) == [f"{rank} 2 4 [\"it's $(nothing)\", 'a\\nb']" for rank in (0, 1)]


@pytest.mark.parametrize("digits", [20, 400, 5000])
def test_a_number_of_thousands_of_digits_is_no_traceback(digits: int) -> None:
    many = "9" * digits
    it = planned(facts("cpu_desk"), env={"OMP_NUM_THREADS": many})
    assert it.plan.hosts[0].env["OMP_NUM_THREADS"] == many
    (error,) = planned(facts("cpu_desk"), job={"builtin": "bytegpt", "args": ["--layers", many]}).found("error")
    assert "bytegpt: argument --layers: " in error and len(error) < 300
