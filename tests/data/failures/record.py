"""Records the real failures of this folder: run it with the project's interpreter as root on Linux, for all or some.

Each case is a script that fails; what the rank shim would report of it goes to <name>.json. The other files, whose
`source` is an address, hold error texts that others have published (this machine has no GPU).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HEAD = """
import json, os, sys, traceback
def fails():
"""
TAIL = """
try:
    fails()
except BaseException as error:
    seen = {"type": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}
    print(json.dumps(seen), file=sys.__stdout__)
"""
STORE = "import torch, datetime as d; from torch.distributed import TCPStore as S; t = d.timedelta(seconds=1)\n"
CASES = {
    "port_in_use": STORE + "a = S('127.0.0.1', 29871, 2, True, t, False)\nb = S('127.0.0.1', 29871, 2, True, t, False)",
    "join_timeout_server": STORE + "S('127.0.0.1', 29872, 2, True, t, True)",
    "join_timeout_client": STORE + "S('127.0.0.1', 29873, 2, False, t, True)",
    "disk_full": "open('/dev/full', 'w', buffering=1).write('x\\n')",
    "file_missing": "open('/data/corpus/train.bin', 'rb')",
    "module_missing": "import flash_attention_extra",
    "permission": "os.setuid(65534); open('/root/.ssh/authorized_keys')",
    "address_resolution": "import socket; socket.getaddrinfo('trainbox7', 29500)",
    "too_many_files": "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (30,) * 2); [*map(open, ['/dev/null'] * 40)]",
    "allocation": "import torch; torch.empty(1 << 48)",
    "memory_error": "bytearray(1 << 60)",
    "cuda_library": "import ctypes; ctypes.CDLL('libcudnn.so.9')",
    "gloo_mismatched": "_two(lambda dist, torch, rank: dist.all_reduce(torch.ones(4 + rank)))",
    "worker_bus_error": "_worker(7)",
    "worker_killed": "_worker(9)",
    "cuda_not_compiled": "import torch; torch.ones(1).cuda()",
    "cuda_set_device": "import torch; torch.cuda.set_device(0)",
    "nccl_not_built": "import torch.distributed as d; d.init_process_group('nccl', 'file:///tmp/x', rank=0, world_size=1)",
    "device_ids_on_cpu": """import tempfile, torch
torch.distributed.init_process_group("gloo", f"file://{tempfile.mktemp()}", rank=0, world_size=1)
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2), device_ids=[0])""",
}
WORKER = """
class Data:
    def __init__(self, number): self.number = number
    def __len__(self): return 8
    def __getitem__(self, i): os.kill(os.getpid(), self.number)
def _two(body):
    rank = 0 if os.fork() else 1
    if rank:
        os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29875")
    os.environ.update(TORCH_DISTRIBUTED_DEBUG="DETAIL", GLOO_SOCKET_IFNAME="lo")
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    body(dist, torch, rank)
def _worker(number):
    from torch.utils.data import DataLoader
    list(DataLoader(Data(number), num_workers=1))
"""


def _run(command: list[str], text: str) -> str:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False).stdout


def _anywhere(text: str) -> str:
    return text.replace(sys.prefix, "/venv").replace(sys.base_prefix, "/usr")


def main() -> None:
    """Run every case in a network namespace of its own, so that nothing leaves the machine."""
    version = _run([sys.executable, "-c", "import torch; print(torch.__version__)"], "").strip()
    for name, body in CASES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        text = HEAD + "".join(f"    {line}\n" for line in body.splitlines()) + WORKER + TAIL
        shown = _run(["unshare", "-n", "sh", "-c", f"ip link set lo up; exec {sys.executable} -"], text)
        [seen] = [line for line in shown.splitlines() if line.startswith('{"type"')]
        record = {"source": f"record.py, torch {version}", **json.loads(_anywhere(seen))}
        (HERE / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
        print(name, record["type"], record["message"][:150].replace("\n", " "))


if __name__ == "__main__":
    main()
