"""The gang with real torchrun and gloo."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from disttui.runner.planning.launchers import torchrun_options as options
from tests.unit.runs_kit import Cluster

pytestmark = [pytest.mark.torch, pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")]
JOB = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
step(attempt, total=total.item())
if attempt == 1:
    if rank == 1:
        time.sleep(1)
        raise ValueError("boom")
    time.sleep(600)
dist.destroy_process_group()
"""


class TorchCluster(Cluster):
    def spec(self, node: int) -> dict[str, object]:
        words = options(nnodes=len(self.nproc), num_processes=self.nproc[node], node_rank=node)
        return {**super().spec(node), "python": sys.executable, "launcher_args": list(words)}


@pytest.mark.parametrize("restarts", [0, 1])
def test_one_rank_raises_while_the_others_sleep(tmp_path: Path, restarts: int) -> None:
    run = TorchCluster(tmp_path, [1, 2], JOB, launch={"restarts": restarts, "join_timeout": 120})
    try:
        run.start()
        run.wait_event(1, "error")
        # By hand torchrun on the first host would go on for the ten minutes of its rank's sleep.
        run.wait_event(0, "launcher", attempt=1)
        ends = [run.exit(node, 120) for node in (0, 1)]
        if restarts:
            assert [(end["state"], end["attempt"]) for end in ends] == [("finished", 2)] * 2
        else:
            cause = ends[0]["cause"]
            assert (cause["rank"], cause["type"], cause["message"]) == (1, "ValueError", "boom")
            assert ends[1]["cause"] == cause
        assert {event["world_size"] for event in run.events(0, "group")} <= {3}
        assert run.living() == {}
    finally:
        run.clean_up()
