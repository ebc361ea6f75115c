"""Files of other launchers become profiles, with a word about every line, and nothing of them is run."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disttui.runner.cli.app import cli
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.planning.interop.draft import Imported
from disttui.runner.planning.interop.read import Kind, read_foreign
from disttui.runner.profile.load import parse
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.profile.schema import Profile
from tests.counting import counted

ONE_MACHINE = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
use_cpu: false
"""
TWO_MACHINES = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
gpu_ids: 0,1
machine_rank: 1
main_process_ip: 10.0.0.1
main_process_port: 29600
num_machines: 2
num_processes: 16
strange: 1
"""
SBATCH = """\
#!/bin/bash
#SBATCH -J My_Job -N 2 --ntasks-per-node=1 -o x-%j.out
#SBATCH --gres=gpu:4 --nodelist=n[1,3]
#SBATCH --burst-buffer=x

touch WITNESS
srun -l --kill-on-bad-exit=1 torchrun --nnodes 2 --nproc_per_node=4 \\
  --node-rank=$SLURM_NODEID --max-restarts 3 \\
  train.py --lr 1e-3 --out "$SCRATCH"
#SBATCH --time=1
"""
DEEPSPEED = """{
\t"train_batch_size": 64,
\t"train_micro_batch_size_per_gpu": 4,
\t"gradient_accumulation_steps": 1,
\t"zero_optimization": {"stage": 2},
\t"optimizer": {"params": {"lr": "auto"}}
}"""


def taken(text: str, name: str = "file", *, hosts: tuple[str, ...] = (), **given: str) -> tuple[Profile, str]:
    """The profile of a text, with what its variables are given, and its notes, one a line."""
    imported = read_foreign(text, name, hosts=hosts)
    assert imported.missing is None
    sets = [f"var.{key}={value}" for key, value in given.items()]
    return parse(imported.text, "imported.yaml", sets), notes(imported)


def notes(imported: Imported) -> str:
    return "\n".join(f"{one.line}: {one.key}: {one.fate}: {one.what}" for one in imported.notes)


def refused(text: str, *, hosts: tuple[str, ...] = ()) -> str:
    with pytest.raises(InputError) as caught:
        read_foreign(text, "file", hosts=hosts)
    return str(caught.value)


def test_accelerate_file_of_one_machine_gives_eight_processes() -> None:
    profile, said = taken(ONE_MACHINE)
    assert [(host.host, host.num_processes) for host in profile.hosts] == [("local", 8)]
    assert profile.launch.backend == "nccl"
    assert profile.job.env == {"ACCELERATE_MIXED_PRECISION": "bf16"}
    assert "5: num_processes: translated: 8 in all, on 1 machine → num_processes: 8 per host" in said
    assert {int(line.partition(":")[0]) for line in said.splitlines()} == set(range(9))


def test_accelerate_total_is_divided_and_machine_rank_reported() -> None:
    profile, said = taken(TWO_MACHINES, hosts=("box1", "box2"))
    assert [(host.host, host.num_processes) for host in profile.hosts] == [("box1", 8), ("box2", 8)]
    assert profile.launch.master == "10.0.0.1" and profile.launch.ports == (29600, 29699)
    assert profile.job.env["FSDP_VERSION"] == "2" and profile.job.env["FSDP_RESHARD_AFTER_FORWARD"] == "true"
    assert "7: machine_rank: ambiguous: 1: not the first machine's file" in said
    assert "6: gpu_ids: ambiguous: 0,1 is for one machine" in said
    assert "12: strange: ambiguous: unknown" in said


def test_accelerate_without_num_machines_takes_the_hosts_given() -> None:
    text = "distributed_type: FSDP\n# all GPUs\nnum_processes: 4\nfsdp_config:\n  fsdp_offload_params: false\n"
    profile, said = taken(text, hosts=("a", "b"))
    assert [(host.host, host.num_processes) for host in profile.hosts] == [("a", 2), ("b", 2)]
    assert "0: num_machines: translated: not given → 2 hosts" in said
    assert [(host.host, host.num_processes) for host in taken(text)[0].hosts] == [("local", 4)]
    assert "file:3:1: num_processes: 4 is the total, not a multiple of 3 machines" in refused(
        text, hosts=("a", "b", "c")
    )


def test_accelerate_with_one_process_is_refused_for_many_hosts() -> None:
    text = "mixed_precision: fp8\ndistributed_type: 'NO'\n"
    said = refused(text, hosts=("a", "b"))
    assert "file:2:1: distributed_type: NO is one process, and --host: 2 hosts" in said
    assert "NO is one process, and num_machines is 2" in refused(text + "num_machines: 2\n")
    assert taken(text, hosts=("a",))[0].hosts[0].num_processes == 1
    profile, said = taken(text + "num_processes: 8\n")  # as TRL's single_gpu.yaml
    assert [host.num_processes for host in profile.hosts] == [1]
    assert "3: num_processes: ambiguous: 8 with distributed_type: NO: accelerate launch starts one process" in said


def test_values_that_are_mappings_or_lists_are_no_defaults() -> None:
    mpi = "mpirun_config:\n  mpirun_hostfile: /home/user/hosts\n  mpirun_ccl: '1'\ntpu_env: [A]\ncommands: []\n"
    said = taken(ONE_MACHINE + mpi)[1]
    assert (
        "10: mpirun_config.mpirun_hostfile: ambiguous: /home/user/hosts names the hosts: disttui profile import" in said
    )
    assert "11: mpirun_config.mpirun_ccl: dropped: 1: set it in job.env" in said
    assert "12: tpu_env: dropped: …: for machines" in said and "13: commands: dropped: the default" in said


def test_the_launcher_that_a_file_is_for_is_chosen() -> None:
    assert taken(ONE_MACHINE)[0].launch.launcher == "accelerate"
    profile, said = taken(DEEPSPEED, hosts=("a", "b"))
    assert profile.launch.launcher == "deepspeed" and "adds --local_rank" in said
    profile, said = taken("node1 slots=4\n")
    assert profile.launch.launcher == "torchrun"
    assert "0: launch.launcher: ambiguous: a file of mpirun or deepspeed" in said


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "'::1'"])
def test_loopback_address_is_not_the_master_of_many_machines(address: str) -> None:
    text = f"distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 4\nmain_process_ip: {address}\n"
    profile, said = taken(text, hosts=("a", "b"))
    assert profile.launch.master is None or profile.launch.master == "auto"
    assert "main_process_ip: ambiguous" in said and "<host 1 of 2>" in read_foreign(text, "f").text


def test_hosts_missing_from_the_file_are_marked_and_reported() -> None:
    imported = read_foreign(TWO_MACHINES, "acc.yaml")
    assert '  - "<host 2 of 2>"\n' in imported.text
    assert str(imported.missing).startswith(
        "acc.yaml:10: the file does not name 1 of 2 hosts\n  → Import it with --host"
    )
    with pytest.raises(InputError, match=r"<host 2 of 2>"):
        parse(imported.text, "acc.yaml")


WRONG = [
    (TWO_MACHINES.replace("16", "15"), "file:11:1: num_processes: 15 is the total, not a multiple of 2 machines"),
    (TWO_MACHINES.replace("rank: 1", "rank: 2"), "file:7:1: machine_rank: 2, expected 0 to 1, with num_machines: 2"),
    (ONE_MACHINE.replace("MULTI_GPU", "XLA"), "file:2:1: distributed_type: XLA, expected one of MULTI_GPU"),
    (ONE_MACHINE.replace("LOCAL_MACHINE", "AMAZON_SAGEMAKER"), "file:1:1: compute_environment: AMAZON_SAGEMAKER"),
    (ONE_MACHINE.replace("bf16", "bf17"), "file:3:1: mixed_precision: bf17, expected no, fp16, bf16 or fp8"),
    (ONE_MACHINE.replace("8", "eight"), "file:5:1: num_processes: eight, expected a whole number from 1"),
    (ONE_MACHINE + "a: [", "file:9:5: not valid YAML"),
    ("node1 slots=4\nbad$host slots=2\n", "file:2:1: bad$host is not a host"),
    ("node1 slots=0\n", "file:1:1: node1: 0 slots, expected 1 to 1,024"),
    (DEEPSPEED.replace("64", "63"), "file:2:1: train_batch_size: 63 is not a multiple of micro batch 4"),
    (SBATCH.replace("-N 2", "-N 3"), "file:2:1: nodes: 3, but the nodelist has 2"),
    (SBATCH.replace("-N 2", "-N x"), "file:2:1: nodes: x, expected a whole number from 1 to 1,024"),
    ("disttui: 1\nhosts: [a]\n", "file: this is already a profile"),
    ("", "file: the file is empty"),
    ("#!/bin/sh\npython x.py" + " a" * 20_000, "cannot be converted: more than 10,000 values"),
    ("what is this?\n", "file: not a file of accelerate, hostfile, deepspeed or sbatch\n  → Give its kind with --from"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_be_imported_is_reported_with_its_line(text: str, message: str) -> None:
    assert message in refused(text)


def test_as_many_hosts_are_given_as_the_file_has_machines() -> None:
    said = refused(TWO_MACHINES, hosts=("a", "b", "c"))
    assert "file:10: num_machines is 2, but --host is given 3 times\n  → Give --host 2 times" in said
    assert "the file names its hosts" in refused("node1 slots=4\n", hosts=("a",))
    assert "--host a$b: 'a$b' contains '$'" in refused(ONE_MACHINE, hosts=("a$b",))


@pytest.mark.parametrize(("hosts", "taken_over"), [(1, 2), (2, 2), (3, 3), (5, 4)])
def test_node_range_takes_as_many_nodes_as_hosts_given(hosts: int, taken_over: int) -> None:
    text, given = "#!/bin/sh\n#SBATCH --nodes=2-4\nsrun python a.py\n", [f"n{at}" for at in range(hosts)]
    if hosts != taken_over:
        with pytest.raises(InputError, match=f"nodes is {taken_over}, but --host is given {hosts} times"):
            read_foreign(text, "f", hosts=given)
        return
    assert f"nodes: ambiguous: 2-4: a profile needs one number → {hosts}" in notes(read_foreign(text, "f", hosts=given))


@pytest.mark.parametrize(
    ("more", "env", "note"),
    [
        ("fp16: true\n", {"ACCELERATE_MIXED_PRECISION": "fp16"}, "fp16: translated: fp16 → job.env"),
        ("fp16: false\n", {}, "fp16: dropped: the default"),
        ("fp16: true\nmixed_precision: bf16\n", {"ACCELERATE_MIXED_PRECISION": "bf16"}, "overridden by mixed_prec"),
        ("dynamo_backend: INDUCTOR\n", {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}, "dynamo_backend: translated"),
        ("fsdp_config: {fsdp_backward_prefetch_policy: BACKWARD_PRE}\n",
         {"ACCELERATE_USE_FSDP": "true", "FSDP_BACKWARD_PREFETCH": "BACKWARD_PRE"}, "prefetch_policy: translated"),
        ("gpu_ids: [0, 2]\n", {}, "gpu_ids: translated: → hosts.0.gpus: [0, 2]"),
        ("gpu_ids: null\n", {}, "gpu_ids: dropped: all: free GPUs"),
        ("gpu_ids: [~]\n", {}, "gpu_ids: dropped: all: free GPUs"),
        ("mixed_precision:\n", {}, "mixed_precision: dropped: the default"),
        ("fp16: null\n", {}, "fp16: dropped: the default"),
        ("machine_rank: ~\n", {}, ""),
        ("same_network: null\n", {}, "same_network: dropped: the default"),
    ],
)  # fmt: skip
def test_keys_of_accelerates_first_releases_are_translated(more: str, env: dict[str, str], note: str) -> None:
    profile, said = taken(f"distributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 2\n{more}")
    given = {name: value for name, value in profile.job.env.items() if name in env or not name.startswith("FSDP_")}
    assert given == env and note in said


def test_a_hostfile_gives_each_host_its_processes() -> None:
    profile, said = taken("# ours\nbox1 slots=4\nbox[2-3] slots=8 max_slots=9\nbox1 slots=2\nbox4:3\n")
    assert [(one.host, one.num_processes) for one in profile.hosts] == [
        *(("box1", 6), ("box2", 8), ("box3", 8), ("box4", 3))
    ]
    assert "3: box2: dropped: max_slots=9 has no counterpart" in said
    assert "4: box1: ambiguous: given again: 4 + 2 slots" in said


def test_deepspeed_file_is_passed_on_and_sets_process_count() -> None:
    profile, said = taken(DEEPSPEED, "conf/ds.json", hosts=("a", "b"))
    assert [host.num_processes for host in profile.hosts] == [8, 8]
    assert profile.job.args == ("--deepspeed", "--deepspeed_config", "ds.json")
    assert "6: optimizer.params.lr: ambiguous: auto:" in said


@pytest.mark.parametrize(
    ("more", "processes", "what"),
    [
        ("", 8, "8 = 1 × 1 × 8 processes → num_processes: 4 per host"),
        (', "sequence_parallel_size": 4', 32, "8 = 1 × 1 × 32 processes / 4 → num_processes: 16 per host"),
        (', "sequence_parallel_size": "auto"', None, "sequence_parallel_size changes what train_batch_size counts"),
        (', "elasticity": {"enabled": true}', None, "elasticity.enabled changes what train_batch_size counts → auto"),
        (', "tensor_parallel": {"autotp_size": 2}', None, "tensor_parallel.autotp_size changes what train_batch_size"),
        (None, None, "the file gives no number → auto"),  # DeepSpeed computes the accumulation from the processes
    ],
)
def test_the_batch_sizes_of_deepspeed_give_its_processes(more: str | None, processes: int | None, what: str) -> None:
    rest = "" if more is None else f', "gradient_accumulation_steps": 1{more}'
    text = f'{{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1{rest}}}'
    profile, said = taken(text, hosts=("a", "b"))
    assert profile.hosts[0].num_processes == (processes and processes // 2) and what in said


def test_an_sbatch_script_is_read_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = SBATCH.replace("touch WITNESS", "touch WITNESS $(touch WITNESS)")
    profile, said = taken(text, SCRATCH="/scratch")
    with pytest.raises(InputError, match=r"the variable 'SCRATCH' has no value"):
        taken(text)
    assert not list(tmp_path.iterdir())
    assert profile.name == "my_job"
    assert [(host.host, host.num_processes) for host in profile.hosts] == [("n1", 4), ("n3", 4)]
    assert profile.job.script == "train.py" and profile.job.args == ("--lr", "1e-3", "--out", "/scratch")
    assert profile.launch.restarts == 3
    assert "4: burst-buffer: ambiguous: unknown; dropped" in said
    assert "6: touch: ambiguous: not understood; dropped" in said
    assert "7: $SCRATCH: ambiguous: the script does not set it: use --set var.SCRATCH=…" in said
    assert "10: #SBATCH: dropped: it is after the first command" in said


@pytest.mark.parametrize(
    ("line", "kind", "value", "processes"),
    [
        ("srun -n 8 python -u train.py --x 1", "script", "train.py", 4),
        ("srun /opt/env/bin/python3 -m pkg.train", "module", "pkg.train", 3),
        ("srun bash -c 'exec torchrun --nproc-per-node=2 --node-rank=$SLURM_NODEID a.py'", "script", "a.py", 2),
        ("python -m torch.distributed.run --nproc-per-node 5 -m pkg.train", "module", "pkg.train", 5),
    ],
)
def test_the_lines_that_start_a_job(line: str, kind: str, value: str, processes: int) -> None:
    head = "#!/bin/sh\n#SBATCH -N2 --ntasks-per-node 3 -w n1,n2\n"
    profile, _ = taken(f"{head}{line}\n")
    assert (profile.job.target.kind, profile.job.target.value) == (kind, value)
    assert profile.hosts[0].num_processes == processes


ACCELERATE_SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1 --gres=gpu:8
module load cuda  # it's "this"
set -e   # it's a comment
source env/bin/activate
export NCCL_DEBUG=WARN CUDA_ROOT=/opt/cuda
export PATH=$CUDA_ROOT/bin:$PATH
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export RUN_ID=$(date +%s)
MODEL=$1
CONFIG=${CONFIG:-"base one"}
GPUS=8
MODE=slow
if [[ -n "$FAST" ]]; then
    MODE=fast; GPUS=4
fi
cat <<END > note
it's no "command
END
export LAUNCHER="accelerate launch \\
    --num_processes $((SLURM_NNODES * 8)) --num_machines $SLURM_NNODES \\
    --mixed_precision bf16 --main_process_ip $MASTER_ADDR --config_file a.yaml"
export CMD="train.py --model $MODEL --mode $MODE --note 'a b'"
srun --wait=60 bash -c "$LAUNCHER $CMD --config '$CONFIG' \"$@\"" 2>&1
echo done
"""


def test_every_job_script_line_is_kept_translated_or_reported() -> None:
    profile, said = taken(ACCELERATE_SCRIPT, hosts=("n1", "n2"), MODEL="m")
    assert profile.job.script == "train.py" and profile.launch.launcher == "accelerate"
    assert profile.job.args == ("--model", "m", "--mode", "slow", "--note", "a b", "--config", "base one")
    assert [host.num_processes for host in profile.hosts] == [8, 8]
    assert profile.hosts[0].activate == (
        "module load cuda && source env/bin/activate && CUDA_ROOT=/opt/cuda && export PATH=$CUDA_ROOT/bin:$PATH"
    )
    assert profile.job.env == {
        "NCCL_DEBUG": "WARN", "CUDA_ROOT": "/opt/cuda", "ACCELERATE_MIXED_PRECISION": "bf16",
    }  # fmt: skip
    lines = {int(line.partition(":")[0]) for line in said.splitlines()}
    code = [
        number for number, line in enumerate(ACCELERATE_SCRIPT.splitlines(), 1) if line and not line.startswith("#!")
    ]
    inside = {16, 17, 19, 20, 22, 23}  # of the block, the text and the word that begin before
    assert sorted({*code} - lines) == sorted(inside)
    for note in (
        "9: MASTER_ADDR: dropped: disttui sets it",
        "10: RUN_ID: ambiguous: it is computed when the job starts; dropped: set its value in job.env",
        "15: if: ambiguous: lines 15 to 17 are not evaluated but dropped; may set MODE, GPUS",
        "18: cat: ambiguous: note: only this script writes it: if the job reads it",
        "25: $MODEL: ambiguous: it is an argument of the script: use --set var.MODEL=…",
        "25: $MODE: ambiguous: it depends on the `if` of line 15: use --set var.MODE=…, else it is slow",
        '25: "$@": ambiguous: arguments of sbatch',
        "25: accelerate --config-file: ambiguous: a.yaml is not read",
    ):
        assert note in said, said


@pytest.mark.parametrize(
    ("line", "processes"),
    [
        ("accelerate launch train.py", 8),
        ("accelerate launch --num_processes 4 train.py", 2),
        ("torchrun --nproc_per_node $SLURM_GPUS_ON_NODE train.py", 8),
        ("torchrun --nproc_per_node ${GPUS:-4} train.py", 4),
    ],
)
def test_processes_of_a_launcher_in_a_job_script(line: str, processes: int) -> None:
    text = f"#!/bin/sh\n#SBATCH -N2 --ntasks-per-node 1 --gres=gpu:8 -w n1,n2\n{line}\n"
    assert taken(text)[0].hosts[0].num_processes == processes
    assert "5 in all, for 2 nodes" in refused(text.replace(line, "accelerate launch --num_processes 5 a.py"))


def test_a_token_in_a_job_script_is_not_copied() -> None:
    token = "hf_" + "a1b2c3d4e5f6" * 3
    profile, said = taken(f"#SBATCH --nodes=2\nexport HF_TOKEN={token}\nsrun torchrun train.py\n", hosts=("n1", "n2"))
    assert profile.job.env == {"HF_TOKEN": "${env:HF_TOKEN}"}
    assert token not in said and "2: HF_TOKEN: ambiguous: looks like a secret, not copied" in said
    _, said = taken(f"#SBATCH --nodes=1\nsrun torchrun train.py --token {token}\n", hosts=("n1",))
    assert "job.args.1: ambiguous: looks like a Hugging Face token: remove it" in said and token not in said


def test_fsdp_has_the_defaults_of_accelerate_launch() -> None:
    """Accelerate itself has others."""
    lines = "#SBATCH --nodes=1\naccelerate launch --num_processes 2 --use_fsdp --fsdp_use_orig_params false a.py\n"
    profile, _ = taken(lines, hosts=("n1",))
    assert profile.job.env["FSDP_USE_ORIG_PARAMS"] == "false" and profile.job.env["FSDP_SYNC_MODULE_STATES"] == "true"
    assert profile.job.env["FSDP_MIN_NUM_PARAMS"] == "100000000"
    bare, _ = taken("#SBATCH --nodes=1\nexport ACCELERATE_USE_FSDP=true\nsrun python a.py\n", hosts=("n1",))
    assert bare.job.env == {"ACCELERATE_USE_FSDP": "true"}


def test_variables_that_disttui_sets_are_not_asked_for() -> None:
    line = "srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python -u train.py'\n"
    _, said = taken(f"#SBATCH --nodes=1 --ntasks-per-node=2\n{line}", hosts=("n1",))
    assert "--set var." not in said and "RANK: dropped: disttui sets it" in said


def test_a_name_that_no_variable_has_is_dropped() -> None:
    profile, said = taken("#SBATCH --nodes=1\n#SBATCH --export=A-B=1,\x1bX=2,OK=3\nsrun python a.py\n", hosts=("n1",))
    assert profile.job.env == {"OK": "3"}
    assert "2: A-B: dropped: not a valid variable name" in said and "\x1b" not in said


@pytest.mark.parametrize(
    "text", ["A=xxxxxxxx\n" + "A=$A$A\n" * 100 + "torchrun $A a.py\n", "torchrun " + "${A:-" * 50_000 + "}" * 50_000]
)
def test_values_that_grow_without_end_are_not_expanded(text: str) -> None:
    with counted() as calls, suppress(InputError):
        read_foreign(f"#!/bin/sh\n{text}", "f", "sbatch", ["n"])
    assert calls.number < 10 * len(text) + 100_000


def test_words_that_sbatch_or_its_shell_knows_become_variables() -> None:
    text = '#!/bin/sh\n#SBATCH -w n1\npython a.py --a="$@" $1 $? $(date) "$@" $N\n'
    imported = read_foreign(text, "f")
    assert imported.text.count("${var:") == 5
    sets = ["var.ARGS=1", "var.ARG1=2", "var.VALUE=3", "var.N=4"]
    assert parse(imported.text, "f", sets).job.args == ("--a=1", "2", "3", "3", "4")


def test_a_variable_that_the_shell_divides_is_as_many_arguments() -> None:
    """`$OPTIONAL_ARGS` of a public script was one argument, whatever it held, and an empty default an empty one."""
    text = '#!/bin/sh\n#SBATCH -w n1\nOPTIONAL=$5\nCMD="a.py $OPTIONAL"\npython $CMD ${A:-} ${B:---lr 1} "${C:-}" x$D\n'
    imported = read_foreign(text, "f")
    assert parse(imported.text, "f", ["var.OPTIONAL=[--a, b c]", "var.D=1"]).job.args == (
        "--a", "b c", "--lr", "1", "", "x1"
    )  # fmt: skip
    assert parse(imported.text, "f", ["var.OPTIONAL=--a=1", "var.D=1", "var.B=[]"]).job.args == ("--a=1", "", "x1")
    notes = {note.key: note.what for note in imported.notes}
    assert notes["$OPTIONAL"].endswith("=…; a list gives several words")
    assert "list" not in notes["$C"] + notes["$D"]


def test_command_substitutions_become_variables_within_words() -> None:
    text = (
        f'{TWO}CMD="`pwd`/a.py --at $(date) --again `pwd` "\nexport OUT=/x/$(date)\ntorchrun --nproc_per_node 8 $CMD\n'
    )
    profile, said = taken(text, hosts=("n1", "n2"), VALUE="/p", VALUE2="now")
    assert profile.job.script == "/p/a.py" and profile.job.args == ("--at", "now", "--again", "/p")
    assert "OUT: ambiguous: it is computed when the job starts" in said and not profile.job.env


def test_variable_named_args_is_not_all_script_arguments() -> None:
    profile, said = taken('#!/bin/sh\n#SBATCH -w n1\npython a.py $ARGS "$@"\n', ARGS="1")
    assert profile.job.args == ("1",)
    assert "3: $ARGS: ambiguous: the script does not set it" in said


def test_shortened_options_of_sbatch_are_those_that_they_begin() -> None:
    said = taken("#!/bin/sh\n#SBATCH -w n1 --err=x.err --job=x --no=1\npython a.py\n")[1]
    assert "2: error: dropped: each rank has its log" in said and "2: job-name: translated" in said
    assert "2: no: ambiguous: unknown; dropped" in said


def test_what_bash_cannot_read_either_is_reported_with_its_line() -> None:
    text = '#!/bin/sh\n#SBATCH -w n1\npython a.py\necho done\nX="open\n'
    assert "5: …: ambiguous: unclosed quotes or brackets" in taken(text)[1]


def test_a_block_that_nothing_ends_is_lost_to_the_last_line() -> None:
    text = "#!/bin/sh\n#SBATCH -w n1\nif true; then\n  A=1\n  python a.py\nX='\n"
    imported = read_foreign(text, "f", script="b.py")
    notes = [f"{note.line}: {note.what}" for note in imported.notes]
    assert "3: lines 3 to 6 are not evaluated but dropped; may set A" in notes, notes


def test_variables_in_launcher_options_are_reported() -> None:
    text = """#!/bin/sh
#SBATCH -w n1
STEPS=$(grep steps a.yaml)
srun bash -c "LEVEL=$LEVEL accelerate launch --gradient_accumulation_steps $STEPS --config_file $FILE a.py"
"""
    profile, said = taken(text, STEPS="2", LEVEL="info")
    assert profile.job.env == {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2", "LEVEL": "info"}
    assert "4: $STEPS: ambiguous: it is computed when the job starts: use --set var.STEPS=…" in said
    assert "4: $LEVEL: ambiguous: the script does not set it: use --set var.LEVEL=…" in said
    assert "$FILE: " not in said


@pytest.mark.parametrize("default", ['"{{ instruction }}"', "'}'", "\\}", '"a\\"}"'])
def test_braces_in_quotes_do_not_end_a_default(default: str) -> None:
    text = f"#!/bin/sh\n#SBATCH -w n1\nX=${{X:-{default}}}\npython a.py\n"
    profile, said = taken(text)
    assert profile.job.script == "a.py" and "unclosed" not in said


def test_a_job_script_becomes_a_job_of_slurm_on_its_login_node() -> None:
    head = "#!/bin/sh\n#SBATCH -N2 --ntasks-per-node 4 -c 8 -w n[1,3] -t 4:00:00 -p gpu --gres=gpu:a100:4\n"
    more = "#SBATCH --mem=64G --comment='a b' --requeue --burst-buffer=x\nsrun python train.py\n"
    imported = read_foreign(head + more, "file", login="cluster")
    profile, said = parse(imported.text, "imported.yaml"), notes(imported)
    assert profile.slurm and imported.missing is None
    assert ([host.host for host in profile.hosts], profile.hosts[0].num_processes) == (["cluster"], 4)
    assert profile.launch.launcher == "slurm" and profile.slurm.nodes == 2 and profile.slurm.cpus_per_node == 32
    assert profile.slurm.sbatch() == [
        "--partition=gpu", "--time=4:00:00", "--gres=gpu:4", "--nodelist=n[1,3]", "--mem=64G", "--gres=gpu:a100:4",
    ]  # fmt: skip
    assert "3: comment: dropped: '--comment=a b'" in said and "3: burst-buffer: ambiguous" in said
    assert "0: launch.run_dir: ambiguous" in said and "0: job.workdir: ambiguous" in said
    for asked, each in (("--gpus-per-task=2", 8), ("--gpus=a100:6", 3), ("-G 8", 4)):
        made = parse(read_foreign(f"#!/bin/sh\n#SBATCH -N2 --ntasks-per-node 4 {asked}\nsrun python a.py\n", "file",
                                  login="cluster").text, "imported.yaml")  # fmt: skip
        assert made.slurm and made.slurm.gpus_per_node == each, asked
    for asked in ("--gpus-per-node=8", "--gres=gpu:a100:8"):
        text = f"#!/bin/sh\nsrun -N2 --ntasks-per-node=8 {asked} python a.py\n"
        made = parse(read_foreign(text, "file", login="cluster").text, "imported.yaml")
        assert made.slurm and (made.slurm.nodes, made.slurm.gpus_per_node) == (2, 8)
    odd = notes(read_foreign("#!/bin/sh\n#SBATCH -N2 --gpus=3 --array=1-9 --no-requeue\nsrun python a.py\n", "file",
                             login="cluster"))  # fmt: skip
    assert "gpus: ambiguous: 3: write slurm.gpus_per_node" in odd and "array: dropped: a run is one job" in odd
    with pytest.raises(InputError, match="file:2:1: time: 'soon', expected minutes"):
        read_foreign("#!/bin/sh\n#SBATCH --time=soon -n 1\nsrun python a.py\n", "file", login="cluster")
    with pytest.raises(InputError, match="file:2:1: cpus-per-task: many, expected a whole number"):
        read_foreign("#!/bin/sh\n#SBATCH -c many -n 1\nsrun python a.py\n", "file", login="cluster")
    for other in (("box slots=1\n", ()), (head, ("n1",))):
        with pytest.raises(InputError, match=r"--login (is|and)"):
            read_foreign(other[0], "file", hosts=other[1], login="cluster")


@pytest.mark.parametrize("text", ["a \\\n" * 200_000, "a" * 1_000_000, "#SBATCH" + " --x" * 250_000])
def test_a_script_of_one_endless_line_is_read_once(text: str) -> None:
    # What searches such a line from each of its characters on needs an hour: pytest's own limit ends it.
    with counted() as calls, suppress(InputError):
        assert "not understood" in read_foreign(f"#!/bin/sh\n{text}", "f", "sbatch").notes[-1].what
    assert calls.number < 10 * len(text)


def test_job_script_with_hosts_suggests_a_slurm_login_node() -> None:
    script = "#!/bin/sh\n#SBATCH --nodes=2\nsrun python train.py\n"
    assert "Slurm" not in notes(read_foreign("#!/bin/sh\ntorchrun a.py\n", "f", "sbatch", ["gpu1"]))
    past = "0: hosts: ambiguous: over SSH, without Slurm's queue; with --login HOST instead: a Slurm job"
    assert past in notes(read_foreign(script, "f", "sbatch", ["gpu1", "gpu2"]))
    assert "hosts" not in notes(read_foreign(script, "f", "sbatch", login="login"))
    with pytest.raises(InputError, match="or --login HOST for a Slurm job"):
        read_foreign(script, "f", "sbatch", ["login"])


def test_thousands_of_unread_lines_are_summarized() -> None:
    script = "#!/bin/sh\n" + "abc\n" * 20_000 + "srun python train.py $FAST\n"
    imported = read_foreign(script, "f", "sbatch", ["gpu1"])
    assert len(imported.notes) < 1100 and parse(imported.text, "imported.yaml", ["var.FAST=x"]).job.script == "train.py"
    said = notes(imported)
    assert "0: …: ambiguous: 19,001 more notes on lines that were dropped or not understood" in said
    assert "20002: srun: translated: train.py → job.script" in said


TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\n"
STARTS = [
    # The forms of public scripts: each starts 16 processes on two hosts with 8 GPUs.
    ("cd ~/proj && srun torchrun --nnodes 2 --nproc-per-node 8 a.py --lr 1", "torchrun", "a.py --lr 1"),
    ("START='torchrun --nproc-per-node 8'\nRUN='a.py --lr 1'\nsrun bash -c \"$START $RUN\"", "torchrun", "a.py --lr 1"),
    ("CMD='torchrun --nproc_per_node 8 a.py'\neval $CMD", "torchrun", "a.py"),
    ("accelerate launch --num_processes 16 a.py", "accelerate", "a.py"),
    ("srun accelerate launch --num_machines 2 --num_processes $((SLURM_NNODES * 8)) a.py", "accelerate", "a.py"),
    ("srun deepspeed --num_gpus 8 a.py --deepspeed ds.json", "deepspeed", "a.py --deepspeed ds.json"),
    ("deepspeed --hostfile hosts --num_nodes 2 --no_local_rank a.py", "deepspeed", "a.py"),
    ("srun python -m deepspeed.launcher.runner a.py", "deepspeed", "a.py"),
    ("mpirun -np 16 -npernode 8 python a.py", "mpirun", "a.py"),
    ("mpirun -np 16 --hostfile h -x NCCL_DEBUG=INFO --mca btl tcp,self --bind-to none python a.py", "mpirun", "a.py"),
    ("mpiexec --map-by ppr:8:node --allow-run-as-root python a.py", "mpirun", "a.py"),
    ("mpirun -np 2 --map-by ppr:1:node torchrun --nproc-per-node 8 a.py", "torchrun", "a.py"),
    ("srun singularity exec --nv -B /data img.sif torchrun --nproc-per-node 8 a.py", "torchrun", "a.py"),
    ("srun apptainer run --nv img.sif bash -c 'torchrun --nproc-per-node=8 a.py'", "torchrun", "a.py"),
    ("docker run --gpus all --rm img torchrun --nproc_per_node 8 a.py", "torchrun", "a.py"),
    ("srun --container-image=img torchrun --nproc-per-node 8 a.py", "torchrun", "a.py"),
    ("srun uv run torchrun --nproc-per-node 8 a.py", "torchrun", "a.py"),
    ("uv run --no-sync --python 3.12 torchrun --nproc-per-node 8 a.py", "torchrun", "a.py"),
    ("poetry run torchrun --nproc_per_node=8 a.py", "torchrun", "a.py"),
    ("srun conda run -n env --no-capture-output torchrun --nproc_per_node=8 a.py", "torchrun", "a.py"),
    ("srun env FOO=1 nohup torchrun --nproc_per_node 8 a.py > log 2>&1 &", "torchrun", "a.py"),
    ("srun numactl --cpunodebind=0 nsys profile -o x torchrun --nproc_per_node 8 a.py", "torchrun", "a.py"),
    ("srun ./bind.sh python a.py --x", "torchrun", "a.py --x"),
    # A launcher's name that starts nothing.
    ("srun python a.py --launcher torchrun --x", "torchrun", "a.py --launcher torchrun --x"),
    ("pkill -f torchrun x; pip install torchrun x; echo torchrun b.py\nsrun python a.py", "torchrun", "a.py"),
    ("srun python a.py", "torchrun", "a.py"),
    ("srun --ntasks-per-node=8 --gpus-per-task=1 python -X faulthandler -W ignore a.py", "torchrun", "a.py"),
    ("python -m torch.distributed.launch --nproc_per_node=8 --use_env a.py", "torchrun", "a.py"),
    ("if [ -n \"$X\" ]; then srun torchrun --nproc_per_node 8 a.py; fi", "torchrun", "a.py"),
    ("ARGS=(--nproc_per_node 8  # each\n --nnodes 2)\nARGS+=(--rdzv_id 1)\nM=(--lr 1)\n"
     "torchrun ${ARGS[@]} a.py \"${M[@]}\"", "torchrun", "a.py --lr 1"),
    ("O=--lr\nO+=' 1'\nsrun torchrun --nproc-per-node 8 a.py $O", "torchrun", "a.py --lr 1"),
    ("srun torchrun $UNKNOWN a.py", "torchrun", "a.py"),
    ("module load cuda\nexport PATH=/x:$PATH\nsrun apptainer exec --nv i.sif torchrun --nproc-per-node 8 a.py",
     "torchrun", "a.py"),
    ("export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7\nMASTER_PORT=1 srun torchrun --nproc-per-node 8 a.py",
     "torchrun", "a.py"),
    ("srun -N2 -n16 python a.py", "torchrun", "a.py"),
    ("setsid nohup srun torchrun --nproc-per-node 8 a.py &\nwait", "torchrun", "a.py"),
    ("LAUNCHER=\"python -m torch.distributed.run --nproc_per_node 8 --role `hostname -s`: --tee 3 \"\n"
     "srun bash -c \"$LAUNCHER --node_rank \\$SLURM_PROCID a.py\"", "torchrun", "a.py"),
    ("declare -a ARGS=(--nproc_per_node=8 --rdzv_endpoint=$(hostname))\nsrun torchrun \"${ARGS[@]}\" a.py",
     "torchrun", "a.py"),
    ("srun torchrun --nproc-per-node 8 --tee 3 -- a.py --x", "torchrun", "a.py --x"),
    ("CONFIG=${1:-base}\nsrun torchrun --nproc-per-node 8 a.py $CONFIG ${2:-small}", "torchrun", "a.py base small"),
    ("srun --gres=gpu:a100:8,nvme:1 torchrun --nproc-per-node gpu a.py", "torchrun", "a.py"),
    ("read -r -d '' cmd <<EOF\necho \"--- start ---\" \\\n&& torchrun --nproc_per_node 8 a.py --name \"x\" \\\n"
     "  --nodes ${SLURM_NNODES}\nEOF\nsrun bash -c \"${cmd}\"", "torchrun", "a.py --name x --nodes 2"),
    ("IFS= read -rd '' CMD <<'EOF' || true\ntorchrun --nproc_per_node 8 a.py\nEOF\nsrun bash -c \"$CMD\"",
     "torchrun", "a.py"),
    ("cmd=$(cat <<EOF\ntorchrun --nproc_per_node=8 a.py\nEOF\n)\nsrun bash -c \"$cmd\"", "torchrun", "a.py"),
    ("srun bash -l <<'EOF'\nset -e\ntorchrun --nproc_per_node=8 a.py\nEOF", "torchrun", "a.py"),
    ("cat > x <<EOF\nit's \"open\nEOF\nsrun torchrun --nproc_per_node=8 a.py", "torchrun", "a.py"),
    ("S=$(python -c \"print(\\\",\\\".join(['1']))\")\nsrun torchrun --nproc_per_node=8 a.py", "torchrun", "a.py"),
    ("srun uv run --frozen -m torch.distributed.run --nproc-per-node 8 a.py", "torchrun", "a.py"),
    ("srun --ntasks=${GPUS:-16} --ntasks-per-node=${EACH:-8} python a.py", "torchrun", "a.py"),
    ("deepspeed --include localhost:0,1,2,3,4,5,6,7 a.py", "deepspeed", "a.py"),
    # Programs that run torchrun.
    ("fabric run --devices=8 --num-nodes=2 a.py --lr 1", "torchrun", "a.py --lr 1"),
    ("srun lightning run model --accelerator cuda --devices 0,1,2,3,4,5,6,7 --num_nodes 2 a.py", "torchrun", "a.py"),
    ("colossalai run --nproc_per_node 8 --host h1,h2 --master_addr h1 a.py --x 1", "torchrun", "a.py --x 1"),
    # Scripts that the job script writes.
    ("cat > run.sh <<EOF\n#!/bin/bash\ntorchrun --nproc_per_node 8 a.py\nEOF\nchmod +x run.sh\nsrun ./run.sh",
     "torchrun", "a.py"),
    ("cat <<'EOF' > $TMP/run.sh\nsource x/bin/activate\ntorchrun --nproc_per_node 8 a.py\nEOF\nsrun bash $TMP/run.sh",
     "torchrun", "a.py"),
    ("echo 'torchrun --nproc_per_node 8 a.py' > run.sh\nsrun bash -x run.sh", "torchrun", "a.py"),
    ("echo export A=1 > r.sh\ncat >> r.sh <<E\ntorchrun --nproc_per_node 8 a.py\nE\nsrun sh r.sh", "torchrun", "a.py"),
    ("tee r.sh <<E\nexport A=1\nE\nsource r.sh\nsrun torchrun --nproc_per_node 8 a.py", "torchrun", "a.py"),
    # Scripts, and where they come from.
    ("printf '#!/bin/bash\\n%s a.py\\n' 'torchrun --nproc_per_node 8' > r.sh\nsrun bash r.sh", "torchrun", "a.py"),
    ("echo -e 'set -e\\ntorchrun --nproc_per_node 8 a.py' > r.sh\nsrun bash r.sh", "torchrun", "a.py"),
    ("cat <<E | tee r.sh\ntorchrun --nproc_per_node 8 a.py\nE\nsrun bash r.sh", "torchrun", "a.py"),
    ("echo 'torchrun --nproc_per_node 8 a.py' | srun bash", "torchrun", "a.py"),
    ("srun bash <<< 'torchrun --nproc_per_node 8 a.py'", "torchrun", "a.py"),
    ("{ srun torchrun --nproc_per_node 8 a.py; } 2>&1 | tee log", "torchrun", "a.py"),
    ("if ! srun torchrun --nproc_per_node 8 a.py; then exit 1; fi", "torchrun", "a.py"),
    ("if python check.py; then echo yes; fi\nsrun torchrun --nproc_per_node 8 a.py", "torchrun", "a.py"),
    # Functions.
    ("train() { srun torchrun --nproc_per_node 8 a.py; }\ntrain", "torchrun", "a.py"),
    ("function train {\n srun torchrun --nproc_per_node 8 a.py --x $1 ${2:-5}\n}\ntrain 1", "torchrun", "a.py --x 1 5"),
    ("run()\n{\n local s=$1\n shift\n srun torchrun --nproc_per_node 8 $s \"$@\"\n}\nrun a.py --x 1",
     "torchrun", "a.py --x 1"),
    ("log() { echo $*; }\nf() { srun torchrun --nproc_per_node 8 a.py $1; }\ng() { log x; f $1; }\nlog a\ng 3\nlog b",
     "torchrun", "a.py 3"),
    ('set -- a.py --x 1\nset -- "$@" --y\nsrun torchrun --nproc_per_node 8 "$@"', "torchrun", "a.py --x 1 --y"),
    ("f() { torchrun --nproc_per_node 8 a.py; }\nexport -f f\nsrun bash -c f", "torchrun", "a.py"),
    ("main() { srun torchrun --nproc_per_node 8 a.py; }\ntime main", "torchrun", "a.py"),
    ("f() { f; g; }\ng() { f; }\nf\nsrun torchrun --nproc_per_node 8 a.py", "torchrun", "a.py"),
    ('f() { srun torchrun --nproc_per_node $1 "${@:2}"; }\nf 8 a.py --x 1', "torchrun", "a.py --x 1"),
    ('f() { srun torchrun --nproc_per_node 8 $1 "${@:3:2}"; }\nf a.py y --x 1 z', "torchrun", "a.py --x 1"),
    ('A=(torchrun --nproc_per_node 8 a.py)\nsrun ${A[@]:0:1} "${A[@]:1}"', "torchrun", "a.py"),
    ("ARGS=${@:5}\nsrun torchrun --nproc_per_node 8 a.py ${ARGS}", "torchrun", "a.py"),
    # What is set elsewhere: in a function, in another shell, for one command.
    ("S=a.py\nf() { local S=b.py; declare S=c.py; }\nf\nsrun torchrun --nproc_per_node 8 $S", "torchrun", "a.py"),
    ("S=a.py\n(S=b.py; set -- x); (S=c.py)\nsrun torchrun --nproc_per_node 8 $S", "torchrun", "a.py"),
    ("S=a.py\nf() { S=b.py; }\nf | cat\nS=b.py &\necho b.py | S=x\nsrun torchrun --nproc_per_node 8 $S",
     "torchrun", "a.py"),
    ("S=b.py\nf() { srun torchrun --nproc_per_node 8 $S; }\nS=a.py f", "torchrun", "a.py"),
    ("A=(a.py b)\nA+=(c)\nsrun torchrun --nproc_per_node 8 $A ${A[2]} ${#A[@]} ${A[@]}",
     "torchrun", "a.py c 3 a.py b c"),
    ("srun torchrun --nproc_per_node 8 a.py \\", "torchrun", "a.py"),
    ("S=a.py\n{ S=b.py; set -- x; } | cat\necho | { S=c.py; }\nsrun torchrun --nproc_per_node 8 $S",
     "torchrun", "a.py"),
    ("S=b.py\n{ S=a.py; }\n{ echo; } > log\nsrun torchrun --nproc_per_node 8 $S", "torchrun", "a.py"),
    # What ends the script, and what only may.
    ("torchrun --nproc_per_node 8 a.py\nexit 0\nsrun torchrun --nproc_per_node 4 b.py", "torchrun", "a.py"),
    ("exec torchrun --nproc_per_node 8 a.py\nsrun torchrun --nproc_per_node 4 b.py", "torchrun", "a.py"),
    ("f() { torchrun --nproc_per_node 8 a.py; exit; }\nf\nsrun torchrun --nproc_per_node 4 b.py", "torchrun", "a.py"),
    ("cd x || exit 1\ntrue && exit\nif [ $X ]; then exit; fi\n(exit)\nexit | cat\n{ exit; } | cat\nf() { exit; }\n"
     "f | cat\ntrue && f\ntrue && { exit; }\nexec 2> log\nsrun bash -c 'exit'\nsrun torchrun --nproc_per_node 8 a.py",
     "torchrun", "a.py"),
    # Aliases, and words from a pipe.
    ("alias t='srun torchrun --nproc_per_node 8'\nX=1 t a.py --x 'b'", "torchrun", "a.py --x b"),
    ("alias a=b b='a x'\na\nsrun torchrun --nproc_per_node 8 a.py", "torchrun", "a.py"),
    ("printf '%s\\n' a.py --x | xargs -r torchrun --nproc_per_node 8", "torchrun", "a.py --x"),
    # What stands before a program, and options with a word of their own.
    ("time srun --ntasks-per-node=8 python a.py", "torchrun", "a.py"),
    ("srun --wait 60 --qos high -C gpu --mem-per-cpu 4G -n 16 python a.py", "torchrun", "a.py"),
    ("srun --tasks-per-node 8 python a.py", "torchrun", "a.py"),
    ("srun --ntasks-per-no=8 --label --kill-on-bad-exit python a.py", "torchrun", "a.py"),
    ("srun \"$@\" sh -xeuc 'torchrun --nproc-per-node 8 a.py'", "torchrun", "a.py"),
    ("srun bash -euo pipefail -c 'torchrun --nproc_per_node 8 a.py'", "torchrun", "a.py"),
    ("srun zsh -c 'torchrun --nproc_per_node 8 a.py'", "torchrun", "a.py"),
    ("accelerate launch --num_processes ${SLURM_GPUS} --same_network $S a.py", "accelerate", "a.py"),
    ("accelerate launch --some_flag --num_processes 16 a.py", "accelerate", "a.py"),
    ("srun numactl -l /x/bin/accelerate launch --num_processes 16 a.py", "accelerate", "a.py"),
    ("torchrun --nnode=2 --nproc 8 a.py", "torchrun", "a.py"),
    ("srun python -u $(which torchrun) --nproc_per_node 8 a.py", "torchrun", "a.py"),
    ("python3 /x/bin/torchrun --nproc_per_node 8 a.py", "torchrun", "a.py"),
    ("`command -v python` -m torch.distributed.run --nproc_per_node 8 a.py", "torchrun", "a.py"),
    ("PYTHON=${PYTHON:-python}\n$PYTHON -m torch.distributed.run --nproc_per_node 8 a.py", "torchrun", "a.py"),
    ("N=${N:-'8'}\ntorchrun --nproc_per_node=$N a.py", "torchrun", "a.py"),
    ("uv pip install deepspeed accelerate\ntorchrun --nproc_per_node 8 a.py", "torchrun", "a.py"),
    ("mpirun -np 16 -npernode 8 bash -c 'source e; python a.py'", "mpirun", "a.py"),
    ("srun shifter bash -c '${PROFILE} python -um torch.distributed.run --nproc_per_node 8 a.py'", "torchrun", "a.py"),
    ("C=$(echo torchrun --nproc_per_node 8 a.py)\nsrun $C --x", "torchrun", "a.py --x"),
    ("srun -N1 --ntasks=1 python get.py\nsrun python a.py", "torchrun", "a.py"),
    ("mpirun -print-rank-map -np 16 -ppn 8 python a.py", "mpirun", "a.py"),
    ("srun python get.py\nsrun python train.py --x", "torchrun", "train.py --x"),
    ("torchrun --nproc_per_node 8 a.py -- --x", "torchrun", "a.py --x"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "launcher", "words"), STARTS, ids=[line for line, *_ in STARTS])
def test_any_start_of_a_job_has_its_script_and_processes(line: str, launcher: str, words: str) -> None:
    profile, _ = taken(f"{TWO}{line}\n", hosts=("n1", "n2"))
    assert profile.job.script and [profile.job.script, *profile.job.args] == words.split()
    assert [host.num_processes for host in profile.hosts] == [8, 8]
    assert profile.launch.launcher == launcher


def test_a_script_with_line_ends_of_windows_is_read_and_told() -> None:
    text = f"{TWO}srun torchrun \\\n  --nproc_per_node 8 a.py\n".replace("\n", "\r\n")
    profile, notes = taken(text, hosts=("n1", "n2"))
    assert profile.job.script == "a.py" and profile.hosts[0].num_processes == 8
    assert "line ends: ambiguous: Windows line endings" in notes


def test_arguments_that_grow_or_shift_forever_stay_cheap() -> None:
    for lines in ("set -- '' ''\n" + 'set -- "$@" "$@"\n' * 60, "set -- " + "a " * 9000 + "\n" + "shift\n" * 9000):
        profile, _ = taken(f"{TWO}{lines}srun torchrun --nproc_per_node 8 a.py\n", hosts=("n1", "n2"))
        assert profile.job.script == "a.py"


def test_a_function_that_is_called_twice_starts_one_job() -> None:
    _, notes = taken(f"{TWO}f() {{ srun torchrun a.py $1; }}\ng() {{ b; }}\nf 1\nf 2\n", hosts=("n1", "n2"))
    assert "f: ambiguous: another command" in notes and "g: ambiguous: an uncalled function" in notes


@pytest.mark.parametrize(
    "line",
    [
        '[ -n "$X" ] && S=b.py',
        "[[ $X == 1 && $Y == 2 ]] && S=b.py",
        "(( SLURM_NNODES > 1 )) && S=b.py",
        "[[ -n $X && ( $Y || $Z ) ]] && S=b.py",
        "[[ ( $X ) ]] && S=b.py",
        "[[ $X =~ ^(a|b)$ ]] && S=b.py",
        "if ! [[ $X == (a|b) ||\n ( $Y ) ]]; then S=b.py; fi",
        '[[ $X == "a b" && ! ( $Y ) ]] || S=b.py',
        "if (( X > 1 )); then S=b.py; fi",
        "if ! (( X > 1 )) || ((Y)); then\n S=b.py\nfi",
        "if [ 1 ]; then T=1; elif ((X)); then S=b.py; fi",
        "while (( X < 1 ))\ndo S=b.py\ndone",
        "for (( I = 0; I < X; I++ )); do S=b.py; done",
        "for ((;;)) do S=b.py; done",
        "if ((X)) then S=b.py; fi",
        "if (cd x; ls y); then S=b.py; fi",
        "until ( ls x ); do S=b.py; done",
        "if ((X)); then if ((Y)); then T=1; fi; S=b.py; fi",
        "test -f x && T=1 && S=b.py",
        "grep -q x y || S=b.py",
        "[ -f x ] && { T=1; { true; }; S=b.py; }",
        "f() { S=b.py; }; [ -f x ] && f",
    ],
)
def test_what_is_set_under_a_condition_is_not_known(line: str) -> None:
    text = f"{TWO}S=a.py\n{line}\nsrun torchrun --nproc_per_node 8 $S\n"
    profile, told = taken(text, hosts=("n1", "n2"))
    assert profile.job.script == "a.py" and "$S: ambiguous: " in told
    assert taken(text, hosts=("n1", "n2"), S="b.py")[0].job.script == "b.py"


@pytest.mark.parametrize(
    "line",
    [
        "read -r -p 'which? ' T S < x", "mapfile -t S < x", "printf -v S %s b.py", "((S+=1))", "(( ++S, T=2 ))",
        "for ((S = 0; S < 2; S++)); do true; done", "if x; then ((S = 1)); fi", "if ((S = 1)); then true; fi",
        "let S=3", "S[1]=b.py", "S=$(ls)", "for S in b.py; do true; done", "declare -i S=1; S+=1",
        "while read S; do true; done < x",
    ],
)  # fmt: skip
def test_what_a_command_sets_is_not_known(line: str) -> None:
    text = f"{TWO}S=a.py\n{line}\nsrun torchrun --nproc_per_node 8 $S\n"
    assert "${var:S" in read_foreign(text, "file", hosts=["n1", "n2"]).text
    assert taken(text, hosts=("n1", "n2"), S="b.py")[0].job.script == "b.py"


TORCHRUN = "srun torchrun --nproc-per-node 4 a.py"
COUNTED = "srun torchrun --nproc-per-node $NP a.py"
FOUND = [
    # lines, then what the profile has: environment, activate, args, workdir, processes per host
    ("NP=4; if (( SLURM_NNODES > 4 )); then NP=8; fi\n%", {"np": 4, "doubt": "NP"}),
    ("NP=4; if (grep -q x y); then NP=8; fi\n%", {"np": 4, "doubt": "NP"}),
    ("NP=4; if ! (grep -q x y); then NP=8; fi\n%", {"np": 4, "doubt": "NP"}),
    ("NP=4; while ((NP<8)); do NP=8; done\n%", {"np": 4, "doubt": "NP"}),
    ("NP=4; while ((NP*=2, 0)); do :; done\n%", {"np": 4, "doubt": "NP"}),
    ("NP=4; until (cd /x); do NP=8; done\n%", {"np": 4, "doubt": "NP"}),
    ("NP=4; for ((i=0;i<3;i++)); do NP=$((NP*2)); export SEED=7; done\n%",
     {"np": 4, "doubt": "NP, SEED"}),
    ("if (cd /x && make); then cd /y; fi\n@", {"doubt": ""}),
    ("f() { if ((X)); then export A=1; fi; @; }\nf", {"doubt": "A"}),
    # Values at the line that uses them.
    ("V=1; module load c/$V; V=2; module load g/$V; @",
     {"activate": "V=1 && module load c/$V && V=2 && module load g/$V"}),
    ("D=/e; source $D/activate; @; D=/r", {"activate": "D=/e && source $D/activate"}),
    ("f() { local V=1; module load c/$V; }; f; @", {"activate": "V=1 && module load c/$V"}),
    ("f() { local t; read -r t <x; export A=$t; }; f; @",
     {"env": {"A": "given"}, "doubt": "$t: ambiguous: line 5 sets it"}),
    ("f() { local t; read -r t <x; @ $t; }; f", {"args": ("given",), "doubt": "$t: ambiguous: line 5 sets it"}),
    ("f() { local t=$1; @ $t; }; f", {"args": ("given",), "doubt": "$t: ambiguous: it is an argument of the script"}),
    ("export A=1; A=2 @", {"env": {"A": "2"}}),
    ("export A=1; f() { export A=2; }; [ -n \"$B\" ] && f; @",
     {"env": {"A": "1"}, "doubt": "runs only if the condition on line 5 is true"}),
    ("f() { local A; export A=4; }; f | tee l; export A=1; A=2; @", {"env": {"A": "2"}}),
    ("E=$W/e bash -c 'source $E/bin/activate; @'",
     {"env": {"E": "given/e"}, "activate": "E=\"${W}/e\" && source $E/bin/activate"}),
    ("N=4; [ -n \"$1\" ] && N=$1; srun torchrun --nproc-per-node=$N a.py", {"np": 4, "doubt": "N"}),
    ("N=${N:-2}; srun --ntasks-per-node=$N bash -c 'python t.py'", {"np": 2}),
    ("N=${N:-2}; mpirun -np $N bash -c 'python t.py'", {"np": 1}),
    ("log_info Launching torchrun with 8 GPUs; @", {}),
    ("N=4; if [ -n \"$B\" ]; then N=8; fi\nmpirun -H n1:4,n2:4 -ppn $N python t.py", {"np": 4, "doubt": "N"}),
    ("{ A=1 bash -c '} | cat'; @; }", {}),
    ("A=1; A=2 B=\"$A\" @ $A", {"env": {"A": "2", "B": "2"}, "args": ("1",)}),
    ("A='x y'; B=$A @", {"env": {"B": "x y"}}),
    ("A=1; A=3 bash -c 'B=$A; @ $B'", {"args": ("3",), "env": {"A": "3"}}),
    # Variables that are exported already.
    ("export P=/a; P=$P:/b; @", {"env": {"P": "/a:/b"}}),
    ("export P=1; P=8; @; P=9", {"env": {"P": "8"}}),
    ("export P; P=1; @", {"env": {"P": "1"}}),
    ("export P=1; f() { P=2; }; f; @", {"env": {"P": "2"}}),
    ("export P=1; P+=2; @", {"env": {"P": "12"}}),
    ("export P=1; P=$(date); @", {"doubt": "P: ambiguous: it is computed when the job starts; dropped"}),
    ("export P=1; read P <x; @", {"doubt": "P: ambiguous: line 5 sets it; dropped"}),
    ("export P=1; [ -f x ] && P=2; @", {"env": {"P": "1"}, "doubt": "$P: ambiguous: line 5 sets it under a condition"}),
    ("export P=1; for i in 1 2; do P=3; done; @",
     {"env": {"P": "1"}, "doubt": "$P: ambiguous: it depends on the `for` of line 5"}),
    ("export P=1; for P in 2 3; do ls; done; @", {"doubt": "P: ambiguous: it depends on the `for` of line 5"}),
    ("export P=/a; export P=$P:$X; @", {"activate": "export P=/a && export P=$P:$X"}),
    ("PATH=/o:$PATH; @", {"activate": "export PATH=/o:$PATH"}),
    ("LD_LIBRARY_PATH=/o:$LD_LIBRARY_PATH; @", {"activate": "export LD_LIBRARY_PATH=/o:$LD_LIBRARY_PATH"}),
    ("P=; P=/o:$P; FILE_PATH=$FILE_PATH.tmp; @", {}),
    ("PYTHONPATH=a; PYTHONPATH+=:b @", {"env": {"PYTHONPATH": "a:b"}}),
    ("E=${E:---lr 1}; export E; @ $E", {"args": ("given",)}),
    ("(set -a; . ./x.env); P=1; @", {}),
    ("set -a; P=1; set +a; Q=1; @", {"env": {"P": "1"}}),
    ("set -euo pipefail -o allexport; P=1; @", {"env": {"P": "1"}}),
    ("set -a; source .env; set +a; @", {"activate": "{ set -a; source .env; set +a; }"}),
    ("export P=1; unset P; @", {"activate": "unset P"}),
    ("export P=1; export -n P; @", {"activate": "unset P"}),
    ("export P=1; declare +x P; @", {"activate": "unset P"}),
    ("export P=1; unset P; export P=2; @", {"env": {"P": "2"}}),
    ("export P=1; unset P; P=2; @", {"activate": "unset P"}),
    ("export P=1; (unset P); P=2; @", {"env": {"P": "2"}}),
    ("unset CUDA_VISIBLE_DEVICES Q; @", {"activate": "unset Q"}),
    ("Q=1; unset Q; unset -f f; (unset R); @", {}),
    ('export "P=5"; declare -x \'Q=6\'; readonly "R=$P"; @ $R', {"env": {"P": "5", "Q": "6"}, "args": ("5",)}),
    # Functions and shells whose output is piped.
    ('main() { cd /p; export X=1; @; }; main "$@" 2>&1 | tee log', {"workdir": "/p", "env": {"X": "1"}}),
    ('srun bash -c "cd /p && torchrun --nproc-per-node 4 a.py" | tee log', {"workdir": "/p"}),
    ('eval "cd /p && @" | tee log', {"workdir": "/p"}),
    # Commands of `activate`.
    ("conda activate a; conda activate b; conda activate a; @",
     {"activate": "conda activate a && conda activate b && conda activate a"}),
    ("module purge; module load 1; module purge; module purge; module load 2; @",
     {"activate": "module purge && module load 1 && module purge && module load 2"}),
    ("source a || source b; @", {"activate": "{ source a || source b; }"}),
    ("source a || source b || true; @", {"activate": "{ { source a || source b; } || true; }"}),
    ("source a; source b && source c || true; @", {"activate": "source a && { source b && source c || true; }"}),
    ("source a && export P=1 && source c || true; @",
     {"activate": "source a && { source c || true; }", "env": {"P": "1"}}),
    ("module load a 2>/dev/null || :; @", {"activate": "{ module load a 2>/dev/null || :; }"}),
    ("module load a || exit 1; @", {"activate": "module load a"}),
    ("[ -f a ] && source a; @", {"activate": "{ ! [ -f a ] || source a; }"}),
    ("[ -f a ] && source a || source b; @", {"activate": "{ [ -f a ] && source a || source b; }"}),
    ("[ -f a ] && [ -f b ] && source a; @", {"doubt": "source a: ambiguous: runs only if the condition"}),
    ("[[ -f a || -f b ]] && source a; @", {"doubt": "source a: ambiguous: runs only if the condition"}),
    ("[ -f a ] || source a; @", {"doubt": "source a: ambiguous: runs only if the condition"}),
    ("which a > /dev/null && source a; @", {"activate": "{ ! which a > /dev/null || source a; }"}),
    ("f() { module load a; export B=1; }; [ -f x ] && f; @", {"doubt": "module load a: ambiguous: runs only if"}),
    ("f() { module load a; @; }; [ -f x ] && f", {"activate": "module load a"}),
    ("function f { module load a; @; }; f", {"activate": "module load a"}),
    # Words.
    ("@ $'a\\tb' $\"c\" $'it\\'s' $'\\u00e9\\x41\\101\\q' \"$'x'\"", {"args": ("a\tb", "c", "it's", "éAA\\q", "$'x'")}),
    ("@ $'\\0'", {"args": ("given",)}),
    ("@ $'\\ue000'", {"args": ("given",)}),
    ("@ $((010)) $((0)) $((010+1)) $((08)) $((20000+RANDOM%1000)) $(date)", {"args": ("8", "0", "9", *["given"] * 3)}),
    ("@ d/{a,b} '{a,b}'", {"args": ("d/{a,b}", "{a,b}"), "doubt": "d/{a,b}: ambiguous: not expanded"}),
    ("@ d/*.bin '*'", {"args": ("d/*.bin", "*"), "doubt": "d/*.bin: ambiguous: not expanded"}),
    ("@ d{0..3}.tar +a=[1]", {"args": ("d{0..3}.tar", "+a=[1]"), "doubt": "d{0..3}.tar: ambiguous: not expanded"}),
    ('A=(\n --lr 1 # isn\'t low\n -b # good :)\n c#d\n)\n@ ${A[*]}', {"args": ("--lr", "1", "-b", "c#d")}),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "found"), FOUND, ids=[lines for lines, _ in FOUND])
def test_a_job_gets_what_the_shell_would_give(lines: str, found: dict[str, object]) -> None:
    imported = read_foreign(f"{TWO}{lines.replace('%', COUNTED).replace('@', TORCHRUN)}\n", "file", hosts=["n1", "n2"])
    names = {name for name in re.findall(r"\$\{var:(\w+)", imported.text) if f"var:{name}=" not in imported.text}
    profile = parse(imported.text, "imported.yaml", [f"var.{name}=given" for name in names])
    assert len(names) == str(profile.job).count("given")
    made = (profile.job.env, profile.activate, profile.job.args, profile.job.workdir, profile.hosts[0].num_processes)
    expected = {"env": {}, "activate": "", "args": (), "workdir": "~", "np": 4} | found
    assert made == tuple(expected[key] for key in ("env", "activate", "args", "workdir", "np"))
    doubt = found.get("doubt")
    assert doubt is None or f"may set {doubt}" in notes(imported) or f"{doubt}" in notes(imported)


@pytest.mark.parametrize("line", ["X=" + "$(echo " * 400 + "a" + ")" * 400, "if " * 3000 + "true"])
def test_a_deeply_nested_script_is_refused(line: str) -> None:
    assert "file: the script is nested too deeply" in refused(f"{TWO}{line}\n{TORCHRUN}\n")


def test_brackets_and_functions_without_end_stay_cheap() -> None:
    times = 3_000
    for text in ("((" * times, "(S=1)\n" * times, "((S++))\n" * times, "f() { S=1 f; }\n" * times + "f\n",
                 "{ S=1; } | cat\n" * times, "{ S=1; " * times, "export S=1\n" * times,
                 "export A\nunset A\n" * times, "source a || " * times, "if ((a)); " * times,
                 "{ cd /x; export A=1; " * times + "} | cat;" * times,
                 "S=1 f\n" * times, "((a);" + "(a);" * times, "alias a='" + "x " * times + "'\n" + "a\n" * times,
                 "(" * times + "S=1" + ")" * times, "f() { local S=1; }\n" + "f\n" * times):  # fmt: skip
        with counted() as calls, suppress(InputError):
            read_foreign(f"#!/bin/sh\n{text}\nsrun torchrun a.py\n", "f", "sbatch", ["n"])
        assert calls.number < 100 * len(text), text[:20]


LOOP = "#!/bin/bash\nR=0\nHOSTS=(n1 n2)\nfor h in ${{HOSTS[@]}}; do\n  ssh {} &\n  ((R=R+1))\ndone\nwait\n"
REMOTE = "torchrun --nnodes=${#HOSTS[@]} --nproc_per_node=8 --node_rank=$R a.py --x"


@pytest.mark.parametrize(
    ("line", "hosts"), [(f"$h {REMOTE}", "n1 n2"), (f'-t -p 22 "me@$h" "cd /w && {REMOTE}"', "me@n1 me@n2")]
)
def test_a_loop_of_ssh_gives_the_hosts_and_the_command(line: str, hosts: str) -> None:
    profile, told = taken(LOOP.format(line))
    assert [f"{one.user}@{one.host}" if one.user else one.host for one in profile.hosts] == hosts.split()
    assert profile.hosts[0].num_processes == 8 and [profile.job.script, *profile.job.args] == ["a.py", "--x"]
    assert "4: for: ambiguous: lines 4 to 7: only what ssh starts is read" in told
    assert ("5: ssh: ambiguous: -t -p 22: dropped" in told) == ("-p" in line)
    assert [host.host for host in taken(LOOP.format(line), hosts=("b", "c"))[0].hosts] == ["b", "c"]
    with pytest.raises(InputError, match="the number of hosts in the `for` is 2, but --host is given 1 times"):
        taken(LOOP.format(line), hosts=("b",))
    fewer = LOOP.format(line).replace("${#HOSTS[@]}", "3")
    assert "3, overridden by the number of hosts in the `for`: 2" in taken(fewer)[1]


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        (LOOP.format(f"$g {REMOTE}"), "add --host for each host"),
        (LOOP.format(f"$h {REMOTE}").replace("n1 n2", "n{1..2}"), "add --host for each host"),
        (LOOP.format(f"$h {REMOTE}").replace("n1 n2", "n1 n1"), "add --host for each host"),
        (f"#!/bin/sh\nfor h in n1 n2; do true; done\nwhile x; do ssh $h {REMOTE}; done\n", "add --host for each host"),
        (f"#!/bin/sh\nssh n1 {REMOTE} &\nssh n2 {REMOTE}\n", "add --host for each host"),
        (f"#!/bin/sh\npdsh -w n1,n2 {REMOTE}\n", "add --host for each host"),
        (f"#!/bin/sh\ncat x | xargs {REMOTE}\n", "Write the arguments after the command, without xargs."),
        (
            f"#!/bin/sh\necho a.py | xargs -I{{}} {REMOTE} {{}}\n",
            "Write the arguments after the command, without xargs.",
        ),
    ],
)
def test_unreadable_launcher_start_has_a_cure(text: str, cure: str) -> None:
    with pytest.raises(InputError, match=r"^file:\d: .*: (?:its arguments|the script)") as raised:
        read_foreign(text, "file")
    assert cure in str(raised.value)


@pytest.mark.parametrize(
    "line",
    [
        "cd /w && S=b.py",
        "mkdir -p x && { T=1; S=b.py; }",
        "[ -f x ] || exit 1\nS=b.py",
        "[[ ( $X ) ]]; S=b.py",
        "[[ $X =~ ^(a|b)$ ]]\nS=b.py",
        "echo [[ a; (cd x); S=b.py",
        "[[ $X && ( $Y ) ]] && T=1; S=b.py",
    ],
)
def test_what_is_set_behind_a_step_is_known(line: str) -> None:
    profile, _ = taken(f"{TWO}S=a.py\n{line}\nsrun torchrun --nproc_per_node 8 $S\n", hosts=("n1", "n2"))
    assert profile.job.script == "b.py"


def test_node_count_known_only_to_slurm_is_noted() -> None:
    text = "#!/bin/sh\nsrun torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 a.py\n"
    told = notes(read_foreign(text, "file", login="l"))
    assert "torchrun --nnodes: ambiguous: " in told and "is unknown → 1 host" in told


@pytest.mark.parametrize(
    ("line", "launcher", "words"),
    [
        ("srun axolotl train c.yml", "accelerate", "axolotl.cli.train c.yml"),
        ("axolotl train c.yml --num-processes 16", "accelerate", "axolotl.cli.train c.yml"),
        ("axolotl train c.yml --launcher torchrun -- --nproc_per_node 8", "torchrun", "axolotl.cli.train c.yml"),
        (
            "uv run axolotl train c.yml --launcher=accelerate -- --num_processes 16",
            "accelerate",
            "axolotl.cli.train c.yml",
        ),
        (
            "FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=$N llamafactory-cli train c.yaml",
            "torchrun",
            "llamafactory.launcher c.yaml",
        ),
        ("srun python -m llamafactory.cli train c.yaml", "torchrun", "llamafactory.launcher c.yaml"),
        ("NPROC_PER_NODE=8 NNODES=2 swift pt --model x", "torchrun", "swift.cli.sft --model x"),
        ("export NPROC_PER_NODE=8\nmegatron sft --model x", "torchrun", "swift.cli._megatron.sft --model x"),
        ("tune run --nnodes 2 --nproc_per_node 8 my/r.py --config c.yaml", "torchrun", "my.r --config c.yaml"),
    ],
)
def test_programs_that_run_a_launcher_are_its_module(line: str, launcher: str, words: str) -> None:
    profile, _ = taken(f"{TWO}{line}\n", hosts=("n1", "n2"))
    assert profile.job.module and [profile.job.module, *profile.job.args] == words.split()
    assert [host.num_processes for host in profile.hosts] == [8, 8]
    assert profile.launch.launcher == launcher


def test_what_fabrics_command_sets_is_set() -> None:
    profile, _ = taken(f"{TWO}fabric run --devices 8 --num-nodes 2 --precision bf16-mixed a.py\n", hosts=("n1", "n2"))
    values = {"CLI_USED": "1", "DEVICES": "8", "NUM_NODES": "2", "PRECISION": "bf16-mixed"}
    assert profile.job.env == {f"LT_{name}": value for name, value in values.items()}


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ("srun composer -n 8 a.py", "Write torchrun --nproc-per-node N SCRIPT"),
        ("python -m composer.cli.launcher -n 8 a.py", "Write torchrun --nproc-per-node N SCRIPT"),
        ("python3 -m verl.trainer.main_ppo trainer.nnodes=2", "Use sbatch for this script"),
        ("litgpt finetune lora --devices 8", "Write torchrun --nproc-per-node N -m litgpt"),
        ("python -m horovod.runner -np 16 python a.py", "Write mpirun -np N python SCRIPT"),
        ("python ./deepy.py train.py -d configs x.yml", "Use sbatch for this script"),
        ("ray start --head\npython -m verl.trainer.main_ppo a=b", "Use sbatch for this script"),
        ("axolotl train c.yml --cloud x.yml", "Omit --cloud and --sweep"),
        ("axolotl train c.yml --launcher $L", "Write accelerate, torchrun or python"),
        ("fabric run --devices auto a.py", "Write torchrun --nproc-per-node N SCRIPT"),
        ("tune run --nproc_per_node 8 full --config l/8B",
         "(tune cp full recipe.py; tune cp l/8B config.yaml), and write: "
         "torchrun --nproc_per_node 8 recipe.py --config config.yaml"),
        ("srun python -m torchtune._cli.tune run r --config c.yaml", "write: python recipe.py --config c.yaml"),
        ("colossalai run --nproc_per_node 8 -m x", "Write torchrun --nproc-per-node N SCRIPT"),
        ("python mason.py --gpus 8 -- accelerate launch --num_processes 64 a.py", "Write only the launcher's command"),
        ("uv run submit.py --nodes 2 torchrun --nproc_per_node 8 a.py", "Write only the launcher's command"),
        ("./submit.py torchrun --nproc_per_node 8 a.py", "Write only the launcher's command"),
        ("debugpy-run -m torch.distributed.run -p 5678 -- --nproc_per_node 8 a.py", "Write only the launcher's"),
        ("python -m debugpy --listen 1 -m torch.distributed.launch a.py", "Write only the launcher's command"),
        ("srun python submit.py -- torchrun a.py", "Write only the launcher's command"),
        ("screen -dmS x torchrun a.py", "Write only the launcher's command"),
    ],
)  # fmt: skip
def test_programs_that_start_their_own_ranks_have_a_cure(line: str, cure: str) -> None:
    with pytest.raises(InputError, match=r"^file:5: ") as raised:
        read_foreign(f"{TWO}{line}\n", "file", "sbatch", ["n1", "n2"])
    assert cure in str(raised.value)


@pytest.mark.parametrize(
    "line",
    [
        "oumi train -c c.yaml", "echo 'torchrun a.py\\n' > r.sh\nsrun sh r.sh",
        "cat > r.sh <<E\ntorchrun a.py\nE\nsed s/a/b/ r.sh > r.sh\nsrun sh r.sh", "cat > r.sh <<E\nsh r.sh\nE\nsh r.sh",
        "cat > job <<E\n#SBATCH -N4\nsrun torchrun a.py\nE\nsbatch job",
        "srun ./launch.sh", "srun bash launch.sh --x", "./launch.sh", "srun $CMD", 'srun bash -c "$CMD"',
        "srun litgpt pretrain pythia", "srun fairseq-train data", "srun tune run --nproc_per_node 8 recipe",
        "composer a.py", "horovodrun -np 16 python a.py", "jsrun -n 16 python a.py", "pdsh -w n1,n2 torchrun a.py",
        "ssh n1 torchrun a.py", "ray start --head", "sbatch other.sh", "true", "singularity run --nv img.sif",
        "python prepare.py\nsrun ./launch.sh", "python prepare.py\n$LAUNCHER train.py", "python p.py\neval $CMD",
        "srun hostname\nsrun mkdir -p x",
        "docker build -t deepspeed .", "python -m venv x\npython -m pip install torch", "python -m lightning run a.py",
        "srun -n4 python a.py : -n4 python b.py", "mpirun -np 4 python a.py : -np 4 python b.py",
        "srun --multi-prog tasks.conf", 'srun torchrun --nproc_per_node 8 "$@"', 'A="a b\nsrun python a.py',
    ],
)  # fmt: skip
def test_a_start_that_is_not_understood_is_refused(line: str) -> None:
    with pytest.raises(
        InputError, match=r"not know what|no known command|known whether|itself|its own names|unequal programs"
    ):
        read_foreign(f"{TWO}{line}\n", "file", "sbatch", ["n1", "n2"])
    given = read_foreign(f"{TWO}{line}\n", "file", "sbatch", ["n1", "n2"], script="b.py")
    assert parse(given.text, "imported.yaml").hosts[0].num_processes == 8


@pytest.mark.parametrize(
    ("line", "hosts", "processes"),
    [
        ("--ntasks=16 --ntasks-per-node=8", 2, 8),
        ("--gpus=16 --gpus-per-node=8", 2, 8),
        ("-N 2 --gpus=16", 2, 8),
        ("-N 2 --gpus-per-task=8 --ntasks-per-node=1", 2, 8),
        ("-N 2 --ntasks-per-gpu=1 --gpus-per-node=4", 2, 4),
        ("-N2 -n16", 2, 8),
        ("--nod=2 --nodes=2 --ntasks-per-n=4", 2, 4),
        ("-N2 --gres=gpu:a100:4,nvme:1", 2, 4),
        ("-N2 --gres=tmp:1,gpu:3g.20gb:2", 2, 2),
        ("-N2 --gres=gpu", 2, 1),
        ("-N2 --gpus-per-node=a100:2,v100:2", 2, 4),
        ("-N2 --tasks-per-node=4", 2, 4),
        ("-N2 --tres-per-node=gres/gpu:a100:4", 2, 4),
        ("-N2 --tres-per-node=gres/gpu", 2, 1),
        ("-N2 --tres-per-task=cpu=8,gres/gpu=4", 2, 4),
        ("-N2 --tres-per-job=gres/gpu=8", 2, 4),
        ("-N2 --gres=gres/gpu:4", 2, 4),
        ("--nodes=2-4 --ntasks-per-node=4", 2, 4),
        ("srun -N 2 -n 8 python a.py", 2, 4),
        ("srun -N2 -n8 python a.py", 2, 4),
        ("srun --nodes=2-2 --ntasks-per-node=8 python a.py", 2, 8),
        ("srun --ntasks=16 --ntasks-per-node=8 python a.py", 2, 8),
        ("srun --ntasks=${G:-16} --ntasks-per-node=${E:-8} python a.py", 2, 8),
        ("srun --nodes 2 torchrun --nproc-per-node 8 a.py", 2, 8),
        ("mpirun -np 16 -npernode 8 python a.py", 2, 8),
        ("mpirun -np 4 -npernode 8 python a.py", 1, 4),
        ("torchrun --nnodes=2:2 --nproc-per-node 8 a.py", 2, 8),
        ("srun -N1 -n1 torchrun --nnodes=2 --nproc-per-node 8 a.py", 2, 8),
        ("nohup srun -N 2 -n 8 python a.py &", 2, 4),
    ],
)
def test_counts_of_hosts_follow_from_directives_or_command(line: str, hosts: int, processes: int) -> None:
    body = f"#SBATCH {line}\nsrun python a.py" if line.startswith("-") else line
    imported = read_foreign(f"#!/bin/sh\n{body}\n", "file")
    assert imported.text.count("<host") == hosts and f"num_processes: {processes}\n" in imported.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/bash\n#PBS -l select=2:ngpus=4\npython a.py\n", "file:2:1: #PBS is a directive of another"),
        ("#!/bin/bash\n#$ -l gpu=4\npython a.py\n", r"#\$ - is a directive of another"),
        ("#!/bin/tcsh\n#SBATCH -N2\nsrun python a.py\n", "tcsh, expected a script of bash"),
        ("#!/bin/bash\n#SBATCH -N2\nsrun -n 3 python a.py\n", "srun --ntasks: 3 in all, for 2 nodes"),
        ("#!/bin/bash\n#SBATCH -N4-2\nsrun python a.py\n", "file:2:1: nodes: 4-2, expected the smaller number first"),
        ("#!/bin/bash\n#SBATCH -N2 \\\n#SBATCH -n4\nsrun python a.py\n", "file:2:1: the line ends with a backslash"),
        ("#!/bin/bash\n#SBATCH -N1,3\nsrun python a.py\n", "file:2:1: nodes: 1,3, expected a whole number"),
    ],
)
def test_scripts_whose_counts_cannot_be_known_are_refused(text: str, message: str) -> None:
    with pytest.raises(ProfileErrors, match=message):
        read_foreign(text, "file")


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("srun -N 1 -n 8 -w $H python a.py", "srun --nodes: ambiguous: 1, overridden by nodes: 2"),
        ("deepspeed --exclude n1:0 a.py", "deepspeed --exclude: ambiguous: leave such hosts out of --host"),
        ("mpirun -np 8 -npernode 8 python a.py", "mpirun -np: ambiguous: 1, overridden by nodes: 2"),
        ("srun -w n[3-4] python a.py", r"srun -w: ambiguous: n[3-4] names hosts"),
        ("export CUDA_VISIBLE_DEVICES=0,1\nsrun python a.py", "CUDA_VISIBLE_DEVICES: ambiguous: 0,1: dropped"),
        (
            "export CUDA_VISIBLE_DEVICES=0,1\nsrun torchrun --nproc-per-node gpu a.py",
            "num_processes: ambiguous: torchrun --nproc-per-node: gpu → 2",
        ),
        ("ibrun python a.py", "mpirun: translated: → launch.launcher: mpirun"),
        ("module load x\nsrun apptainer exec i.sif python a.py", "module load x: ambiguous: the container's image"),
        ("export N=$SLURM_JOB_ID\nsrun python a.py", "$SLURM_JOB_ID: ambiguous: Slurm sets it"),
        ("srun -n $K python a.py", "num_processes: ambiguous: srun: ${var:K} is unknown → 8"),
        ("mpirun -np 16 -npernode 8 -x PATH python a.py", "mpirun -x PATH: dropped: each host's own value"),
        ("deepspeed --no_local_rank a.py", "deepspeed --no-local-rank: ambiguous: launcher deepspeed passes"),
        ("python -m torch.distributed.launch a.py", "torchrun: ambiguous: torch.distributed.launch passes --local"),
        ("/x/bin/torchrun a.py", "python: ambiguous: /x/bin/torchrun: set python to its interpreter"),
        ("$V/bin/python a.py", "python: ambiguous: ${var:V}/bin/python: set python to the whole path"),
        ("mpirun -np 2 -H n1,n2 torchrun a.py", "mpirun: ambiguous: mpirun -np 2 -H n1,n2 comes before"),
        ("export $(cat .env)\nsrun python a.py", "export $(cat .env): ambiguous: its value is unknown; dropped"),
        (
            "$A $B torchrun --nproc-per-node 8 a.py",
            "$A: ambiguous: comes before the job's command, and the script does",
        ),
        (
            "if x; then\nP=nsys\nfi\n$P torchrun a.py",
            "$P: ambiguous: comes before the job's command, and it depends on the `if`",
        ),
        ("srun $OPTIONS python a.py", "${OPTIONS}: ambiguous: ${OPTIONS} comes before the job's command; dropped"),
        ("$PROFILE python a.py", "$PROFILE: ambiguous: comes before the job's command"),
        ("cd $HOME/x\nsrun python a.py", "cd: translated: ~/x → job.workdir"),
        ("echo ${A:+b} > x\nsrun python a.py ${A:+b}", r"$VALUE: ambiguous: its shell computes it"),
        ("for s in 1 2; do\nsrun python a.py $s\ndone", "$s: ambiguous: the `for` of line 5 sets it"),
        (
            'read -r -d \'\' c <<E\nexport A="x:${A}" && python a.py\nE\nsrun bash -c "$c"',
            'translated: A="x:${A}" → activate',
        ),
        ("srun -N1 -n1 python b.py | tee b.log; @", "tee: dropped: it is not the output of the job"),
        ("python b.py > b.log; @", "> b.log: dropped: it is not the output of the job"),
        ("{ date; hostname; } | tee x; @", "tee: ambiguous: x: only this script writes it"),
        ("@; { date; python b.py; } | tee x", "tee: dropped: it is not the output of the job"),
        ("{ date; @; } | tee x", "tee: dropped: disttui keeps the output of every rank"),
        ("V=1; module load a/$V; @", "V: dropped: inserted where it is used"),
        ("A=1\nexport A; @", "A: dropped: inserted where it is used"),
        ("declare -x P=1; P=2; @", "P: dropped: line 5 sets or unsets it again"),
        ("export P=1; P=2 @", "P: dropped: line 5 sets it for the job"),
        ("[ -d v ] && unset Q; @", "unset Q: ambiguous: it depends on the command before it"),
        ("unset $X Q; @", "unset Q: translated: → activate"),
        ("unset -- 'Q'; @", "unset Q: translated: → activate"),
        ("[ -d v ] && cd /x; @", "cd: ambiguous: /x → job.workdir, whatever the condition before it"),
        ("unset $(env | grep S_); @", "unset $(env | grep S_): ambiguous: only the shell knows"),
        ("[ -f a ] && source a; @", "[: dropped: it is the condition of the next command"),
        ("@ > out/log.txt 2>&1 &", "> out/log.txt: dropped: disttui keeps the output of every rank"),
        ("@ 2>&1 | tee log.txt", "tee: dropped: disttui keeps the output of every rank"),
        ('@ > "$LOG"', "> ${LOG}: dropped: disttui keeps the output"),
        (
            "srun hostname -s | sort | tee hostfile\ndeepspeed --hostfile hostfile a.py",
            "tee: ambiguous: hostfile: only this script writes it: if the job reads it, create it",
        ),
        (
            "if x; then\nf() { torchrun a.py; }\nelse\nf() { torchrun b.py; }\nfi\nf",
            "10: f: ambiguous: read as line 8 defines it, in the block of line 5",
        ),
        ('declare "$K=5"; @', 'declare "$K=5": ambiguous: its value is unknown; dropped: set it in job.env'),
        ('readonly "${Q}"; @', 'readonly "${Q}": ambiguous: its value is unknown; dropped: set it in job.env'),
        ('export "$K=5"; @', 'export "$K=5": ambiguous: its value is unknown; dropped: set it in job.env'),
    ],
)
def test_what_counts_or_is_lost_beside_the_command_is_noted(line: str, note: str) -> None:
    assert note in notes(read_foreign(f"{TWO}{line.replace('@', TORCHRUN)}\n", "file", hosts=["n1", "n2"]))


@pytest.mark.parametrize(
    ("line", "hosts", "processes"),
    [
        ("srun -N 2 --ntasks-per-node=1 torchrun --nnodes 2 --nproc_per_node 4 a.py", 2, 4),
        ("srun -N 1 torchrun --standalone --nproc_per_node 4 a.py", 1, 4),
        ("torchrun --nnodes 1 --nproc_per_node 4 a.py", 1, 4),
        ("srun -N 2 -n 8 python a.py", 2, 4),
        ("srun torchrun --nnodes 2 --nproc_per_node 4 a.py", 4, 4),  # srun starts it on all four
        ("for i in 0 1 2 3; do srun -N1 -n1 python a.py & done; wait", 4, 4),
        ("srun -N1 -n1 torchrun --nproc_per_node 4 --node_rank 1 --master_addr x a.py", 4, 4),
        ("srun -N 1 -w $H torchrun --nnodes 4 --nproc_per_node 4 a.py", 4, 4),  # once for each node
    ],
)
def test_a_command_on_fewer_nodes_than_the_job_has(line: str, hosts: int, processes: int) -> None:
    names = tuple(f"n{number}" for number in range(hosts))
    profile, said = taken(f"#!/bin/sh\n#SBATCH -N4 --gres=gpu:4\n{line}\n", hosts=names)
    assert [one.num_processes for one in profile.hosts] == [processes] * hosts
    assert f"of the 4 nodes → {hosts} host" in said or hosts == 4


@pytest.mark.parametrize("asked", ["--gpus=3", "--gpus-per-socket=4"])
def test_gpus_that_no_host_is_known_to_have_are_not_one_process(asked: str) -> None:
    profile, said = taken(f"#!/bin/sh\n#SBATCH -N2 {asked}\nsrun python a.py\n", hosts=("n1", "n2"))
    assert profile.hosts[0].num_processes is None
    assert "num_processes: ambiguous: the number of GPUs per host is unknown → auto" in said
    assert taken("#!/bin/sh\n#SBATCH -N2 -p gpu\nsrun python a.py\n", hosts=("a", "b"))[0].hosts[0].num_processes == 1


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        ("-np 8 -H a:4,b:4 -bind-to none", "a:4 b:4"),
        ("-host a:4,b:2", "a:4 b:2"),
        ("-np 8 -host a,b", "a:4 b:4"),
        ("-n 6 -ppn 3 -hosts a,b", "a:3 b:3"),
    ],
)
def test_the_hosts_of_mpirun_have_their_processes(options: str, hosts: str) -> None:
    text = f"#!/bin/sh\nmpirun {options} python a.py\n"
    profile, said = taken(text)
    assert " ".join(f"{host.host}:{host.num_processes}" for host in profile.hosts) == hosts
    assert "names hosts" in notes(read_foreign(text, "file", hosts=["c", "d"])) and "names hosts" not in said


def test_only_what_a_job_script_exports_is_in_the_environment() -> None:
    text = "#!/bin/bash\n#SBATCH -N 1\nreadonly A=1\ndeclare -r B=2\ndeclare -x C=3\nexport D=4\nreadonly D=5\n"
    found = read_foreign(f"{text}srun torchrun --nproc_per_node 8 a.py $A $B", "job.sh", hosts=("n1",))
    job = parse(found.text, "job.yaml").job
    assert job.env == {"C": "3", "D": "5"} and job.args == ("1", "2")


def test_a_variable_that_mpirun_exports_is_taken_over() -> None:
    profile, _ = taken(f"{TWO}A=1\nmpirun -np 16 -npernode 8 -x A -x B=2 python a.py\n", hosts=("n1", "n2"))
    assert profile.job.env == {"A": "1", "B": "2"}


def test_an_empty_variable_is_kept() -> None:
    profile, told = taken(f"{TWO}export A='' B=\nexport C\nsrun python a.py\n", hosts=("n1", "n2"))
    assert profile.job.env == {"A": "", "B": ""} and "C: ambiguous: it is empty" in told


@pytest.mark.parametrize("start", ["mpirun -np 16 -npernode 8", "srun --ntasks-per-node=8"])
def test_a_program_that_a_shell_becomes_is_the_job(start: str) -> None:
    profile, _ = taken(f"{TWO}{start} bash -c 'cd /x; exec ./prog 1'\n", hosts=("n1", "n2"))
    assert profile.job.command == ("./prog", "1") and profile.hosts[0].num_processes == 8


@pytest.mark.parametrize(
    ("before", "after", "workdir"),
    [
        ("cd /a", "cd /b", "/a"),
        ("cd /a; python prepare.py; cd /b", "cd /c; cd /d; python eval.py", "/b"),
        ("", "cd /b", "~"),
        ("(cd /a; make)", "cd /b", "~"),
    ],
)
def test_a_folder_that_is_entered_after_the_job_is_not_its_own(before: str, after: str, workdir: str) -> None:
    text = f"{TWO}{before}\nsrun torchrun --nproc-per-node 8 a.py\n{after}\n"
    imported = read_foreign(text, "file", hosts=["n1", "n2"])
    assert parse(imported.text, "imported.yaml").job.workdir == workdir
    assert "cd: dropped: after the job" in notes(imported)


@pytest.mark.parametrize(
    ("lines", "workdir"),
    [
        ("pushd /a", "/a"),
        ("pushd /a > /dev/null; make; popd", "~"),
        ("cd /a; pushd /b; pushd c; popd", "/b"),
        ("cd /a; cd $X/b", "~"),
        ("cd $X; cd /a", "/a"),
        ("cd /a; cd b/c", "/a/b/c"),
        ("cd /a/b; cd ..", "/a"),
        ("cd /a; cd /b; cd -", "/a"),
        ("cd /a; (cd /b; make)", "/a"),
        ("cd ${W:-/w}", "/w"),
        (": ${W:=/w}; cd $W/x; cd y", "/w/x/y"),
    ],
)
def test_the_folder_of_the_job_is_the_one_entered_last(lines: str, workdir: str) -> None:
    """`cd /a` and `cd $X/b` gave /a: a folder that the script had left."""
    text = f"{TWO}{lines}\nsrun torchrun --nproc-per-node 8 a.py\n"
    profile, said = taken(text, hosts=("n1", "n2"))
    assert profile.job.workdir == workdir
    assert ("set job.workdir to the folder" in said) == ("$X" in lines)


@pytest.mark.parametrize(
    "line",
    [
        "hostname | tee hosts; srun torchrun --nproc-per-node 8 a.py",
        'bash -c "module load cuda" > /tmp/x.log; srun torchrun --nproc-per-node 8 a.py',
        "python prepare.py > /dev/stderr; srun torchrun --nproc-per-node 8 a.py > /dev/stdout",
    ],
)
def test_what_is_not_the_jobs_output_is_not_kept(line: str) -> None:
    assert "disttui keeps the output" not in taken(f"{TWO}{line}\n", hosts=("n1", "n2"))[1]


def test_a_local_variable_ends_with_its_function() -> None:
    text = f"{TWO}export A=1\nf() {{ local A=2; }}\nf\nsrun torchrun --nproc-per-node 8 a.py $A\n"
    profile, _ = taken(text, hosts=("n1", "n2"))
    assert profile.job.env == {"A": "1"} and profile.job.args == ("1",)
    inside = text.replace("local A=2;", "local A=2; srun torchrun --nproc-per-node 8 b.py;")
    profile, _ = taken(inside.replace("srun torchrun --nproc-per-node 8 a.py $A", ""), hosts=("n1", "n2"))
    assert profile.job.env == {"A": "2"}
    profile, _ = taken(text.replace("local A=2;", "local A=2; python prepare.py;"), hosts=("n1", "n2"))
    assert profile.job.env == {"A": "1"}


def test_plain_python_is_started_once_whatever_the_tasks() -> None:
    """Many scripts ask for tasks to get processors: ten of them were ten ranks."""
    text = "#!/bin/sh\n#SBATCH -N1 --ntasks-per-node=10 --gres=gpu:1\npython a.py\n"
    profile, said = taken(text, hosts=("n1",))
    assert profile.hosts[0].num_processes == 1
    assert "tasks: ambiguous: 10 on each host, but a.py is started without srun: once, on the first host" in said
    profile, said = taken(text.replace("python a", "srun python a"), hosts=("n1",))
    assert profile.hosts[0].num_processes == 10 and "without srun" not in said


@pytest.mark.parametrize("option", ["--num-gpus 8", "--num-gpus=8", "--multiprocessing-distributed"])
def test_a_script_that_starts_its_own_processes_is_started_once(option: str) -> None:
    profile, said = taken(f"{TWO}srun python train_net.py {option} --x\n", hosts=("n1", "n2"))
    assert profile.hosts[0].num_processes == 1
    assert f"{option}: the script starts a process per GPU → 1" in said
    told = taken(f"{TWO}srun python a.py --num-gpus 1 --launcher=slurm\n", hosts=("n1", "n2"))
    assert told[0].hosts[0].num_processes == 8
    assert "job.args: ambiguous: --launcher=slurm: the script reads Slurm's variables" in told[1]


def test_activate_has_the_default_that_the_script_gives() -> None:
    """`source ${V}/bin/activate` named a folder of the root where only the script sets V."""
    text = f'{TWO}: "${{V:=/opt/v}}"\nsource $V/bin/activate\nsrun torchrun --nproc-per-node 8 a.py\n'
    profile, _ = taken(text, hosts=("n1", "n2"))
    assert profile.hosts[0].activate == "V=${V:-/opt/v} && source $V/bin/activate"


def test_a_shell_script_without_its_first_line_is_recognised() -> None:
    """Half of the public run.sh begin with the command."""
    for text in ("OMP_NUM_THREADS=1 torchrun --nproc_per_node 8 a.py\n", "cd x\naccelerate launch a.py --x 1\n"):
        assert taken(text, hosts=("n1",))[0].job.script == "a.py"
    assert taken("# Qwen\nX=1 \\\nswift sft --model x\n", "run.sh", hosts=("n1",))[0].job.module == "swift.cli.sft"
    assert "not a file of accelerate" in refused("Python is a language\nof its own\n")


def test_an_interpreter_in_the_home_is_taken_over() -> None:
    profile, _ = taken(f"{TWO}PY=$HOME/e/bin/python\nsrun $PY a.py\n", hosts=("n1", "n2"))
    assert profile.hosts[0].python == "~/e/bin/python"


def test_directives_that_leave_the_count_open_say_so() -> None:
    assert "nodes: ambiguous: the number of hosts is unknown" in notes(
        read_foreign("#!/bin/sh\n#SBATCH -n 16\nsrun python a.py\n", "file")
    )
    with pytest.raises(InputError, match="a heterogeneous job"):
        read_foreign("#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\nsrun python a.py\n", "file")
    alone = read_foreign("#!/bin/sh\ntorchrun --nnodes 2 --nproc_per_node 8 a.py\n", "file")
    assert alone.text.count("<host") == 2
    unknown = notes(read_foreign("#!/bin/sh\ntorchrun --nnodes $N:$N --nproc_per_node 8 a.py\n", "file"))
    assert "torchrun --nnodes: ambiguous: ${var:N}:${var:N} is unknown → 1 host, or those of --host" in unknown
    said = taken(f"{TWO}torchrun --nnodes=4 a.py\n", hosts=("n1", "n2"))[1]
    assert "torchrun --nnodes: ambiguous: 4, overridden by nodes: 2" in said
    assert "num_processes: ambiguous: torchrun --nproc-per-node is not given" in said


def test_what_stands_around_a_job_is_taken_over_or_named() -> None:
    line = "srun --export=ALL,A=1 apptainer exec --nv /img.sif uv run torchrun --nproc-per-node 8 a.py"
    profile, said = taken(f"{TWO}#SBATCH --export=B=2\n{line}\n", hosts=("n1", "n2"))
    assert profile.container and (profile.container.runtime, profile.container.image) == ("apptainer", "/img.sif")
    assert profile.job.env == {"A": "1", "B": "2"}
    assert "container.mounts" in said
    assert (
        "srun --container-image: ambiguous: img"
        in taken(f"{TWO}srun --container-image=img python a.py\n", hosts=("n1", "n2"))[1]
    )


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1\nn1\nn2\nn2\n", "n1:2 n2:2"),
        ("n1 slots=4\nn1\n", "n1:5"),
        ("n1\nn1 slots=4\n", "n1:5"),
        ("n1\n", "n1:None"),
        ("n1 max_slots=8 slots=4\n", "n1:4"),
        ("n1 slots = 4 max_slots = 8\n", "n1:4"),
        ("n1 slots=4 username=alice port=2222\n", "alice@n1:2222:4"),
        ("alice@n1:22 slots=2\n", "alice@n1:22:2"),
        ("n1:4\n", "n1:4"),
        ("[fd00::1]:4\nada@[fd00::2]:4\n[fd00::3]:22 slots=4\n", "fd00::1:4 ada@fd00::2:4 [fd00::3]:22:4"),
        ("n[1-2,4] slots=2\n", "n1:2 n2:2 n4:2"),
        ("c[1,3]-[1,2] slots=1\n", "c1-1:1 c1-2:1 c3-1:1 c3-2:1"),
        ("cpn-[10-11]-[01,03] slots=1\n", "cpn-10-01:1 cpn-10-03:1 cpn-11-01:1 cpn-11-03:1"),
        ("n[1-2],m1 slots=2\n", "n1:2 n2:2 m1:2"),
        ("n[08-10] slots=1\n", "n08:1 n09:1 n10:1"),
        ("n[1-2],n[2-3] slots=1\n", "n1:1 n2:2 n3:1"),
        ("rack[1-2]-n[01-02].x slots=1\n", "rack1-n01.x:1 rack1-n02.x:1 rack2-n01.x:1 rack2-n02.x:1"),
        ("n[0-3/2,7]:2222 slots=1\n", "n0:2222:1 n2:2222:1 n7:2222:1"),
        ("n[0-4/2] slots=1\n", "n0:1 n2:1 n4:1"),
        ("n[0:4:2] slots=1\n", "n0:1 n2:1 n4:1"),
        ("n1:4,n2:4\n", "n1:4 n2:4"),
        ("n1,n2:4\n", "n1:None n2:4"),
        ("n1,n1:1,n2\n", "n1:2 n2:None"),
        ("n1.x 8 all.q@n1.x <NULL>\nn2.x 4 gpu.q@n2.x UNDEFINED\n", "n1.x:8 n2.x:4"),
        ("n1 2 all.q@n1 0,0:0,1\n", "n1:2"),
    ],
)
def test_hostfiles_of_all_kinds_are_counted(text: str, hosts: str) -> None:
    profile = parse(read_foreign(text, "file").text, "imported.yaml")
    assert " ".join(f"{host.label()}:{host.num_processes}" for host in profile.hosts) == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n[1-2 slots=2\n", r"'n\[1-2' is not a list of hosts"),
        ("n[a-b] slots=2\n", r"'n\[a-b\]' is not a list of hosts"),
        ("n[1-4]!n2 slots=1\n", r"'n\[1-4\]!n2' is not a list of hosts"),
        ("n1 slots=4x\n", "n1: slots=4x"),
        ("n1 4\n", "n1: 4"),
        ("n1 np=4\n", "n1: np=4"),
        ("+n0 slots=2\n", r"\+n0, expected names"),
        ("^n1\n", r"\^n1, expected names"),
        ("; comment\n", "; names no host"),
        ("n1 ppn=4\n", "n1: ppn=4"),
        ("n1=4\n", "n1=4, write it like"),
        ("n1*4\n", r"n1\*4, write it like"),
        ("n[1-2]*4\n", r"\*4, write it like"),
        ("n1 n1 n2 n2\n", "n1: n1"),
        ("n[1-4]^n2 slots=1\n", r"'n\[1-4\]\^n2' is not a list of hosts"),
        ("rank 0=n1 slot=0\n", "a line of a rankfile"),
    ],
)
def test_a_line_that_is_not_understood_is_quoted(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_foreign(text, "file", "hostfile")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.1.1", "localhost4", "::1", "root@localhost"])
def test_the_localhost_of_another_machine_is_noted(host: str) -> None:
    assert "the machine that runs mpirun" in notes(read_foreign(f"{host} slots=2\n", "file", "hostfile"))


def test_what_stands_behind_the_end_of_a_script_is_noted_once() -> None:
    text = "#!/bin/sh\nsrun python a.py\nexit\nsrun python b.py\nsrun python c.py\n"
    said = notes(read_foreign(text, "file", "sbatch", hosts=["n1"]))
    assert said.count("line 3 ends the script") == 1 and "another command" not in said
    with pytest.raises(InputError, match="no known command that starts a job"):
        read_foreign("#!/bin/sh\nexit\nsrun python b.py\n", "file", "sbatch", hosts=["n1"])


def test_what_brackets_and_pipes_prepare_is_not_taken_over() -> None:
    lost = "(export A=1; cd /x; module load y)\n{ export B=1; } | cat\nf() { export C=1; }\nf | cat\nexport D=1 | cat\n"
    job = "torchrun --nproc_per_node 8 a.py"
    profile, told = taken(f"{TWO}cd /w\n{lost}srun {job}\n", hosts=("n1", "n2"))
    assert (profile.job.env, profile.job.workdir, profile.activate) == ({}, "/w", "")
    assert told.count("where no job starts") == 6
    profile, _ = taken(f"{TWO}(export A=1; cd /x; srun {job})\n", hosts=("n1", "n2"))
    assert (profile.job.env, profile.job.workdir) == ({"A": "1"}, "/x")


def test_a_sourced_file_may_change_what_was_set_before_it() -> None:
    text = "#!/bin/sh\nM=small\nsource ~/.bashrc\nsource ./env.sh\nN=2\nsrun python a.py $M $N\n"
    said = notes(read_foreign(text, "file", "sbatch", hosts=["n1"]))
    assert said.count("if it sets M, write") == 1
    assert "if it sets" not in notes(read_foreign(text.replace("./env.sh", "v/bin/activate"), "file", hosts=["n1"]))


def test_mounts_and_hosts_of_srun_are_named_as_written() -> None:
    text = "#!/bin/sh\nfor n in $X; do\n srun -w $n --container-mounts=/d:/e python a.py\ndone\n"
    said = notes(read_foreign(text, "file", "sbatch", hosts=["n1"]))
    assert "${var:n} names hosts" in said and "/d:/e: set container.mounts" in said


def test_node_lists_are_hosts_of_the_command_line() -> None:
    text = "#!/bin/sh\ntorchrun --nnodes 3 --nproc-per-node 2 a.py\n"
    profile = parse(read_foreign(text, "file", hosts=["n[1-2,4]"]).text, "imported.yaml")
    assert [host.host for host in profile.hosts] == ["n1", "n2", "n4"]


@pytest.mark.parametrize(
    ("text", "hosts", "expected"),
    [
        ("head-node:0,1", (), [("head-node", (0, 1), 2)]),
        ("head-node:0,1@w:2", (), [("head-node", (0, 1), 2), ("w", (2,), 1)]),
        ("head-node:0,1", ("a", "b"), [("a", None, 1), ("b", None, 1)]),
        ("x:y", (), [("local", None, 2)]),
    ],
)
def test_the_hosts_of_a_deepspeed_filter(
    text: str, hosts: tuple[str, ...], expected: list[tuple[str, tuple[int, ...] | None, int]]
) -> None:
    config = f"distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  deepspeed_inclusion_filter: {text}\n"
    profile, said = taken(f"{config}  deepspeed_hostfile: /h\n", hosts=hosts)
    assert [(host.host, host.gpus, host.num_processes) for host in profile.hosts] == expected
    assert "deepspeed_hostfile: ambiguous: /h names the hosts" in said
    assert ("deepspeed_inclusion_filter: ambiguous" in said) == (text == "x:y" or bool(hosts))


def typed(*words: str) -> Result:
    return CliRunner().invoke(cli, ["profile", "import", *words], catch_exceptions=True)


GUESSES = [
    # directives and command, then what is a guess
    ("#SBATCH -N 1-2\nsrun python a.py", "the number of hosts (1 is a guess)"),
    ("#SBATCH -n 16\nsrun python a.py", "the number of hosts (1 is a guess)"),
    ("#SBATCH --gpus=16\nsrun python a.py", "the number of hosts (1 is a guess)"),
    ("srun -n 16 python a.py", "the number of hosts (1 is a guess)"),
    ("torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 a.py", "the number of hosts (1 is a guess)"),
    ("torchrun --nnodes 1:4 --nproc-per-node 8 a.py", "the number of hosts (1 is a guess)"),
    ("#SBATCH -N2 --gpus=3\nsrun python a.py", "the processes per host (num_processes: auto is a guess)"),
    ("#SBATCH -N2 --gres=gpu:8\ntorchrun --nproc_per_node $N a.py",
     "the processes per host (num_processes: 8 is a guess)"),
    ("#SBATCH -N2 --gres=gpu:8\ntorchrun $OPTIONS a.py", "num_processes: 8 is a guess"),
    ("#SBATCH -N2\ntorchrun --nproc_per_node=tpu a.py", "num_processes: auto is a guess"),
    ("#SBATCH -N2 --gres=gpu:8\naccelerate launch --config_file x.yaml a.py", "num_processes: 8 is a guess"),
    ("#SBATCH -N2 --gres=gpu:8\ndeepspeed --hostfile=h a.py", "num_processes: 8 is a guess"),
    ("#SBATCH -N2 --gres=gpu:8\nmpirun python a.py", "num_processes: 8 is a guess"),
    ("#SBATCH -N2\ndeepspeed --include=$H:$R a.py", "num_processes: auto is a guess"),
    ("#SBATCH -N2\nN=1\nif x; then N=8; fi\ntorchrun --nproc_per_node $N a.py", "num_processes: 1 is a guess"),
    ("#SBATCH -N2\nN=8\n[ x ] && N=1\nsrun torchrun --nproc_per_node=$N a.py", "num_processes: 8 is a guess"),
    ("#SBATCH -N2\nT=8\n(( X )) && T=2\nsrun -n $T python a.py", "num_processes: 4 is a guess"),
    ("N=2\nwhile x; do N=4; done\nP=$((N * 4))\naccelerate launch --num_machines $N --num_processes 8 a.py",
     "the number of hosts (2 is a guess)"),
    ("#SBATCH -N2 --gres=gpu:4\npython a.py", "num_processes: 4 is a guess"),
    ("#SBATCH -N2 --ntasks=2 --gpus-per-node=2\npython -u a.py", "num_processes: 2 is a guess"),
    ("#SBATCH -N2 --gpus=4\nenv X=1 python a.py", "num_processes: 2 is a guess"),
    ("#SBATCH -N2\ndeepspeed --include $HOST_AND_RANK a.py", "num_processes: auto is a guess"),
    ("#SBATCH -N2 --gres=gpu:8\ndeepspeed -i n1:$R@n2:$R a.py", "num_processes: 8 is a guess"),
    ("#SBATCH -N2 --gres=gpu:8\nsrun -n $K python a.py", "num_processes: 8 is a guess"),
    ("#SBATCH -N2 --ntasks-per-gpu=1\nsrun python a.py", "num_processes: 1 is a guess"),
    ("accelerate launch --config_file x.yaml --num_processes 4 a.py", "the number of hosts (1 is a guess)"),
    ("colossalai run --hostfile h --nproc_per_node 8 a.py", "the number of hosts (1 is a guess)"),
    ("#SBATCH -N2\nN=4; [ $B ] && unset N\ntorchrun --nproc_per_node ${N:-2} a.py", "num_processes: 4 is a guess"),
    ("#SBATCH -N2\nN=4; if x; then unset N; fi\ntorchrun --nproc_per_node ${N:-2} a.py", "num_processes: 4 is a guess"),
    ("#SBATCH -N2\nN=$(foo)\ntorchrun --nproc_per_node ${N:-2} a.py", "num_processes: 2 is a guess"),
    ("#SBATCH -N2\nread N <x\ntorchrun --nproc_per_node ${N:-2} a.py", "num_processes: 2 is a guess"),
    ("#SBATCH -N2\nN=4; if x; then N=8; fi\nsrun --gres=gpu:$N --ntasks-per-node=1 python a.py",
     "num_processes: 4 is a guess"),
    ("#SBATCH -N2\nN=4; if x; then N=8; fi\nsrun --gpus-per-node=$N torchrun --nproc_per_node gpu a.py",
     "num_processes: 4 is a guess"),
    ("#SBATCH -N2 --gres=gpu:4\nsrun accelerate launch --num_machines 2 --machine_rank $R a.py",
     "num_processes: 4 is a guess"),
    ("#SBATCH -N2 --gres=gpu:4\ndeepspeed --exclude n1:0 a.py", "num_processes: 4 is a guess"),
    ("#SBATCH -N2\nRANK=0 WORLD_SIZE=2 python a.py &\nRANK=1 WORLD_SIZE=2 python a.py", "num_processes: 1 is a guess"),
    ("#SBATCH -N2\nfor i in 0 1; do RANK=$i python a.py & done; wait", "num_processes: 1 is a guess"),
    ("#SBATCH -N2\nif x; then N=8; fi; N=${N:-4}\ntorchrun --nproc_per_node $N a.py", "num_processes: 4 is a guess"),
    ("#SBATCH -N2\nN=$(foo); N=${N:-4}\ntorchrun --nproc_per_node $N a.py", "num_processes: 4 is a guess"),
    ("#SBATCH -N2\nN=4; if x; then N=8; fi; N=$N\ntorchrun --nproc_per_node $N a.py", "num_processes: 4 is a guess"),
    ("#SBATCH -N2\n[ -n \"${N:-}\" ] || N=8\ntorchrun --nproc_per_node ${N:-4} a.py", "num_processes: 4 is a guess"),
    ("#SBATCH -N2\nN=4; if x; then unset \"N\"; fi\ntorchrun --nproc_per_node ${N:-2} a.py",
     "num_processes: 4 is a guess"),
    # What is no guess.
    ("#SBATCH -N2\nN=4; unset \"N\"\ntorchrun --nproc_per_node ${N:-2} a.py", ""),
    ("#SBATCH -N2\nN=4; (N=8; if x; then N=2; fi)\ntorchrun --nproc_per_node $N a.py", ""),
    ("#SBATCH -N2\nN=4; unset N\ntorchrun --nproc_per_node ${N:-2} a.py", ""),
    ("#SBATCH -N2\nN=4; if x; then N=8; fi\nsrun --gpus-per-node=$N torchrun --nproc_per_node 4 a.py", ""),
    ("#SBATCH -N2\nN=$(nvidia-smi -L | wc -l)\ntorchrun --nproc_per_node ${N:-8} a.py", ""),
    ("accelerate launch --config_file x.yaml --num_machines 1 --num_processes 4 a.py", ""),
    ("#SBATCH -N2 --gres=gpu:8\nsrun python a.py", ""),
    ("#SBATCH -N2-2 --ntasks-per-node=4\nsrun python a.py", ""),
    ("#SBATCH -N2\ntorchrun --nproc_per_node gpu a.py", ""),
    ("#SBATCH -N2\ntorchrun --nproc_per_node $SLURM_GPUS_ON_NODE a.py", ""),
    ("#SBATCH -N2\ntorchrun --nproc_per_node $(nvidia-smi -L | wc -l) a.py", ""),
    ("#SBATCH -N2\nN=$(nvidia-smi --list-gpus | wc -l)\ntorchrun --nproc_per_node=$N a.py", ""),
    ("#SBATCH -N2\ntorchrun --nproc_per_node ${N:-4} a.py --lr $LR", ""),
    ("#SBATCH -N2\ntorchrun a.py", ""),
    ("#SBATCH -N2\ndeepspeed --include $A:0,1@$B:0,1 a.py", ""),
    ("#SBATCH -N2 --gpus=4\nsrun python a.py", ""),
    ("#SBATCH -N1 --gres=gpu:1\npython a.py", ""),
    ("#SBATCH -N2\nif x; then N=8; fi\nN=4\ntorchrun --nproc_per_node $N a.py", ""),
    ("#SBATCH -N2\nN=${1:-4}\ntorchrun --nproc_per_node $N a.py", ""),
    ("#SBATCH -N1 --gres=gpu:4\npython a.py --num-gpus 4", ""),
    ("#SBATCH --gpus=1\nsrun python a.py", ""),
    ("#SBATCH -N2\naccelerate launch a.py", ""),
    ("#SBATCH -N2\naccelerate launch --config_file x.yaml --num_processes 4 a.py", ""),
]  # fmt: skip


@pytest.mark.parametrize(("body", "guess"), GUESSES, ids=[body for body, _ in GUESSES])
def test_a_number_that_is_a_guess_ends_in_exit_code_1(tmp_path: Path, body: str, guess: str) -> None:
    """A job script whose size is not known was imported with a number and exit code 0."""
    file, out = tmp_path / "job", tmp_path / "mine.yaml"
    file.write_text(f"#!/bin/bash\n{body}\n")
    where = ("--host", "n1", "--host", "n2") if "-N2" in body else ("--login", "cluster")
    done = typed(str(file), "--from", "sbatch", *where, "-o", str(out))
    assert "script: a.py" in out.read_text()
    error = done.exception
    if not guess:
        assert done.exit_code == 0, error
        return
    assert isinstance(error, DisttuiError) and error.exit_code == 1
    assert guess in error.what and error.place.startswith(f"{file}:")
    assert error.cure == f"Set {'num_processes' if 'num_processes' in guess else 'slurm.nodes'} in the profile."


def test_hosts_in_an_unread_hostfile_are_a_guess() -> None:
    imported = read_foreign("deepspeed --hostfile=h --num_gpus 8 a.py\n", "file")
    assert imported.guess and "the number of hosts (1 is a guess)" in imported.guess.what


@pytest.mark.parametrize("options", ["--nproc_per_node 8", "--standalone --nproc_per_node 8"])
def test_one_machines_torchrun_on_two_hosts_is_a_guess(options: str) -> None:
    text = f"#!/bin/sh\ntorchrun {options} a.py\n"
    imported = read_foreign(text, "file", "sbatch", ["n1", "n2"])
    assert imported.guess and "num_processes: 8 is a guess" in imported.guess.what
    assert "torchrun: ambiguous: without --nnodes it trains on one machine" in notes(imported)
    assert read_foreign(text, "file", "sbatch", ["n1"]).guess is None


def test_a_deepspeed_filter_of_one_host_is_refused_for_two() -> None:
    text = "#!/bin/sh\ndeepspeed --include localhost:0,1 a.py\n"
    assert "hosts by deepspeed --include is 1" in refused(text, hosts=("n1", "n2"))
    assert taken(text, hosts=("n1",))[0].hosts[0].num_processes == 2


def test_hosts_that_are_given_are_no_guess() -> None:
    many = (
        "srun -n 16 python a.py",
        "mpirun -np 16 --hostfile h python a.py",
        "torchrun --nnodes $N --nproc_per_node 8 a.py",
    )
    for body in ("#SBATCH -N 1-2\nsrun python a.py", "#SBATCH -n 16\nsrun python a.py", *many):
        text = f"#!/bin/sh\n{body}\n"
        assert read_foreign(text, "file", "sbatch", ["n1", "n2"]).guess is None
        alone = read_foreign(text, "file", "sbatch")
        assert alone.missing and alone.guess and alone.guess.cure == "Give --host for each host."
    both = read_foreign("#!/bin/sh\ntorchrun --nnodes $N --nproc_per_node $K a.py\n", "file").guess
    assert both and both.cure == "Give --host for each host. Set num_processes in the profile."


def test_imported_profile_is_printed_or_written_with_notes(tmp_path: Path) -> None:
    file, out = tmp_path / "a\x1b[2Jc.yaml", tmp_path / "mine.yaml"
    file.write_text(ONE_MACHINE + 'strange\\e: "\\e[2Jx"\n')
    printed = typed(str(file), "--script", "go.py")
    assert printed.exit_code == 0 and parse(printed.stdout, "x").job.script == "go.py"
    assert ":5: num_processes: 8 in all" in printed.stderr and "\x1b" not in printed.output
    assert typed(str(file), "-o", str(out)).exit_code == 0
    assert parse(out.read_text(), "x").hosts[0].num_processes == 8
    again = typed(str(file), "-o", str(out))
    assert isinstance(again.exception, InputError) and again.exception.what == "this file already exists"


def test_a_file_that_is_too_large_or_no_text_is_refused(tmp_path: Path) -> None:
    large, bad = tmp_path / "large", tmp_path / "bad"
    large.write_text("n slots=1\n" * 200_000)
    bad.write_bytes(b"n slots=1\n\xff\n")
    assert "larger than 1 MiB" in str(typed(str(large)).exception)
    assert "bad:2:1: byte 0xff is not UTF-8 text" in str(typed(str(bad)).exception)


def test_import_refuses_a_fifo_but_reads_a_shell_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in str(typed(str(tmp_path / "pipe")).exception)
    reading, writing = os.pipe()
    os.write(writing, b"box1 slots=2\n")
    os.close(writing)
    try:
        read = typed(f"/dev/fd/{reading}", "--script", "go.py")
    finally:
        os.close(reading)
    assert parse(read.stdout, "x").hosts[0].name == "box1"


SEEDS = [ONE_MACHINE, TWO_MACHINES, SBATCH, DEEPSPEED, "box1 slots=4\nbox[2-3]:8\n"]
PIECES = [
    *("\n", "\x1b[2J", "'", '"', "$(x)", "[0-999]", "[0-999][0-999]", "#SBATCH --nodes=", "#SBATCH -w n[1-", " \\\n"),
    *("9" * 5000, "-1", "\0", "\u202e", "{", "}", ": ", "auto", "&a ", "*a", "!!x ", "\t", "=", "%", "null", "٣"),
    *("${A:-", "$((", "$(", "`", "A=x\nexport A=$A$A\n", "if x; then ", "fi\n", "eval ", "<<E\n", "accelerate launch "),
    *("srun ", "torchrun ", "python -m ", "--nproc-per-node=", "num_processes: ", "gpu_ids: 0,0", "slots=", "a b"),
]


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_file_becomes_a_profile_or_a_clear_error(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(SEEDS))
    for _ in range(data.draw(st.integers(0, 6))):
        at, until = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        text = text[:at] + data.draw(st.sampled_from(PIECES) | st.text(max_size=5)) + text[until:]
    kinds: list[Kind | None] = [None, "accelerate", "hostfile", "deepspeed", "sbatch"]
    kind = data.draw(st.sampled_from(kinds))
    hosts = data.draw(st.sampled_from([(), ("a",), ("a", "b")]))
    try:
        imported = read_foreign(text, "f", kind, hosts)
    except InputError as error:
        assert str(error).startswith(("f", "--host"))
    else:
        if imported.missing is None:
            parse(imported.text, "f", [f"var.{name}=x" for name in {*re.findall(r"\$\{var:(\w+)", imported.text)}])


def test_another_launchers_file_as_profile_suggests_import(tmp_path: Path) -> None:
    file = tmp_path / "acc.yaml"
    file.write_text(TWO_MACHINES)
    done = CliRunner().invoke(cli, [str(file)])
    assert isinstance(done.exception, InputError)
    assert done.exception.what == "a configuration of accelerate, not a profile"
    assert f"disttui profile import {file} -o NAME.yaml" in done.exception.cure
    file.write_text(f"disttui: 1\nhosts: [ada]\njob: {{command: [x]}}\n# {ONE_MACHINE.splitlines()[0]}\n")
    done = CliRunner().invoke(cli, [str(file)])
    assert "accelerate" not in str(done.exception)
