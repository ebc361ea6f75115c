"""Another user of the hosts takes every name that he can see and every port that he can have."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable

import pytest

from tests.cluster.typed import User, typed, wait_gone
from tests.neighbours import squatting

pytestmark = pytest.mark.torch

_GRACE = 1
_DEAF = """
import os, pathlib, signal, time

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
pathlib.Path(__file__).with_name(f"up-{os.environ['DISTTUI_RUN']}-{os.environ['RANK']}").touch()
time.sleep(900)
"""


def test_stop_ends_everything_while_every_name_is_squatted(user: Callable[..., User]) -> None:
    """Within grace + 2 s by the hosts' own clocks, and at once by a second Ctrl-C; the runs have started, too."""
    me = user(2, light=True)
    script = str(me.script(_DEAF))
    with contextlib.ExitStack() as stack:
        for host in me.cluster.hosts:
            stack.enter_context(squatting(ports=(29500, 29597), enter=host.in_network))
        for name, grace in (("stopped", _GRACE), ("interrupted", 300)):
            running = me.start(me.profile({"script": script}, name=name, launch={"grace": grace}))
            running.wait_for(lambda: len(list(me.cluster.shared.glob(f"up-{name}-*"))) == 2)  # noqa: B023 (called here)
            ups = list(me.cluster.shared.glob(f"up-{name}-*"))
            run = ups[0].name[3:-2]
            if name == "stopped":
                typed(me, "stop", run)
            else:
                running.send(signal.SIGINT)
                running.wait_for(lambda: "Ctrl-C again" in running.stderr)  # noqa: B023 (called here)
                running.send(signal.SIGINT)
            assert running.wait() == 130, running.stderr
            wait_gone(me.cluster, 15)
            for node, host in enumerate(me.cluster.hosts):
                folder = host.home / ".disttui/runs" / run / str(node)
                end, stop = (json.loads((folder / what).read_text()) for what in ("exit.json", "stop"))
                assert (end["state"], end["left"]) == ("stopped", [])
                assert end["t"] - stop["t"] < _GRACE + 2.0, f"{name} {host.name}: {end['t'] - stop['t']:.2f} s"
