"""Logs that are hostile, huge or torn, and disks that are full: the mirror is the file, byte for byte."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.cluster.typed import User, typed
from tests.faults.kit import Fault

pytestmark = pytest.mark.torch

Begin = Callable[..., Fault]

_HOSTILE = r"""
import os, sys

write = os.write
rank = os.environ["RANK"]
if rank == "0":
    for _ in range(100):
        write(1, b"x" * (1 << 20))
    write(1, b"\n")
else:
    write(1, bytes(range(256)) * 64 + b"\n")
    write(1, b"\0\0\0" + b"\xff\xfe\xc3\x28\xed\xa0\x80\xf4\x90\x80\x80" + "é".encode()[:1] + b"\n")
    write(1, b"\x1b[31mred\x1b[2J\x1b[H\x1b]0;owned\x07\x1b]52;c;aGFja2Vk\x07\x1b[6n\n")
    write(1, b"\x1b[?1049h\x1bP+q544e\x1b\\ \x9b5m\n")
    write(1, b"a\rb\rc\r\n" + b"\r" * 1000 + b"\n" + b"\b" * 100 + b"\n")
    write(1, b"\x1b]8;;http://x\x1b\\" * 50 + b"half an escape \x1b[")
    write(1, b"no newline at the end \xe2\x82")
"""


def test_hostile_bytes(begin: Begin) -> None:
    """100 MB without a newline, NULs, invalid UTF-8, ANSI and OSC: kept as they are, shown as safe text."""
    fault = begin(2, _HOSTILE, wait=False)
    fault.end(0, 120)
    fault.exits("finished")
    fault.whole(fetch=False)
    assert (fault.folder(0) / "attempt-1/rank-0.log").stat().st_size == (100 << 20) + 1
    shown = fault.running.out.read_bytes()
    assert not set(shown) & set(b"\0\x07\x08\x1b\x7f") and b"\xc2\x9b" not in shown
    shown.decode()
    assert max(map(len, shown.splitlines())) < 1 << 20


_FLOOD = """
import os, sys, time

line = ("%s " % os.environ["RANK"]) + "y" * 97 + chr(10)
block = (line * 10000).encode()
for _ in range(150):
    os.write(1, block)
print("the last line", flush=True)
"""


def test_300_mb_of_log_at_once(begin: Begin) -> None:
    """As fast as two ranks can write, more than 1 GB a minute; 300 MB of it, since two viewers' copies must fit too."""
    fault = begin(2, _FLOOD, wait=False)
    fault.end(0, 150)
    fault.exits("finished")
    fault.whole(fetch=False)
    begun, done = (fault.events(0, kind)[-1]["t"] for kind in ("rank", "launcher"))
    print(f"300 MB written in {done - begun:.1f} s")
    with fault.running.out.open("rb") as lines:
        assert sum(line.endswith(b"y\n") for line in lines) == 3_000_000


_TRUNCATED = """
import json, os, pathlib, sys, time

enough = pathlib.Path(__file__).parent / sys.argv[1]
log = f"{os.environ['DISTTUI_DIR']}/rank-{os.environ['RANK']}.log"
seen = enough.with_name("seen")
for turn in range(9):
    for number in range(200):
        print(f"turn {turn} line {number}", flush=True)
        time.sleep(0.001)
    while not seen.exists():
        time.sleep(0.01)
    # With and without time for anybody to see the file while it is short; and longer than before at once.
    os.truncate(log, 0)
    if turn % 2:
        time.sleep(0.5)
    print("z" * 30000 * (turn + 1), flush=True)
    time.sleep(0.3)
print("the last line", flush=True)
"""


def test_a_log_is_truncated(begin: Begin) -> None:
    """A script that empties its log again and again, as copytruncate does, and fills it up at once."""
    fault = begin(2, _TRUNCATED, wait=False)
    fault.running.wait_for(lambda: fault.running.stdout.count("turn 0 line 199") == 2)
    (fault.me.cluster.shared / "seen").touch()
    fault.end(0, 60)
    fault.exits("finished")
    fault.whole(fetch=False)
    assert fault.running.stdout.count("the last line") == 2
    kept = list(fault.me.home.glob(f".local/share/disttui/runs/{fault.run}/0/attempt-1/rank-0.log~*"))
    assert kept and any("turn 0 line 0\n" in path.read_text() for path in kept)


_FULL = """
import os, sys, time

if os.environ["RANK"] == "1":
    for number in range(10**9):
        print(number, "x" * 4000, flush=True)
time.sleep(600)
"""


def test_a_hosts_disk_is_full(user: Callable[..., User]) -> None:
    """A rank's own log fills the disk of the run: that is the reported cause, although nothing more can be written."""
    me = user(2, light=True)
    for host in me.cluster.hosts:
        host.run("mkdir small && mount -t tmpfs -o size=40m tmpfs small", check=True)
    fault = Fault.begin(me, _FULL, wait=False, mounted="small", launch={"grace": 2})
    fault.end(1)
    assert "rank 1 on node2 raised OSError" in fault.verdict(), fault.story()
    assert "No space left on device" in fault.running.stderr, fault.story()
    fault.exits("failed")
    fault.whole(fetch=False)


def test_a_clock_is_an_hour_fast(begin: Begin) -> None:
    """Corrected clocks decide which rank failed first, and all times are shown by one clock."""
    body = """
import os, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    print("about to fail", flush=True)
    raise KeyError("no such column")
dist.all_reduce(torch.ones(1))
"""
    begun = time.time()
    fault = begin(2, body, wait=False, cluster={"clock_offset": {"node2": 3600}})
    fault.end(1)
    assert "rank 1 on node2 raised KeyError" in fault.verdict(), fault.story()
    clock = fault.events(0, "clock")[0]
    assert abs(clock["offset"] - 3600) < 60
    assert fault.events(1, "supervisor")[0]["t"] > begun + 3500
    cause = json.loads((fault.folder(0) / "exit.json").read_text())["cause"]
    assert abs(cause["at"] - begun) < 120, cause
    fault.exits("failed")
    fault.whole(fetch=False)
    assert "about to fail" in typed(fault.me, "logs", fault.run, "--since", "5m", "--host", "node2")
