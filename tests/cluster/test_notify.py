"""Notifications from real hosts, with the viewer gone: a run that fails, and a receiver that is down at first."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from tests.cluster.typed import User, typed
from tests.command import running
from tests.unit.waiting import wait_for

pytestmark = pytest.mark.torch

_JOB = """
import json, os, time

rank = int(os.environ["RANK"])
with open(os.environ["DISTTUI_METRICS"], "a") as metrics:
    metrics.write(json.dumps({"t": time.time(), "step": 40, "loss": 2.5}) + "\\n")
time.sleep(3)
if rank == 1:
    raise ValueError("bad batch")
time.sleep(60)
"""
_NAN = """
import json, os, time

rank, attempt = int(os.environ["RANK"]), int(os.environ["DISTTUI_ATTEMPT"])
folder = os.environ["DISTTUI_CHECKPOINTS"]
os.makedirs(folder, exist_ok=True)
saved = [int(name.split("-")[1]) for name in os.listdir(folder) if name.startswith("checkpoint-")]
for step in range(max(saved, default=-1) + 1, 80):
    loss = float("nan") if attempt == 1 and step >= 40 else 3.0 - step / 100
    with open(os.environ["DISTTUI_METRICS"], "a") as metrics:
        metrics.write(json.dumps({"t": time.time(), "step": step, "loss": loss}) + "\\n")
    if step % 10 == 0:
        os.makedirs(os.path.join(folder, "checkpoint-%d" % step), exist_ok=True)
    time.sleep(0.1)
"""
_RECEIVER = """
import http.server, sys

class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(sys.argv[1], "ab") as file:
            file.write(body + b"\\n")
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("", 8099), Receiver).serve_forever()
"""


def test_failure_notice_is_retried_after_the_viewer_is_gone(user: Callable[..., User]) -> None:
    me = user(2, light=True)
    where = {"webhook": f"http://{me.cluster[1].address}:8099/hook"}
    profile = me.profile({"script": str(me.script(_JOB))}, notify=where)
    assert "webhook: " in typed(me, "notify", "--test", profile, code=3)
    run = next(line for line in typed(me, "run", "--detach", profile).splitlines() if line.startswith("t-"))
    typed(me, "wait", run, code=1)
    got = me.cluster.shared / "got"
    script = me.script(_RECEIVER, "receiver.py")
    with running(me.cluster[1].in_network([sys.executable, str(script), str(got)])):
        wait_for(lambda: got.exists() and got.read_text().endswith("\n"), "the notice")
        [notice] = map(json.loads, got.read_text().splitlines())
        assert (notice["id"], notice["event"]) == (f"{run}:failed:1", "failed")
        assert notice["cause"] == "rank 1 on node2: ValueError: bad batch" and notice["step"] == 40
        assert typed(me, "notify", "--test", profile).count("webhook: sent") == 2


def test_nan_rolls_back_and_notifies_though_viewer_is_gone(user: Callable[..., User]) -> None:
    me = user(2)
    where = {"webhook": f"http://{me.cluster[1].address}:8099/hook"}
    rules = {"nonfinite": "rollback"}
    profile = me.profile({"script": str(me.script(_NAN))}, notify=where, watch=rules, launch={"restarts": 1})
    got = me.cluster.shared / "got"
    script = me.script(_RECEIVER, "receiver.py")
    with running(me.cluster[1].in_network([sys.executable, str(script), str(got)])):
        run = next(line for line in typed(me, "run", "--detach", profile).splitlines() if line.startswith("t-"))
        typed(me, "wait", run)
        wait_for(lambda: got.exists() and got.read_text().count("\n") >= 3, "three notices")
    notices = {one["event"]: one for one in map(json.loads, got.read_text().splitlines())}
    assert notices.keys() == {"alarm", "failed", "ended"}
    assert "loss is nan since step 40 (nonfinite)" in notices["alarm"]["text"]
    assert "watch.nonfinite: loss is nan since step 40" in notices["failed"]["cause"]
    assert (notices["ended"]["attempt"], notices["ended"]["step"]) == (2, 79)
    assert "renamed checkpoint-40" in typed(me, "runs", "show", run)
    tried = typed(me, "watch", "--try", run, "--set", "watch.goal={below: 2.5}")
    assert "loss is nan since step 40 (nonfinite → rollback)" in tried and "goal reached: loss" in tried
