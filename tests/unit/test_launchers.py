"""The commands of every launcher, what they refuse, and what a host lacks of them, known before the start."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.errors import InputError
from disttui.runner.hosts.facts import HostFacts, Needs
from disttui.runner.hosts.survey import probe_request
from disttui.runner.node.host import HostPart
from disttui.runner.node.probe.interpreters import needed
from disttui.runner.node.probe.report import probe, workdir
from disttui.runner.node.rank.identity import adopt
from disttui.runner.node.supervise.attempt import start_line
from disttui.runner.planning.by_hand import shell_command
from disttui.runner.planning.interop.write import explicit_plan, write
from disttui.runner.profile.load import parse
from disttui.runner.profile.problems import ProfileErrors
from tests import frameworks
from tests.command import ran
from tests.unit.planning import Planned, facts, planned

UNEQUAL = [{"num_processes": 1}, {"num_processes": 2}]


def under(launcher: str, hosts: list[dict[str, Any]] | None = None, **rest: Any) -> Planned:
    desk = facts("cpu_desk")
    script = {"script": "train.py", "args": ["--lr", "1"]}
    return planned(
        desk, facts("neglected"), **{"hosts": hosts or UNEQUAL, "job": script, **rest}, launch={"launcher": launcher}
    )


def commands(it: Planned) -> list[str]:
    return [shlex.join(host.command) for host in it.plan.hosts]


def test_deepspeed_starts_on_each_host_with_the_whole_world() -> None:
    it = under("deepspeed")
    second = it.plan.hosts[1].command
    assert second[1:3] == ("-m", "deepspeed.launcher.launch")
    (world,) = (word.partition("=")[2] for word in second if word.startswith("--world_info="))
    # On CPUs -1, which DeepSpeed copies to CUDA_VISIBLE_DEVICES, hides every GPU.
    assert json.loads(base64.urlsafe_b64decode(world)) == {"node1": [-1], "node2": [-1, -1]}
    assert (
        "--node_rank=1" in second
        and "--master_addr=192.168.1.20" in second
        and second[-3:] == ("train.py", "--lr", "1")
    )
    assert it.plan.hosts[1].env["DS_ACCELERATOR"] == "cpu"
    assert "--no_local_rank" not in second
    for job in ({"builtin": "bytegpt"}, {"command": ["./run"]}):
        assert "--no_local_rank" in under("deepspeed", job=job).plan.hosts[0].command
    gpus = planned(facts("a100x8"), facts("a100x6_busy"), num_processes=2, launch={"launcher": "deepspeed"})
    (world,) = (one.partition("=")[2] for one in gpus.plan.hosts[0].command if one.startswith("--world_info="))
    assert json.loads(base64.urlsafe_b64decode(world)) == {"node1": [0, 1], "node2": [0, 1]}
    listed = planned(
        facts("a100x8"), hosts=[{"gpus": [6, 7]}], num_processes=4, job={"script": "train.py"},
        launch={"launcher": "deepspeed", "backend": "gloo"},
    )  # fmt: skip
    (world,) = (one.partition("=")[2] for one in listed.plan.hosts[0].command if one.startswith("--world_info="))
    assert json.loads(base64.urlsafe_b64decode(world)) == {"node1": [6, 7, 6, 7]}, "none that others use"


@pytest.mark.parametrize(("launcher", "node"), [("mpirun", 0), ("mpirun-per-host", 1)])
def test_mpirun_by_hand_gives_each_rank_its_numbers(tmp_path: Path, launcher: str, node: int) -> None:
    """The words are run with a stand-in for mpirun that starts one process as local rank 1 of node 1."""
    stand_in = tmp_path / "mpirun"
    stand_in.write_text(
        "#!/bin/bash\nwhile [ $# -gt 0 ]; do case $1 in\n"
        '-x) export "$2"; shift 2;; -np|--host|--bind-to|--map-by) shift 2;; --allow-run-as-root) shift;;\n'
        "bash) export OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_SIZE=2\n"
        'export OMPI_COMM_WORLD_LOCAL_RANK=1; exec "$@";; *) exit 9;; esac; done\n'
    )
    stand_in.chmod(0o755)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    job = {"command": ["sh", "-c", "echo " + " ".join(f"${name}" for name in names)], "workdir": str(tmp_path)}
    plan = under(launcher, job=job).plan
    text = shell_command(plan, replace(plan.hosts[node], workdir=str(tmp_path)))
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = ran(["sh", "-c", text], env=env, check=True)
    assert done.stdout == "2 1 3 2 192.168.1.20 29500\n"


def test_mpirun_by_hand_is_typed_on_the_first_host_alone() -> None:
    first, second = under("mpirun", env={"MODE": "x"}).plan.hosts
    assert " --host node1:1,node2:2 -np 3 " in shlex.join(first.command) and " -x MODE " in shlex.join(first.command)
    assert second.command == ("echo", "mpirun on node1 also starts the ranks of node2")


def test_accelerate_is_torchrun_with_environment_variables() -> None:
    torchrun, it = under("torchrun"), under("accelerate", precision="fp32", parallel={"strategy": "fsdp"})
    assert commands(it) == commands(torchrun)
    assert it.plan.spec(0, "x")["launcher"] == "torchrun"
    env = it.plan.hosts[0].env
    assert env["ACCELERATE_MIXED_PRECISION"] == "no"
    assert (env["ACCELERATE_USE_FSDP"], env["FSDP_VERSION"]) == ("true", "2")
    assert it.plan.hosts[0].reasons["FSDP_VERSION"] == "parallel.strategy: fsdp"
    left_open = under("accelerate").plan.hosts[0].env
    assert "ACCELERATE_MIXED_PRECISION" not in left_open and "ACCELERATE_USE_FSDP" not in left_open


def on_gpus(parallel: dict[str, Any]) -> Planned:
    launch, job = {"launcher": "accelerate"}, {"script": "x.py"}
    return planned(facts("a100x8"), facts("a100x6_busy"), num_processes=4, job=job, launch=launch, parallel=parallel)


def test_parallel_sizes_reach_the_accelerate_configuration() -> None:
    it = on_gpus({"dp_shard": 2, "tp": 2})
    assert it.found("error") == []
    env = it.plan.hosts[1].env
    sizes = {name: env[f"PARALLELISM_CONFIG_{name}_SIZE"] for name in ("DP_REPLICATE", "DP_SHARD", "TP", "CP")}
    assert sizes == {"DP_REPLICATE": "2", "DP_SHARD": "2", "TP": "2", "CP": "1"}
    assert (env["ACCELERATE_USE_PARALLELISM_CONFIG"], env["ACCELERATE_USE_FSDP"]) == ("true", "true")
    assert on_gpus({"strategy": "hsdp"}).plan.hosts[0].env["PARALLELISM_CONFIG_DP_SHARD_SIZE"] == "4"
    only_tp = on_gpus({"tp": 8}).plan.hosts[0].env
    assert only_tp["PARALLELISM_CONFIG_TP_SIZE"] == "8" and "ACCELERATE_USE_FSDP" not in only_tp


@pytest.mark.frameworks
def test_accelerate_itself_reads_these_variables() -> None:
    program = (
        "import json; from accelerate.parallelism_config import ParallelismConfig as P; "
        "from accelerate.utils import FullyShardedDataParallelPlugin as F; p = P(); "
        "print(json.dumps([p.dp_replicate_size, p.dp_shard_size, p.tp_size, p.cp_size, F().fsdp_version]))"
    )
    env = {**os.environ, **on_gpus({"dp_shard": 2, "tp": 2}).plan.hosts[0].env}
    done = subprocess.run([frameworks.PYTHON, "-c", program], env=env, check=True, capture_output=True, timeout=120)
    assert json.loads(done.stdout.splitlines()[-1]) == [2, 2, 2, 1, 2]


def test_sizes_accelerate_cannot_divide_are_an_error() -> None:
    (error,) = on_gpus({"tp": 3}).found("error")
    assert error.startswith("None: parallel: tp 3")
    for parallel in ({"strategy": "fsdp"}, {"dp_replicate": 3}):
        (error,) = under("accelerate", parallel=parallel).found("error")
        assert "Accelerate shards models only on GPUs" in error
    with pytest.raises(ProfileErrors, match="pp applies only to the built-in job"):
        on_gpus({"pp": 2})


def test_mpirun_refuses_a_colon_that_it_would_take_for_its_own() -> None:
    for job in ({"script": "train.py", "args": ["a", ":", "b"]}, {"command": ["./run", ":"]}):
        (error,) = (line for line in under("mpirun", job=job).found("error") if "':'" in line)
        assert "mpirun interprets the job's argument ':'" in error
        assert not [line for line in under("torchrun", job=job).found("error") if "':'" in line]
    within = under("mpirun", job={"script": "t.py", "args": ["a:b"]})
    assert not [line for line in within.found("error") if "':'" in line]


def test_accelerate_launch_refuses_unequal_hosts() -> None:
    (error,) = under("accelerate-launch").found("error")
    assert "node1 1, node2 2" in error and "launch.launcher to accelerate" in error
    it = under("accelerate-launch", hosts=[{"num_processes": 2}, {"num_processes": 2}])
    assert it.found("error") == []
    command = commands(it)[1]
    assert "-m accelerate.commands.launch --multi_gpu --num_machines 2 --num_processes 4 --machine_rank 1" in command
    assert "--cpu" not in command and it.plan.hosts[1].env["ACCELERATE_USE_CPU"] == "true"
    data = {"disttui": 1, "hosts": ["a", "b"], "job": {"script": "x.py"}, "launch": {"launcher": "accelerate-launch"}}
    hosts = [{"host": "a", "num_processes": 1}, {"host": "b", "num_processes": 2}]
    uneven = parse(json.dumps({**data, "hosts": hosts}), "x.yaml")
    with pytest.raises(InputError, match="a 1, b 2"):
        write(explicit_plan(uneven), "script")


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("accelerate-launch", "-m accelerate.commands.launch --multi_gpu"),
        ("mpirun", "mpirun on 10.0.0.1 also starts the ranks of 10.0.0.2"),
        ("mpirun-per-host", "mpirun -np 2"),
        ("deepspeed", "-m deepspeed.launcher.launch --world_info="),
    ],
)
def test_a_script_for_each_host_has_the_launchers_command(launcher: str, words: str) -> None:
    hosts = [{"host": f"10.0.0.{n}", "num_processes": 2, "python": "/opt/py"} for n in (1, 2)]
    data = {"disttui": 1, "hosts": hosts, "job": {"module": "pkg.train"}, "launch": {"launcher": launcher}}
    files = write(explicit_plan(parse(json.dumps(data), "x.yaml"), needs=("python", "master")), "script").files
    assert words in files["run-1.sh"] and "10.0.0.1" in files["run-1.sh"]
    assert "pkg.train" in files["run-0.sh"] and (launcher == "mpirun" or "pkg.train" in files["run-1.sh"])
    assert subprocess.run(["bash", "-n"], input=files["run-1.sh"], text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("launcher", "lacking", "words"),
    [
        ("mpirun", Needs(None, ("orted",)), "launch.launcher is mpirun, but orted is not in PATH → Install Open MPI"),
        ("mpirun-per-host", Needs(None, ("mpirun",)), "but mpirun is not in PATH → Install Open MPI"),
        ("deepspeed", Needs(None, (), "deepspeed"), "has no deepspeed → Install it: "),
        ("accelerate-launch", Needs(None, (), "accelerate"), "has no accelerate → Install it: "),
    ],
)
def test_missing_launcher_on_a_host_is_an_error(launcher: str, lacking: Needs, words: str) -> None:
    desk = facts("cpu_desk")
    job = {"script": "x.py"}
    it = planned(desk, replace(desk, needs=lacking, boot_id="other"), job=job, launch={"launcher": launcher})
    (error,) = it.found("error")
    assert error.startswith("node2: ") and words in error


@pytest.mark.parametrize("host", [{"python": sys.executable}, {"activate": "true", "python": sys.executable}])
def test_the_probe_finds_out_which_launcher_is_missing(tmp_path: Path, host: dict[str, Any]) -> None:
    def lacks(launcher: str, **more: Any) -> Needs:
        data = {"disttui": 1, "hosts": [{"host": "a", **host}], "launch": {"launcher": launcher}, **more}
        data["job"] = {"script": "x.py", "workdir": str(tmp_path), **data.get("job", {})}
        answer = probe({**probe_request(parse(json.dumps(data), "x"), 0), "gpus": False})
        return HostFacts.from_json(json.loads(json.dumps(answer))).needs

    (tmp_path / "deepspeed").mkdir()  # of the user, without code: no package that python -m could start
    (tmp_path / "accelerate.py").touch()
    assert lacks("torchrun").package is None
    assert lacks("accelerate-launch").package == ""
    assert lacks("mpirun", job={"wrap": ["sh"]}).programs == ()


_4, _40, _5 = (f"mpirun (Open MPI) {version}" for version in ("4.1.4", "4.0.3", "5.0.8"))
_MPICH = "HYDRA build details:"


@pytest.mark.parametrize(
    ("launcher", "first", "second", "words"),
    [
        ("mpirun", _4, _4, None),
        ("mpirun", _4, None, None),
        ("mpirun-per-host", _4, _5, None),
        ("mpirun", _4, _40, f"on all hosts: {_4} on node1; {_40} on node2 → Install the same, or set launch.launcher"),
        ("mpirun", _5, _5, f"needs Open MPI 4, but {_5} is on node1, node2 → Set launch.launcher to mpirun-per-h"),
        ("mpirun-per-host", _4, _MPICH, "mpirun on node2 is not Open MPI but HYDRA build details: → Inst"),
        ("mpirun", _MPICH, _4, "mpirun on node1 is not Open MPI"),
    ],
)
def test_plan_names_incompatible_mpirun_versions(
    launcher: str, first: str, second: str | None, words: str | None
) -> None:
    desk = facts("cpu_desk")
    hosts = (replace(desk, needs=Needs(version=one), boot_id=one or "") for one in (first, second))
    found = planned(*hosts, job={"script": "x.py"}, launch={"launcher": launcher}).found("error")
    assert len(found) == (words is not None) and (words or "") in "".join(found), found


@pytest.mark.parametrize("activated", [False, True])
def test_the_probe_asks_the_mpirun_of_the_job_for_its_version(
    tmp_path: Path, activated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program := tmp_path / "mpirun").write_text(
        '#!/bin/sh\n[ "$*" = --version ] && echo "mpirun (Open MPI) 4.9" && echo x\n'
    )
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    host = {"activate": f"export PATH={path}"} if activated else {}
    if not activated:
        monkeypatch.setenv("PATH", path)

    def version(launcher: str, **job: Any) -> str | None:
        data = {"disttui": 1, "hosts": [{"host": "a", **host}], "launch": {"launcher": launcher}}
        data["job"] = {"script": "x.py", "workdir": str(tmp_path), **job}
        answer = probe({**probe_request(parse(json.dumps(data), "x"), 0), "gpus": False})
        return HostFacts.from_json(json.loads(json.dumps(answer))).needs.version

    assert version("mpirun") == version("mpirun-per-host") == "mpirun (Open MPI) 4.9"
    assert version("torchrun") is None and version("mpirun", wrap=["sh"]) is None
    program.write_text("no program\n")
    program.chmod(0o755)
    assert version("mpirun") is None


def test_mpi_backend_needs_torch_support_and_one_mpi_world() -> None:
    data = {"disttui": 1, "hosts": ["a"], "job": {"script": "x.py"}, "launch": {"backend": "mpi"}}
    with pytest.raises(ProfileErrors, match=r"1:\d+: backend mpi needs one MPI world over all hosts.*launcher: mpirun"):
        parse(json.dumps(data), "x.yaml")

    def with_mpi(mpi: bool | None) -> HostFacts:
        desk = facts("cpu_desk")
        return replace(desk, interpreters=tuple(replace(one, mpi=mpi) for one in desk.interpreters))

    launch, job = {"launcher": "mpirun", "backend": "mpi"}, {"command": ["x"]}
    it = planned(with_mpi(True), replace(with_mpi(False), boot_id="other"), job=job, launch=launch)
    (error,) = it.found("error")
    assert re.match(
        r"node2: backend mpi, but torch \S+ of \S+ was built without MPI.* → Build torch with USE_MPI=1", error
    )
    assert it.plan.spec(0, "x")["backend"] == "mpi"
    (error, _) = planned(with_mpi(True), with_mpi(None), launch=launch).found("error")
    assert "the built-in job does not support backend mpi" in error


@pytest.mark.openmpi
def test_the_probe_sees_in_a_librarys_file_whether_it_needs_mpi(tmp_path: Path) -> None:
    assert "libmpi.so.40" in (needed(shutil.which("ompi_info") or "") or ())
    for content in (b"", b"#!/bin/sh", b"\x7fELF\x02\x01" + b"\xff" * 90, b"\x7fELF\x02\x01" + bytes(90)):
        (path := tmp_path / "x.so").write_bytes(content)
        assert needed(str(path)) is None


def test_the_ranks_of_one_hosts_mpirun_become_those_of_all() -> None:
    spec: Any = {
        "node_rank": 2,
        "nproc": [1, 3, 2],
        "hosts": ["a", "b", "c"],
        "run": "x",
        "launcher": "mpirun-per-host",
    }
    _, given = start_line(HostPart(spec, "", "", None, {}, 0o022), 1, "10.0.0.1", 29500)
    env = {
        **given,
        "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }  # fmt: skip
    assert adopt(env) == (5, 1, 6)
    assert (env["RANK"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"], env["GROUP_RANK"]) == ("5", "1", "2", "2")
    assert "DISTTUI_FIRST_RANK" not in env


def test_a_script_at_home_is_the_one_that_the_probe_has_found() -> None:
    spec: Any = {
        "node_rank": 0,
        "nproc": [1],
        "run": "x",
        "launcher": "torchrun",
        "launcher_args": [],
        "launch": {},
        "python": "python",
        "wrap": [],
        "activate": "",
        "target": {"kind": "script", "value": "~/train.py", "args": ["~/data"]},
    }
    home = os.path.expanduser("~")  # noqa: PTH111 - as the node program does
    assert workdir(home, "~/train.py")["script"] == f"{home}/train.py"
    *_, script, argument = HostPart(spec, "", "", None, {}, 0o022).command(1)
    assert (script.decode(), argument) == (f"{home}/train.py", b"~/data")
