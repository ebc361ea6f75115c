"""Known failures get their hint: on real output (tests/data/failures/record.py) and on published texts."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.diagnose import hints
from disttui.runner.diagnose.cause import find
from disttui.runner.diagnose.hints import hint
from disttui.runner.runs.state import RunState, begin
from tests.unit.state_kit import fold

_DATA = Path(__file__).parents[1] / "data" / "failures"


def failed(reports: dict[int, dict[str, Any]], kind: str = "error", hosts: int = 2) -> RunState:
    """A run of one rank per host whose ranks have failed as reported, in the order of `reports`."""
    state = begin("t-1", tuple(f"node{number + 1}" for number in range(hosts)), (1,) * hosts)
    for at, (rank, report) in enumerate(reports.items()):
        seen = {"t": 10.0 + at, "e": kind, "attempt": 1, "rank": rank, "at": 10.0 + at, **report}
        state = fold(state, rank, "events.jsonl", seen)
    return state


def hinted(state: RunState) -> tuple[str, str]:
    cause = find(state)
    assert cause is not None
    found = hint(state, cause)
    return (found.name, found.text) if found else ("", "")


@pytest.mark.parametrize(
    ("case", "name", "words"),
    [
        ("port_in_use", "port in use", "port on node2 is taken"),
        ("join_timeout_server", "joining timed out", "rendezvous"),
        ("join_timeout_client", "joining timed out", "rendezvous"),
        ("disk_full", "disk full", "disk of node2 is full"),
        ("file_missing", "file missing", "node2 does not have /data/corpus/train.bin"),
        ("module_missing", "module missing", "node2 has no module flash_attention_extra"),
        ("permission", "permission", "node2"),
        ("address_resolution", "address resolution", "node2 cannot resolve"),
        ("download", "download", "node2 cannot reach an address"),
        ("too_many_files", "too many open files", "ulimit -n"),
        ("allocation", "out of memory: allocation", "not have enough memory to allocate 1048576.0 GiB"),
        ("memory_error", "out of memory: allocation", "node2"),
        ("cuda_library", "CUDA libraries missing", "node2 lacks libcudnn.so.9"),
        ("torch_cuda_library", "CUDA libraries missing", "node2 lacks libcudnn.so.9"),
        ("worker_bus_error", "out of memory: shared", "/dev/shm"),
        ("worker_killed", "DataLoader worker", "num_workers"),
        ("shared_memory", "out of memory: shared", "--shm-size"),
        ("cuda_oom_new", "out of memory: gpu", "wanted 22 MiB, 11 MiB were free, of 23.6 GiB, PyTorch holds 22.9 GiB"),
        ("cuda_oom_old", "out of memory: gpu", "wanted 264 MiB, 146 MiB were free, of 2.0 GiB, PyTorch holds 789 MiB"),
        ("driver_too_old", "driver too old", "driver of node2"),
        ("nccl_system_error", "NCCL system error", "NCCL_DEBUG=INFO"),
        ("nccl_mismatched", "mismatched collectives", "different collectives"),
        ("torch_end", "torch's end", "destroy_process_group"),
        ("nccl_timeout", "collective timed out", "disttui diagnose"),
        ("gloo_loopback", "gloo interface", "an address of node2 that the others cannot reach"),
        ("gloo_mismatched", "mismatched collectives", "different collectives"),
        ("nccl_version", "NCCL versions", "disttui probe"),
        ("cuda_not_compiled", "torch without CUDA", "node2 is built without CUDA. The script requests a GPU"),
        ("cuda_set_device", "torch without CUDA", "node2 is built without CUDA"),
        ("nccl_not_built", "torch without NCCL", "node2 is built without NCCL"),
        ("device_ids_on_cpu", "device_ids on the CPU", "torch.cuda.is_available()"),
        ("nccl_interface", "NCCL interface", "interface:"),
    ],
)
def test_a_known_failure_has_its_hint(case: str, name: str, words: str) -> None:
    report = json.loads((_DATA / f"{case}.json").read_text())
    assert report["source"], "every text says where it is from"
    found = hinted(failed({1: report}))
    assert found[0] == name
    assert words in found[1]


@pytest.mark.parametrize(
    ("cards", "words"),
    [
        ([], "node2 has no GPU. The script requests a GPU itself"),
        ([{"index": 0}, {"index": 1}], "node2 has 2 GPUs: install a torch that is built for CUDA"),
    ],
    ids=["no GPU", "GPUs"],
)
def test_cure_for_torch_without_cuda_depends_on_the_host(cards: list[Any], words: str) -> None:
    state = failed({1: json.loads((_DATA / "cuda_set_device.json").read_text())})
    assert words in hinted(fold(state, 1, "telemetry.jsonl", {"t": 9.0, "gpus": cards}))[1]


def test_a_command_that_is_not_there_is_a_program_to_install() -> None:
    said = {"code": 127, "said": "disttui: accelerate: No such file or directory"}
    name, text = hinted(failed({1: said, 0: said}, kind="death"))
    assert name == "program missing"
    assert text.startswith("node1, node2 has no program accelerate on its PATH")


@pytest.mark.parametrize(
    "said", ["bash: train.sh: No such file or directory", "sh: 0: cannot open train.sh: No such file"]
)
def test_a_script_that_a_shell_cannot_open_is_a_missing_file(said: str) -> None:
    name, text = hinted(failed({1: {"code": 127, "said": said}}, kind="death"))
    assert name == "file missing"
    assert text == "node2 has no file train.sh in the job's folder: copy it there, or correct `job.command`."


def test_a_module_that_python_does_not_find_is_named() -> None:
    said = "python: Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named 'a')"
    name, text = hinted(failed({1: {"code": 1, "said": said}}, kind="death"))
    assert name == "module missing" and "`job.env: {PYTHONPATH: src}`" in text


def test_every_recorded_failure_is_tested() -> None:
    tested = {case for mark in test_a_known_failure_has_its_hint.pytestmark for case, *_ in mark.args[1]}  # type: ignore[attr-defined]
    known = {path.stem for path in _DATA.glob("*.json")}
    assert known - tested == {"hang_gloo", "hang_nccl", "nccl_unhandled_cuda"}


@pytest.mark.parametrize(
    ("kind", "message", "name"),
    [
        ("RuntimeError", "unable to open shared memory object </torch_9> in x: Too many open files", "too many"),
        ("RuntimeError", "unable to open shared memory object </torch_9> in read-write mode: Success", "out of memory"),
        ("RuntimeError", "Socket Timeout", "joining timed out"),
        ("DistBackendError", "Net : Call to recv from 10.0.0.2<45671> failed : Connection refused", "rank killed"),
        ("ConnectionError", "Couldn't reach 'allenai/c4' on the Hub (LocalEntryNotFoundError)", "download"),
        ("RuntimeError", "retrieving ncclUniqueId by key 0, but store->get(0) got error: Socket Timeout", "first"),
        (
            "DistBackendError",
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
            "Last error:\nNet : Connect to 172.17.0.1<45671> failed : Connection refused",
            "NCCL interface",
        ),
        ("RendezvousClosedError", "", "rendezvous closed"),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 1.2.3 GiB", "out of memory: gpu"),
        ("ValueError", "ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "no GPU"),
        ("ValueError", "--tf32 requires Ampere or a newer GPU arch, cuda>=11 and torch>=1.7", "GPU too old"),
        ("DeferredCudaCallError", "device >= 0 && device < num_gpus INTERNAL ASSERT FAILED", "one GPU twice"),
    ],
)
def test_similar_messages_have_the_hint_of_their_cause(kind: str, message: str, name: str) -> None:
    found = hinted(failed({1: {"type": kind, "message": message, "traceback": f"{kind}: {message}"}}))
    assert found[0].startswith(name)


def test_what_is_unknown_has_no_hint() -> None:
    error = {"type": "ValueError", "message": "the loss is nan", "traceback": ""}
    assert hinted(failed({0: error})) == ("", "")


def test_a_host_that_trained_may_lack_a_module_as_well() -> None:
    report = {"type": "ModuleNotFoundError", "message": "No module named 'rich'"}
    state = failed({1: report})
    assert hinted(state)[1].startswith("node2 has no module rich")
    trained = fold(state, 0, "attempt-1/rank-0.metrics.jsonl", {"t": 9.0, "step": 1})
    assert hinted(trained)[1].startswith("node2 has no module rich")


_WARNING = (
    "functional_tensor.py:283: UserWarning: Failed to initialize NumPy: No module named 'numpy' (Triggered internally "
    "at tensor_numpy.cpp:84.)\n  cpu = _conversion_method_template(device=torch.device('cpu'))"
)


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        ("torchrun was ended by SIGKILL", -9, ""),
        (f"torchrun ended with exit code 1\n{_WARNING}", 1, ""),
        (f"torchrun ended with exit code 1\n{_WARNING}\nModuleNotFoundError: No module named 'yaml'", 1, "module yaml"),
        ("torchrun ended with exit code 1\n/usr/bin/python3: No module named torch", 1, "module torch"),
    ],
)
def test_a_launchers_warnings_are_no_cause(message: str, code: int, words: str) -> None:
    cause = {"node": 1, "rank": None, "kind": "launch", "type": "", "message": message, "code": code, "at": 5}
    state = begin("t-1", ("node1", "node2"), (1, 1))
    state = fold(state, 0, "exit.json", {"state": "failed", "code": 1, "attempt": 1, "cause": cause})
    assert (words in hinted(state)[1]) if words else hinted(state) == ("", "")


def test_no_cure_names_a_key_that_is_not_there() -> None:
    assert "job.sync" not in hinted(failed({1: {"type": "FileNotFoundError", "message": "x"}}))[1]


def test_file_missing_everywhere_is_reported_for_all_hosts() -> None:
    report = json.loads((_DATA / "file_missing.json").read_text())
    assert "node1, node2 do not have" in hinted(failed({0: report, 1: report}))[1]


def test_missing_checkpoint_may_never_have_been_written() -> None:
    """nanoGPT, killed in attempt 1 before its first checkpoint, with `resume_args: [--init_from=resume]`."""
    said = "[Errno 2] No such file or directory: '/out/ckpt.pt'"
    report = {"attempt": 2, "type": "FileNotFoundError", "message": said}
    text = hinted(failed({0: report, 1: report}))[1]
    assert text.startswith("node1, node2 do not have /out/ckpt.pt: attempt 1 may have ended before it was written; ")


def test_a_world_of_one() -> None:
    state = begin("t-1", ("node1", "node2"), (1, 1))
    cause = {
        "node": 1,
        "rank": 1,
        "kind": "launch",
        "type": "WorldSize",
        "message": "rank 1 sees a world of 1",
        "at": 5,
    }
    state = fold(state, 0, "exit.json", {"state": "failed", "code": 1, "attempt": 1, "cause": cause})
    assert hinted(state)[0] == "world of one"


@pytest.mark.parametrize(
    ("oom", "words"),
    [
        ({"group": 1, "machine": 1, "limit": 2 << 30}, "killer ended it: the control group's memory limit of 2.0 GiB"),
        ({"kernel": "Out of memory: Killed process 77 (python) total-vm:9kB"}, "Killed process 77"),
        ({"group": 1, "kernel": "Out of memory: Killed process 77 (python)"}, "Killed process 77"),
        ({"group": 1, "machine": 1}, "node2 or its control group had no memory left"),
        ({"machine": 2}, "was active on node2 at that time"),
    ],
)
def test_the_kernels_killer_is_named_by_its_evidence(oom: dict[str, Any], words: str) -> None:
    state = failed({1: {"code": -9, "pid": 77, "oom": oom}}, kind="death")
    assert words in hinted(state)[1]


def test_a_kill_without_evidence_is_not_blamed_on_memory() -> None:
    state = failed({1: {"code": -9, "pid": 77}}, kind="death")
    assert hinted(state) == ("", "")
    full = {"t": 9.0, "mem_used": 99, "mem_total": 100}
    assert "probably" in hinted(fold(state, 1, "telemetry.jsonl", full))[1].lower()


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        (-11, "native crash", "PYTHONFAULTHANDLER"),
        (139, "native crash", "invalid memory"),
        (134, "native crash", "aborted"),
        (-4, "native crash", "newer processor"),
        (135, "out of memory: shared", "/dev/shm"),
        (130, "", ""),
    ],
)
def test_a_signal_is_explained_also_behind_a_shell(code: int, name: str, words: str) -> None:
    found = hinted(failed({1: {"code": code}}, kind="death"))
    assert found[0] == name and words in found[1]


def test_a_crash_whose_line_is_known_needs_no_second_run() -> None:
    said = {"code": -11, "said": "Segmentation fault in f (/w/a.py:3)"}
    text = hinted(failed({1: said}, kind="death"))[1]
    assert "the cause names the line that called it" in text and "PYTHONFAULTHANDLER" not in text


def test_a_kill_behind_a_shell_is_blamed_by_its_evidence() -> None:
    state = failed({1: {"code": 137, "oom": {"group": 1}}}, kind="death")
    assert hinted(state)[0] == "out of memory: host"


def test_a_bus_error_is_probably_shared_memory() -> None:
    assert hinted(failed({1: {"code": -7}}, kind="death"))[1].startswith("Probably shared memory")


NCCL = "torch.distributed.DistBackendError"
MESSAGES = [
    ("NET/IB : Call to ibv_reg_mr failed with error Cannot allocate memory", "locked memory", "memlock"),
    ("transport/net_ib.cc:1000 NCCL WARN Call to ibv_create_cq failed with error 12", "locked memory", "memlock"),
    ("Call to ibv_modify_qp failed with 110 Connection timed out", "InfiniBand", "NCCL_IB_HCA"),
    ("Call to ibv_modify_qp failed with error Network is unreachable", "InfiniBand", "GID"),
    ("NET/IB: Got completion from peer 10.0.0.2<4791> with status=12 opcode=129 len=0", "InfiniBand", "ibstat"),
    ("socketStartConnect: Connect to 10.0.0.2<4> failed : No route to host", "no route", "firewall"),
    ("NCCL WARN socket connect errno 113", "no route", "firewall"),
    ("ncclSystemError: connect failed: Network is unreachable", "network unreachable", "`interface:`"),
    ("NCCL WARN Connect failed, errno: 101", "network unreachable", "`interface:`"),
    ("NCCL WARN Cuda failure 2 'out of memory'", "NCCL's GPU memory", "smaller batch"),
    ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate", "NCCL's GPU memory", "nvidia-smi"),
    (
        "NCCL WARN Call to posix_fallocate failed: No space left on device /dev/shm/nccl-x",
        "out of memory: shared",
        "shm",
    ),
    ("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "NVSwitch", "fabricmanager"),
    ("Error 803: system has unsupported display driver / cuda driver combination", "driver combination", "reboot"),
    ("Failed to initialize NVML: Driver/library version mismatch", "driver combination", "reboot"),
    ("Error 804: forward compatibility was attempted on non supported HW", "forward compatibility", "LD_LIBRARY_PATH"),
    ("CUDA unknown error - this may be due to an incorrectly set up environment", "CUDA unknown error", "nvidia_uvm"),
    ("Unexpected error from cudaGetDeviceCount(). Error 999: unknown error", "CUDA unknown error", "nvidia-modprobe"),
    ("CUDA error: uncorrectable ECC error encountered", "GPU memory defect", "-d ECC"),
    ("CUDA error: all CUDA-capable devices are busy or unavailable", "GPU busy", "compute mode"),
    ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "GPU busy", "compute mode"),
    ("Unable to determine the device handle for GPU0000:4E:00.0: GPU is lost", "GPU lost", "xid"),
    ("CUDA error: an illegal memory access was encountered", "illegal memory access", "CUDA_LAUNCH_BLOCKING"),
    ("pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found", "NVML", "libnvidia-ml"),
    ('returned error 404: {"message":"entity ab not found during upsertBucket"}', "wandb entity", "WANDB_ENTITY"),
    ("KeyError: 'SLURM_PROCID'", "Slurm's variables", "reads SLURM_PROCID"),
    ("DataLoader timed out after 30 seconds", "DataLoader timeout", "num_workers=0"),
    (
        "permission denied while trying to connect to the docker API at unix:///var/run/docker.sock",
        "Docker's socket",
        "group docker",
    ),
    ("RM has detected an NVML/RM version mismatch.", "driver combination", "reboot"),
    ("DataLoader worker (pid 5) is killed by signal: Segmentation fault. ", "DataLoader worker crash", "num_workers=0"),
    ("can't start new thread", "processes and threads", "ulimit -u"),
    ("can't start new thread", "processes and threads", "OMP_NUM_THREADS"),
    ("[Errno 11] Resource temporarily unavailable", "not available now", "flock"),
    (
        "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2025-05-01T10:00:00 DUE TO PREEMPTION ***",
        "job preempted",
        "again",
    ),
    (
        "slurmstepd: error: *** STEP 1.0 ON n CANCELLED AT 2025-05-01T10:00:00 DUE TO NODE FAILURE",
        "node of the job failed",
        "sinfo -R",
    ),
    ("[Errno 28] inotify watch limit reached", "watched files", "max_user_watches"),
    ("[Errno 2] No usable temporary directory found in ['/tmp', '/home/u']", "no temporary folder", "TMPDIR"),
    ("[Errno 2] No such file or directory: '/psm_1a2b3c4d'", "shared memory of another process", "/dev/shm"),
    ("[Errno 17] File exists: '/000000_locals'", "shared memory of another process", "clean_stale_shared_memory"),
    (
        "The server socket has failed to listen on any local network address. port: 80, useIpv6: false, code: -13, "
        "name: EACCES, message: permission denied",
        "port not allowed",
        "need root",
    ),
    ("The server socket has failed to bind to [::]:80 (errno: 13 - Permission denied).", "port not allowed", "1024"),
    (
        "HTTPConnectionPool(host='mlflow', port=5000): Max retries exceeded with url: /api (Caused by "
        "NameResolutionError(\"<x>: Failed to resolve 'mlflow' ([Errno -2] Name or service not known)\"))",
        "server not found",
        "mlflow",
    ),
    ("[Errno 30] Read-only file system: '/data/x'", "read-only file system", "another folder"),
    ("[Errno 116] Stale file handle: '/nfs/x'", "network file system", "replaced or removed"),
    ("You are trying to access a gated repo.", "gated model", "HF_TOKEN"),
    ("/lib/libc.so.6: version `GLIBC_2.32' not found (required by /w/x.so)", "binary of another system", "built"),
    ("/w/flash.so: undefined symbol: _ZN3c104cuda9SetDeviceEi", "binary of another system", "torch"),
    ("Expected to have finished reduction in the prior iteration", "unused parameters", "find_unused_parameters"),
    ("bash: ./a.sh: /usr/bin/bash^M: bad interpreter: No such file or directory", "Windows line ends", "sed -i"),
    ("/usr/bin/env: ‘bash\\r’: No such file or directory", "Windows line ends", "eol=lf"),
    ("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing", "forked CUDA", "spawn"),
    ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`", "GPU library", "CUDA_LAUNCH_BLOCKING"),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", "NCCL's GPU memory", "smaller batch"),
    ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "GPU library", "smaller batch"),
    ("cuFFT error: CUFFT_INTERNAL_ERROR", "GPU library", "LD_LIBRARY_PATH"),
    ("GET was unable to find an engine to execute this computation", "GPU library", "shape"),
    (
        "cuDNN version incompatibility: PyTorch was compiled  against (8, 9, 2)",
        "CUDA library of another version",
        "LD_",
    ),
    ("/w/libtorch_cuda.so: undefined symbol: ncclCommRegister", "CUDA library of another version", "reinstall torch"),
    (
        "symbol cublasLtX, version libcublasLt.so.12 not defined in file libcublasLt.so.12 with link time reference",
        "CUDA library of another version",
        "LD_LIBRARY_PATH",
    ),
    ("[Errno 28] No space left on device: '/dev/shm/pymp-x'", "out of memory: shared", "--shm-size"),
    ("[Errno 12] Cannot allocate memory", "out of memory: allocation", "node2"),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0.", "job's memory limit", "--mem=0"),
    (
        "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2024-05-01T12:00:00 DUE TO TIME LIMIT ***",
        "job's time limit",
        "slurm.time",
    ),
    ("Task was killed due to the node running low on memory.", "Ray's memory", "RAY_memory_usage_threshold"),
    ("The actor died unexpectedly before finishing this task.", "Ray's worker", "session_latest"),
    ("Some NCCL operations have failed or timed out.", "collective timed out", "disttui diagnose"),
    ("Default process group has not been initialized", "no process group", "init_process_group"),
    ("trying to initialize the default process group twice!", "process group twice", "is_initialized"),
    ("environment variable MASTER_ADDR expected, but not set", "no rank in the environment", "env -i"),
    ("op.preamble.length <= op.nbytes. 40 vs 20", "mismatched collectives", "different shapes"),
    ("DDP expects same model across all ranks, but Rank 0 has 148 params", "models differ", "vocabulary"),
    ("401 Client Error.\n\nRepository Not Found for url: https://huggingface.co/a/b", "no such model", "HF_TOKEN"),
    ("429 Client Error: Too Many Requests for url: https://huggingface.co/x", "too many requests", "one rank"),
    ("certificate verify failed: self signed certificate in certificate chain", "certificate", "REQUESTS_CA_BUNDLE"),
    ("outgoing traffic has been disabled", "not in the cache", "hf download"),
    ("api_key not configured (no-tty). call wandb.login(key=[your_api_key])", "wandb login", "WANDB_MODE"),
    ("A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.0.0", "NumPy of another version", "numpy<2"),
    ("numpy.dtype size changed, may indicate binary incompatibility", "NumPy of another version", "update"),
    ("FlashAttention only supports Ampere GPUs or newer.", "GPU too old", "sdpa"),
    ("the package flash_attn seems to be not installed", "flash_attn missing", "pip install"),
    ("NCCL error in: x.cpp:1269, invalid usage, NCCL version 2.14.3", "NCCL error", "NCCL_DEBUG=INFO"),
    ("NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "NCCL error", "two ranks on one GPU"),
    ("Attempting to deserialize object on CUDA device 3 but", "device of a checkpoint", "map_location"),
    ("Weights only load failed. This file can still be loaded", "weights only", "weights_only=False"),
    ("PytorchStreamReader failed reading zip archive: failed finding central directory", "damaged file", "git lfs"),
    ("Error(s) in loading state_dict for Net:", "checkpoint of another model", "module."),
    ("Expected all tensors to be on the same device, but found", "two devices", "LOCAL_RANK"),
    ("Expected to mark a variable ready only once.", "variable ready twice", "use_reentrant"),
    ("before the current process has finished its bootstrapping phase.", "main guard", "__main__"),
    ("Can't pickle local object 'main.<locals>.<lambda>'", "pickle", "top level"),
    ("process 1 terminated with signal SIGKILL", "spawned process", "SIGKILL"),
    ("Failed to find C compiler. Please specify via CC environment variable.", "build tools", "gcc"),
    (
        "Installed CUDA version 12.1 does not match the version torch was compiled with 11.7",
        "CUDA toolkit of another version",
        "CUDA_HOME",
    ),
    ("out of resource: shared memory, Required: 147456", "Triton's shared memory", "num_stages"),
    ("Minimum loss scale reached (0.0001). Your loss is probably exploding.", "not finite", "learning rate"),
    ("No backend type associated with device type cpu", "tensor of another backend", "cpu:gloo,cuda:nccl"),
    ("Tensors must be CUDA and dense", "tensor of another backend", "on the GPU"),
    ("Timed out initializing process group in store based barrier on rank: 1", "joining timed out", "firewall"),
    ("train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size", "batch sizes", "×"),
    ("Command '['which', 'c++']' returned non-zero exit status 1.", "build tools", "activate"),
    ("__init__() got an unexpected keyword argument 'evaluation_strategy'", "Transformers of another version", "TRL"),
    ("SFTTrainer.__init__() got an unexpected keyword argument 'tokenizer'", "Transformers of another version", "TRL"),
    ("Current loss scale already at minimum - cannot decrease scale anymore.", "not finite", "learning rate"),
    ("Check batch related parameters. train_batch_size is not equal to", "batch sizes", "ranks"),
    ("'ascii' codec can't decode byte 0xe2 in position 10", "encoding", "C.UTF-8"),
    ("Unable to open file (unable to lock file, errno = 11)", "locked file", "HDF5"),
    ("[Errno 5] Input/output error: '/data/x'", "input and output", "dmesg"),
    ("[Errno 107] Transport endpoint is not connected: '/mnt/x'", "network file system", "remount"),
    ("libGL.so.1: cannot open shared object file: No such file or directory", "library missing", "lacks libGL.so.1"),
    (
        "Failed to import transformers.x because of the following error:\nNo module named 'y'",
        "module missing",
        "module y",
    ),
    ("The client socket has failed to connect to any network address of (a, 29500).", "joining timed out", "firewall"),
    ("CUDA error: no CUDA-capable device is detected", "no GPU", "CUDA_VISIBLE_DEVICES"),
    ("Unexpected error from cudaGetDeviceCount(). Error 100: no device", "no GPU", "nvidia-smi -L"),
    ("HIP error: no ROCm-capable device is detected", "no GPU", "HIP_VISIBLE_DEVICES"),
    ("Unable to open /dev/kfd read-write: Permission denied", "AMD GPU not open", "render and video"),
    (
        "hsa api call failure at: rocminfo.cc:1156\nCall returned HSA_STATUS_ERROR_OUT_OF_RESOURCES: x",
        "AMD GPU not open",
        "--device=/dev/kfd",
    ),
    ("HIP error: invalid device function", "AMD GPU not supported", "HSA_OVERRIDE_GFX_VERSION"),
    (
        "Memory access fault by GPU node-1 (Agent handle: 0x5) on address 0x7f.",
        "AMD kernel failed",
        "AMD_SERIALIZE_KERNEL",
    ),
    ("HIP error: an illegal memory access was encountered", "AMD kernel failed", "AMD_SERIALIZE_KERNEL"),
    (
        "select.c:649  UCX  ERROR   no active messages transport to <no debug data>: rc/mlx5_0:1 - Destination is "
        "unreachable",
        "UCX",
        "ucx_info -d",
    ),
    ("pml_ucx.c:380  Error: ucp_ep_create(proc=2) failed: Destination is unreachable", "UCX", "UCX_TLS"),
    ("Transport retry count exceeded on mlx5_0:1/IB (synd 0x15)", "InfiniBand", "ibstat"),
    ("NCCL WARN NET/OFI Couldn't open a fabric access domain. RC: -22", "libfabric", "fi_info"),
    ("OFI fi_getinfo() failed (ofi_init.h:1537:No data available)", "libfabric", "FI_PROVIDER"),
    ("NET/IB: Got completion from peer 10.0.0.2<4> with status=IBV_WC_REM_ACCESS_ERR(10)", "InfiniBand", "ibstat"),
    ("NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'", "peer access", "P2P"),
    ("CUDA error: operation not permitted when stream is capturing", "graph capture", "CUDA graph"),
    ("ifa != nullptr. Unable to find address for: eth9", "gloo interface name", "network interface eth9"),
    ("NCCL WARN socketPollConnect: Connect to 10.0.0.2<4> failed : Connection timed out", "NCCL interface", "ports"),
    ("The server socket has failed to bind to 10.0.0.9:29 (errno: 99 - x)", "address of another host", "MASTER_ADDR"),
    ("ProcessGroupNCCL's watchdog got stuck for 480 seconds without progress", "watchdog stuck", "node2"),
    ("concurrent.futures.process.BrokenProcessPool", "DataLoader worker", "memory"),
    ("No API key configured. Use `wandb login` to log in.", "wandb login", "WANDB_API_KEY"),
    ("Error while calling W&B API: permission denied (<Response [403]>)", "wandb login", "that project"),
    ("Run initialization has timed out after 90.0 sec.", "wandb unreachable", "HTTPS_PROXY"),
    ("401 Client Error: Unauthorized for url: https://huggingface.co/api/whoami-v2", "token of Hugging Face", "valid"),
    ("[Errno 108] Cannot send after transport endpoint shutdown: '/l/x'", "network file system", "its server"),
    ("[Errno 37] No locks available", "locked file", "no locks"),
    ("bash: ./prog: cannot execute: Exec format error", "not executable", "another processor"),
    ("[Errno 121] Remote I/O error: '/nfs/x'", "network file system", "replaced or removed"),
    ("('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))", "download", "HTTPS_PROXY"),
    ("Error while deserializing header: incomplete metadata, file not fully covered", "damaged file", "truncated"),
    ("datasets.exceptions.DatasetNotFoundError: Dataset 'x/y' doesn't exist on the Hub", "no such model", "HF_TOKEN"),
    (
        "The checkpoint being loaded used a DP world size of 8 but the current world size is 4. Automatic adjustment",
        "checkpoint of another number of ranks",
        "ds_to_universal.py",
    ),
    ("403 Forbidden: None. Make sure your token has the correct permissions.", "gated model", "has no access"),
    ("Parquet magic bytes not found in footer. Either the file is corrupted or", "damaged file", "truncated"),
    ("Unable to synchronously open file (truncated file: eof = 96, sblock->base_addr = 0)", "damaged file", "Copy"),
    (
        "Error: mkl-service + Intel(R) MKL: MKL_THREADING_LAYER=INTEL is incompatible with libgomp.so.1 library.",
        "MKL and OpenMP",
        "MKL_THREADING_LAYER: GNU",
    ),
    ("CUDA Setup failed despite GPU being available. Please run", "bitsandbytes", "python -m bitsandbytes"),
    ("[Errno 8] Exec format error: './train.sh'", "not executable", "#!/bin/bash"),
    ("disttui: ./run.sh: Permission denied (its disk is mounted noexec)", "noexec", "[bash, run.sh]"),
    ("alice@n2: Permission denied (publickey,password).", "login by ssh", "run the script directly"),
    (
        "partially initialized module 'torch' has no attribute 'nn' (most likely due to a circular import)",
        "name of a module",
        "module torch",
    ),
    (
        "cannot import name 'AdamW' from 'transformers' (/v/site-packages/transformers/__init__.py)",
        "package of another version",
        "The transformers of node2",
    ),
    (
        "NCCL error in: x.cpp:1287, invalid usage, NCCL version 2.17.1\nncclInvalidUsage: This usually reflects "
        "invalid usage of NCCL library.\nNCCL error in: x.cpp:1287, invalid usage, NCCL version 2.17.1",
        "NCCL error",
        "two ranks on one GPU",
    ),
    (
        "HTTPConnectionPool(host='localhost', port=8000): Max retries exceeded with url: /health/ (Caused by "
        "NewConnectionError('<x>: Failed to establish a new connection: [Errno 111] Connection refused'))",
        "server not running",
        "on that port of localhost",
    ),
    (
        "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x (Caused by "
        "NewConnectionError('<x>: Failed to establish a new connection: [Errno 111] Connection refused'))",
        "download",
        "HTTPS_PROXY",
    ),
    (
        '403 Forbidden: You don\'t have the rights to create a model under the namespace "a".\nCannot access content '
        "at: https://huggingface.co/api/repos/create.\nMake sure your token has the correct permissions.",
        "upload to Hugging Face",
        "write access",
    ),
    (
        "401 Client Error: Unauthorized for url: https://huggingface.co/api/models/a/b/preupload/main",
        "upload to Hugging Face",
        "write access",
    ),
    (
        "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/w/llama'. Use `repo_type` argument if",
        "model missing",
        "node2 has no model in /w/llama: copy",
    ),
    (
        "./out/step-500 is not a local folder and is not a valid model identifier listed on 'https://huggingface.co'",
        "model missing",
        "in ./out/step-500: copy",
    ),
    (
        "Error no file named pytorch_model.bin, model.safetensors found in directory /w/llama.",
        "model missing",
        "in /w/llama: copy",
    ),
    ("a/b is not a local folder and is not a valid model identifier listed on", "no such model", "Correct the name"),
]


def test_out_of_memory_without_numbers_is_the_gpus() -> None:
    name, text = hinted(
        failed({1: {"type": "torch.AcceleratorError", "message": "CUDA error: out of memory\nCUDA kernel"}})
    )
    assert name == "out of memory: gpu" and text.startswith("The GPU's memory is full. Use a smaller batch")


@pytest.mark.parametrize(("message", "name", "words"), MESSAGES, ids=[message for message, *_ in MESSAGES])
def test_messages_of_nccl_and_cuda_have_their_cure(message: str, name: str, words: str) -> None:
    found = hinted(failed({1: {"type": NCCL, "message": message}}))
    assert (found[0], words in found[1]) == (name, True)
    assert "node2" in found[1] or name in ("collective timed out", "joining timed out", "mismatched collectives")


@pytest.mark.parametrize("call", ["MyTrainer.__init__() got an unexpected keyword argument 'tokenizer'",
                                  "Trainer.__init__() got an unexpected keyword argument 'gpus'"])  # fmt: skip
def test_arguments_of_own_classes_say_nothing_of_versions(call: str) -> None:
    assert not hinted(failed({1: {"type": "TypeError", "message": call}}))[0]


@pytest.mark.parametrize("why", ["[Errno 101] Network is unreachable", "[Errno 113] No route to host"])
def test_a_host_without_internet_is_not_cut_off_from_others(why: str) -> None:
    message = f"HTTPSConnectionPool(host='huggingface.co', port=443): Failed to establish a new connection: {why}"
    assert hinted(failed({1: {"type": "ConnectionError", "message": message}}))[0] == "download"


def test_what_other_hosts_have_is_not_claimed() -> None:
    error = {"type": "ModuleNotFoundError", "message": "No module named 'wandbx'"}
    other = {"type": "ValueError", "message": "x"}
    assert hinted(failed({1: error, 0: other}))[1].startswith("node2 has no module wandbx")


def test_what_job_sync_has_not_sent_is_not_to_be_copied_by_hand() -> None:
    trace = '  File "/root/.disttui/runs/t-1/code/train.py", line 3, in <module>\n'

    def of(path: str) -> str:
        message = f"[Errno 2] No such file or directory: '{path}'"
        return hinted(failed({1: {"type": "FileNotFoundError", "message": message, "traceback": trace}}))[1]

    for path in ("data/train.bin", "/root/.disttui/runs/t-1/code/x.bin"):
        assert "copy it there" not in of(path) and "name it in `job.sync.include` or `data`" in of(path)
    for path in ("../data/train.bin", "/root/.disttui/runs/t-1/code/sub/../../x.bin"):
        assert "outside of the folder that was sent: send one further up" in of(path)
    assert "copy it there" in of("/data/train.bin")
    said = "python3: can't open file '/root/.disttui/runs/t-1/code/train.py': [Errno 2] No such file or directory"
    found = hinted(failed({1: {"code": 2, "said": said}}, kind="death"))[1]
    assert "lists what job.sync has sent: if it is not there" in found and "copy it there" not in found
    error = {"type": "ModuleNotFoundError", "message": "No module named 'mine'", "traceback": trace}
    assert "your own must be in the folder that is sent" in hinted(failed({1: error}))[1]


def test_a_program_that_the_script_starts_is_no_file_to_copy() -> None:
    message = "[Errno 2] No such file or directory: 'nvcc'"
    trace = (
        '  File "/usr/lib/python3.11/subprocess.py", line 1953, in _execute_child\n    raise child_exception_type(\n'
    )
    name, text = hinted(failed({1: {"type": "FileNotFoundError", "message": message, "traceback": trace}}))
    assert name == "program missing" and "install the program" in text and "copy" not in text


@pytest.mark.parametrize("line", ["with open(path, 'w') as f:", 'open(path, mode="a")', "torch.save(model, path)"])
def test_a_file_that_was_to_be_written_needs_its_folder(line: str) -> None:
    message = "[Errno 2] No such file or directory: 'out/result.json'"
    trace = f'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    {line}\n{message}'
    name, text = hinted(failed({1: {"type": "FileNotFoundError", "message": message, "traceback": trace}}))
    assert name == "folder missing"
    assert text.startswith("node2 cannot write out/result.json, whose folder does not exist: create out first")


@pytest.mark.parametrize(
    ("line", "name"),
    [("open(os.path.join(root, 'annotations.json'))", "file missing"), ("os.mkdir(folder)", "folder missing")],
)
def test_a_file_that_was_to_be_read_is_not_written(line: str, name: str) -> None:
    message = "[Errno 2] No such file or directory: 'data/annotations.json'"
    trace = f'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    {line}\n{message}'
    assert hinted(failed({1: {"type": "FileNotFoundError", "message": message, "traceback": trace}}))[0] == name


def test_a_missing_file_that_was_dealt_with_is_not_the_cause() -> None:
    first = "Traceback (most recent call last):\nFileNotFoundError: [Errno 2] No such file or directory: 'cfg.json'\n"
    for link, name in (
        ("During handling of the above exception, another exception occurred:", ""),
        ("The above exception was the direct cause of the following exception:", "file missing"),
    ):
        trace = f"{first}\n{link}\n\nTraceback (most recent call last):\nKeyError: 'lr'"
        assert hinted(failed({1: {"type": "KeyError", "message": "'lr'", "traceback": trace}}))[0] == name


def test_a_store_that_received_nothing_is_an_echo() -> None:
    error = {"type": NCCL, "message": "Failed to recv, got 0 bytes. Connection was likely closed."}
    assert hinted(failed({1: error}))[0] == "rank killed elsewhere"


_FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is free."
    " {} Of the allocated memory 40.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated"
)


@pytest.mark.parametrize(
    ("processes", "others"),
    [
        ("Process 7 has 79.00 GiB memory in use.", ""),  # in a container, its own
        ("Process 7 has 17179869184.00 GiB memory in use.", ""),  # in WSL
        ("Process 7 has 45.00 GiB memory in use. Process 8 has 34.00 GiB memory in use.", "34.0 GiB"),
        ("Process 8 has 20.00 GiB memory in use. Process 9 has 10.00 GiB memory in use."
         " Including non-PyTorch memory, this process has 49.00 GiB memory in use.", "30.0 GiB"),
    ],
)  # fmt: skip
def test_only_memory_of_others_is_called_another_programs(processes: str, others: str) -> None:
    message = _FULL.format(processes)
    trace = f'Traceback (most recent call last):\n  File "a.py", line 3, in f\ntorch.OutOfMemoryError: {message}\n'
    text = hinted(failed({1: {"type": "torch.OutOfMemoryError", "message": message, "traceback": trace}}))[1]
    assert (re.findall(r"Other programs hold ([\d.]+ GiB)", text) or [""]) == [others]


@pytest.mark.parametrize("status", ["5", "IBV_WC_WR_FLUSH_ERR(5)"])
def test_flushed_work_of_infiniband_is_an_echo(status: str) -> None:
    error = {"type": NCCL, "message": f"NET/IB: Got completion from peer 10.0.0.2<4> with status={status} opcode=0"}
    assert hinted(failed({1: error}))[0] == "rank killed elsewhere"


def test_a_status_of_another_program_is_not_a_lost_connection() -> None:
    error = {"type": "RuntimeError", "message": "the converter ended with status=5"}
    assert hinted(failed({1: error})) == ("", "")


@pytest.mark.parametrize(
    ("name", "message", "known"),
    [
        ("RuntimeError", "[pair.cc:589] Read error [10.0.0.2]:25266: Connection reset by peer", True),
        ("RuntimeError", "Connection reset by peer", True),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", False),  # perhaps of a download
        (NCCL, "Last error:\nsocketProgress: Connection closed by remote peer n2<50260>", True),
        (NCCL, "retrieving ncclUniqueId via c10d, but store->get('0') got error: Connection reset by peer", True),
        (NCCL, "ncclInternalError: Internal check failed.\nLast error:\nNet : Connection closed by remote peer", True),
        ("ValueError", "the upload says: Connection reset by peer", False),
        ("RuntimeError", "bad line in log: 'Connection closed by peer'", False),
    ],
)
def test_lost_connection_hint_ignores_unrelated_messages(name: str, message: str, known: bool) -> None:
    found = hinted(failed({1: {"type": name, "message": message}}))
    assert (found[0] == "rank killed elsewhere") == known


@pytest.mark.parametrize(
    ("name", "message", "found", "words"),
    [
        ("InductorError", "x\nfatal error: Python.h: No such file or directory", "build tools", "gcc"),
        ("MissingCUDAException", "CUDA_HOME does not exist, unable to compile CUDA op(s)", "build tools", "CUDA_HOME"),
        ("AssertionError", "Micro batch size per gpu: 0 has to be greater than 0", "batch sizes", "ranks"),
        ("RuntimeError", "[enforce fail at inline_container.cc:595] . PytorchStreamWriter failed writing file data/1",
         "file not written", "quota"),
        ("RuntimeError", "[enforce fail at inline_container.cc:424] . unexpected pos 64 vs 0",
         "file not written", "df -h"),
        ("FileExistsError", "[Errno 17] File exists: '/data/out'", "file exists", "node2 already has /data/out"),
        ("FileExistsError", "the output folder is not empty", "", ""),
        ("FileNotFoundError", "Couldn't find any data file at /data/x.", "file missing", "node2 does not have /data/x"),
        ("FileNotFoundError", "no shard was found", "file missing", "node2 does not have the file: copy"),
        ("OSError", "Can't load the configuration of '/w/llama'. If you were trying to load it from", "model missing",
         "in /w/llama: copy"),
        ("ValueError", "Can't load image for /x", "", ""),
    ],
)  # fmt: skip
def test_what_failed_beside_the_line_that_is_named(name: str, message: str, found: str, words: str) -> None:
    named, text = hinted(failed({1: {"type": name, "message": message}}))
    assert named == found and words in text


def test_source_line_is_not_taken_for_the_message() -> None:
    trace = "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\n    if 'Errno 28' in str(x):\n"
    error = {"type": "TypeError", "message": "argument of type 'NoneType' is not iterable", "traceback": trace}
    assert hinted(failed({1: error})) == ("", "")


def test_semaphores_need_shared_memory() -> None:
    trace = "    sl = self._semlock = _multiprocessing.SemLock(\n      ^^^\nOSError: [Errno 28] No space left on device"
    error = {"type": "OSError", "message": "[Errno 28] No space left on device", "traceback": trace}
    assert hinted(failed({1: error}))[0] == "out of memory: shared"


def test_gpus_that_a_process_does_not_see_are_hidden() -> None:
    state = failed({1: {"type": "RuntimeError", "message": "No CUDA GPUs are available"}})
    text = hinted(fold(state, 1, "telemetry.jsonl", {"t": 9.0, "gpus": [{"index": 0}, {"index": 1}]}))[1]
    assert text.startswith("A process on node2 sees none of its 2 GPUs: usually CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_allocator_setting_is_named_as_this_torch_knows_it(name: str) -> None:
    message = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. Of the allocated memory 10.00 GiB is allocated by PyTorch, "
        f"and 4.00 GiB is reserved by PyTorch but unallocated. try setting {name}=expandable_segments:True"
    )
    text = hinted(failed({1: {"type": "torch.OutOfMemoryError", "message": message}}))[1]
    assert f" set {name}=expandable_segments:True." in text


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("OSError", "[Errno 107] Transport endpoint is not connected"),  # of a socket
        ("ValueError", "shard 3: expected 10 bytes, got 0 bytes"),
        ("ValueError", "row 'Errno 37' is not a number"),
        ("ValueError", "row 'Errno 121' is not a number"),
        ("SyntaxError", "Exec format error in row 3"),
        ("requests.exceptions.HTTPError", "503 Server Error for url: https://huggingface.co/api/whoami-v2"),
        ("ValueError", "Error 803 of the service"),
        ("ValueError", "undefined symbol: x in the grammar"),
        ("urllib.error.HTTPError", "HTTP Error 999: Request denied"),
        ("RuntimeError", "NCCL WARN Cuda failure 800 'operation not permitted'"),  # of a driver's call, not a path
        ("ImportError", "cannot import name 'foo' from 'utils' (/w/utils.py)"),
        ("torch.multiprocessing.spawn.ProcessExitedException", "process 0 terminated with signal SIGTERM"),
        ("PermissionError", "Access Denied"),  # of a bucket
    ],
)
def test_a_message_of_another_matter_has_no_hint(kind: str, message: str) -> None:
    assert hinted(failed({1: {"kind": "exception", "type": kind, "message": message, "traceback": ""}})) == ("", "")


def parsed(expression: re.Pattern[str]) -> list[Any]:
    parser = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    return list(parser.parse(expression.pattern, expression.flags))


def fitting(parts: list[Any]) -> str:
    """A text that parts of a parsed expression match, without what may be missing."""
    text = ""
    for code, given in parts:
        kind = str(code)
        if kind == "LITERAL":
            text += chr(given)
        elif kind == "IN":
            first, value = given[0]
            text += chr(value if str(first) == "LITERAL" else value[0]) if str(first) in ("LITERAL", "RANGE") else "1"
        elif kind == "BRANCH":
            text += fitting(given[1][0])
        elif kind == "SUBPATTERN":
            text += fitting(given[-1])
        elif kind.endswith("REPEAT"):
            text += fitting(given[2]) * given[0]
    return text


def beginnings(parts: list[Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Texts that end where a parsed expression may continue in many ways, each with a text that it looks for behind."""
    for at, (code, given) in enumerate(parts):
        kind, start = str(code), before + fitting(parts[:at])
        if kind.endswith("REPEAT"):
            yield from beginnings(given[2], start)
            yield from [(start or fitting(given[2]) or "x", "")] if given[1] > 20 else []
        elif kind == "BRANCH":
            for branch in given[1]:
                yield from beginnings(branch, start)
        elif kind == "SUBPATTERN":
            yield from beginnings(given[-1], start)
        elif kind.startswith("ASSERT"):
            yield from ((start or "x", fitting(given[1])) for _ in beginnings(given[1]))


EXPRESSIONS = [
    *(pattern for _, pattern, _ in hints._KNOWN),
    *(each for each in vars(hints).values() if isinstance(each, re.Pattern)),
    *hints._CUDA_FIELDS.values(),
]


def test_hostile_messages_stay_cheap_to_explain() -> None:
    """An expression with gaps of any length takes minutes for some of these."""
    tried = 0
    for expression in EXPRESSIONS:
        for piece, end in dict.fromkeys(beginnings(parsed(expression))):
            for text in (piece, f"{piece} "):
                expression.search((text * (2**16 // len(text)))[: 2**16] + end + "x" * 300)
                tried += 1
    assert tried > 100


@pytest.mark.parametrize("piece", ["x", "1.", " /a", "'", "can't open file '", "No such file or directory: ", "../"])
def test_hostile_names_of_files_stay_cheap(piece: str) -> None:
    hinted(failed({1: {"type": "FileNotFoundError", "message": piece * (2**16 // len(piece))}}))
