"""A newcomer at a real terminal: from `disttui` to a training on two hosts and its end, by keyboard alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.typed import COMMAND, wait_gone
from tests.tui.shelf_kit import environ
from tests.tui.tmux import tmux

pytestmark = [pytest.mark.tmux, pytest.mark.torch, pytest.mark.timeout(600)]


def _two_hosts(cluster: Callable[..., Cluster]) -> Cluster:
    made = cluster(2)
    for host in made.hosts:
        (host.home / ".venv").symlink_to(sys.prefix)
    return made


TRAIN = """
import time
import torch.distributed as dist
dist.init_process_group("gloo")
for step in range(1, 600):
    print(f"step {step}/600 loss {1 / step:.3f}", flush=True)
    time.sleep(0.1)
"""


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_twelve_keys_from_an_empty_home_to_the_first_loss(
    cluster: Callable[..., Cluster], tmp_path: Path, size: tuple[int, int]
) -> None:
    """A script on this machine, two hosts of the ssh configuration, and nothing else."""
    hosts = _two_hosts(cluster)
    (tmp_path / "code").mkdir()
    script = tmp_path / "code" / "train.py"
    script.write_text(TRAIN)
    command = [COMMAND, "--ssh-config", str(hosts.ssh_config), str(script)]
    keys = ["Down", "Space", "Down", "Space", "Enter", "Enter", "Enter", "Enter", "Enter", "y"]
    assert len(keys) <= 12
    with tmux(tmp_path, command, environ(tmp_path, LANG="C.UTF-8"), size) as screen:
        screen.until("node1 .*ssh(.|\n)*node2 .*ssh")
        screen.press(*keys[:4])
        screen.until("2 hosts ticked, 2 ready")
        for step in (2, 3, 4, 5):
            screen.press(keys[2 + step])
            screen.until(f"step {step} of 5")
        screen.until("enter starts [0-9]+ processes on 2 hosts")
        screen.press(keys[8])
        screen.answer(keys[9], "Start [0-9]+ processes on 2 hosts")
        screen.until("● running(.|\n)*loss", 240)
        screen.press("s")
        screen.answer("y", "get SIGTERM and time to save")
        screen.until("stopped", 120)
    wait_gone(hosts, 60)
