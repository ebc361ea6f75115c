"""Known failures and their cures: a table of patterns, and checks for memory, missing files and others. Pure."""

from __future__ import annotations

import posixpath
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass

from disttui.runner.diagnose.cause import Failure, RootCause
from disttui.runner.formatting import amount, gibibytes
from disttui.runner.ids import short
from disttui.runner.protocol import events
from disttui.runner.protocol.telemetry import Telemetry
from disttui.runner.runs.state import RunState
from disttui.runner.text import clean


@dataclass(frozen=True)
class Hint:
    """The meaning of a failure, and its cure."""

    name: str
    text: str


def _table(rows: dict[str, tuple[str, str]]) -> list[tuple[str, re.Pattern[str], str]]:
    return [(name, re.compile(pattern, re.IGNORECASE | re.DOTALL), text) for name, (pattern, text) in rows.items()]


# The first match counts, so specific patterns precede general ones. {host} is the host, {1} the first group.
_KNOWN = _table(
    {
        "mismatched collectives": (
            r"Detected mismatch between collectives|Mismatched collective detected|collective mismatch error"
            r"|op\.preamble\.length <= op\.nbytes",
            "The ranks call different collectives, or the same ones with different shapes. Look for a branch that "
            "only some ranks take; `disttui diagnose` names the calls while the run hangs.",
        ),
        "models differ": (
            r"DDP expects same model across all ranks|appears not to match sizes of the same param"
            r"|parameters? of inconsistent shape",
            "The ranks built different models, {host} among them. Look for a size, vocabulary or option that "
            "depends on the rank or on files of the host.",
        ),
        "one GPU twice": (
            r"Duplicate GPU detected|invalid device ordinal|device < num_gpus",
            "Two ranks share a GPU, or a rank asked for a GPU that {host} does not have. Call "
            "torch.cuda.set_device(LOCAL_RANK), and start no more processes than GPUs (`num_processes`, `gpus`).",
        ),
        "locked memory": (
            r"ibv_(?:reg_mr|create_cq|create_qp|reg_dmabuf_mr)[^\n]{0,300}(?:Cannot allocate memory|ENOMEM|\b12\b)",
            "The account on {host} cannot lock the memory that InfiniBand needs (`ulimit -l`). Set memlock to "
            "unlimited there: /etc/security/limits.conf, LimitMEMLOCK of sshd; in a container --ulimit memlock=-1.",
        ),
        "InfiniBand": (
            r"ibv_modify_qp failed|Got completion (?:from peer|with error)[^\n]{0,300}(?:status|error)[ =]?"
            r"(?:IBV_WC_(?!WR_FLUSH)|(?!5\b)\d+)|IBV_WC_RETRY_EXC_ERR"
            r"|NET/IB[^\n]{0,300}(?:Got async event|No device found)|transport retry count exceeded",
            "InfiniBand or RoCE of {host} cannot reach the other host: the port is down, or port or GID are wrong. "
            "See `ibstat`; set NCCL_IB_HCA (port) or NCCL_IB_GID_INDEX (GID for RoCE), or NCCL_IB_DISABLE=1 in "
            "`job.env` to use the network of `interface:`.",
        ),
        "UCX": (
            r"UCX +ERROR[^\n]{0,300}(?:transport to|Destination is unreachable"
            r"|network device [^\n]{0,300}not available)|ucp_ep_create[^\n]{0,300}Destination is unreachable",
            "UCX on {host} found no transport to the other process: UCX_TLS or UCX_NET_DEVICES excludes those that "
            "both hosts have, or names a missing device. `ucx_info -d` there lists them; set UCX_NET_DEVICES "
            "and UCX_TLS in `job.env`, or unset both.",
        ),
        "libfabric": (
            r"NET/OFI[^\n]{0,300}(?:No eligible providers|Unable to find a protocol|Failed to (?:init|open)"
            r"|Couldn't open)|aws-ofi-nccl initialization failed|fi_getinfo[^\n]{0,300}failed|OFI addrinfo\(\) failed",
            "libfabric on {host} cannot use a network provider: `fi_info` there lists them. Set FI_PROVIDER (efa, "
            "verbs or tcp) in `job.env`; on AWS the security group must allow all traffic within itself. "
            "NCCL_NET=Socket uses the network of `interface:` without libfabric.",
        ),
        "no route": (
            r"(?:NCCL|socketStartConnect|ncclSystemError|gloo|c10d|TCPStore|\bconnect(?!ion))[^\n]{0,300}"
            r"(?:No route to host|errno:? 113|EHOSTUNREACH)",
            "{host} has no route to another host: a firewall there rejects the connection, or the address is in a "
            "network that they do not share. Open the ports between the hosts, or set `interface:` of the host.",
        ),
        "network unreachable": (
            r"(?:NCCL|socketStartConnect|ncclSystemError|gloo|c10d|TCPStore|\bconnect(?!ion))[^\n]{0,300}"
            r"(?:Network is unreachable|errno:? 101|ENETUNREACH)",
            "{host} cannot reach the network of another host's address. Set `interface:` of the hosts to the network "
            "that they share.",
        ),
        "NCCL's GPU memory": (
            r"Cuda failure (?:2 )?'out of memory'|CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"
            r"|CUDNN_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)",
            "A library found no free memory on a GPU of {host}: torch has reserved all of it, or another program uses"
            " the GPU. Use a smaller batch, and see `nvidia-smi`.",
        ),
        "CUDA library of another version": (
            r"cuDNN version incompatibility|SUBLIBRARY_VERSION_MISMATCH|with link time reference"
            r"|undefined symbol: (?:nccl|cudnn|cublas|cusparse|cusolver|__nv)\w*",
            "torch on {host} has loaded another version of a CUDA library than its own. Remove the folder of CUDA or "
            "cuDNN from LD_LIBRARY_PATH (and `module load cuda` from `activate:`), or reinstall torch with its "
            "nvidia-* packages.",
        ),
        "GPU library": (
            r"\b(?:CUBLAS|CUDNN|CUFFT|CUSOLVER|CUSPARSE|HIPBLAS|MIOPEN)_(?:STATUS_[A-Z_]+|[A-Z]+_(?:ERROR|FAILED))"
            r"|unable to find an engine"
            r"|Unable to find a valid cuDNN algorithm|MIOpen Error",
            "A GPU library failed on {host}: usually an index or shape out of range in an earlier call, a full GPU, "
            "or another version in LD_LIBRARY_PATH. Run again with env CUDA_LAUNCH_BLOCKING=1, and once with a "
            "smaller batch.",
        ),
        "forked CUDA": (
            r"Cannot re-initialize (?:CUDA|HIP|XPU) in forked subprocess|CUDA error: initialization error",
            "A process on {host} was forked after the GPU was used. Start it with the method spawn "
            "(multiprocessing_context='spawn' of DataLoader), and use no GPU tensors in Dataset and collate_fn.",
        ),
        "NVSwitch": (
            r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cuda[^\n]{0,400}Error 802\b",
            "The NVSwitches of {host} are not set up: the fabric manager does not run, or its version is not the "
            "driver's. See `systemctl status nvidia-fabricmanager` there, and have an administrator start it.",
        ),
        "NVML": (
            r"NVML Shared Library Not Found|NVMLError_LibraryNotFound",
            "{host} has no libnvidia-ml.so.1, a part of the NVIDIA driver: the driver is not installed there, or the "
            "container was started without its GPUs.",
        ),
        "driver combination": (
            r"unsupported display driver / cuda driver combination|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
            r"|cuda[^\n]{0,400}Error 803\b|Driver/library version mismatch|NVML/RM version mismatch",
            "The NVIDIA driver and its libraries on {host} have different versions, usually after an update: reboot "
            "the host. In a container, remove its own libcuda (cuda-compat) from LD_LIBRARY_PATH.",
        ),
        "forward compatibility": (
            r"forward compatibility was attempted on non supported HW|COMPAT_NOT_SUPPORTED|cuda[^\n]{0,400}Error 804\b",
            "{host} has loaded libcuda of cuda-compat, which supports only data center GPUs. Remove it from "
            "LD_LIBRARY_PATH, or update the driver.",
        ),
        "CUDA unknown error": (
            r"CUDA unknown error|CUDA_ERROR_UNKNOWN|cuda[^\n]{0,400}Error 999\b",
            "The NVIDIA driver of {host} does not answer, usually because nvidia_uvm is not loaded or the machine was "
            "suspended: `nvidia-modprobe -u -c=0` there, or reboot it.",
        ),
        "GPU memory defect": (
            r"uncorrectable (?:ECC|NVLink) error|CUDA_ERROR_ECC_UNCORRECTABLE|double[- ]bit ECC",
            "A GPU of {host} is defective: `nvidia-smi -q -d ECC` there names it. Reset it or reboot the host, "
            "exclude it with `gpus:` until then, and report it if the error returns.",
        ),
        "GPU lost": (
            r"fallen off the bus|GPU is lost|Xid[^\n]{0,40}\b79\b|CUDA_ERROR_DEVICE_UNAVAILABLE",
            "A GPU of {host} no longer answers: `dmesg | grep -i xid` there says why. Reboot the host, and exclude "
            "the GPU with `gpus:` until then.",
        ),
        "GPU busy": (
            r"all CUDA-capable devices are busy|CUDA-capable device\(s\) is/are busy or unavailable",
            "A GPU of {host} accepts no further process: another process has it in exclusive compute mode, or two "
            "ranks share it. See `nvidia-smi -q -d COMPUTE` and `disttui top {host}`.",
        ),
        "AMD GPU not open": (
            r"Unable to open /dev/kfd|hsa_init failed|ROCk module is NOT loaded"
            r"|hsa api call failure[^\n]{0,300}(?:\n[^\n]{0,300})?HSA_STATUS_ERROR_OUT_OF_RESOURCES",
            "ROCm cannot open a GPU of {host}: usually the account is not in the groups render and video (`id`), a "
            "container lacks --device=/dev/kfd --device=/dev/dri, or amdgpu is not loaded. See `rocminfo` there.",
        ),
        "AMD GPU not supported": (
            r"hipErrorNoBinaryForGpu|HIP error: (?:invalid device function|no kernel image)"
            r"|HSA_STATUS_ERROR_INVALID_ISA",
            "This torch was not built for the AMD GPU of {host}: install a torch for a ROCm that supports it. For a "
            "GPU close to a supported one, HSA_OVERRIDE_GFX_VERSION (such as 10.3.0) in `job.env` may work.",
        ),
        "AMD kernel failed": (
            r"Memory access fault by GPU|aborting with error ?: HSA_STATUS"
            r"|HSA_STATUS_ERROR_(?:MEMORY|EXCEPTION|ILLEGAL)"
            r"|HIP error: (?:an illegal memory access|unspecified launch failure)",
            "A kernel on an AMD GPU of {host} failed before the line that reports it: often an index out of range, or "
            "a full GPU. Run again with env AMD_SERIALIZE_KERNEL=3 to see which call.",
        ),
        "graph capture": (
            r"not permitted when stream is capturing|previous error during capture|cudaErrorStreamCapture",
            "A call on {host} is not allowed while a CUDA graph is captured, such as .item(), .cpu() or a print of a "
            "tensor. Move it out of the captured part, or switch CUDA graphs off (torch.compile: mode='default').",
        ),
        "peer access": (
            r"peer access is not supported between|CUDA_ERROR_PEER_ACCESS_UNSUPPORTED|cudaErrorPeerAccessUnsupported",
            "Two GPUs of {host} cannot read each other's memory. Set NCCL_P2P_DISABLE=1 in `job.env`.",
        ),
        "illegal memory access": (
            r"an illegal memory access was encountered|unspecified launch failure|misaligned address",
            "A CUDA kernel on {host} failed before the line that reports it. Run again with env "
            "CUDA_LAUNCH_BLOCKING=1 to see which call.",
        ),
        "driver too old": (
            r"driver on your system is too old|driver version is insufficient|PTX was compiled with an unsupported",
            "The NVIDIA driver of {host} is older than this torch needs: update the driver, or install a torch built "
            "for an older CUDA.",
        ),
        "no kernel for this GPU": (
            r"no kernel image is available for execution|device kernel image is invalid|invalid device function",
            "This torch was not built for the GPU of {host}: install a torch whose CUDA build has its architecture.",
        ),
        "GPU too old": (
            r"only supports? Ampere|(?:bfloat16|bf16)[^\n]{0,60}(?:only supported on|not supported on)"
            r"|doesn't support bf16|--tf32 requires Ampere",
            "torch sees no GPU on {host} that is new enough for bf16 or FlashAttention (Ampere): use fp16, and "
            "attn_implementation='sdpa'.",
        ),
        "CUDA libraries missing": (
            r"(lib(?:cu|nccl|nv|torch_cuda|cudnn)[\w.+-]{0,80}\.so[\w.]{0,20}): cannot open shared object file",
            "{host} lacks {1}: torch and its CUDA libraries do not match. Reinstall torch there, or load the module "
            "that has CUDA (`activate:`).",
        ),
        "library missing": (
            r"([\w.+-]{1,80}\.so[\w.]{0,20}): cannot open shared object file",
            "{host} lacks {1}: install the system's package that has it, or load its module (`activate:`).",
        ),
        "torch's end": (
            r"std::terminate: without an active exception",
            "A torch thread still ran when Python ended, usually because a DDP model outlived its process group; this"
            " happens under bare torchrun as well. End the script with `del model, optimizer; gc.collect(); "
            "torch.distributed.destroy_process_group()`.",
        ),
        "NCCL versions": (
            r"Mismatched NCCL version|NCCL version mismatch|version mismatch[^\n]{0,300}NCCL",
            "The hosts have different NCCL versions: `disttui probe` shows torch and NCCL of each. Use the same torch "
            "everywhere.",
        ),
        "rank killed elsewhere": (
            # Only in messages of gloo, NCCL or the store, or without context: other connections break as well.
            r"(?:pair\.cc|gloo|nccl|c10d|TCPStore|ibv_|socketPro|Call to \w+|(?:read|write) error|writev|recv[VB]|sendB"
            r"|\bNet :)[^\n]{0,300}connection (?:closed|reset) by (?:remote )?peer"
            r"|(?:^|\n)(?!ConnectionResetError)[\w.]*(?:Error|Exception): (?:\[Errno \d+\] )?connection "
            r"(?:closed|reset) by (?:remote )?peer"
            r"|\bNet : (?!Connect to)[^\n]{0,200}(?:Connection refused|Broken pipe)"
            r"|remote process (?:has )?exited|recv, got 0 bytes"
            r"|IBV_WC_WR_FLUSH|Got completion [^\n]{0,300}status=5\b",
            "A rank lost its connection to another one: that rank ended unexpectedly, or the network between "
            "them broke.",
        ),
        "NCCL interface": (
            r"Bootstrap : no socket interface found|NCCL.{0,400}no route to host"
            r"|ncclSystemError(?=.{0,400}(?:socket|connect)).{0,800}(?:timed out|refused|unreachable)"
            r"|NCCL[^\n]{0,300}Connect to [^\n]{0,300}timed out",
            "NCCL on {host} found no way to another host. Set `interface:` of the hosts to the network that they "
            "share, and open the ports between them.",
        ),
        "NCCL system error": (
            r"unhandled system error|ncclSystemError",
            "A system call of NCCL failed on {host}: /dev/shm is too small, the others cannot reach a network "
            "interface, or a limit was reached. Run again with env NCCL_DEBUG=INFO; its log names the call.",
        ),
        "NCCL error": (
            r"unhandled cuda error|ncclUnhandledCudaError|ncclInternalError|ncclInvalid(?:Usage|Argument)"
            r"|NCCL error[^\n]{0,200}(?:internal error|invalid (?:usage|argument))|NCCL Error \d",
            "NCCL failed on {host}: two ranks on one GPU, full GPU memory, or a driver that does not match. Run again"
            " with env NCCL_DEBUG=INFO; its line WARN names the call.",
        ),
        "gloo interface": (
            r"connectFullMesh failed|Unable to resolve hostname to a \(local\) address"
            r"|Using the loopback address as fallback",
            "gloo uses an address of {host} that the others cannot reach, often loopback, because of how the host's "
            "name resolves. Set `interface:` of the host, or correct its /etc/hosts.",
        ),
        "gloo interface name": (
            r"Unable to find address for: ([\w.-]{1,40})",
            "{host} has no address on a network interface {1}, which GLOO_SOCKET_IFNAME names: set `interface:` of the "
            "host, or remove the variable from `job.env`.",
        ),
        "address of another host": (
            r"(?:bind|listen|server socket)[^\n]{0,300}(?:Cannot assign requested address|errno: ?99\b)",
            "A process on {host} tried to listen on an address that {host} does not have, such as a MASTER_ADDR of "
            "another host. Let disttui set MASTER_ADDR, or correct the address in the script.",
        ),
        "port not allowed": (
            r"server socket[^\n]{0,200}(?:EACCES|errno: ?-?13\b)",
            "A process on {host} may not listen on that port: those below 1024 need root, and a security module such "
            "as SELinux may forbid others. Set another one in the script, or `launch.ports`.",
        ),
        "port in use": (
            r"EADDRINUSE|address already in use|failed to listen on any local network address",
            "A port on {host} is taken by another program. Set other `launch.ports`, or end leftovers of earlier "
            "runs: `disttui runs orphans {host}`.",
        ),
        "watched files": (
            r"inotify (?:watch|instance) limit reached",
            "The account on {host} has reached its limit of watched files: watch fewer, or have an administrator "
            "raise fs.inotify.max_user_watches, or max_user_instances (`sysctl`).",
        ),
        "no temporary folder": (
            r"No usable temporary directory found",
            "No folder for temporary files can be written on {host}: its disk is full or read-only, or TMPDIR names a "
            "missing folder. See `df -h` there, or set TMPDIR in `job.env`.",
        ),
        "shared memory of another process": (
            r"(?:No such file or directory|File exists): '/(?:psm_|wnsm_|000\d{3}_)\w{1,60}'",
            "A segment of shared memory on {host} was removed by another process, or is left from an earlier run: see "
            "/dev/shm there. Close it in the process that reads it, and unlink it only in the one that created it; "
            "for MosaicML streaming call clean_stale_shared_memory().",
        ),
        "disk full": (
            r"No space left on device|Disk quota exceeded|Errno 28\b",
            "A disk of {host} is full, or your quota on it. `disttui runs gc` removes old runs; checkpoints go where "
            "`run_dir` is.",
        ),
        "file not written": (
            r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+",
            "torch could not write a whole file on {host}: usually a disk is full, or your quota on it. See `df -h` "
            "and `quota` there; `disttui runs gc` removes old runs.",
        ),
        "file exists": (
            r"FileExistsError: \[Errno 17\][^\n]{0,80}: '([^'\n]+)'",
            "{host} already has {1}: another rank or an earlier run created it. Create it in one rank, or with "
            "os.makedirs(…, exist_ok=True).",
        ),
        "too many open files": (
            r"Too many open files|received 0 items of ancdata",
            "A process on {host} has reached its limit of open files. Raise `ulimit -n` (in `activate:`), or call "
            "torch.multiprocessing.set_sharing_strategy('file_system').",
        ),
        "certificate": (
            r"CERTIFICATE_VERIFY_FAILED|self[- ]signed certificate",
            "{host} does not trust the certificate of that address, usually because a proxy replaces it. Name the "
            "proxy's file in `job.env` as REQUESTS_CA_BUNDLE and SSL_CERT_FILE.",
        ),
        "too many requests": (
            r"\b429 Client Error|Too Many Requests",
            "The server rejects further requests from {host}: let one rank download, or copy the files beforehand; a "
            "token allows more.",
        ),
        "not in the cache": (
            r"outgoing traffic has been disabled|offline mode is enabled",
            "Downloads are disabled on {host} (HF_HUB_OFFLINE), and the file is not in its cache. Fill it with `hf "
            "download`, or set HF_HOME to a folder that all hosts share.",
        ),
        "server not running": (
            r"HTTPS?ConnectionPool\(host='([^'\n]{1,100})', port=(?!(?:80|443)\b)\d{1,5}\)"
            r"[^\n]{0,400}Connection refused",
            "No server answered {host} on that port of {1}: start it there before the run, such as vLLM or MLflow, or "
            "correct its address in the script.",
        ),
        "server not found": (
            r"HTTPS?ConnectionPool\(host='([\w-]{0,60}[A-Za-z][\w.-]{0,60})', port=(?!(?:80|443)\b)\d{1,5}\)"
            r"[^\n]{0,400}(?:Failed to resolve|Name or service not known|name resolution)",
            "{host} cannot resolve {1}, the name of a server in the script: use an IP address, or correct the DNS or "
            "/etc/hosts of the host.",
        ),
        "download": (
            r"<urlopen error|Max retries exceeded with url|couldn't connect to 'https?://"
            r"|HTTPS?ConnectionPool[^\n]{0,200}(?:timed out|Failed to establish a new connection)"
            r"|\('Connection aborted\.'"
            r"|cannot find the requested files in the local cache\. Please check your connection"
            r"|Couldn't reach [^\n]{1,200} on the Hub",
            "{host} cannot reach an address that the script asks. Copy what it downloads to the hosts first, or set "
            "HTTPS_PROXY in `job.env`.",
        ),
        "address resolution": (
            r"Name or service not known|Temporary failure in name resolution|Name does not resolve|gaierror"
            r"|nodename nor servname",
            "{host} cannot resolve a name. Use an IP address, or correct its DNS or /etc/hosts.",
        ),
        "first collective": (
            r"retrieving ncclUniqueId[^\n]{0,400}(?:Socket Timeout|wait timeout)",
            "Another rank did not enter the first collective in time; often rank 0 still prepares data. See its log, "
            "or let the others wait longer: init_process_group(timeout=…).",
        ),
        "joining timed out": (
            r"client socket has failed to connect to any|connection to the C10d store has failed"
            r"|RendezvousTimeoutError|waiting for clients\. ?\d+/\d+ clients joined|client socket has timed out after"
            r"|(?:got error|^RuntimeError|\nRuntimeError): Socket Timeout"
            r"|Timed out after \d+ seconds waiting for clients|DistStoreError.{0,400}timeout"
            r"|wait timeout after \d+ ?ms|Timed out initializing process group in store based barrier",
            "Not all ranks reached the rendezvous in time: a rank ended or hangs before init_process_group, or a "
            "firewall separates the hosts.",
        ),
        "rendezvous closed": (
            r"RendezvousClosedError",
            "torchrun's rendezvous was closed before {host} joined it: usually the ranks of another host had already "
            "ended. See the logs of the other hosts.",
        ),
        "watchdog stuck": (
            r"watchdog got stuck|Heartbeat monitor timed out|watchdog hang",
            "torch's watchdog on {host} made no progress for minutes: a call of CUDA or NCCL hangs, or a thread holds "
            "Python's lock. `disttui diagnose` names the line while the run hangs.",
        ),
        "collective timed out": (
            r"Watchdog caught collective operation timeout|Some NCCL operations have failed or timed out"
            r"|NCCL communicator was aborted|reached monitoredBarrier, but received errors"
            r"|Timed out waiting \d+ ?ms for (?:recv|send) operation",
            "A rank did not reach a collective in time. `disttui diagnose` names the rank and its line while the run "
            "hangs.",
        ),
        "DataLoader timeout": (
            r"DataLoader timed out after",
            "The DataLoader on {host} got no batch in time: its workers wait for a disk or server, or for one another. "
            "Try num_workers=0, or a larger `timeout`.",
        ),
        "DataLoader worker crash": (
            r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: (?:Segmentation fault|Aborted|Illegal)",
            "Native code crashed in a DataLoader worker on {host}: run again with num_workers=0 and env "
            "PYTHONFAULTHANDLER=1 to see in which call.",
        ),
        "DataLoader worker": (
            r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal: (?!Terminated)\w+"
            r"|exited unexpectedly)|BrokenProcessPool",
            "A DataLoader worker, or a process of a pool, was killed on {host}: usually memory. Use fewer workers "
            "(num_workers), or none to see its own error.",
        ),
        "device-side assert": (
            r"device-side assert triggered",
            "A CUDA kernel got invalid data, often a label or token beyond the last class. Run again with env "
            "CUDA_LAUNCH_BLOCKING=1 to see which call.",
        ),
        "spawned process": (
            r"process \d{1,9} terminated with signal (SIG(?!TERM|INT|HUP)\w{1,10})",
            "A process that the script started on {host} was ended by {1}. SIGKILL: usually no memory; SIGBUS: "
            "/dev/shm is full; others: native code crashed (env PYTHONFAULTHANDLER=1 shows where).",
        ),
        "job's memory limit": (
            r"oom[-_ ]kill event|OOM Killed|Exceeded job memory limit",
            "Slurm ended a process on {host} at the job's memory limit. Request more (`slurm.options: [--mem=0]`: a "
            "whole node), or use fewer DataLoader workers.",
        ),
        "job's time limit": (
            r"DUE TO TIME LIMIT",
            "Slurm ended the job on {host} at its time limit: set `slurm.time`, and let the script resume "
            "(`launch.resume_args`).",
        ),
        "job preempted": (
            r"DUE TO PREEMPTION",
            "Slurm ended the job on {host} for one of a higher priority: submit it again, and let the script resume "
            "(`launch.resume_args`).",
        ),
        "node of the job failed": (
            r"DUE TO NODE FAILURE",
            "Slurm ended the job on {host} because one of its nodes failed: `sinfo -R` says which. Submit it again.",
        ),
        "Ray's memory": (
            r"node running low on memory|ray\.exceptions\.OutOfMemoryError",
            "Ray ended a task because the memory of {host} was nearly full. Use fewer workers or smaller batches; "
            "RAY_memory_usage_threshold sets the limit.",
        ),
        "Ray's worker": (
            r"ActorDiedError|RayActorError|WorkerCrashedError|The actor (?:died|is dead)",
            "A Ray process has ended; its own log on {host} says why: /tmp/ray/session_latest/logs/worker-*.err.",
        ),
        "no process group": (
            r"Default process group has not been initialized",
            "A rank on {host} used torch.distributed before init_process_group: call it first, once, in every rank.",
        ),
        "tensor of another backend": (
            r"No backend type associated with device type|Tensors must be CUDA and dense"
            r"|ProcessGroupNCCL only supports CUDA tensors",
            "A rank on {host} gave a collective a tensor on a device that the backend cannot reach: NCCL needs tensors "
            "on the GPU, gloo on the CPU. Move it, or init_process_group('cpu:gloo,cuda:nccl').",
        ),
        "process group twice": (
            r"initialize the default process group twice",
            "The script on {host} calls init_process_group twice. Accelerate, Trainer, Lightning and DeepSpeed call "
            "it themselves: check torch.distributed.is_initialized() first.",
        ),
        "no rank in the environment": (
            r"environment variable (?:RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT) expected"
            r"|KeyError: '(?:RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT)'",
            "A process on {host} lacks the launcher's variables. Start it from the launcher, and do not clear its "
            "environment (sudo, ssh, env -i).",
        ),
        "Slurm's variables": (
            r"KeyError: '(SLURM_\w{1,60})'",
            "The script reads {1}, which only srun sets. Let it read RANK, WORLD_SIZE and LOCAL_RANK instead, which "
            "every rank on {host} has.",
        ),
        "two devices": (
            r"Expected all tensors to be on the same device",
            "A rank on {host} mixes tensors of two devices: call torch.cuda.set_device(LOCAL_RANK) first, and move "
            "model and data to that device.",
        ),
        "variable ready twice": (
            r"Expected to mark a variable ready only once",
            "A parameter on {host} got its gradient twice in one step. With activation checkpointing set "
            "use_reentrant=False, or give DistributedDataParallel static_graph=True.",
        ),
        "device of a checkpoint": (
            r"Attempting to deserialize object on (?:a )?CUDA device",
            "The checkpoint was saved on a GPU that a rank on {host} does not have: torch.load(…, map_location='cpu').",
        ),
        "weights only": (
            r"Weights only load failed",
            "torch on {host} reads only tensors from files (since 2.6). For a file that you trust: torch.load(…, "
            "weights_only=False), or torch.serialization.add_safe_globals.",
        ),
        "damaged file": (
            r"failed finding central directory|PytorchStreamReader failed|HeaderTooLarge|MetadataIncompleteBuffer"
            r"|InvalidHeaderDeserialization|Error while deserializing header|Ran out of input"
            r"|Parquet magic bytes not found|truncated file: eof|File is not a zip file|invalid load key, 'v'",
            "A file on {host} is truncated, damaged, or a Git LFS pointer (`git lfs pull`). Copy it again, or use an "
            "earlier checkpoint.",
        ),
        "checkpoint of another number of ranks": (
            r"(?:checkpoint|state[ _]dict)[^\n]{0,120}world size[^\n]{0,80}current world size",
            "The checkpoint was saved by another number of ranks than the run has, {host} among its hosts. Use that "
            "number of ranks, or convert it first (DeepSpeed: ds_to_universal.py, or consolidate the weights by "
            "zero_to_fp32.py).",
        ),
        "MKL and OpenMP": (
            r"MKL_THREADING_LAYER=INTEL is incompatible",
            "NumPy and torch on {host} use two OpenMP runtimes. Set MKL_THREADING_LAYER: GNU in `job.env`.",
        ),
        "bitsandbytes": (
            r"CUDA Setup failed despite (?:GPU|CUDA) being available",
            "bitsandbytes on {host} has no library for the CUDA of its torch. `python -m bitsandbytes` there names "
            "what is missing; update bitsandbytes, or install a torch for a CUDA that it supports.",
        ),
        "checkpoint of another model": (
            r"Error\(s\) in loading state_dict",
            "The checkpoint on {host} does not fit the script's model. If its names begin with `module.`, "
            "save model.module.state_dict() of DistributedDataParallel.",
        ),
        "main guard": (
            r"before the current process has finished its bootstrapping phase",
            "A process on {host} imports the script when it starts, and would start more processes. Put the script's "
            "code below `if __name__ == '__main__':`.",
        ),
        "pickle": (
            r"Can't (?:pickle|get) local object|cannot pickle '",
            "A process on {host} saves, copies or sends to another process (spawn) what cannot be pickled: use "
            "functions and classes at a module's top level, and open files in the worker.",
        ),
        "flash_attn missing": (
            r"flash_attn seems to be not installed",
            "The Python of {host} has no flash_attn: `pip install flash-attn --no-build-isolation` there, or "
            "attn_implementation='sdpa'.",
        ),
        "CUDA toolkit of another version": (
            r"does not match the version torch was compiled with|mismatches the version that was used to compile",
            "The CUDA toolkit of {host} has another version than its torch was built with. Load the same version "
            "(`activate: module load cuda/…`, CUDA_HOME), or install a torch built for it.",
        ),
        "build tools": (
            r"Failed to find C compiler|CUDA_HOME environment variable is not set|Ninja is required to load"
            r"|Error building extension|Cannot find a working triton|fatal error: \S{1,300}: No such file"
            r"|CUDA_HOME does not exist|\['which', '(?:c\+\+|g\+\+|gcc|ninja)'\]",
            "{host} cannot compile: the lines above name what is missing, such as gcc, Python's headers, ninja or the"
            " CUDA toolkit (CUDA_HOME). Install it there, or load its module (`activate:`).",
        ),
        "Triton's shared memory": (
            r"out of resource: shared memory",
            "A Triton kernel needs more shared memory than the GPU of {host} has: use smaller blocks, fewer "
            "num_stages, or another kernel.",
        ),
        "not finite": (
            r"loss scale already at minimum|Minimum loss scale reached|returned nan values in its"
            r"|probability tensor contains either",
            "The training on {host} no longer has finite numbers. Use a smaller learning rate, clipped gradients, or "
            "bf16 for fp16. `disttui runs metrics RUN` shows the steps before.",
        ),
        "batch sizes": (
            r"Check batch related parameters|Micro batch size per gpu: 0 has"
            r"|train_batch_size is not equal to micro_batch",
            "DeepSpeed's batch sizes on {host} do not match the number of ranks: train_batch_size must be "
            "train_micro_batch_size_per_gpu × gradient_accumulation_steps × ranks. Remove one of them.",
        ),
        "Transformers of another version": (
            r"\b(?:TrainingArguments|(?:SFT|DPO|GRPO)(?:Trainer|Config))\.__init__\(\) got an unexpected"
            r"|unexpected keyword argument 'evaluation_strategy'"
            r"|\bTrainer\.__init__\(\) got an unexpected keyword argument '(?:tokenizer|processing_class)'",
            "The script is written for another version of Transformers or TRL than {host} has: install the version "
            "that it names, or rename the argument.",
        ),
        "NumPy of another version": (
            r"compiled using NumPy 1|numpy\.core\.multiarray failed to import|Numpy is not available"
            r"|numpy\.dtype size changed|_ARRAY_API not found|compiled against ABI version|removed in the NumPy 2"
            r"|module 'numpy' has no attribute",
            "A package on {host} was built for another NumPy: update the package, or install an older NumPy (`pip "
            "install 'numpy<2'`, for np.bool and np.int 'numpy<1.24').",
        ),
        "encoding": (
            r"'ascii' codec can't (?:de|en)code",
            "Python on {host} reads and writes ASCII: set LANG: C.UTF-8 or PYTHONUTF8: \"1\" in `job.env`.",
        ),
        "locked file": (
            r"unable to lock file|database is locked|No locks available|Errno 37\]",
            "Another process has locked a file on {host}, or its network file system has no locks. Use a file per "
            "rank, or, if all only read, env HDF5_USE_FILE_LOCKING=FALSE.",
        ),
        "input and output": (
            r"Errno 5\]|Input/output error|disk I/O error",
            "A disk or network file system of {host} fails: `dmesg` there says which.",
        ),
        "wandb login": (
            r"api_key not configured|No API key configured|API key you provided is either invalid|user is not logged in"
            r"|(?:wandb|W&B|upsert)[^\n]{0,300}(?:\b40[13]\b|permission denied)",
            "wandb on {host} has no login, or it may not write to that project: `env: {WANDB_API_KEY: "
            "${env:WANDB_API_KEY}}`, or WANDB_MODE: offline.",
        ),
        "wandb entity": (
            r"entity [^\n]{1,200} not found during upsertBucket",
            "wandb on {host} knows no user or team of that name: correct `entity` of wandb.init, or WANDB_ENTITY in "
            "`job.env`.",
        ),
        "wandb unreachable": (
            r"Run initialization has timed out|wandb[^\n]{0,300}(?:Network error|CommError: [^\n]{0,300}timed? ?out)",
            "wandb got no answer from its server in time on {host}. Set HTTPS_PROXY in `job.env`, or WANDB_MODE: "
            "offline.",
        ),
        "Windows line ends": (
            r"\^M: bad interpreter|\\r['’]?: (?:No such file|command not found)|\$'\\r'",
            "A script on {host} has Windows line endings: `sed -i 's/\\r$//' FILE`, and in git `*.sh text eol=lf` "
            "in .gitattributes.",
        ),
        "processes and threads": (
            r"can't start new thread|pthread_create failed|fork: (?:retry: )?Resource temporarily unavailable",
            "The account on {host}, or its control group, has reached its limit of processes and threads. Use fewer "
            "DataLoader workers, set OMP_NUM_THREADS in `job.env`, or raise `ulimit -u`.",
        ),
        "not available now": (
            r"Errno 11\] Resource temporarily unavailable",
            "A call on {host} failed for now: another process holds a lock (flock), or the account has reached its "
            "limit of processes and threads (`ulimit -u`).",
        ),
        "read-only file system": (
            r"Read-only file system(?!\s\w)|Errno 30\]",
            "A file system of {host} cannot be written: use another folder; if it was writable before, check `dmesg`.",
        ),
        "network file system": (
            r"Stale file handle|Errno (?:108|116|121)\]|Cannot send after transport endpoint shutdown|Remote I/O error"
            r"|(?<!Errno 107\] )Transport endpoint is not connected"
            r"|Transport endpoint is not connected: ['\"]?/",
            "A network file system of {host} has lost the file: it was replaced or removed on its server, or the mount "
            "or its server broke. Start again, or remount it.",
        ),
        "upload to Hugging Face": (
            r"\b40[13]\b.{0,300}(?:huggingface\.co/api/repos/create|/(?:preupload|commit|xet-write-token)/"
            r"|\.git/info/lfs/objects/batch)",
            "The token on {host} cannot write to that repository of Hugging Face: set one with write access (`env: "
            "{HF_TOKEN: ${env:HF_TOKEN}}`), and a name in your own account or organization (hub_model_id).",
        ),
        "model missing": (
            r"(?:Repo id must be in the form 'repo_name' or 'namespace/repo_name': |Incorrect path_or_model_id: "
            r"|Can't load (?:the )?(?:tokenizer|configuration|model|image processor|feature extractor) (?:for|of) "
            r"|Error no file named [^\n]{1,300} found in directory "
            r"|(?<!\S)(?=\S{1,300} is not a local folder))'?((?:/|\.{1,2}/|~)[^'\s]{0,300}?)(?=\.?(?:['\s]|$))",
            "{host} has no model in {1}: copy it there, use a folder that all hosts share, or correct its path.",
        ),
        "no such model": (
            r"(?:Repository|Dataset)NotFoundError|Repository Not Found for url|is not a valid model identifier",
            "Hugging Face has no model or data set of that name, or hides it. Correct the name, or set a token with "
            "access on {host} (`env: {HF_TOKEN: ${env:HF_TOKEN}}`).",
        ),
        "token of Hugging Face": (
            r"\b40[13]\b[^\n]{0,300}whoami-v2|Invalid user token|Invalid credentials in Authorization header",
            "Hugging Face does not accept the token on {host}: set a valid one, `env: {HF_TOKEN: ${env:HF_TOKEN}}`.",
        ),
        "gated model": (
            r"gated repo|GatedRepoError|Make sure your token has the correct permissions"
            r"|401 Client Error[^\n]{0,300}huggingface",
            "The token on {host} has no access to that model. Request access on the model's page, and set the token: "
            "`env: {HF_TOKEN: ${env:HF_TOKEN}}`.",
        ),
        "binary of another system": (
            r"version `(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found|\.so[\w.]{0,40}: undefined symbol: \w+"
            r"|cannot execute binary file|operator torchvision::\w+ does not exist",
            "A program or compiled package on {host} was built for another system or another torch. Build or install "
            "it there, with the torch that is used.",
        ),
        "not executable": (
            r"(?:Errno 8\]|(?<!SyntaxError):) Exec format error(?!\s\w)",
            "{host} cannot start that file: it is a script without a first line such as `#!/bin/bash`, or a program "
            "for another processor.",
        ),
        "name of a module": (
            r"partially initialized module ['\"]?([\w.]{1,100})",
            "On {host}, module {1} was used while it was being imported: two modules import each other, or a file of "
            "the script has the name of an installed package. Rename that file, or import inside a function.",
        ),
        "package of another version": (
            r"cannot import name '[\w.]{1,100}' from '([\w.]{1,100})' \([^\n)]{0,300}-packages",
            "The {1} of {host} does not have that name, usually because its version does not fit the script. "
            "Install the version that the script needs.",
        ),
        "unused parameters": (
            r"Expected to have finished reduction in the prior iteration|parameters that were not used in producing",
            "Some parameters on {host} did not contribute to the loss. Give DistributedDataParallel "
            "find_unused_parameters=True, or remove them from the model.",
        ),
        "noexec": (
            r"Permission denied \(its disk is mounted noexec\)",
            "No program can be started from that disk of {host}: let its interpreter start it, as in job.command: "
            "[bash, run.sh], or set `launch.run_dir` or `job.sync.to` to a folder on another disk.",
        ),
        "Docker's socket": (
            r"permission denied while trying to connect to the docker (?:API|daemon socket)",
            "Your account on {host} may not use Docker: have an administrator add it to the group docker, or set "
            "`container.runtime` to podman or apptainer.",
        ),
        "permission": (
            r"Permission denied(?! \(publickey)|(?<!CUDA error: )(?<!HIP error: )(?<!800 ')"
            r"Operation not permitted",
            "Your account on {host} has no permission for that. Check the owner and mode of the path.",
        ),
        "login by ssh": (
            r"Permission denied \(publickey",
            "A program on {host} tried to log in to another host by ssh and was refused. disttui needs no ssh between "
            "hosts: run the script directly, or set up keys there.",
        ),
    }
)  # fmt: skip

_MISSING_MODULE = re.compile(r"No module named ['\"]?([\w.]+)")


def hint(state: RunState, cause: RootCause) -> Hint | None:
    """The hint that fits a cause best, or None if the failure is unknown."""
    return next((found for each in _KINDS if (found := each(state, cause))), None)


def _known(state: RunState, cause: RootCause) -> Hint | None:
    failure = cause.failure
    # First without the exceptions that were being handled when the last one was raised.
    for words in (_words(failure, chained=False), _words(failure)):
        for name, pattern, text in _KNOWN:
            found = pattern.search(words)
            if found:
                group = clean(found.group(1) or "") if pattern.groups else ""
                return Hint(name, text.replace("{host}", clean(failure.host)).replace("{1}", group))
    return None


_NO_CUDA = re.compile(r"Torch not compiled with CUDA enabled|no attribute '_cuda_setDevice'")
_NO_NCCL = re.compile(r"Distributed package doesn't have NCCL built in")
_NO_DRIVER = re.compile(
    r"Found no NVIDIA driver on your system|No (?:CUDA|HIP) GPUs are available|CUDA driver initialization failed"
    r"|no GPUs found!|no (?:CUDA|ROCm)-capable device is detected|CUDA_ERROR_NO_DEVICE|(?:cuda|hip)ErrorNoDevice"
    r"|(?:cudaGetDeviceCount|cuInit|hipInit)[^\n]{0,200}Error 100\b"
)
_DEVICE_IDS = re.compile(
    r"DistributedDataParallel device_ids .{0,300}got device_ids .{0,300}device\(type='cpu'\)", re.DOTALL
)


def _no_gpu(state: RunState, cause: RootCause) -> Hint | None:
    """The hint for GPU scripts on a host without a usable GPU, or with a torch built without CUDA; else None."""
    words, name = _words(cause.failure), clean(cause.failure.host)
    telemetry = state.hosts[cause.failure.node].telemetry
    cards = telemetry.get("gpus") if telemetry else None
    on_cpu = (
        "The script requests a GPU itself: select the CPU and gloo with its own options, if it has them, or use hosts "
        "with GPUs."
    )
    if cards:
        has = f"{name} has {amount(len(cards), 'GPU')}"
        cure = f"{has}: install a torch that is built for CUDA there, or name the right one with `python`."
    else:
        cure = on_cpu if cards is None else f"{name} has no GPU. {on_cpu}"
    for lack, pattern in (("CUDA", _NO_CUDA), ("NCCL", _NO_NCCL)):
        if pattern.search(words):
            return Hint(f"torch without {lack}", f"The torch of {name} is built without {lack}. {cure}")
    if _NO_DRIVER.search(words):
        hidden = "CUDA_VISIBLE_DEVICES (HIP_VISIBLE_DEVICES) hides them, or a container was started without --gpus"
        if cards:
            has = amount(len(cards), "GPU")
            return Hint("no GPU", f"A process on {name} sees none of its {has}: usually {hidden}. Correct it there.")
        perhaps = "" if cards == [] else f" If it has GPUs, see `nvidia-smi -L` there: perhaps {hidden}."
        return Hint("no GPU", f"torch finds no usable GPU on {name}. {on_cpu}{perhaps}")
    if _DEVICE_IDS.search(words):
        text = "DistributedDataParallel takes no `device_ids` for a model on the CPU: omit them there, as in "
        return Hint("device_ids on the CPU", text + "`device_ids=[local_rank] if torch.cuda.is_available() else None`.")
    return None


def _uneven(state: RunState, cause: RootCause) -> Hint | None:
    if not cause.gone:
        return None
    return Hint(
        "uneven ends",
        "The ranks do not make the same number of steps: one ran out of data or returned early while another waited "
        "for it. Give every rank the same number of batches (DistributedSampler, drop_last) or use "
        "torch.distributed.algorithms.join.Join, and look for a `return` or `break` that only some ranks take.",
    )


def _world(state: RunState, cause: RootCause) -> Hint | None:
    if cause.failure.type != "WorldSize":
        return None
    return Hint(
        "world of one",
        "The processes did not find each other: each would have trained alone. The script has its own launcher "
        "(`accelerate launch`, spawn), or WORLD_SIZE is set by `env:` or an allocation. Give disttui the script "
        "itself.",
    )


def _missing_module(state: RunState, cause: RootCause) -> Hint | None:
    failure = cause.failure
    if failure.kind in ("launch", "exit"):
        # Only the last line of a launcher that could not start, since warnings may precede it.
        found = _MISSING_MODULE.search(failure.message.rstrip().rpartition("\n")[2])
    else:
        failed = failure.type.rpartition(".")[2] in ("ModuleNotFoundError", "ImportError")
        failed = failed or failure.message.startswith("Failed to import ")  # by transformers
        found = _MISSING_MODULE.search(_words(failure)) if failed else None
    if not found:
        return None
    name, where = clean(found.group(1)), _where(state, cause, found.group(0))
    sent = "; your own must be in the folder that is sent (of a script: the one in which you type `disttui run`), "
    own = f"{sent}beside the script or in PYTHONPATH (`job.env`)" if _is_sent(state, failure) else ""
    if "Error while finding module spec" in failure.message:  # by `python -m`, whose module is most likely the user's
        own = "; your own must be in the job's folder or in PYTHONPATH (`job.env: {PYTHONPATH: src}`)"
    return Hint(
        "module missing",
        f"{where} has no module {name} for the Python that is used there: install it, or set `python:` or `activate:`"
        f"{own}.",
    )


def _missing_program(state: RunState, cause: RootCause) -> Hint | None:
    """The hint for a missing `command`, or script of its shell, by the message of the shim or a shell; else None."""
    failure = cause.failure
    said = failure.message.strip().rpartition("\n")[2]
    found = re.search(r"(?<![^\s:])([^\s:]+): (?:No such file(?: or directory)?|(?:command )?not found)$", said)
    if failure.kind != "exit" or failure.code != 127 or not found or "\\r" in said:
        return None
    name, where = clean(found.group(1)), _where(state, cause, found.group(0))
    if re.match(r"\w*sh: ", said) and "not found" not in said:
        place = "" if name.startswith("/") else " in the job's folder"
        return Hint("file missing", f"{where} has no file {name}{place}: copy it there, or correct `job.command`.")
    cure = "install it, name it with its full path, or set `activate:`"
    return Hint("program missing", f"{where} has no program {name} on its PATH: {cure}.")


_WRITES = re.compile(
    r"""\bopen\([^\n]{0,300},\s*(?:mode\s*=\s*)?["'][wax][bt+]{0,2}["']|\.open\(\s*["'][wax][bt+]{0,2}["']"""
    r"""|\bsave\w*\(|\bmkdir\(|\bwrite_\w+\(|\.to_(?:csv|json|parquet)\("""
)
"""Calls in a line of Python that write a file."""


def _missing_file(state: RunState, cause: RootCause) -> Hint | None:
    failure = cause.failure
    # Without chained exceptions: one raised while a missing file was being handled is another failure.
    words = _words(failure, chained=False)
    if failure.type.rpartition(".")[2] != "FileNotFoundError" and "No such file or directory" not in words:
        return None
    if re.search(
        r"cannot open shared object file|fatal error: \S+: No such|\^M: bad interpreter|\\r['’]?: No such"
        r"|No usable temporary directory|: '/(?:psm|wnsm|000\d{3})_\w+'",
        words,
    ):
        return None
    found = re.search(r"No such file or directory: ['\"]([^'\"]+)|can't open file ['\"]([^'\"]+)", words)
    found = found or re.search(r"(?:^|[\s'\"])((?:~|\.{0,2})/[^\s'\"]+[^\s'\".])", failure.message)
    path = clean(next((group for group in found.groups() if group), "")) if found else ""
    where = _where(state, cause, path or "No such file or directory") or clean(failure.host)
    lack = "do not have" if ", " in where else "does not have"
    if path and "/" not in path and "in _execute_child" in failure.traceback:
        # Python's message is the same if the working folder is missing.
        cure = "install the program, or set `activate:`; if it is the folder to start it in, create it"
        return Hint("program missing", f"{where} {lack} {path}, needed to start a program: {cure}.")
    if path and _WRITES.search(failure.traceback[-2000:]):
        folder = path.rpartition("/")[0] or "."
        cure = f"create {folder} first (os.makedirs), or name a folder that every host has"
        return Hint("folder missing", f"{where} cannot write {path}, whose folder does not exist: {cure}.")
    # Only a later attempt can miss a file that the attempt before should have written.
    written = f"attempt {cause.attempt - 1} may have ended before it was written; else " if cause.attempt > 1 else ""
    cure = "copy it there, or use a folder that all hosts share"
    if f"/{state.run}/code/" in path or (path and path[0] not in "/~" and _is_sent(state, failure)):
        cure = (
            f"`disttui runs show --code {short(state.run)}` lists what job.sync has sent: if it is not there, name it "
        )
        cure += "in `job.sync.include` or `data`"
        if posixpath.normpath(path.partition(f"/{state.run}/code/")[2] or path).startswith("../"):
            cure = (
                "it is outside of the folder that was sent: send one further up (`job.sync`; of a script: type "
                "`disttui run` there), or name it in `data`"
            )
    return Hint("file missing", f"{where} {lack} {path or 'the file'}: {written}{cure}.")


def _is_sent(state: RunState, failure: Failure) -> bool:
    """Whether the failed code is in the run's own copy, by the paths in the traceback."""
    return bool(re.search(rf'File "[^"\n]*/{re.escape(state.run)}/', failure.traceback))


def _where(state: RunState, cause: RootCause, words: str) -> str:
    """Names of the hosts whose ranks failed with the same words, such as `node1, node2`."""
    failures = (cause.failure, *cause.consequences)
    return ", ".join(
        clean(state.hosts[node].name) for node in sorted({one.node for one in failures if words in _words(one)})
    )


_IN_A_HANDLER = "\nDuring handling of the above exception"


def _words(failure: Failure, *, chained: bool = True) -> str:
    """An exception and its causes, without source lines; `chained` adds those being handled when it was raised."""
    text = failure.traceback[-4000:]
    text = text if chained else text.rpartition(_IN_A_HANDLER)[2]
    text = "\n".join(line for line in text.split("\n") if not line.startswith("  "))
    return f"{failure.type}: {failure.message}\n{text}"


_SIZE = r"(\d{1,20}(?:\.\d{1,20})?) (bytes|KiB|MiB|GiB|TiB)"
_CUDA = re.compile(r"(?:CUDA|HIP|XPU)(?: error:|\]:)? out of memory", re.IGNORECASE)
_CUDA_FIELDS = {
    "wanted": re.compile(rf"Tried to allocate {_SIZE}"),
    "total": re.compile(rf"(?:total capaci?ty of {_SIZE}|{_SIZE} total capacity)"),
    "free": re.compile(rf"(?:of which {_SIZE} is free|{_SIZE} free)"),
    "allocated": re.compile(rf"(?:memory {_SIZE} is allocated by PyTorch|{_SIZE} already allocated)"),
    "unused": re.compile(rf"and {_SIZE} is reserved by PyTorch but unallocated"),
}
_CUDA_PROCESS = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_ALLOCATOR = re.compile(r"DefaultCPUAllocator: (?:can't|not enough) .{0,300}?allocate (\d{1,20}) bytes", re.DOTALL)
_NO_MEMORY = re.compile(r"\[Errno 12\]|std::bad_alloc|fork: Cannot allocate memory")
_NUMPY = re.compile(rf"Unable to allocate {_SIZE} for an array")
_SHARED = re.compile(
    r"out of shared memory|insufficient shared memory"
    r"|unable to (?:open|allocate|mmap|resize) [^\n]{0,300}?shared memory(?![^\n]{0,300}Too many open files)"
    r"|/torch_\d+[^\n]{0,300}No space|No space left on device: ['\"]?/dev/shm|/dev/shm/nccl"
    r"|Error while creating shared memory segment",
    re.IGNORECASE,
)
_SEMAPHORE = re.compile(r"SemLock\((?:[^\n]{0,300}\n){1,3}[^\n]{0,300}No space left")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_LESS = "Use a smaller batch or sequence, shard (`parallel.strategy: fsdp`), or recompute activations."
_LESS_ON_HOST = (
    "Use fewer processes or DataLoader workers on this host, or smaller batches; see its memory in the telemetry."
)


def _memory(state: RunState, cause: RootCause) -> Hint | None:
    """The hint for a lack of shared, GPU or host memory; else None."""
    failure = cause.failure
    text, host = _words(failure), clean(failure.host)
    shared = _SHARED.search(text) or _SEMAPHORE.search(failure.traceback)
    if shared or _signal_of(failure) == signal.SIGBUS:
        cure = "Make /dev/shm larger (in Docker: --shm-size or --ipc=host), or use fewer DataLoader workers."
        sure = "Shared" if shared else "Probably shared"
        return Hint("out of memory: shared", f"{sure} memory (/dev/shm) is full on {host}. {cure}")
    if _CUDA.search(text):
        return _gpu_memory(text)
    size = ""
    if wanted := _ALLOCATOR.search(text):
        size = gibibytes(float(wanted.group(1)))
    elif array := _NUMPY.search(text):
        size = f"{array.group(1)} {array.group(2)}"
    elif failure.type.rpartition(".")[2] == "MemoryError" or _NO_MEMORY.search(text):
        size = "what the job requested"
    if size:
        return Hint("out of memory: allocation", f"{host} does not have enough memory to allocate {size}. {_LESS}")
    if _signal_of(failure) != signal.SIGKILL or failure.ended_by_us:
        return None
    killed = _killed(failure, state.hosts[failure.node].telemetry)
    return Hint("out of memory: host", f"{killed[:1].upper()}{killed[1:]}. {_LESS_ON_HOST}") if killed else None


def _signal_of(failure: Failure) -> int:
    """The signal that ended a rank, or the program that its shell ran (exit code over 128); 0 if none did."""
    code = failure.code or 0
    return -code if code < 0 else max(0, code - 128)


_CRASHES = {
    signal.SIGSEGV: "accessed invalid memory",
    signal.SIGABRT: "aborted; its log says why",
    signal.SIGFPE: "divided by zero",
    signal.SIGILL: "hit an illegal instruction, usually because it was built for a newer processor",
}


def _crash(state: RunState, cause: RootCause) -> Hint | None:
    """The hint for native code that was ended by a signal, if no other hint fits; else None."""
    what = next((text for number, text in _CRASHES.items() if number == _signal_of(cause.failure)), None)
    if what is None:
        return None
    # With a report of faulthandler, the message contains the line that called it.
    called = re.search(r" in \S+ \([^\n]{1,1000}:\d+\)", cause.failure.message)
    cure = "run again with env PYTHONFAULTHANDLER=1 to see in which call"
    if called:
        cure = "the cause names the line that called it; check its arguments, and the version of the package it uses"
    return Hint("native crash", f"Native code on {clean(cause.failure.host)} {what}: {cure}.")


def _gpu_memory(text: str) -> Hint:
    size = {name: _size(pattern, text) for name, pattern in _CUDA_FIELDS.items()}
    words = {"wanted": "wanted {}", "free": "{} were free", "total": "of {}", "allocated": "PyTorch holds {}"}
    parts = [form.format(gibibytes(value)) for name, form in words.items() if (value := size[name]) is not None]
    cure, unused, total = _LESS, size["unused"], size["total"]
    others = _held_by_others(text, size["allocated"] or 0.0, total or 0.0)
    if total and others > 0.2 * total:
        cure = f"Other programs hold {gibibytes(others)} of it: end them, or give this run other GPUs. {_LESS}"
    elif unused and size["wanted"] and unused > size["wanted"]:
        # torch's message has the variable's name, which is PYTORCH_CUDA_ALLOC_CONF before 2.9.
        named = re.search(r"PYTORCH_\w{0,10}ALLOC_CONF", text)
        setting = f"{named[0] if named else 'PYTORCH_CUDA_ALLOC_CONF'}=expandable_segments:True"
        cure = f"{gibibytes(unused)} are lost to fragmentation: set {setting}. {_LESS}"
    return Hint(
        "out of memory: gpu", ": ".join(filter(None, ("The GPU's memory is full", ", ".join(parts)))) + f". {cure}"
    )


def _held_by_others(text: str, allocated: float, total: float) -> float:
    """Bytes of a GPU that other processes hold, by torch's message (CUDACachingAllocator.cpp)."""
    # The traceback repeats the message.
    sizes = sorted({pid: float(size) * _UNITS[unit] for pid, size, unit in _CUDA_PROCESS.findall(text)}.values())
    known = [size for size in sizes if size <= total]  # the driver of WSL gives 2^64 - 1
    if "this process has" not in text:  # in a container, the driver numbers the rank's own process differently
        own = next((size for size in known if size >= allocated), None)
        known = known if own is None else [*known[: known.index(own)], *known[known.index(own) + 1 :]]
    return sum(known)


def _killed(failure: Failure, telemetry: Telemetry | None) -> str:
    """Evidence that the kernel killed a rank for lack of memory, as a clause, or empty."""
    oom: events.OomEvidence = failure.oom or {}
    killer = "the kernel's out-of-memory killer ended it"
    limit = oom.get("limit")
    if oom.get("group") and limit is not None:
        return f"{killer}: the control group's memory limit of {gibibytes(limit)} was reached"
    if oom.get("kernel"):
        return f"{killer}: {clean(oom['kernel'])[:200]}"
    if oom.get("group"):  # counts those killed for the whole machine's sake too
        return f"{killer}: {clean(failure.host)} or its control group had no memory left"
    if oom.get("machine"):
        return f"perhaps {killer}: it was active on {clean(failure.host)} at that time"
    used, total = (telemetry.get("mem_used"), telemetry.get("mem_total")) if telemetry else (None, None)
    if used is None or not total or used <= 0.95 * total:
        return ""
    nearly = f"memory of {clean(failure.host)} was nearly full ({gibibytes(used)} of {gibibytes(total)})"
    return f"probably {killer}: {nearly}"


def _size(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    if not found:
        return None
    number, unit = (group for group in found.groups() if group is not None)
    return float(number) * _UNITS[unit]


_KINDS: tuple[Callable[[RunState, RootCause], Hint | None], ...] = (
    _memory, _uneven, _world, _no_gpu, _missing_module, _missing_program, _missing_file, _known, _crash,
)  # fmt: skip
"""Sources of hints; the first that returns one counts."""
