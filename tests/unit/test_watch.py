"""The rules of `watch`: what fires, what does not, and what the leader does then."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from disttui.runner.node.gang.gang import Gang, Phase
from disttui.runner.node.host import HostPart
from disttui.runner.node.loop import Loop
from disttui.runner.node.notify import Notifier, sentence
from disttui.runner.node.supervise.member import Member
from disttui.runner.profile.load import parse
from disttui.runner.profile.schema import Profile
from disttui.runner.protocol.watch import Judge, WatchRule, step_of_name
from tests.unit.history_kit import command, kept, lines, mirrored
from tests.unit.runs_kit import Make
from tests.unit.waiting import wait_for

_PATIENT = 60.0
_TRAIN = """
import os, time
folder = os.environ["DISTTUI_CHECKPOINTS"]
os.makedirs(folder, exist_ok=True)
kept = sorted(int(name.split("-")[1]) for name in os.listdir(folder) if name.startswith("checkpoint-"))
begin = kept[-1] + 1 if kept else 0
for n in range(begin, 60):
    step(n, loss="nan" if attempt == 1 and n >= 42 else 3.0 - n / 100)
    if n % 10 == 0 and rank == 0:
        os.makedirs(os.path.join(folder, "checkpoint-%d" % n), exist_ok=True)
    time.sleep(0.06)
"""


def _watching(do: str) -> list[dict[str, str]]:
    return [{"rule": "nonfinite", "do": do}]


def _profile(text: str) -> Profile:
    return parse(text, "w.yaml")


def test_rollback_resumes_before_the_nan_once(cluster: Make) -> None:
    run = cluster(_TRAIN, [1, 2], launch={"restarts": 2}, watch=_watching("rollback")).start()
    assert [end["state"] for end in (run.exit(0, _PATIENT), run.exit(1, _PATIENT))] == ["finished", "finished"]
    [failed] = run.events(0, "failed")
    assert failed["cause"]["kind"] == "watch"
    assert failed["cause"]["message"] == "watch.nonfinite: loss is nan since step 42"
    names = sorted(path.name for path in (run.run_dir(0) / run.run / "checkpoints").iterdir())
    # Whether step 50 was reached before the ranks had ended depends on the machine.
    assert {"checkpoint-0", "checkpoint-40", "checkpoint-50"} <= set(names)
    assert {name for name in names if name.startswith("rolled-back")} <= {"rolled-back-1-checkpoint-50"}
    lines = (run.path(0, "attempt-2") / "rank-0.metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["step"] == 41


def test_a_bad_checkpoint_is_set_aside(cluster: Make) -> None:
    run = cluster(_TRAIN.replace("n >= 42", "n >= 39"), [1], launch={"restarts": 1}, watch=_watching("rollback"))
    run.start()
    assert run.exit(0, _PATIENT)["state"] == "finished"
    names = {path.name for path in (run.run_dir(0) / run.run / "checkpoints").iterdir()}
    assert {"checkpoint-30", "rolled-back-1-checkpoint-40", "checkpoint-40"} <= names
    lines = (run.path(0, "attempt-2") / "rank-0.metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["step"] == 31
    assert any("renamed checkpoint-40" in note["text"] for note in run.events(0, "note"))


def test_a_checkpoint_that_holds_the_bad_update_is_set_aside(cluster: Make) -> None:
    """The loss of a step is that before its update: the last good step's checkpoint may be the first bad one."""
    bad = _TRAIN.replace("attempt == 1 and n >= 42", "n > 40 and begin != 31")
    run = cluster(bad, [1], launch={"restarts": 1}, watch=_watching("rollback")).start()
    assert run.exit(0, _PATIENT)["state"] == "finished"
    lines = (run.path(0, "attempt-2") / "rank-0.metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["step"] == 31


def test_nothing_is_set_aside_through_a_link(cluster: Make, tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / "checkpoint-900").mkdir()
    run = cluster(_TRAIN.replace("begin, 60", "0, 60"), [1], launch={"restarts": 1}, watch=_watching("rollback"))
    folder = run.run_dir(0) / run.run / "checkpoints"
    folder.parent.mkdir(0o700, parents=True, exist_ok=True)
    folder.symlink_to(others)
    run.start()
    assert run.exit(0, _PATIENT)["state"] == "finished"
    assert "checkpoint-900" in {path.name for path in others.iterdir()}
    assert not any(path.name.startswith("rolled-back") for path in others.iterdir())
    assert any("cannot roll back" in note["text"] for note in run.events(0, "note"))


def _member(folder: Path, rules: list[dict[str, str]]) -> Member:
    host = SimpleNamespace(
        node_zip="", train_zip="", spec={"watch": rules}, checkpoints=str(folder), path=lambda name: str(folder / name)
    )
    return Member(cast("HostPart", host), Loop(), lambda event: None, lambda message: None, lambda verdict: None)


@pytest.mark.parametrize(("do", "kept"), [("rollback", False), ("restart", True)])
def test_a_host_renames_only_what_its_own_spec_allows(tmp_path: Path, do: str, kept: bool) -> None:
    """The leader may be compromised."""
    (tmp_path / "checkpoint-40").mkdir()
    (tmp_path / "stop").touch()  # no launcher is started
    _member(tmp_path, _watching(do)).receive({"k": "warm", "attempt": 2, "before": 0})
    assert (tmp_path / "checkpoint-40").exists() is kept


def test_invented_times_send_the_leader_a_finding_once(tmp_path: Path) -> None:
    host = SimpleNamespace(node_zip="", train_zip="", spec={}, checkpoints="", path=str)
    sent: list[Any] = []
    member = Member(cast("HostPart", host), Loop(), lambda event: None, sent.append, lambda verdict: None)
    judge = Judge([WatchRule(rule="slow", do="notify")])
    member._attempt = cast("Any", SimpleNamespace(look=lambda: None, ranks=SimpleNamespace(watch=judge), well=False))
    for step in range(400):
        judge.hear(0, {"t": step + 1.0 if step < 50 else step * 1000.0, "step": step})
    member._look()
    assert len(sent) == 1


def test_every_rule_is_notified(tmp_path: Path) -> None:
    spec = {"run": "r", "node_rank": 0, "hosts": ["n1"]}
    notices = Notifier(str(tmp_path), spec, [])
    for text in ("rank 0 on n1: slow (slow)", "rank 0 on n1: loss is nan (nonfinite)", "rank 1 on n1: nan (nonfinite)"):
        notices.see({"t": 5.0, "e": "alarm", "kind": "watch", "text": text, "value": None})
    lines = [json.loads(line) for line in (tmp_path / "notify.jsonl").read_text().splitlines()]
    assert [line["notice"]["text"] for line in lines] == [
        "n1: rank 0 on n1: slow (slow)", "n1: rank 0 on n1: loss is nan (nonfinite)",
    ]  # fmt: skip


def _gang(do: str, hosts: int = 2, rule: str = "nonfinite") -> tuple[Gang, list[Any], list[Any]]:
    spec = {
        "hosts": ["a", "b"][:hosts], "nproc": [1] * hosts, "node_rank": 0, "watch": [{"rule": rule, "do": do}],
        "launch": {
            "restarts": 2, "ports": [20000, 40000], "grace": 1.0, "join_timeout": 9.0, "rejoin_timeout": 9.0,
            "host_timeout": 5.0,
        },
    }  # fmt: skip
    events: list[Any] = []
    sent: list[Any] = []
    host = SimpleNamespace(spec=spec, launch=spec["launch"], world_size=hosts)
    loop = Loop()
    gang = Gang(cast("HostPart", host), loop, events.append, lambda node, order: sent.append((node, order)), ["::1"])
    for node in range(hosts):
        gang.join(node)
    gang._phase, gang._started_at = Phase.RUNNING, time.monotonic() - 100
    return gang, events, sent


def _found(**other: Any) -> Any:
    return {"k": "found", "attempt": 1, "rule": "nonfinite", "rank": 1, "step": 7, "text": "loss is nan", **other}


_ENDED: Any = {"k": "ended", "attempt": 1, "left": [], "begun": True, "saved": True, "step": 9}


def test_a_rollback_goes_on_when_a_host_is_lost_meanwhile() -> None:
    gang, events, sent = _gang("rollback")
    gang.receive(1, _found())
    gang.lose(1, time.time(), gone=False)
    gang.receive(0, _ENDED)
    warm = [(node, order["before"]) for node, order in sent if order["k"] == "warm"]
    assert warm == [(0, 7), (1, 7)]
    assert [event["e"] for event in events].count("alarm") == 1


def test_stop_wins_over_a_finding_in_either_order() -> None:
    gang, events, sent = _gang("rollback")
    gang.stop("you", now=False)
    gang.receive(1, _found())
    assert not [event for event in events if event["e"] == "alarm"]
    gang, events, sent = _gang("rollback")
    gang.receive(1, _found())
    gang.stop("you", now=False)
    for node in (0, 1):
        gang.receive(node, _ENDED)
    assert sent[-1][1]["state"] == "stopped"
    assert not [order for _, order in sent if order["k"] == "warm"]


def test_finding_counts_only_for_this_attempt_and_spec_rules() -> None:
    gang, events, sent = _gang("stop")
    for other in ({"rule": "spike"}, {"rule": "__init__"}, {"attempt": 0}):
        gang.receive(1, _found(**other))
    assert not [event for event in events if event["e"] == "alarm"]
    gang.receive(1, _found(text="\ud800" * 300, step=None, rank=2**53))
    [stop] = {order["reason"] for _, order in sent if order["k"] == "stop"}
    assert len(stop) == 200


def test_host_alarm_is_acted_on_but_not_announced_twice() -> None:
    gang, events, sent = _gang("notify", rule="disk")
    gang.receive(1, _found(rule="disk", text="the disk is full"))
    assert not sent and not [event for event in events if event["e"] == "alarm"]
    gang, events, sent = _gang("stop", rule="disk")
    gang.receive(1, _found(rule="memory", text="GPU 0: memory nearly full"))
    assert not sent
    gang.receive(1, _found(rule="disk", text="the disk is full"))
    assert {order["reason"] for _, order in sent if order["k"] == "stop"} == {"watch.disk: the disk is full"}
    [alarm] = [event for event in events if event["e"] == "alarm"]
    assert alarm["text"] == "b: the disk is full (disk)"


_STALLED = {"t": 2.0, "e": "stall", "attempt": 1, "silent": {"0": 40.0, "1": 33.0}}


def test_ranks_of_the_first_host_may_stall_before_they_listen() -> None:
    gang, events, _ = _gang("restart", rule="stall")
    gang._phase = Phase.STARTING
    gang._look_at_health()
    gang._health._gang_last -= 100.0
    gang._health.hear(0, cast("Any", {"silent": {"0": 200.0}, "times": {}, "shows": []}), time.monotonic())
    gang._look_at_health()
    assert [event["e"] for event in events if event["e"] != "join"] == ["stall"]
    gang._phase = Phase.RUNNING
    gang._health.hear(0, cast("Any", {"silent": {"0": 0.0}, "times": {}, "shows": []}), time.monotonic())
    gang._look_at_health()
    assert events[-1]["e"] == "stall" and events[-1]["over"]


@pytest.mark.parametrize(("do", "acts"), [("notify", []), ("stacks", []), ("restart", ["end", "end"])])
def test_a_stall_is_acted_on_once(do: str, acts: list[str]) -> None:
    gang, events, sent = _gang(do, rule="stall")
    gang._hear_health(cast("Any", {**_STALLED, "over": True}))
    assert not sent
    gang._health.look(1, 100.0)
    gang._health.hear(0, cast("Any", {"silent": {"0": 40.0, "1": 33.0}, "times": {}, "shows": []}), 133.0)
    gang._health.look(1, 133.0)
    assert [order["k"] for _, order in sent] == ["stacks", "stacks", *acts]
    [stall] = [event for event in events if event["e"] == "stall" and not event.get("over")]
    assert {f"stacks-{order['number']}.json" for _, order in sent if order["k"] == "stacks"} == {stall["stacks"]}
    texts = [event["text"] for event in events if event["e"] == "alarm"]
    assert texts == ["a: no rank has shown progress for 33 s (stall)"] * (do != "notify")
    before = len(sent)
    gang._hear_health(cast("Any", _STALLED))
    assert len(sent) == before


def test_alarm_is_reported_once_ranks_work_and_while_it_lasts(tmp_path: Path) -> None:
    sent: list[Any] = []
    host = SimpleNamespace(node_zip="", train_zip="", spec={}, checkpoints="", path=str, ranks=[4, 5])
    member = Member(cast("HostPart", host), Loop(), lambda event: None, sent.append, lambda verdict: None)
    ranks = SimpleNamespace(watch=Judge([]), begun=False)
    member._attempt = cast("Any", SimpleNamespace(look=lambda: None, ranks=ranks, well=False))
    full: Any = {"t": 1.0, "e": "alarm", "kind": "disk", "text": "full", "value": 1.0}
    gpu: Any = {**full, "kind": "gpu memory", "text": "GPU 0"}
    for alarm in (full, gpu, {**full, "kind": "watch", "text": "x"}, {**gpu, "over": True}):
        member.alarm(cast("Any", alarm))
    member._look()
    assert not sent
    ranks.begun = True
    member._look()
    member._look()
    assert sent == [{"k": "found", "attempt": 0, "rule": "disk", "rank": 4, "step": None, "text": "full"}]


@pytest.mark.slow
def test_a_run_that_stands_still_is_restarted(cluster: Make) -> None:
    body = "for n in range(30):\n    step(n, loss=1.0)\n    time.sleep(600 if attempt == 1 and n == 20 else 0.02)\n"
    run = cluster("import time\n" + body, [1], launch={"restarts": 1}, watch=[{"rule": "stall", "do": "restart"}])
    run.start()
    assert run.exit(0, 2 * _PATIENT)["state"] == "finished"
    [failed] = run.events(0, "failed")
    assert failed["cause"]["message"].startswith("watch.stall: no rank has ")


def test_events_of_a_recorded_run_are_tried_as_well(tmp_path: Path) -> None:
    run = kept(tmp_path)
    full = {"t": 4.0, "e": "alarm", "kind": "swap", "text": "the host is swapping"}
    begun = {"t": 1.0, "e": "attempt", "attempt": 1, "master": "a", "port": 1, "world_size": 3}
    mirrored(run, 0, {"events.jsonl": lines(begun, _STALLED, {**_STALLED, "t": 3.0, "over": True}), "exit.json": "{}"})
    mirrored(run, 1, {"events.jsonl": lines(full, {**full, "t": 6.0, "over": True}), "exit.json": "{}"})
    words = ("watch", "--try", run.run, "--local", "--set", "watch.memory=stop", "--set", "watch.stall=stacks")
    done = command(tmp_path, *words)
    assert [line.partition("  ")[2] for line in done.stdout.splitlines()] == [
        "attempt 1, a: no rank has shown progress for 33 s (stall → stacks)",
        "attempt 1, b: the host is swapping (memory → stop)",
    ]
    fired = json.loads(command(tmp_path, *words, "--json").stdout)
    assert [(one["rule"], one["rank"]) for one in fired] == [("stall", None), ("memory", None)]


_CAREFUL = """
import signal
if rank == 1:
    signal.signal(signal.SIGUSR1, lambda *_: open("saved-%s" % rank, "w").close())
    open(__file__ + ".handled", "w").close()
while not os.path.exists(__file__ + ".go"):
    time.sleep(0.1)
while not os.path.exists("saved-1"):
    print("CUDA error: again", flush=True)
    time.sleep(0.1)
"""


def test_only_ranks_that_handle_sigusr1_get_it_for_a_snapshot(cluster: Make) -> None:
    """The signal would end rank 0, which does not."""
    rule = {"rule": "log", "pattern": "^CUDA error", "do": "snapshot"}
    run = cluster(_CAREFUL, [2, 1], watch=[rule]).start().wait_ranks()
    wait_for(run.job.with_name("job.py.handled").exists, "the handler")
    run.job.with_name("job.py.go").touch()
    assert [end["state"] for end in (run.exit(0, _PATIENT), run.exit(1, _PATIENT))] == ["finished", "finished"]
    [alarm] = run.events(0, "alarm")
    assert alarm["text"].endswith(": its log matches ^CUDA error (log)")
    assert "snapshot: sent SIGUSR1 to ranks 1" in {one["text"] for one in run.events(0, "note")}
    said = "snapshot: no rank of this host handles SIGUSR1"
    assert said in {one["text"] for one in run.events(1, "note")}


def test_lines_of_a_recorded_run_are_tried_as_well(tmp_path: Path) -> None:
    run = kept(tmp_path)
    begun = {"t": 1.0, "e": "attempt", "attempt": 1, "master": "a", "port": 1, "world_size": 3}
    files = {"events.jsonl": lines(begun), "attempt-1/rank-0.log": "alive\nCUDA error: 700\nalive\n", "exit.json": "{}"}
    grown = [{"t": 100.0, "sizes": {"0": 6}}, {"t": 110.0, "sizes": {"0": 22}}, {"t": 500.0, "sizes": {"0": 28}}]
    mirrored(run, 0, {**files, "attempt-1/growth.jsonl": lines(*grown)})
    mirrored(run, 1, {"exit.json": "{}"})
    for rule, at, text in (
        ("{pattern: 'CUDA error', do: stop}", 110.0, "its log matches CUDA error"),
        ("{pattern: alive, absent: 60, do: stop}", 500.0, "no line of its log has matched alive for 400 s"),
    ):
        words = ("watch", "--try", run.run, "--local", "--set", f"watch.log={rule}", "--json")
        [fired] = json.loads(command(tmp_path, *words).stdout)
        assert (fired["at"], fired["rank"], fired["rule"], fired["do"]) == (at, 0, "log", "stop")
        assert fired["text"] == text


def test_half_a_surrogate_pair_does_not_hold_notifications_up() -> None:
    notice = {"run": "r", "hosts": ["a"], "text": "loss \ud800", "cause": None, "look": "l"}
    assert sentence(notice).encode() == b"r: loss ?\non a\nl"


def test_stop_by_a_rule_names_it_and_many_ranks_make_one_alarm(cluster: Make) -> None:
    run = cluster(_TRAIN.replace("range(begin, 60)", "range(begin, 600)"), [2, 2], watch=_watching("stop")).start()
    assert run.exit(0, _PATIENT)["state"] == run.exit(1, _PATIENT)["state"] == "stopped"
    [alarm] = run.events(0, "alarm")
    assert alarm["kind"] == "watch" and alarm["text"].endswith("loss is nan since step 42 (nonfinite)")
    [stopping] = run.events(1, "stopping")
    assert stopping["reason"] == "watch.nonfinite: loss is nan since step 42"


def test_run_without_restarts_fails_with_the_rule_as_cause(cluster: Make) -> None:
    run = cluster(_TRAIN.replace("range(begin, 60)", "range(begin, 600)"), [1, 1], watch=_watching("restart")).start()
    end = run.exit(0, _PATIENT)
    assert (end["state"], end["cause"]["kind"], end["attempt"]) == ("failed", "watch", 1)


def test_a_rule_that_the_spec_lacks_does_nothing(cluster: Make) -> None:
    """A host of the run may report anything."""
    run = cluster("step(1)\ntime.sleep(3)", [1], watch=[]).start()
    assert run.exit(0, _PATIENT)["state"] == "finished" and run.events(0, "alarm") == []


def _fired(rule: dict[str, Any], losses: Iterable[object], **more: Any) -> list[dict[str, Any]]:
    judge = Judge([WatchRule(**{"do": "notify", **rule})])  # type: ignore[typeddict-item]
    for step, loss in enumerate(losses):
        judge.hear(0, {"t": 1000.0 + step, "step": step, "loss": loss, **more})
    return [dict(one) for one in judge.take()]


def test_two_nans_in_a_row_fire_once() -> None:
    [found] = _fired({"rule": "nonfinite"}, [3.0, 2.0, "nan", "nan", "nan", 2.0, "nan", "nan"])
    assert (found["step"], found["text"]) == (1, "loss is nan since step 2")
    [found] = _fired({"rule": "nonfinite"}, ["nan", "nan"])
    assert found["step"] == -1, "what it has resumed from may be bad"


def test_nan_at_step_0_and_single_nans_are_no_alarm() -> None:
    assert _fired({"rule": "nonfinite"}, ["nan", 3.0, "inf", 2.9, math.nan, 2.8, "text", 2.7]) == []


def test_infinite_gradients_of_loss_scaling_are_no_alarm() -> None:
    judge = Judge([WatchRule(rule="nonfinite", do="notify")])
    for step in range(4):
        judge.hear(0, {"step": step, "loss": 2.0, "grad_norm": "inf"})
    judge.hear(0, {"step": 4, "loss": 2.0, "grad_norm": 1.0})
    assert judge.take() == []
    for step, norm in enumerate([*["inf"] * 20, 1.0, *["inf"] * 5]):  # it may begin at 2**32
        judge.hear(1, {"step": step, "loss": 2.0, "grad_norm": norm})
    [found] = judge.take()
    assert found["text"] == "grad_norm is inf since step 21"
    for step in range(60):
        judge.hear(2, {"step": step, "loss": 2.0, "grad_norm": "inf"})
    assert [one["rank"] for one in judge.take()] == [2]


def test_spike_is_found_after_the_warm_up_only() -> None:
    calm = [2.0 + 0.01 * (step % 7) for step in range(100)]
    assert _fired({"rule": "spike", "metric": "loss"}, [9.0, 9.0, 9.0, 9.0, *calm]) == []
    assert _fired({"rule": "spike", "metric": "loss"}, [*calm, 9.0, 9.0, 2.0, *calm]) == []
    [found] = _fired({"rule": "spike", "metric": "loss"}, [*calm, 9.0, 9.1, 9.2, 9.3])
    assert (found["step"], found["text"]) == (99, "loss 9 at step 100 (usual: 2.03)")
    assert _fired({"rule": "spike", "metric": "loss"}, [*[0.0] * 100, 1e-9, 1e-9, 1e-9]) == []


@pytest.mark.parametrize("seed", range(50))
def test_ordinary_noisy_curves_do_not_spike(seed: int) -> None:
    dice = random.Random(seed)
    rate, noise = dice.uniform(0.001, 0.05), dice.uniform(0.01, 0.15)
    curve = [1.5 + 8 * math.exp(-rate * step) + dice.gauss(0, noise) for step in range(2000)]
    rules = ({"rule": "spike", "metric": "loss"}, {"rule": "nonfinite"}, {"rule": "slow"})
    for rule in rules:
        assert _fired(rule, curve) == []
    at = dice.randint(100, 1990)
    for rule, bad in zip(rules, (3 * max(curve[at - 99 :]), math.inf), strict=False):
        [found] = _fired(rule, [*curve[:at], *[bad] * 3, *curve[at:]])
        assert found["step"] == at - 1


def test_slow_compares_with_the_ranks_own_best() -> None:
    judge = Judge([WatchRule(rule="slow", do="notify", percent=30.0, seconds=60.0)])
    now = 0.0
    for step in range(400):
        now += 1.0 if step < 200 else 2.0
        judge.hear(1, {"t": now, "step": step})
    [found] = judge.take()
    assert found["text"].startswith("a step takes 2 s (best: 1 s): slow for 6")


def test_goal_and_plateau() -> None:
    falling = [3.0 - 0.01 * step for step in range(200)]
    [found] = _fired({"rule": "goal", "metric": "loss", "below": 1.5, "above": None}, falling)
    assert found["text"].startswith("goal reached: loss 1.49 is below 1.5")
    assert _fired({"rule": "plateau", "metric": "loss", "steps": 50}, falling) == []
    [found] = _fired({"rule": "plateau", "metric": "loss", "steps": 50}, [2.0] * 80)
    assert found["text"] == "loss has not improved on 2 for 50 steps"


def test_hostile_records_break_no_rule() -> None:
    rules = [WatchRule(rule="nonfinite", do="notify"), WatchRule(rule="spike", do="notify")]
    rules += [WatchRule(rule="slow", do="notify"), WatchRule(rule="plateau", do="notify")]
    judge = Judge(rules)
    values: tuple[object, ...] = (None, [], {}, "x" * 1000, True, 1e308, -1e308, 10**30)
    for value in values:
        for step in (None, "7", 1e300, -5, value):
            judge.hear(0, {"t": value, "step": step, "loss": value, "grad_norm": value})
    judge.take()


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500), ("step-000040-a1.pt", 40), ("epoch=1-step=700.ckpt", 700), ("ckpt_12.pt", 12),
        ("iter-0003000-ckpt.pth", 3000), ("model.pt", None), ("latest", None), ("2026-11-26", None),
    ],
)  # fmt: skip
def test_step_of_a_checkpoints_name(name: str, step: int | None) -> None:
    assert step_of_name(name) == step


def test_profile_gives_rules_and_refuses_what_cannot_work() -> None:
    text = "disttui: 1\nname: w\nhosts: [local]\njob: {builtin: bytegpt}\n"
    assert [rule["rule"] for rule in _profile(text).watch.rules()] == ["nonfinite"]
    assert _profile(text + "watch: {nonfinite: off}\n").watch.rules() == []
    more = text + "launch: {restarts: 1}\nwatch: {nonfinite: rollback, goal: {below: 1.5, do: stop}}\n"
    assert [(rule["rule"], rule["do"]) for rule in _profile(more).watch.rules()] == [
        ("nonfinite", "rollback"), ("goal", "stop"),
    ]  # fmt: skip
    both = _profile(text + "watch: {nonfinite: off, stall: stacks, disk: {do: stop}}\n").watch.rules()
    assert both == [{"rule": "stall", "do": "stacks"}, {"rule": "disk", "do": "stop"}]
    log = _profile(text + "watch: {log: {pattern: 'a+'}, stall: {seconds: 90, do: snapshot}}\n").watch.rules()[1:]
    assert log == [
        {"rule": "log", "do": "notify", "pattern": "a+"}, {"rule": "stall", "do": "snapshot", "seconds": 90.0},
    ]  # fmt: skip
    for wrong, what in (
        ("watch: {nonfinite: rollback}\n", "set launch.restarts"),
        ("watch: {goal: stop}\n", "above or below"),
        ("watch: {spike: {times: many}}\n", "expected a number"),
        ("watch: {speik: stop}\n", "did you mean 'spike'"),
        ("watch: {log: stop}\n", "w.yaml:5.*pattern"),
        ("watch:\n  log: {pattern: '(', do: stop}\n", "w.yaml:6.*'[(]' is not a valid regular expression"),
        ("watch: {stall: {seconds: soon}}\n", "w.yaml:5.*expected seconds"),
    ):
        with pytest.raises(Exception, match=what):
            _profile(text + wrong)
