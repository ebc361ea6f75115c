"""Searches: what they try, how they go on after they were left, and what Optuna learns of every run."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from runner.api import searching, sweeping
from runner.api.news import HostNotice
from runner.api.preparing import PreflightError
from runner.api.search_space import OneOf, Range, parse_goal, parse_space
from runner.api.searching import begin_search, best_of, continue_search
from runner.api.sweeping import Sweep, SweptRun, find_sweep, keep_sweep, load_sweep, single, sweeps_folder
from runner.api.viewer import Viewer
from runner.cli.group import cli
from runner.errors import DisttuiError, HostError, InputError
from runner.planning.preflight import Finding
from runner.profile import Profile
from runner.render.sweep import progress_line, render_sweep
from runner.runs.registry import KnownRun, keep
from tests.unit.history_kit import lines, mirrored
from tests.unit.runs_kit import SLEEP, Cluster, Make, making

LR = ["job.args.lr=log:1e-4..1e-1", "job.args.depth=2,4"]
GOOD = "step(1, loss=3.0)\nstep(2, loss=1.0 + float(sys.argv[sys.argv.index('--lr') + 1]))\n"


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("k=1e-5..1e-2", Range(1e-5, 1e-2, whole=False, log=False)),
        ("k=log:1..1000", Range(1, 1000, whole=True, log=True)),
        ("k=-3..4", Range(-3, 4, whole=True, log=False)),
        ("k=relu,gelu", OneOf(("relu", "gelu"))),
        ("k=../a,../b", OneOf(("../a", "../b"))),
        ("k=2..1", "2 is not below 1"),
        ("k=log:0..1", "begins above 0"),
        ("k=a..b", "no two numbers"),
        ("k=nan..1", "is not below"),
        ("k=1", "no two or more different values"),
        ("k=1,1", "no two or more different values"),
        ("k=", "is no KEY=VALUES"),
    ],
)
def test_a_search_takes_ranges_and_choices_and_says_what_is_wrong_with_others(word: str, found: object) -> None:
    if isinstance(found, str):
        with pytest.raises(InputError, match=found):
            parse_space([word])
    else:
        assert parse_space([word]) == {"k": found}


@pytest.mark.search
def test_a_search_takes_single_values_for_all_its_runs(tmp_path: Path) -> None:
    viewer = Viewer({"XDG_DATA_HOME": str(tmp_path)})
    assert single(["launch.restarts=2", "job.args.seed=1", "hosts.0.gpus=[0, 1]"]) == (
        ("launch.restarts=2", "hosts.0.gpus=[0, 1]"),
        {"job.args.seed": "1"},
    )
    for setting, why in (("job.args.seed=1,2", "has several values"), ("job.args.lr=1", "both give job.args.lr")):
        with pytest.raises(InputError, match=why):
            begin_search(viewer, "2node", LR, "min:loss", settings=[setting])
    for setting, cure in (("env.X=a,b", "quote it: --set 'env.X=\"a,b\"'"), ("job.args.x=a,b", "into the profile")):
        with pytest.raises(InputError) as error:
            single([setting])
        assert cure in error.value.cure
    assert single(['env.X="a,b"']) == (('env.X="a,b"',), {})


def test_a_goal_names_a_metric_and_a_direction() -> None:
    assert parse_goal("max:eval/acc") == ("max", "eval/acc")
    for word in ("loss", "low:loss", "min:", "min:a b"):
        with pytest.raises(InputError, match="neither min:METRIC nor max:METRIC"):
            parse_goal(word)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("x --search a=1..2", "a search needs --search and --goal"),
        ("--resume s --search a=1..2 --goal min:loss", "cannot be changed once a sweep was started"),
        ("--resume s --set a=1", "cannot be changed once a sweep was started"),
        ("x --set a=1,2 --trials 3", "--trials and --parallel are for a search"),
        ("x --set a=1,2 --best", "--best is for a search"),
        ("x --results s", "give one of PROFILE, --results SWEEP and --resume SWEEP"),
    ],
)
def test_options_of_a_search_that_would_have_no_effect_are_refused(words: str, said: str) -> None:
    result = CliRunner().invoke(cli, ["sweep", *words.split()])
    assert isinstance(result.exception, InputError) and said in str(result.exception)


def test_without_optuna_a_search_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"pip install 'disttui\[search\]'"):
        begin_search(Viewer({"XDG_DATA_HOME": str(tmp_path)}), "2node", LR, "min:loss")


class Hosts:
    """This machine as the host of a search: real supervisors, started without a probe."""

    def __init__(self, folder: Path, make: Make) -> None:
        self.viewer = Viewer({"XDG_DATA_HOME": str(folder / "data")})
        self.profile = folder / "mine.yaml"
        self.profile.write_text(
            "disttui: 1\nname: mine\nhosts: [{name: host0, host: local}]\n"
            f"job: {{script: job.py, args: [--seed, '1']}}\nlaunch: {{run_dir: {folder / 'runs0'}}}\n"
        )
        self._make = make
        self.jobs: list[str] = []
        """What the next trials are."""
        self.made: list[Cluster] = []
        self.away = False

    @contextmanager
    def prepare(self, viewer: Viewer, profile: Profile, *, queued: bool) -> Iterator[Any]:
        assert queued
        if self.away:
            raise HostError("host0", "it cannot be reached")
        yield SimpleNamespace(planned=profile)

    def launch(self, viewer: Viewer, prepared: Any, *, source: str, run: str) -> KnownRun:
        profile = prepared.planned
        assert source == str(self.profile)
        target = {"kind": "script", "args": list(profile.job.args)}
        made = self._make(self.jobs.pop(0))
        made.run, made.job = run, made.job.rename(made.base / f"{run}.py")
        made.changes["target"] = {**target, "value": str(made.job)}
        known = keep(profile, [1], run, viewer.environ, source=source)
        made.start()
        self.made.append(made)
        return known

    def begin(self, **how: Any) -> str:
        return begin_search(self.viewer, str(self.profile), LR, "min:loss", **how)

    def go_on(self, name: str, **how: Any) -> Generator[Any]:
        return continue_search(self.viewer, name, every=0.2, **how)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leases_of_the_tests: Path) -> Iterator[Hosts]:
    cluster = making(tmp_path)
    made = Hosts(tmp_path, next(cluster))
    monkeypatch.setattr(searching, "prepare", made.prepare)
    monkeypatch.setattr(searching, "launch", made.launch)
    monkeypatch.setattr(searching, "refuse", lambda planned: None)
    with made.viewer:
        yield made
    with pytest.raises(StopIteration):
        next(cluster)


def trials(news: Iterator[Any]) -> Iterator[SweptRun]:
    """Without what hosts are waited for, which depends on how fast this machine is."""
    return (one for one in news if isinstance(one, SweptRun))


def states(name: str, hosts: Hosts) -> list[tuple[str, Any]]:
    optuna: Any = pytest.importorskip("optuna")
    file = sweeps_folder(hosts.viewer.environ) / f"{name}.journal"
    backend = optuna.storages.journal.JournalFileBackend(str(file))
    study = optuna.load_study(study_name=name, storage=optuna.storages.JournalStorage(backend))
    return [(trial.state.name, trial.value) for trial in study.trials]


@pytest.mark.search
def test_a_search_goes_on_where_it_was_left_and_tells_optuna_how_every_run_has_ended(hosts: Hosts) -> None:
    name = hosts.begin(trials=4, parallel=2, settings=["job.args.seed=7", "launch.restarts=0"])
    hosts.jobs = [GOOD, "raise SystemExit(3)", SLEEP, "step(1, loss=None, acc=1.0)"]
    session = hosts.go_on(name)
    assert [next(session).trial, next(session).trial] == [0, 1]
    session.close()
    assert [one.outcome for one in load_sweep(hosts.viewer.environ, name).runs] == [None, None]
    for run in hosts.made:
        run.exit(0)
    journal = sweeps_folder(hosts.viewer.environ) / f"{name}.journal"
    journal.with_name(f"{journal.name}.lock").symlink_to(journal)  # of a process that was killed as it wrote
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "work')
    news = []
    for one in trials(hosts.go_on(name)):
        news.append(one)
        if len(hosts.made) == 3 and one.trial == 2:
            hosts.made[2].wait_ranks()
            hosts.made[2].stop()
    sweep = find_sweep(hosts.viewer, name)
    first, without = sweep.runs[0], sweep.runs[3]
    lr = float(first.values["job.args.lr"])
    assert first.value == pytest.approx(1.0 + lr) and best_of(sweep) == first
    assert states(name, hosts) == [("COMPLETE", first.value), ("FAIL", None), ("PRUNED", None), ("FAIL", None)]
    assert without.why == "it has no metric loss, but acc"
    assert [one.outcome for one in sweep.runs] == ["finished", "failed", "stopped", "failed"]
    args = hosts.made[0].changes["target"]["args"]
    assert args == ["--seed", "7", "--lr", first.values["job.args.lr"], "--depth", first.values["job.args.depth"]]
    table = render_sweep(sweep).splitlines()
    assert table[0].split() == ["RUN", "lr", "depth", "STATE", "STEP", "LOSS", "min:loss"]
    assert table[-1].startswith(f"best: {first.run[:9]}, loss {first.value:.6g}, with lr ")
    said = [progress_line(sweep, one) for one in news]
    assert sum("trial 2 has failed: " in line for line in said) == 1
    with pytest.raises(StopIteration):
        next(hosts.go_on(name))


@pytest.mark.search
def test_a_host_that_is_away_is_waited_for_and_a_trial_that_never_began_is_no_result(hosts: Hosts) -> None:
    name = hosts.begin(trials=2, best=True)
    hosts.away = True
    with pytest.raises(HostError, match="cannot be reached"):
        next(hosts.go_on(name))
    assert states(name, hosts) == [("RUNNING", None)]
    hosts.away = False
    hosts.jobs = ["step(1, loss=1.0)\nstep(2, loss=2.0)", GOOD]
    session = hosts.go_on(name)
    assert next(session).trial == 1
    hosts.away = True
    ended = next(trials(session))
    assert (ended.outcome, ended.value) == ("finished", 1.0)
    assert next(session) == HostNotice("host0", "it cannot be reached: it is tried again")
    hosts.away = False
    assert [one.outcome for one in trials(session)] == [None, "finished"]
    assert [state for state, _ in states(name, hosts)] == ["FAIL", "COMPLETE", "COMPLETE"]


@pytest.mark.search
def test_a_run_that_cannot_be_started_ends_the_search_and_uses_up_no_other_trial(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = hosts.begin()

    def full(viewer: Viewer, prepared: Any, *, source: str, run: str) -> KnownRun:
        raise HostError("host0", "its disk is full")

    monkeypatch.setattr(searching, "launch", full)
    with pytest.raises(HostError, match="its disk is full"):
        list(hosts.go_on(name))
    (failed,) = load_sweep(hosts.viewer.environ, name).runs
    assert (failed.outcome, failed.why) == ("failed", "host0: its disk is full")


@pytest.mark.search
@pytest.mark.parametrize("words", [("--search", "job.args.lr=1..2", "--goal", "min:loss"), ("--set", "env.LR=1,2")])
def test_ctrl_c_leaves_a_sweep_when_the_run_that_just_starts_is_on_all_its_hosts(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", hosts.viewer.environ["XDG_DATA_HOME"])
    hosts.jobs = [SLEEP]

    def launch(viewer: Viewer, prepared: Any, *, source: str, run: str = "mine-7f3a") -> KnownRun:
        signal.raise_signal(signal.SIGINT)
        return hosts.launch(viewer, prepared, source=source, run=run)

    for module in (searching, sweeping):
        monkeypatch.setattr(module, "prepare", hosts.prepare)
        monkeypatch.setattr(module, "launch", launch)
    CliRunner().invoke(cli, ["sweep", str(hosts.profile), *words])
    (file,) = sweeps_folder(hosts.viewer.environ).glob("*.json")
    (one,) = load_sweep(hosts.viewer.environ, file.stem).runs
    assert [made.run for made in hosts.made] == [one.run]


@pytest.mark.search
def test_two_do_not_go_on_with_the_same_search_and_another_profile_is_not_taken_for_it(hosts: Hosts) -> None:
    name = hosts.begin(trials=1)
    hosts.jobs = [SLEEP]
    session = hosts.go_on(name)
    next(session)
    with pytest.raises(InputError, match="another disttui goes on with"):
        next(hosts.go_on(name))
    session.close()
    hosts.profile.write_text(hosts.profile.read_text().replace("'1'", "'2'"))
    with pytest.raises(InputError, match="is not what the trials"):
        next(hosts.go_on(name))


@pytest.mark.search
def test_a_search_whose_first_runs_all_fail_ends_with_the_reason(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    name = hosts.begin()

    def failed(viewer: Viewer, runs: Sequence[KnownRun]) -> dict[str, Any]:
        return {run.run: {"state": "lost", "dropped": "why not"} for run in runs}

    monkeypatch.setattr(searching, "statuses", failed)
    monkeypatch.setattr(
        searching,
        "launch",
        lambda viewer, prepared, source, run: keep(prepared.planned, [1], run, viewer.environ, source=source),
    )
    with pytest.raises(DisttuiError, match=r"3 trials have failed, and none has a value: mine-\w+: why not") as error:
        list(hosts.go_on(name))
    assert error.value.cure.startswith("See disttui diagnose mine-")


@pytest.mark.search
def test_values_that_a_check_refuses_are_failed_trials_and_three_of_them_end_the_search(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a check finds on a host may be gone the next time; what it finds in the values stays."""
    name = hosts.begin(trials=9, parallel=2)
    hosts.jobs = [SLEEP]
    session = hosts.go_on(name)
    assert next(session).outcome is None
    of_host = Finding("error", "host0", "its disk is full", "Make room", ("run_dir",))
    found = [of_host, Finding("error", None, "3 does not divide 4", "Correct it")]

    def refused(planned: Any) -> None:
        raise PreflightError(found)

    monkeypatch.setattr(searching, "refuse", refused)
    bad = next(session)
    assert (bad.trial, bad.outcome, bad.why) == (1, "failed", "3 does not divide 4")
    del found[1]
    assert "its disk is full: it is tried again" in next(session).text
    monkeypatch.setattr(searching, "refuse", lambda planned: None)

    def unknown(profile: Profile, path: Path, overrides: Sequence[str]) -> Profile:
        raise InputError("no such option", "Correct it.")

    monkeypatch.setattr(searching, "load_again", unknown)
    assert [next(session).why, next(session).why] == ["no such option"] * 2
    with pytest.raises(DisttuiError, match=r"3 trials have failed, and none has a value; 1 goes on: .*divide") as error:
        next(session)
    assert error.value.cure == f"Go on all the same: disttui sweep --resume {name}"
    assert [state for state, _ in states(name, hosts)] == ["RUNNING", "FAIL", "FAIL", "FAIL"]


@pytest.mark.search
def test_a_value_that_one_host_will_never_take_is_tried_once_and_none_left_ends_the_search(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = [1]
    found = Finding("error", "host0", "16 processes, but 4 GPUs", "Lower it", ("num_processes",))

    def refused(planned: Profile) -> None:
        if planned.hosts[0].num_processes not in taken:
            raise PreflightError([found])

    monkeypatch.setattr(searching, "refuse", refused)
    space = ["hosts.0.num_processes=1,16"]
    good = "step(1, loss=1.0)\n"
    name = begin_search(hosts.viewer, str(hosts.profile), space, "min:loss", trials=8)
    hosts.jobs = [good] * 8
    ended = [one for one in trials(hosts.go_on(name)) if one.outcome]
    tried = [one.values["hosts.0.num_processes"] for one in ended]
    assert len(tried) == 8 and tried.count("16") <= 1
    assert {one.why for one in ended if one.outcome == "failed"} <= {"host0: 16 processes, but 4 GPUs"}
    taken.clear()
    name = begin_search(hosts.viewer, str(hosts.profile), space, "min:loss", trials=8)
    with pytest.raises(DisttuiError, match="no values left to try: the checks have refused 2 of them, the last: host0"):
        list(hosts.go_on(name))
    assert [one.outcome for one in load_sweep(hosts.viewer.environ, name).runs] == ["failed", "failed"]


@pytest.mark.search
@pytest.mark.parametrize("space", ["launch.restarts=0..9999999", "launch.launcher=torchrun,mpirun,slurrm"])
def test_every_choice_and_both_ends_of_a_range_are_checked_before_a_search_begins(hosts: Hosts, space: str) -> None:
    with pytest.raises(InputError, match=r"9999999|slurrm"):
        begin_search(hosts.viewer, str(hosts.profile), [*LR, space], "min:loss")
    assert not sweeps_folder(hosts.viewer.environ).exists()


@pytest.mark.search
def test_what_is_waited_for_is_said_once_until_the_search_gets_on(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = hosts.begin(trials=3, parallel=2)
    hosts.jobs = [SLEEP]
    session = hosts.go_on(name)
    next(session)
    turns = iter(["a", "b", "a", "b", "a", "c"])

    def away(viewer: Viewer, profile: Profile, *, queued: bool) -> Any:
        raise HostError("host0", next(turns))

    monkeypatch.setattr(searching, "prepare", away)
    assert [next(session).text[0] for _ in range(3)] == ["a", "b", "c"]


@pytest.mark.search
@pytest.mark.parametrize(("best", "value"), [(False, 0.5), (True, 0.9)])
def test_the_value_of_a_run_that_is_complete_here_is_of_all_its_attempts_also_when_its_host_has_removed_it(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, *, best: bool, value: float
) -> None:
    """Also of a metric whose name trackers would not take, and where the last attempt has written others alone."""
    name = begin_search(hosts.viewer, str(hosts.profile), LR, "max:acc@1", trials=1, best=best)
    attempts = [[(1, 0.9), (2, 0.8), (3, 7.0)], [(2, 0.7), (3, 0.5)]]
    metrics = {
        f"attempt-{number}/rank-0.metrics.jsonl": lines(*({"step": step, "acc@1": acc} for step, acc in written))
        for number, written in enumerate(attempts, 1)
    }
    files = {
        "spec.json": json.dumps({"run": "x", "node_rank": 0, "hosts": ["host0"], "nproc": [1]}),
        "events.jsonl": lines({"t": 9.0, "e": "supervisor"}),
        "attempt-3/rank-0.metrics.jsonl": lines({"step": 4, "loss": 1.0}),
        **metrics,
        "exit.json": json.dumps({"t": 12.0, "state": "finished", "code": 0}),
    }

    def done(viewer: Viewer, prepared: Any, *, source: str, run: str) -> KnownRun:
        made = keep(prepared.planned, [1], run, viewer.environ, source=source)
        mirrored(made, 0, dict(files))
        return made

    monkeypatch.setattr(searching, "launch", done)
    _, ended = hosts.go_on(name)
    assert (ended.outcome, ended.value, ended.why) == ("finished", value, "")


def test_a_damaged_file_of_a_sweep_is_named(tmp_path: Path) -> None:
    environ = {"XDG_DATA_HOME": str(tmp_path)}
    keep_sweep(environ, Sweep("s", (SweptRun("a-7f3a000011112222", {"k": "1"}),)))
    file = sweeps_folder(environ) / "s.json"
    assert load_sweep(environ, "s").search is None
    with pytest.raises(InputError, match="no sweep 'other' was started here"):
        load_sweep(environ, "other")
    run = '{"run": "a-1", "values": {}, "trial": "x"}'
    huge = f'{{"run": "a-1", "values": {{}}, "value": 1{"0" * 400}}}'
    for text in (f'{{"runs": [{run}]}}', f'{{"runs": [{huge}]}}', '{"runs": [], "search": {"profile": 1}}', "[]"):
        file.write_text(text)
        with pytest.raises(InputError, match="cannot be read"):
            load_sweep(environ, "s")
