"""Bare torchrun by ssh works on the test cluster: what disttui is compared with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster import Cluster
from tests.cluster.by_hand import by_hand
from tests.cluster.typed import wait_gone
from tests.files import new_file

pytestmark = pytest.mark.torch

_SUM = """
import os, socket, sys
import torch, torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
rank, size = dist.get_rank(), dist.get_world_size()
# One write: both ranks of a host write into the same pipe.
os.write(1, f"rank {rank} of {size} on {socket.gethostname()} sum {total.item()} {sys.argv[1]}\\n".encode())
dist.destroy_process_group()
"""
_FAIL = """
import sys, torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    raise ValueError("boom on rank 1")
dist.barrier()
"""


def test_unequal_hosts_make_one_world(cluster: Callable[..., Cluster]) -> None:
    """1 + 2 processes are three ranks, in the order of the hosts."""
    two = cluster(2)
    script = new_file(two.shared / "sum.py", _SUM)
    ends = by_hand(two, script, ["it's $HOME"], nproc=[1, 2])
    assert [end.returncode for end in ends] == [0, 0], ends
    seen = [sorted(end.stdout.splitlines()) for end in ends]
    assert seen[0] == ["rank 0 of 3 on node1 sum 6.0 it's $HOME"]
    assert seen[1] == [f"rank {rank} of 3 on node2 sum 6.0 it's $HOME" for rank in (1, 2)]
    wait_gone(two, 10)


def test_a_failing_rank_fails_both_terminals(cluster: Callable[..., Cluster]) -> None:
    """Where the other rank is in a collective, both end with 1, and the cause is on the second terminal alone."""
    two = cluster(2)
    script = new_file(two.shared / "fail.py", _FAIL)
    ends = by_hand(two, script, nproc=[1, 1])
    assert [end.returncode for end in ends] == [1, 1], ends
    assert ["ValueError: boom on rank 1" in end.stderr for end in ends] == [False, True]
