"""What a launcher gets only when the hosts have met: where they meet, as its own options or as variables."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from ...protocol.gang import MpiPlace
from ..host import HostPart
from ..rank import mpi_world
from ..rank.identity import FIRST_RANK


def takes_socket(host: HostPart) -> bool:
    """Whether the launcher serves torch's store at a socket that it is given: `accelerate launch` wants a free port."""
    return host.launcher == "torchrun"


def listens(host: HostPart) -> bool:
    """Whether the launcher itself listens on the master port; else rank 0 does, once its script asks for it."""
    return host.launcher == "torchrun" or (host.launcher == "accelerate-launch" and host.world_size > 1)


def is_mpi_world(host: HostPart) -> bool:
    """Whether mpirun of the first host starts the ranks of all."""
    return host.launcher == "mpirun" and len(host.spec["hosts"]) > 1


def early_words(host: HostPart) -> Optional[List[str]]:
    """The words with which mpirun starts while the hosts still join, None: this launcher waits for the start line."""
    if is_mpi_world(host):
        return None if host.node else [mpi_world.LEADS]
    return [] if host.launcher in ("mpirun", "mpirun-per-host") else None


def start_line(
    host: HostPart, attempt: int, master: str, port: int, mpi: Optional[MpiPlace] = None
) -> Tuple[List[str], Dict[str, str]]:
    """The options that go before the others, and the variables.

    Args:
        mpi: Where mpirun waits for this host's daemon.
    """
    # Without a folder of its own, torchrun leaves one in /tmp.
    folder = host.attempt_folder(attempt) + "/torchelastic"
    if host.launcher == "torchrun":
        args = ["--master-addr", master, "--master-port", str(port)]
        return [*args, "--rdzv-id", f"{host.run}-{attempt}-{port}", "--log-dir", folder], {}
    if host.launcher == "accelerate-launch":
        args = ["--main_process_ip", master, "--main_process_port", str(port), "--log_dir", folder]
        # It starts a single process without torchrun, and says nothing of its rank.
        return args, {} if host.world_size > 1 else _meeting(host, master, port, {"RANK": "0", "LOCAL_RANK": "0"})
    if host.launcher == "deepspeed":
        return [f"--master_addr={master}", f"--master_port={port}"], {}
    if not is_mpi_world(host):
        return [], _meeting(host, master, port, {FIRST_RANK: str(host.ranks.start)})
    words = [mpi_world.LEADS]
    if host.node:
        nowhere = MpiPlace(version="", job="", nodes="", uri="")
        words = mpi_world.start_words(mpi or nowhere, host.node, len(host.spec["hosts"]))
    # Ranks of two hosts of one machine would take the same names for their shared memory.
    apart = {"OMPI_MCA_btl": "self,tcp"} if master in ("127.0.0.1", "::1") else {}
    return words, _meeting(host, master, port, apart)


def _meeting(host: HostPart, master: str, port: int, more: Dict[str, str]) -> Dict[str, str]:
    return {
        "MASTER_ADDR": master,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(host.world_size),
        "LOCAL_WORLD_SIZE": str(len(host.ranks)),
        "GROUP_RANK": str(host.node),
        **more,
    }
