"""Searches: sweeps whose values Optuna chooses, by what the runs before have reached.

A search has no process of its own on any host. It goes on while `continue_search` is iterated; its runs go on without
it, and the next call takes up what they have reached meanwhile. Optuna's trials are in a journal beside the sweep's
file, which says which run each of them is. The file is written before a run starts, and after Optuna knows its end.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from runner.api.library import load_again, load_profile
from runner.api.listing import RunStatus, statuses
from runner.api.news import HostNotice
from runner.api.preparing import PreflightError, launch, prepare, refuse, resolve_secrets
from runner.api.replaying import replay
from runner.api.search_space import OneOf, Range, Search, Space, parse_goal, parse_space
from runner.api.sweeping import (
    MOST,
    Outcome,
    Sweep,
    SweptRun,
    Whole,
    keep_sweep,
    load_sweep,
    new_name,
    overrides,
    single,
    sweeps_folder,
)
from runner.api.viewer import Viewer
from runner.errors import DisttuiError, HostError, InputError
from runner.hosts.survey import HostsError
from runner.ids import new_run_id, short
from runner.paths import inside
from runner.private import lock
from runner.profile import Profile
from runner.profile.library import find
from runner.protocol.metrics import Metrics
from runner.runs.registry import KnownRun, find_run, run_names
from runner.runs.remote import missing
from runner.text import clean
from runner.trackers.points import points, usable

POLL = 10.0
"""Seconds between two looks at the runs."""
_HOPELESS = 3
"""So many trials that fail, and none before that has not, are no accident."""
_ASKS = 100
"""How often Optuna is asked for values that no check has refused: it may propose the same ones again."""
_OVER = ("finished", "failed", "stopped", "lost", "gone")


def begin_search(
    viewer: Viewer,
    profile: str,
    space: Sequence[str],
    goal: str,
    *,
    settings: Sequence[str] = (),
    trials: int = 20,
    parallel: int = 1,
    best: bool = False,
    trusted: bool = False,
) -> str:
    """Check and keep a search, for `continue_search`; returns its name. Starts nothing.

    Args:
        space: `KEY=LOW..HIGH`, `KEY=log:LOW..HIGH` or `KEY=A,B,C`; `job.args.lr` is the job's option `--lr`.
        goal: `min:METRIC` or `max:METRIC`.
        settings: `KEY=VALUE`, of all its runs.
        best: A run counts by its best value, not by its last.
        trusted: Use the profile without asking.

    Raises:
        InputError: Something of it is wrong, or Optuna is not installed.
    """
    keys = parse_space(space)
    parse_goal(goal)
    if not keys:
        raise InputError("there is nothing to search", "Give --search job.args.lr=log:1e-5..1e-2.")
    if not (1 <= trials <= MOST and parallel >= 1):
        raise InputError(f"a search has 1 to {MOST} trials, at least one at a time", "Give --trials 20 --parallel 2.")
    _optuna()
    plain, arguments = single(settings)
    if twice := [key for key in keys if key in arguments or any(word.startswith(f"{key}=") for word in plain)]:
        raise InputError(f"--set and --search both give {twice[0]}", "Leave one of them out.")
    source = Path(os.path.abspath(find(profile)))  # noqa: PTH100 - links stay
    base = load_profile(str(source), plain, questions=viewer.questions, trusted=trusted)
    tried = {key: one.values if isinstance(one, OneOf) else one.ends() for key, one in keys.items()}
    first = {key: values[0] for key, values in tried.items()}
    for values in [{**first, key: value} for key in keys for value in tried[key]]:
        load_again(base, source, (*plain, *overrides({**arguments, **values}, base.job.target.args)))
    name = new_name(base.name)
    wanted = Search(
        str(source), tuple(settings), tuple(space), goal, best=best, trials=trials, parallel=parallel,
        digest=_digest(base),
    )  # fmt: skip
    keep_sweep(viewer.environ, Sweep(name, (), wanted))
    return name


def continue_search(
    viewer: Viewer,
    name: str,
    *,
    trials: int | None = None,
    parallel: int | None = None,
    trusted: bool = False,
    every: float = POLL,
    whole: Whole = nullcontext,
) -> Generator[SweptRun | HostNotice]:
    """Go on with a search until it has had all its trials; leaving it early ends no run.

    Yields each trial when it is queued and when it has ended, and what a host is waited for.

    Args:
        trials: Another number of all its trials; None: as before.
        parallel: Another number of runs at a time; None: as before.
        trusted: Use the profile without asking.
        every: Seconds between two looks at its runs.
        whole: Around the start of a run on all its hosts: keeps signals from ending it halfway.

    Raises:
        InputError: There is no such search, its profile has changed, or Optuna is not installed.
        DisttuiError: A run cannot be started, or the first trials have all failed. Those that run go on.
    """
    _optuna()
    sweep = load_sweep(viewer.environ, name)
    if sweep.search is None:
        raise InputError(f"{sweep.name} is no search", f"See its runs: disttui sweep --results {sweep.name}")
    with _alone(viewer.environ, sweep.name):
        sweep = load_sweep(viewer.environ, sweep.name)  # as the one before has left it
        search = sweep.search
        assert search is not None
        search = replace(search, trials=trials or search.trials, parallel=parallel or search.parallel)
        source = Path(search.profile)
        base = load_profile(search.profile, single(search.settings)[0], questions=viewer.questions, trusted=trusted)
        if _digest(base) != search.digest:
            what = f"{clean(search.profile)} is not what the trials of {sweep.name} have used"
            raise InputError(what, "Put it back as it was, or begin another search.")
        study = _Study(viewer.environ, sweep.name, search)
        study.drop_unknown({one.trial for one in sweep.runs})
        yield from _Searching(viewer, replace(sweep, search=search), base, source, study, whole).run(every)


def best_of(sweep: Sweep) -> SweptRun | None:
    """The finished trial with the best value of a search, None: there is none yet."""
    if sweep.search is None:
        return None
    found = [one for one in sweep.runs if one.value is not None]
    least = parse_goal(sweep.search.goal).direction == "min"
    return min(found, key=lambda one: (one.value or 0.0) * (1 if least else -1), default=None)


class _Asked(NamedTuple):
    """A trial that Optuna has asked for."""

    number: int
    values: Mapping[str, str]


class _Searching:
    """One session of a search."""

    def __init__(self, viewer: Viewer, sweep: Sweep, base: Profile, source: Path, study: _Study, whole: Whole) -> None:
        assert sweep.search is not None
        self._viewer = viewer
        self._sweep = sweep
        self._search = sweep.search
        self._base = base
        self._source = source
        self._study = study
        self._whole = whole
        self._goal = parse_goal(self._search.goal)
        self._asked: _Asked | None = None
        self._failed: list[SweptRun] = []
        """The trials of this session that have failed."""
        self._refused: list[Mapping[str, str]] = []
        """Values that a check has refused in this session."""
        self._said: set[HostNotice] = set()
        """Since a trial was last queued or has ended."""

    def run(self, every: float) -> Iterator[SweptRun | HostNotice]:
        while True:
            yield from self._look()
            while len(self._open()) < self._search.parallel and len(self._sweep.runs) < self._search.trials:
                try:
                    yield self._begin()
                    self._refuse_hopeless()
                except (HostError, HostsError, PreflightError) as error:
                    # What a host refuses now it may take at night; what could not be started is a failed trial.
                    if self._asked is None or not self._sweep.runs:
                        raise
                    yield from self._say(HostNotice(error.host, f"{_first(error.reason)}: it is tried again"))
                    break
            if not self._open() and len(self._sweep.runs) >= self._search.trials:
                return
            time.sleep(every)

    def _open(self) -> list[SweptRun]:
        return [one for one in self._sweep.runs if one.outcome is None]

    def _begin(self) -> SweptRun:
        """Queue the next trial; where its hosts cannot be used now, Optuna is not asked again.

        A trial whose values are refused, by whatever host, has failed, and they are not tried again.
        """
        self._asked = asked = self._asked or self._ask()
        plain, arguments = single(self._search.settings)
        settings = (*plain, *overrides({**arguments, **asked.values}, self._base.job.target.args))
        try:
            profile = load_again(self._base, self._source, settings)
        except InputError as error:
            return self._refuse(asked, error.sentence)
        resolve_secrets(self._viewer, profile)
        with prepare(self._viewer, profile, queued=True) as prepared:
            try:
                refuse(prepared.planned)
            except PreflightError as error:
                words = {word for key in asked.values for word in key.split(".")}
                of_values = [one for one in error.findings if one.host is None or words & {*one.keys}]
                if not of_values:
                    raise
                host = f"{of_values[0].host}: " if of_values[0].host else ""
                return self._refuse(asked, f"{host}{of_values[0].what}")
            with self._whole():
                made = self._add(asked)
                try:
                    launch(self._viewer, prepared, source=str(self._source), run=made.run)
                except DisttuiError as error:
                    self._end(made, "failed", why=error.sentence)
                    raise
        return made

    def _ask(self) -> _Asked:
        """Values that no check has refused. Raises DisttuiError where Optuna proposes no others."""
        for _ in range(_ASKS):
            asked = self._study.ask()
            if asked.values not in self._refused:
                return asked
            self._study.tell(asked.number, "failed", None)
        why = next(one.why for one in reversed(self._failed) if one.values in self._refused)
        what = f"there are no values left to try: the checks have refused {len(self._refused)} of them, the last: {why}"
        raise DisttuiError(what, f"Search other values, or go on all the same: {_again(self._sweep.name)}")

    def _refuse(self, asked: _Asked, why: str) -> SweptRun:
        self._refused.append(asked.values)
        return self._end(self._add(asked), "failed", why=clean(_first(why)))

    def _add(self, asked: _Asked) -> SweptRun:
        """Keep a trial, before its run starts."""
        run = new_run_id(self._base.name, run_names(self._viewer.environ))
        made = SweptRun(run, asked.values, trial=asked.number)
        self._asked = None
        self._keep((*self._sweep.runs, made))
        return made

    def _look(self) -> Iterator[SweptRun | HostNotice]:
        """Tell Optuna of the trials that have ended."""
        known: dict[str, KnownRun] = {}
        for one in self._open():
            try:
                known[one.run] = find_run(one.run, self._viewer.environ)
            except InputError:
                yield self._end(one, "failed", why="it is not known here any more, or was never started")
        rows = statuses(self._viewer, list(known.values())) if known else {}
        for one in self._open():
            row = rows[one.run]
            state = row.get("state")
            if state == "finished":
                yield from self._finish(one, known[one.run])
            elif state in _OVER:
                yield self._end(one, "stopped" if state == "stopped" else "failed", why=_why(known[one.run], row))
        self._refuse_hopeless()

    def _refuse_hopeless(self) -> None:
        """Raise DisttuiError where so many trials have failed, and none has a value, that the next ones would, too."""
        if len(self._failed) < _HOPELESS or any(one.value is not None for one in self._sweep.runs):
            return
        named = "; ".join(f"{short(one.run)}: {one.why}" for one in self._failed[:_HOPELESS])
        more = f"; {count} go on" if (count := len(self._open())) > 1 else "; 1 goes on" if count else ""
        known = run_names(self._viewer.environ)
        started = next((f"See disttui diagnose {short(one.run)}; g" for one in self._failed if one.run in known), "G")
        cure = f"{started}o on all the same: {_again(self._sweep.name)}"
        raise DisttuiError(f"{len(self._failed)} trials have failed, and none has a value{more}: {named}", cure)

    def _finish(self, one: SweptRun, run: KnownRun) -> Iterator[SweptRun | HostNotice]:
        if missing(run, run.folder):
            warnings = replay(self._viewer, run).warnings
            if left := missing(run, run.folder):
                why = warnings[0] if warnings else "not all of them are here"
                notice = HostNotice(run.hosts[left[0]].name, f"the metrics of {short(one.run)} are waited for: {why}")
                yield from self._say(notice)
                return
        found = replay(self._viewer, run, local=True)  # of the mirror, which is complete now
        values, names = _values(found.metrics, usable(self._goal.metric), run.started)
        finite = [value for value in values if math.isfinite(value)]
        if not values:
            others = ", ".join(sorted(names)[:10]) or "none at all"
            yield self._end(one, "failed", why=f"it has no metric {self._goal.metric}, but {others}")
        elif not finite or not (self._search.best or math.isfinite(values[-1])):
            yield self._end(one, "failed", why=f"its {self._goal.metric} is {values[-1]}")
        else:
            better = min if self._goal.direction == "min" else max
            yield self._end(one, "finished", value=better(finite) if self._search.best else values[-1])

    def _end(self, one: SweptRun, outcome: Outcome, value: float | None = None, why: str = "") -> SweptRun:
        assert one.trial is not None
        self._study.tell(one.trial, outcome, value)
        ended = replace(one, outcome=outcome, value=value, why=why)
        self._keep(tuple(ended if other.run == one.run else other for other in self._sweep.runs))
        if outcome == "failed":
            self._failed.append(ended)
        return ended

    def _keep(self, runs: tuple[SweptRun, ...]) -> None:
        self._sweep = replace(self._sweep, runs=runs)
        self._said.clear()
        keep_sweep(self._viewer.environ, self._sweep)

    def _say(self, notice: HostNotice) -> Iterator[HostNotice]:
        """Once, until the search gets on."""
        if notice not in self._said:
            self._said.add(notice)
            yield notice


class _Study:
    """Optuna's study of a search. Raises DisttuiError where its journal cannot be read or written."""

    def __init__(self, environ: Mapping[str, str], name: str, search: Search) -> None:
        self._optuna = optuna = _optuna()
        self._path = inside(sweeps_folder(environ), f"{name}.journal")
        self._space = parse_space(search.space)
        self._distributions = _distributions(optuna, self._space)
        with self._errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is experimental in Optuna
            _cut_half_line(self._path)
            backend = optuna.storages.journal.JournalFileBackend(str(self._path), _HeldLock())
            self._study = optuna.create_study(
                study_name=name,
                storage=optuna.storages.JournalStorage(backend),
                sampler=optuna.samplers.TPESampler(constant_liar=search.parallel > 1),
                direction="minimize" if parse_goal(search.goal).direction == "min" else "maximize",
                load_if_exists=True,
            )

    def ask(self) -> _Asked:
        """The next trial."""
        with self._errors():
            trial = self._study.ask(self._distributions)
        values = {}
        for key, one in self._space.items():
            chosen = trial.params[key]
            values[key] = one.text(float(chosen)) if isinstance(one, Range) else str(chosen)
        return _Asked(int(trial.number), values)

    def tell(self, trial: int, outcome: Outcome, value: float | None) -> None:
        """The end of a trial; one that Optuna knows already stays as it is."""
        states = self._optuna.trial.TrialState
        with self._errors():
            if outcome == "finished":
                self._study.tell(trial, value, skip_if_finished=True)
            else:
                state = states.PRUNED if outcome == "stopped" else states.FAIL
                self._study.tell(trial, state=state, skip_if_finished=True)

    def drop_unknown(self, known: set[int | None]) -> None:
        """End the trials that were asked for, and whose run was not kept: it was not started."""
        with self._errors():
            running = self._study.get_trials(deepcopy=False, states=[self._optuna.trial.TrialState.RUNNING])
        for trial in running:
            if trial.number not in known:
                self.tell(trial.number, "failed", None)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of a package, and of a file that anybody may have changed
            why = clean(_first(str(error))) or type(error).__name__
            raise DisttuiError(
                "Optuna's journal of this search cannot be used", place=str(self._path), cause=why
            ) from None


class _HeldLock:
    """The lock of a journal for Optuna: who goes on with a search has one already.

    Optuna's own would be left by a process that is killed, and keep the next one waiting.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _cut_half_line(path: Path) -> None:
    """Cut off the end of a journal behind its last line, which a full disk or a kill has left. Raises OSError."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        end = file.read().rfind(b"\n") + 1
        file.truncate(end)


def _distributions(optuna: Any, space: Space) -> Mapping[str, object]:
    found: dict[str, object] = {}
    for key, one in space.items():
        if isinstance(one, OneOf):
            found[key] = optuna.distributions.CategoricalDistribution(one.values)
        elif one.whole:
            found[key] = optuna.distributions.IntDistribution(int(one.low), int(one.high), log=one.log)
        else:
            found[key] = optuna.distributions.FloatDistribution(one.low, one.high, log=one.log)
    return found


def _optuna() -> Any:
    """Optuna, quiet. Raises InputError where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        cure = "Install it in disttui's own environment: pip install 'disttui[search]'."
        raise InputError("a search needs Optuna, which cannot be imported", cure, cause=clean(str(error))) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextmanager
def _alone(environ: Mapping[str, str], name: str) -> Iterator[None]:
    """Keep other processes from the same search for a block. Raises InputError where one has it."""
    path = inside(sweeps_folder(environ), f"{name}.lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DisttuiError("it cannot be written", place=str(path), cause=error.strerror or "") from None
    try:
        if not lock(descriptor, 0.0):
            raise InputError(f"another disttui goes on with {name} already", "Leave it to that one, or end that one.")
        yield
    finally:
        os.close(descriptor)


def _values(
    metrics: Sequence[tuple[str, int, int, Metrics]], metric: str, since: float
) -> tuple[list[float], set[str]]:
    """A metric's values over all attempts, and the names of all metrics; an attempt's own replace those before it."""
    values: dict[int, float] = {}
    names: set[str] = set()
    for attempt in sorted({of for _, of, _, _ in metrics}):
        made = points([(rank, record) for _, of, rank, record in metrics if of == attempt], since)
        names.update(name for point in made for name in point.values)
        own = {point.step: point.values[metric] for point in made if metric in point.values}
        values = {step: value for step, value in values.items() if step not in own} | own
    return list(values.values()), names


def _digest(profile: Profile) -> str:
    return hashlib.sha256(json.dumps(profile.as_written(), sort_keys=True, default=str).encode()).hexdigest()


def _why(run: KnownRun, row: RunStatus) -> str:
    """Why a run has no result, in words."""
    state = row.get("state")
    if state == "stopped":
        return "it was stopped"
    if state == "gone":
        return row.get("note") or "it is gone"
    return run.problem or row.get("dropped") or f"see disttui diagnose {short(run.run)}"


def _first(text: str) -> str:
    return text.partition("\n")[0]


def _again(name: str) -> str:
    return f"disttui sweep --resume {name}"
