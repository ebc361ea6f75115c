"""The firewall lines of docs/security.md: a run goes on behind them, and a stranger reaches none of its ports."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.host import ClusterHost
from tests.cluster.typed import User
from tests.command import ran

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

_PAGE = Path(__file__).parents[2] / "docs/security.md"
_JOB = """
import sys, time, pathlib, torch, torch.distributed as dist
dist.init_process_group("gloo")
folder = pathlib.Path(__file__).parent
dist.barrier()
(folder / f"up-{dist.get_rank()}").touch()
while not (folder / "go").exists():
    time.sleep(0.1)
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 2
"""
_KNOCK = """
import socket, sys
for port in map(int, sys.argv[2:]):
    try:
        socket.create_connection((sys.argv[1], port), timeout=2).close()
        print(port)
    except OSError:
        pass
"""


def listening(host: ClusterHost) -> list[int]:
    """TCP ports that anything on the host listens on, on more than loopback, but for its sshd."""
    ports = set()
    for name in ("tcp", "tcp6"):
        for line in host.run(f"cat /proc/net/{name}", check=True).stdout.splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, port = local.rpartition(":")
            if state == "0A" and address not in ("0100007F", "00000000000000000000000001000000"):
                ports.add(int(port, 16))
    return sorted(ports - {22})


def reached(source: ClusterHost, target: ClusterHost, user: str = "") -> list[int]:
    """Which of the target's listening ports can be connected to from `source`."""
    words = [sys.executable, "-c", _KNOCK, target.address, *map(str, listening(target))]
    if user:
        words = ["setpriv", f"--reuid={user}", "--clear-groups", "--", *words]
    return [int(port) for port in source.run(shlex.join(words), check=True).stdout.split()]


def test_firewall_rules_block_strangers_but_not_the_run(user: Callable[..., User]) -> None:
    me = user(3)
    one, two, stranger = me.cluster.hosts
    match = re.search(r"```nft\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert match
    rules = re.sub(r"define peers = .*", f"define peers = {{ {one.address}, {two.address} }}", match[1])
    rules = re.sub(r"define owner = .*", "define owner = 0", rules)

    script = me.script(_JOB)
    running = me.start(me.profile({"script": str(script)}, ["node1", "node2"]))
    running.wait_for(lambda: all((script.parent / f"up-{rank}").exists() for rank in (0, 1)))
    # Without them: the gang, the store and gloo are open to everybody.
    assert [port for port in reached(stranger, one) if 29500 <= port <= 29599]
    assert [port for port in reached(stranger, one) if 32768 <= port <= 60999]
    assert [port for port in reached(one, one, "nobody") if 29500 <= port <= 29599]

    for host in (one, two):
        loaded = ran(host.enter("nft -f -"), input=rules)
        assert loaded.returncode == 0, loaded.stderr
    for host in (one, two):
        assert reached(stranger, host) == []
    assert not [port for port in reached(one, one, "nobody") if 29500 <= port <= 29599]
    assert reached(two, one), "a peer is kept out"

    (script.parent / "go").touch()
    assert running.wait() == 0, running.stderr
    # And a run from its beginning.
    me.run(me.profile({"script": str(script)}, ["node1", "node2"]))
