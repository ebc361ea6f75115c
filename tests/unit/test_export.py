"""Profiles become files that run without disttui, and come back from them as they were."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner, Result

from disttui.runner.api.interop import export_profile
from disttui.runner.cli.app import cli
from disttui.runner.errors import InputError
from disttui.runner.planning.interop.read import read_foreign
from disttui.runner.planning.interop.write import Target, explicit_plan, write
from disttui.runner.planning.launchers import torchrun_target
from disttui.runner.profile.load import parse
from disttui.runner.profile.schema import Profile
from tests import frameworks
from tests.command import ran
from tests.files import new_file
from tests.light import light_python
from tests.unit.sshd import free_port
from tests.unit.test_import import ONE_MACHINE, TWO_MACHINES

TWO = """\
disttui: 1
name: two
hosts: [{host: box1, address: 10.0.0.1}, alice@box2:2222]
num_processes: 4
python: /opt/env/bin/python
job:
  script: train.py
  args: [--lr, "3e-4", "it's $HOME"]
  workdir: ~/my project
  env: {TOKEN: "${env:EXPORT_SECRET}", MODE: a b}
launch: {backend: nccl}
"""


def two(**changes: str) -> Profile:
    text = TWO
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return parse(text, "two.yaml")


def typed(*words: str) -> Result:
    return CliRunner().invoke(cli, ["profile", "export", *words])


def test_restarts_that_are_not_exported_are_noted() -> None:
    profile = parse(f"{TWO}  restarts: 2\n".replace("launch: {backend: nccl}", "launch:\n  backend: nccl"), "two.yaml")
    assert any("launch.restarts is not exported" in note for note in write(explicit_plan(profile), "script").notes)
    assert not any("restarts" in note for note in write(explicit_plan(two()), "script").notes)


def bash_reads(text: str) -> None:
    done = ran(["bash", "-n"], input=text)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("to", get_args(Target))
def test_a_script_at_home_is_left_to_the_shell(to: Target) -> None:
    text = "".join(export_profile(two(**{"train.py": "~/code/train.py"}), to).files.values())
    assert " ~/code/train.py" in text and "'~/" not in text
    job = 'script: train.py\n  args: [--lr, "3e-4", "it\'s $HOME"]'
    changes = {job: "command: [~/run.sh]", "workdir: ~/my project": "workdir: /"}
    text = "".join(export_profile(two(**changes), to).files.values())
    assert " ~/run.sh" in text and "'~/" not in text


def test_an_accelerate_file_comes_back_byte_for_byte() -> None:
    imported = read_foreign(ONE_MACHINE, "default_config.yaml")
    exported = export_profile(parse(imported.text, "mine.yaml"), "accelerate")
    assert exported.files["accelerate-0.yaml"] == ONE_MACHINE
    bash_reads(exported.files["launch-0.sh"])


def test_accelerate_export_has_a_file_per_rank_and_round_trips() -> None:
    first = read_foreign(TWO_MACHINES, "acc.yaml", hosts=("box1", "box2")).text
    exported = export_profile(parse(first, "acc.yaml"), "accelerate")
    files = [exported.files[f"accelerate-{rank}.yaml"] for rank in (0, 1)]
    assert [f"machine_rank: {rank}\n" in file for rank, file in enumerate(files)] == [True, True]
    assert "num_processes: 16\n" in files[0] and "fsdp_version: 2\n" in files[0]
    again = [read_foreign(file, "acc.yaml", hosts=("box1", "box2")).text for file in files]
    assert sorted(map(str, [parse(text, "a") for text in again])) == [str(parse(again[0], "a"))] * 2
    assert parse(again[0], "a").job.env == parse(first, "a").job.env
    assert parse(again[0], "a").hosts == parse(first, "a").hosts
    assert parse(again[0], "a").launch == parse(first, "a").launch


def test_deepspeed_of_many_machines_is_not_left_to_pdsh() -> None:
    """Accelerate's default would start it with a hostfile that is not there."""
    profile = two(MODE='ACCELERATE_USE_DEEPSPEED: "true", MODE')
    assert "deepspeed_multinode_launcher: standard" in export_profile(profile, "accelerate").files["accelerate-0.yaml"]


@pytest.mark.parametrize("gpus", ["", "gpus: [2, 3], "])
def test_an_exported_container_has_its_gpus(gpus: str) -> None:
    box = "container: {runtime: docker, image: torch}\nlaunch"
    changes = {"launch": box, "host: box1": f"{gpus}host: box1", "num_processes: 4": "num_processes: 2"}
    text = export_profile(two(**changes), "script").files["run-0.sh"]
    assert "--gpus=all" in text
    assert ("--env=CUDA_VISIBLE_DEVICES" in text) == bool(gpus)
    with pytest.raises(InputError, match="its configuration inside the container"):
        export_profile(two(**changes), "accelerate")


def test_a_job_script_asks_for_a_cpu_per_rank() -> None:
    text = export_profile(two(), "sbatch").files["job.sbatch"]
    assert "#SBATCH --cpus-per-task=4\n" in text and "srun --cpus-per-task=4 " in text
    for threads, cpus in (("2", 8), ("2,4", 4), ("²", 4)):
        profile = two(MODE=f'OMP_NUM_THREADS: "{threads}", MODE')
        assert f"--cpus-per-task={cpus}\n" in export_profile(profile, "sbatch").files["job.sbatch"]


def test_accelerate_export_keeps_m_of_the_script() -> None:
    profile = two(**{'args: [--lr, "3e-4", "it\'s $HOME"]': "args: [-m, gpt2, --no-python]"})
    text = export_profile(profile, "accelerate").files["launch-0.sh"]
    assert text.rstrip().endswith("train.py -m gpt2 --no-python")


@pytest.mark.frameworks
def test_accelerate_itself_loads_what_is_exported(tmp_path: Path) -> None:
    wanted = {}
    for text, hosts in ((ONE_MACHINE, ()), (TWO_MACHINES, ("box1", "box2"))):
        profile = parse(read_foreign(text, "acc.yaml", hosts=hosts).text, "acc.yaml")
        for name, content in export_profile(profile, "accelerate").files.items():
            if name.endswith(".yaml"):
                path = new_file(tmp_path / f"{len(hosts)}-{name}", content)
                wanted[str(path)] = [sum(host.num_processes or 0 for host in profile.hosts), len(profile.hosts)]
    program = (
        "import json, sys; from accelerate.commands.config.config_args import load_config_from_file as load; "
        "loaded = {path: load(path) for path in sys.argv[1:]}; "
        "print(json.dumps({path: [one.num_processes, one.num_machines] for path, one in loaded.items()}))"
    )
    done = subprocess.run([frameworks.PYTHON, "-c", program, *wanted], check=True, capture_output=True, timeout=120)
    assert json.loads(done.stdout.splitlines()[-1]) == wanted


def test_a_hostfile_comes_back_with_the_same_hosts_and_counts() -> None:
    text = "box1 slots=4\nbox2 slots=8\n"
    exported = export_profile(parse(read_foreign(text, "hostfile").text, "mine.yaml"), "hostfile")
    assert exported.files == {"hostfile": text}
    assert any("launch.master is auto" in note for note in exported.notes)
    loop = export_profile(two(nccl="nccl, master: 127.0.0.1"), "hostfile")
    assert any("127.0.0.1 is another machine on each host; set launch.master" in note for note in loop.notes)
    other = export_profile(two(), "hostfile")
    assert other.files["hostfile"] == "box1 slots=4\nbox2 slots=4\n"
    assert "a hostfile cannot contain user and port of box2: write them into ~/.ssh/config" in other.notes
    assert " -x TOKEN -x MODE -x MASTER_ADDR " in other.files["mpirun.sh"]
    bash_reads(other.files["mpirun.sh"])


def test_a_hostfile_cannot_name_a_host_with_a_comment_sign() -> None:
    with pytest.raises(InputError, match="gpu#1: # starts a comment"):
        export_profile(two(box1="gpu#1"), "hostfile")


def test_a_job_script_comes_back_with_its_job_and_counts() -> None:
    script = export_profile(two(), "sbatch").files["job.sbatch"]
    assert "#SBATCH --nodes=2\n" in script and "#SBATCH --gpus-per-node=4\n" in script
    bash_reads(script)
    back = parse(read_foreign(script, "job.sbatch", hosts=("a", "b")).text, "x")
    assert (back.name, back.job.script, back.job.args) == ("two", "train.py", two().job.args)
    assert [host.num_processes for host in back.hosts] == [4, 4]
    assert back.hosts[0].python == "/opt/env/bin/python"


def test_a_script_for_each_host_gets_secrets_from_its_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORT_SECRET", "s3cret-value")
    for target in ("accelerate", "hostfile", "sbatch", "script"):
        exported = export_profile(two(), target)
        whole = "".join(exported.files.values())
        assert "s3cret-value" not in whole and '"${EXPORT_SECRET:?}"' in whole
        assert "secrets are not written: set TOKEN in the shell that starts it" in exported.notes
    files = export_profile(two(), "script").files
    assert list(files) == ["run-0.sh", "run-1.sh"]
    for rank, text in enumerate(files.values()):
        bash_reads(text)
        words = shlex.split(text.splitlines()[1])
        assert words[words.index("--node-rank") + 1] == str(rank) and words[-1] == "it's $HOME"
        assert text.splitlines()[1].startswith("cd ~/'my project' && ")


@pytest.mark.parametrize("target", ["accelerate", "hostfile", "sbatch", "script"])
def test_every_export_names_the_interface_for_gloo(target: Target, tmp_path: Path) -> None:
    """By the route to the master: gloo asks for the host's own name else, and fails where it does not resolve."""
    stubs = {
        "python": 'echo "$GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"',
        "mpirun": 'eval "exec bash -c \\"\\${$#}\\""',
        "srun": 'eval "exec bash -c \\"\\${$#}\\""',
        "scontrol": 'case "$1" in show) echo box1;; *) echo "NodeName=box1 NodeAddr=localhost";; esac',
    }
    for name, text in stubs.items():
        new_file(tmp_path / name, f"#!/bin/bash\n{text}\n", 0o755)
    changes = {"10.0.0.1": "127.0.0.2", "/opt/env/bin/python": str(tmp_path / "python"), "~/my project": str(tmp_path)}
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "EXPORT_SECRET": "x", "SLURM_JOB_ID": "1", "HOME": str(tmp_path)}
    files = export_profile(two(**changes), target).files
    for name in [name for name in files if name.endswith((".sh", ".sbatch"))]:
        (tmp_path / "script").write_text(files[name])
        done = ran(["bash", "script"], cwd=tmp_path, env=env)
        assert done.stdout == "lo =lo\n", done.stderr
    own = two(**changes, **{"MODE: a b": "GLOO_SOCKET_IFNAME: eth7"})
    assert not any('export GLOO_SOCKET_IFNAME="' in text for text in export_profile(own, target).files.values())


@pytest.mark.parametrize(("target", "file"), [("hostfile", "mpirun.sh"), ("sbatch", "job.sbatch")])
def test_one_file_for_hosts_whose_probed_interfaces_differ(target: Target, file: str) -> None:
    plan = explicit_plan(two())
    hosts = tuple(
        replace(host, interface=name, env={**host.env, "GLOO_SOCKET_IFNAME": name})
        for host, name in zip(plan.hosts, ("eth0", "eth1"), strict=True)
    )
    text = write(replace(plan, hosts=hosts), target).files[file]
    assert "export GLOO_SOCKET_IFNAME=" in text and "eth0" not in text and "eth1" not in text


def test_the_script_of_a_host_trains_without_disttui(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, json, sys\n"
        "open(f'rank{os.environ[\"RANK\"]}', 'w').write(json.dumps([os.environ['WORLD_SIZE'], os.environ['MODE'], "
        "sys.argv[1:]]))\n"
    )
    data = {
        "disttui": 1,
        "hosts": ["local"],
        "num_processes": 2,
        "python": light_python(tmp_path / "light"),
        "job": {"script": "train.py", "args": ["a b", "$x"], "workdir": str(tmp_path), "env": {"MODE": "it's"}},
        "launch": {"ports": [free_port()]},  # not the usual one: another test may have it
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(data))
    assert typed(str(tmp_path / "mine.yaml"), "--to", "script", "-o", str(tmp_path / "out")).exit_code == 0
    script = tmp_path / "out" / "run-0.sh"
    done = ran([str(script)])
    assert done.returncode == 0, done.stderr
    assert [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in (0, 1)] == [["2", "it's", ["a b", "$x"]]] * 2


JOB_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=multinode --nodes=2 --ntasks-per-node=1 --err=E-%x.%j
source activate.sh
export GPUS_PER_NODE=1
head_node_ip=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export HERE="${HERE:-/nowhere}"
export LAUNCHER="@LAUNCHER@"
export SCRIPT="${HERE}/train.py"
export SCRIPT_ARGS=" \\
    --out ${HERE}/output \\
    "
export CMD="$LAUNCHER $SCRIPT $SCRIPT_ARGS $OPTIONAL_ARGS ${MORE:-}"
srun $CMD
"""
"""As the examples of Accelerate start theirs."""
STARTED = ("launch-0.sh", "launch-1.sh", "run-0.sh", "run-1.sh", "job.sbatch", "mpirun.sh")
STARTS = {
    "torchrun": "torchrun --nnodes 2 --nproc_per_node 1 --rdzv_backend c10d --rdzv_endpoint $head_node_ip:29500",
    "accelerate": "accelerate launch --num_processes $((SLURM_NNODES * GPUS_PER_NODE)) --num_machines $SLURM_NNODES "
    "--main_process_ip $head_node_ip --main_process_port 29500",
}
TRAIN = """
import json, os, sys
import torch, torch.distributed as dist
if os.environ["ACTIVATED"] == "accelerate":
    from accelerate import Accelerator
    processes = Accelerator().num_processes
else:
    dist.init_process_group("gloo")
    processes = dist.get_world_size()
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
with open(f"rank{dist.get_rank()}", "w") as file:
    json.dump([processes, total.item(), sys.argv[1:]], file)
dist.destroy_process_group()
"""
SRUN = """
for NODE in 0 1; do
    SLURM_NODEID=$NODE bash -c "${@: -1}" & pids+=" $!"
done
for pid in $pids; do wait $pid || exit; done
"""
"""An srun that has both nodes on this machine."""


@pytest.mark.torch
@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("launcher", "target"),
    [("torchrun", "script"), ("torchrun", "sbatch"), ("accelerate", "accelerate"), ("accelerate", "script"),
     pytest.param("torchrun", "hostfile", marks=pytest.mark.openmpi)],
)  # fmt: skip
def test_imported_job_script_trains_wherever_it_is_exported(launcher: str, target: Target, tmp_path: Path) -> None:
    """Two ranks of the real launchers; only Slurm is played by this machine."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "activate.sh").write_text(f"export ACTIVATED={launcher}\n")
    one_host = target == "hostfile"  # mpirun reaches another one by ssh
    hosts = ("local",) if one_host else ("127.0.0.1", "127.0.0.2")
    text = JOB_SCRIPT.replace("@LAUNCHER@", STARTS[launcher]).replace("--nodes=2", f"--nodes={len(hosts)}")
    imported = read_foreign(text, "job.sh", hosts=hosts)
    port = free_port()
    sets = {
        "var.HERE": str(tmp_path), "var.OPTIONAL_ARGS": "[--lr, a b]", "job.workdir": str(tmp_path),
        "python": str(frameworks.PYTHON), "launch.backend": "gloo", "launch.ports": f"{port}-{port + 1}",
        "launch.master": "127.0.0.1", "num_processes": str(2 // len(hosts)),
    }  # fmt: skip
    profile = parse(imported.text, "job.yaml", [f"{key}={value}" for key, value in sets.items()])
    assert profile.launch.launcher == launcher
    for name, content in export_profile(profile, target).files.items():
        (tmp_path / name).write_text(content)
    stubs = {"srun": SRUN, "scontrol": 'case "$1" in show) echo n1;; *) echo "NodeName=n1 NodeAddr=127.0.0.1";; esac'}
    for name, content in stubs.items():
        new_file(tmp_path / name, f"#!/bin/bash\n{content}\n", 0o755)
    slurm = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": str(free_port()), "SLURM_JOB_NODELIST": "n1"}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    scripts = [name for name in sorted(path.name for path in tmp_path.iterdir()) if name in STARTED]
    started = [
        subprocess.Popen(["bash", name], cwd=tmp_path, env={**os.environ, **slurm, **root}, stderr=subprocess.PIPE)
        for name in scripts
    ]
    said = [each.communicate(timeout=200)[1].decode() for each in started]
    assert [each.returncode for each in started] == [0] * (2 if target in ("script", "accelerate") else 1), said
    wanted = [2, 3.0, ["--out", f"{tmp_path}/output", "--lr", "a b"]]
    assert [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in (0, 1)] == [wanted] * 2


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["script", "module", "command"])
@pytest.mark.parametrize("given", ["--logs", "--log=x", "--no", "--rdzv", "--node_", "--max=3", "--", "-x", "--lr"])
def test_torchrun_accepts_any_argument_of_a_script(kind: str, given: str) -> None:
    """Its parser took `--logs` for an abbreviation of two of its own options, and refused to start."""
    from torch.distributed.run import get_args_parser

    words = torchrun_target(kind, "a.py", (given, "1"))
    parsed = get_args_parser().parse_args(["--nnodes", "2", *words])
    assert (parsed.training_script, parsed.training_script_args) == ("a.py", [given, "1"])
    assert (parsed.module, parsed.no_python) == (kind == "module", kind == "command")
    assert ("--" in words[:-2]) == (given not in ("-x", "--lr"))


def test_a_job_script_that_asks_for_no_gpus_says_so() -> None:
    notes = export_profile(two(**{"launch: {backend: nccl}\n": ""}), "sbatch").notes
    assert any("no GPUs are requested" in note for note in notes), notes
    assert not any("no GPUs" in note for note in export_profile(two(), "sbatch").notes)
    assert not any("no GPUs" in note for note in export_profile(two(nccl="gloo"), "sbatch").notes)


LACKING = [
    ({"num_processes: 4\n": ""}, "hostfile", "two: these values depend on the hosts: hosts.0.num_processes, hosts.1"),
    (
        {"python: /opt/env/bin/python\n": ""},
        "script",
        "these values depend on the hosts: hosts.0.python, hosts.1.python",
    ),
    ({", address: 10.0.0.1": ""}, "accelerate", "these values depend on the hosts: launch.master\n  → Set them"),
    ({"alice@box2:2222": "{host: box2, num_processes: 2}"}, "accelerate", "unequal num_processes (box1 4, box2 2)"),
    ({"alice@box2:2222": "{host: box2, num_processes: 2}"}, "sbatch", "export --to script"),
    ({"alice@box2:2222": "{host: box2, env: {A: b}}"}, "sbatch", "box2 differs from box1 in env, and a job script"),
]


@pytest.mark.parametrize(("changes", "target", "message"), LACKING, ids=[message for *_, message in LACKING])
def test_what_only_the_hosts_know_is_named(changes: dict[str, str], target: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        export_profile(two(**changes), target)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_builtin_job_is_exported_without_replacing_files(tmp_path: Path) -> None:
    words = ("2node", "--to", "hostfile", "-o", str(tmp_path / "out"), "--set", "num_processes=1")
    done = typed(*words, "--set", "launch.master=10.0.0.1")
    assert done.exit_code == 0 and "copy bytegpt.zip to ~ on every host" in done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["bytegpt.zip", "hostfile", "mpirun.sh"]
    again = typed(*words)
    assert isinstance(again.exception, InputError) and again.exception.what == "this file already exists"
