"""The examples, as their profiles run them on two hosts: what they say, what disttui reads of it, how they go on."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.typed import User, typed
from tests.frameworks import PYTHON

pytestmark = pytest.mark.frameworks
EXAMPLES = Path(__file__).parents[2] / "examples"
_UNEQUAL = "hosts=[node1, {host: node2, num_processes: 2}]"


@pytest.fixture(scope="module")
def me(requires_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """Somebody who has copied the examples to two hosts that share nothing."""
    with Cluster(2) as cluster:
        user = User(cluster, tmp_path_factory.mktemp("home"))
        for host in cluster.hosts:
            for folder in EXAMPLES.iterdir():
                shutil.copytree(folder, host.home / folder.name)
        yield user
        user.close()


@pytest.mark.parametrize(
    ("name", "processes", "printed", "steps", "goes_on"),
    [
        ("ddp", 3, r"step: \d+ \| loss: ([\d.]+)", 80, (4, 80)),
        ("accelerate", 2, r"step \d+ loss ([\d.]+)", 30, (2, 20)),
        ("trainer", 2, r"'loss': '([\d.]+)'", 20, None),
        ("lightning", 2, r"Epoch .*loss=([\d.]+)", 60, None),
    ],
)
def test_example_trains_on_two_hosts_and_resumes(
    me: User, name: str, processes: int, printed: str, steps: int, goes_on: tuple[int, int] | None
) -> None:
    """From the newest one that all hosts have in full: of Accelerate's third, one has a part.

    Trainer and Lightning take seconds to be imported: that they go on is not tried each time.
    """
    changes = [f"python={PYTHON}", "num_processes=1", "env={HF_HUB_OFFLINE: '1', OMP_NUM_THREADS: '1'}"]
    if processes == 3:
        changes.append("hosts=[node1, {host: node2, num_processes: 2}]")
    running = me.run(EXAMPLES / name / "profile.yaml", *(word for one in changes for word in ("--set", one)))
    log = (running.mirror / "0" / "attempt-1" / "rank-0.log").read_text().replace("\r", "\n")
    assert f"{processes} processes" in log
    assert {one["world_size"] for one in running.records("events.jsonl") if one["e"] == "group"} == {processes}
    found = [(step, loss) for step, loss in _metrics(me) if loss is not None]
    assert found[-1][0] == steps
    # A bar that is drawn again with the same loss is one value.
    assert list(dict.fromkeys(loss for _, loss in found)) == list(dict.fromkeys(map(float, re.findall(printed, log))))
    if goes_on:
        epoch, step = goes_on
        for whole in me.cluster.hosts[1].home.glob(".disttui/runs/accelerate-*/checkpoints/epoch-3"):
            whole.rename(whole.with_name(".epoch-3.part"))
        said = typed(me, "rerun", name, "--resume", "--set", f'job.args=["--epochs", "{epoch + 1}"]')
        assert f"from epoch {epoch} on" in said
        assert _metrics(me)[0][0] > step


def _metrics(me: User) -> list[tuple[int, float | None]]:
    """(step, loss) of rank 0 of the newest run."""
    newest = max((me.home / ".local/share/disttui/runs").iterdir(), key=lambda path: path.stat().st_mtime)
    rows = map(json.loads, typed(me, "runs metrics", newest.name, "--local").splitlines())
    return [(row["step"], row.get("loss")) for row in rows if row["rank"] == 0]
