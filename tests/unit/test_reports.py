"""Whatever a training script writes into the files of its ranks costs only itself: the supervisor goes on."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disttui.runner.node.host import HostPart
from disttui.runner.node.loop import Loop
from disttui.runner.node.observe import stacks
from disttui.runner.node.observe.ranks import Ranks
from disttui.runner.node.observe.reports import launcher_end, report
from tests.unit.runs_kit import Cluster, Make

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are Linux")

_NUMBERS = st.sampled_from([0, 1, -1, True, 2**31, 2**63, 10**330, -(10**330), 1.5, float("nan"), float("inf"), 1e300])
_ODD = st.one_of(
    st.none(),
    _NUMBERS,
    st.text(max_size=20),
    st.just("\ud800\x1b[2J"),
    st.lists(st.integers(), max_size=2),
    st.just({}),
)
_KINDS = st.one_of(st.sampled_from(["start", "group", "error", "exit", "event", "_on_start", "fail_once"]), _ODD)
_NAMES = ("t", "rank", "local_rank", "pid", "world_size", "start_time", "door", "signal", "backend", "type", "message",
          "traceback", "code", "step", "loss", "forward_time")  # fmt: skip
_SANE = {"t": st.just(1.7e9), "rank": st.just(0), "pid": st.just(4_000_000), "world_size": st.just(1)}
_RECORDS = st.fixed_dictionaries(
    {"e": _KINDS}, optional={name: st.one_of(_ODD, _SANE.get(name, _ODD)) for name in _NAMES}
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(st.one_of(_RECORDS, _ODD), max_size=8), lines=st.binary(max_size=40))
def test_no_report_and_no_metric_raises(tmp_path: Path, records: list[Any], lines: bytes) -> None:
    run = Cluster(tmp_path, [1], "")
    host = HostPart(run.spec(0), str(tmp_path), "", None, {}, 0o022)
    folder = Path(host.attempt_folder(1))
    folder.mkdir(exist_ok=True)
    data = b"".join(json.dumps(record).encode() + b"\n" for record in records) + lines + b"\n"
    (folder / "ranks.jsonl").write_bytes(data)
    (folder / "rank-0.metrics.jsonl").write_bytes(data)
    said: list[Any] = []
    failures: list[Any] = []
    ranks = Ranks(host, 1, Loop(), said.append, failures.append)
    ranks.poll()
    ranks.poll_metrics()
    ranks.close()
    for event in [*said, *failures, ranks.signs.message(time.monotonic(), [])]:
        json.dumps(event).encode()
        for value in event.values():
            if isinstance(value, str):
                value.encode()
    stacks.collect(str(tmp_path))


@given(seen=st.one_of(_ODD, st.dictionaries(st.sampled_from(["code", "error", "signal", "failures"]), st.one_of(
    _ODD, st.lists(st.one_of(_ODD, st.fixed_dictionaries({"local_rank": _ODD, "code": _ODD, "pid": _ODD, "t": _ODD})))
))))  # fmt: skip
def test_no_launcher_json_raises(seen: Any) -> None:
    end = launcher_end(seen, -9, 2)
    assert isinstance(end["code"], int)
    assert all(one["local_rank"] in (0, 1) and isinstance(one["t"], float) for one in end["failures"])


def test_texts_are_bounded_and_can_be_written() -> None:
    record = report({"e": "error", "rank": 0, "message": "m\ud800" * 10**6, "traceback": "x" * 10**7 + "the end"})
    assert record is not None and record["message"] and record["traceback"]
    assert len(record["message"]) <= 1 << 16
    assert record["message"].startswith("m?m?")
    assert record["traceback"].endswith("the end")
    assert len(record["traceback"]) < 1 << 20


def test_nonsense_in_a_scripts_own_files_does_not_end_its_run(cluster: Make) -> None:
    job = r"""
folder = os.environ["DISTTUI_DIR"]
odd = [{"e": "error", "rank": 0}, {"e": "start", "rank": 0, "pid": "me"}, {"e": "exit", "rank": "0", "code": {}}, 7, [],
       {"e": "group", "rank": 1e400, "t": "now"}, {"e": "error", "rank": None, "t": None, "message": []}]
with open(folder + "/ranks.jsonl", "a") as file:
    file.write("".join(json.dumps(one) + "\n" for one in odd[1:]) + "\xff\x00[[[[[\n")
with open(os.environ["DISTTUI_METRICS"], "a") as file:
    file.write('{"step": 1e999}\n{"step": NaN, "loss": "x"}\n{"step": %s}\n[]\n' % ("9" * 330))
with open(folder + "/launcher.json", "w") as file:
    file.write('{"code": "none", "failures": 3}')
open(os.path.dirname(folder) + "/events.jsonl", "a").write("[[[[\n")
while os.path.getsize(os.path.dirname(folder) + "/telemetry.jsonl") < 1000:
    time.sleep(0.1)
"""
    run = cluster(job).start()
    end = run.exit(0)
    assert (end["state"], run.log(0)) == ("finished", "")


def test_endless_reports_of_a_rank_are_bounded(tmp_path: Path) -> None:
    run = Cluster(tmp_path, [1], "")
    host = HostPart(run.spec(0), str(tmp_path), "", None, {}, 0o022)
    Path(host.attempt_folder(1)).mkdir()
    line = json.dumps({"e": "group", "rank": 0, "t": 1.7e9, "world_size": 1, "backend": "gloo"}) + "\n"
    Path(host.attempt_folder(1), "ranks.jsonl").write_text(line * 5000)
    said: list[Any] = []
    ranks = Ranks(host, 1, Loop(), said.append, said.append)
    ranks.poll()
    ranks.close()
    assert 0 < len(said) <= 100


def test_a_pipe_in_the_place_of_a_file_holds_nobody(tmp_path: Path) -> None:
    from disttui.runner.node import journal

    os.mkfifo(tmp_path / "stop")
    assert journal.read_json(str(tmp_path / "stop")) is None
