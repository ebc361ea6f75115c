"""One rank fails while the other is busy elsewhere: all is gone soon, and the one cause is shown once and last."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.typed import User

pytestmark = pytest.mark.torch

_RAISE = """
import os, pathlib, signal, sys, time
import torch.distributed as dist

here = pathlib.Path(__file__).parent
if "--deaf" in sys.argv:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    time.sleep(0.5)
    (here / "part").write_text(str(time.time()))
    (here / "part").rename(here / "raised")
    raise ValueError(f"boom of rank {dist.get_rank()}")
time.sleep(600)
"""


@pytest.mark.parametrize(("args", "grace", "limit"), [([], 10, 2.4), (["--deaf"], 2, 4.0)], ids=["obedient", "deaf"])
def test_one_rank_raises(user: Callable[..., User], args: list[str], grace: float, limit: float) -> None:
    """Rank 1 raises while rank 0 sleeps outside any collective: within 2.4 s nothing is left; grace + 2 s if deaf."""
    me = user(2)
    script = me.script(_RAISE)
    running = me.start(me.profile({"script": str(script), "args": args}, launch={"grace": grace}), merged=True)
    raised = float(running.wait_file(me.cluster.shared / "raised"))
    took = running.wait_gone() - raised
    print(f"gone after {took:.2f} s")
    assert running.wait() == 1
    shown = running.stdout
    assert shown.count("boom of rank 1") == 1, shown
    assert shown.rstrip().splitlines()[-1] == "│ ValueError: boom of rank 1"
    assert took <= limit, shown
