"""A newcomer at a real terminal: from `disttui` to a training on two hosts and its end, by keyboard alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cluster import Cluster
from tests.cluster.typed import COMMAND, wait_gone
from tests.tui.shelf_kit import environ
from tests.tui.tmux import Tmux, tmux

pytestmark = [pytest.mark.tmux, pytest.mark.torch, pytest.mark.timeout(600)]


def _two_hosts(cluster: Callable[..., Cluster]) -> Cluster:
    made = cluster(2)
    for host in made.hosts:
        (host.home / ".venv").symlink_to(sys.prefix)
    return made


def _to_the_last_step(screen: Tmux) -> None:
    """Nothing is typed but the hosts' names."""
    screen.until("profiles")
    screen.press("n")
    screen.until("step 1 of 5")
    screen.until("node2 .*ssh")
    screen.type("node1 node2")
    screen.until("enter adds node1, node2")
    screen.press("Enter")
    screen.until("2 hosts ticked, 2 ready")
    for step in (2, 3, 4, 5):
        screen.press("Enter")
        screen.until(f"step {step} of 5")
    screen.until("enter starts [0-9]+ processes on 2 hosts")


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_from_the_first_screen_to_a_training_and_its_end(
    cluster: Callable[..., Cluster], tmp_path: Path, size: tuple[int, int]
) -> None:
    hosts = _two_hosts(cluster)
    command = [COMMAND, "--ssh-config", str(hosts.ssh_config)]
    with tmux(tmp_path, command, environ(tmp_path, LANG="C.UTF-8"), size) as screen:
        _to_the_last_step(screen)
        screen.press("s")
        screen.until("Save the profile")
        screen.press("Enter")
        screen.until("saved:")
        screen.press("Enter")
        screen.answer("y", "Start [0-9]+ processes on 2 hosts")
        screen.until(r"step +[1-9][0-9]* ?/ ?300", 240)
        screen.press("s")
        screen.answer("y", "get SIGTERM and time to save")
        screen.until("stopped", 120)
        wait_gone(hosts, 60)
        screen.press("q")
        screen.until("stopped +bytegpt-2node-")
        screen.press("q")
        screen.until("exit code 0")
    saved = list((tmp_path / "config" / "disttui" / "profiles").glob("*.yaml"))
    assert [yaml.safe_load(path.read_text())["hosts"] for path in saved] == [["node1", "node2"]]


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


def test_the_wizard_on_a_large_terminal(cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    hosts = _two_hosts(cluster)
    command = [COMMAND, "--ssh-config", str(hosts.ssh_config)]
    with tmux(tmp_path, command, environ(tmp_path, LANG="C.UTF-8"), (200, 50)) as screen:
        _to_the_last_step(screen)
        shown = screen.until("torch.distributed.run")
        assert "[1] checks" in shown and "[3] commands" in shown, "everything is side by side"
        for step in (4, 3, 2, 1):
            screen.press("Escape")
            screen.until(f"step {step} of 5")
        screen.press("Escape")
        screen.answer("y", "are not saved")
        screen.until("profiles")
    wait_gone(hosts, 60)
