"""`check --train`: starts the plan's ranks with a measurement in place of the job, and judges what they report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from disttui.runner.api.ending import forget, stop
from disttui.runner.api.following import follow
from disttui.runner.api.starting import Launched, start
from disttui.runner.api.viewer import Viewer
from disttui.runner.diagnose.cause import find
from disttui.runner.errors import DisttuiError
from disttui.runner.ids import new_run_id, short
from disttui.runner.planning import tournament
from disttui.runner.planning.checks import Check, HostFigures
from disttui.runner.planning.tournament import Placed, RankReport
from disttui.runner.profile import Profile, parse
from disttui.runner.profile.schema import NOTIFY_KINDS
from disttui.runner.profile.sections import Metrics, Notify, OnEnd, Parallel, Watch
from disttui.runner.runs.contents import MetricsLine
from disttui.runner.runs.follow import RecordRead
from disttui.runner.runs.following import Following, Wishes
from disttui.runner.runs.measured import Measurements
from disttui.runner.runs.registry import find_run, is_known, run_names
from disttui.runner.untrusted.decode import build

START = 100.0
"""Seconds for the ranks to import torch and to meet."""
PHASE = 20.0
"""Seconds for each phase after that, and for the hosts to end the ranks of one that takes longer."""


@dataclass(frozen=True)
class Measured:
    """The figures of all hosts, and what follows for the job."""

    figures: tuple[HostFigures, ...]
    advice: str = ""
    """Whether one host is faster, with both numbers; empty: not known."""


def of_hosts(names: Sequence[str]) -> Profile:
    """A profile of hosts by name, for the measurement alone."""
    return parse(
        json.dumps({"disttui": 1, "name": "check", "hosts": list(dict.fromkeys(names)), "job": {"builtin": "bytegpt"}}),
        "-",
    )


def measurement(profile: Profile, *, of_job: bool) -> Profile:
    """The profile with the measurement in place of its job: the same ranks, launcher, ports and environment.

    Args:
        of_job: Whether a step of the built-in job is measured too.
    """
    own = profile.job
    builtin = own.builtin is not None
    args = (*(own.args if builtin else ()), "--measure", "job" if builtin and of_job else "hosts")
    job = own.model_copy(
        update={"builtin": "bytegpt", "script": None, "module": None, "command": None, "args": args, "outputs": (),
                "setup": (), "sync": None, "workdir": "~" if own.sync else own.workdir},
    )  # fmt: skip
    launch = profile.launch.model_copy(update={"restarts": 0, "instrument": True, "resume_args": ()})
    nobody = Notify.model_validate(dict.fromkeys(NOTIFY_KINDS))
    update: dict[str, object] = {
        "name": "check",
        "job": job,
        "launch": launch,
        "notify": nobody,
        "watch": Watch(),
        "on_end": OnEnd(),
    }
    if not builtin:
        update.update(data=(), parallel=Parallel(), precision="auto", metrics=Metrics())
    return profile.model_copy(update=update)


def measure(
    viewer: Viewer,
    profile: Profile,
    tell: Callable[[Check], None],
    parameters: float | None = None,
    wishes: Wishes | None = None,
) -> Measured:
    """Start the measurement on all hosts of a profile, and judge it; its run is removed unless it failed.

    Args:
        tell: Takes each conclusion.
        parameters: Of a model that is not the profile's, for the advice.
        wishes: Stop it early; may be set from other threads.
    """
    run = new_run_id("check", run_names(viewer.environ))
    ranks: dict[int, Placed] = {}
    try:
        wanted = measurement(profile, of_job=parameters is None)
        with closing(start(viewer, wanted, run=run)) as steps:
            launched = next(step for step in steps if isinstance(step, Launched))
            with follow(viewer, launched.run, launched.links, wishes=wishes) as following:
                done = _listen(following, ranks, tell)
            hosts = launched.run.hosts
            if done and not following.exit_code:
                with suppress(DisttuiError):
                    forget(viewer, launched.run)
    except DisttuiError as error:
        tell(Check("train.start", "error", (error.host,) if error.host else (), error.what, _NEEDED, error.cure))
        return Measured(())
    except BaseException:  # such as Ctrl-C: no rank must outlive this call
        if is_known(run, viewer.environ):
            with suppress(DisttuiError):
                stop(viewer, find_run(run, viewer.environ), now=True)
        raise
    world = sum(host.nproc for host in hosts)
    if not done:
        return Measured(())
    known = Measurements.load(viewer.environ)
    for check in tournament.judge(ranks, world, {host.name: known.of_host(host.host) for host in hosts}):
        tell(check)
    found = tournament.figures(ranks, time.time())
    if viewer.sandbox is not None:
        return Measured(tuple(found))  # its hosts are one machine
    step = tournament.predict(ranks)
    known.save(viewer.environ, profile, found, step)
    advice = tournament.break_even(ranks, parameters) if parameters else step and step.text()
    return Measured(tuple(found), advice or "")


_NEEDED = "the measurement starts as a run does, so a run would fail in the same way"


def _listen(following: Following, ranks: dict[int, Placed], tell: Callable[[Check], None]) -> bool:
    """Take the reports of all ranks until the run has ended, or a phase takes too long: then end it.

    Returns whether all of them have measured everything.
    """
    state = following.state
    owner = [host.node for host in state.hosts for _ in range(host.nproc)]
    names = [host.name for host in state.hosts]
    raw: dict[int, dict[str, object]] = {}
    progress, limit = time.monotonic(), START + PHASE
    done = late = False
    for update in following:
        now = time.monotonic()
        if isinstance(update, RecordRead) and isinstance(update.content, MetricsLine):
            rank, record = update.content.rank, update.content.metrics
            if not (0 <= rank < len(owner) and owner[rank] == update.node):
                continue  # a host speaks for its own ranks only
            if record.get("phase"):
                progress, limit = now, PHASE if len(raw) == len(owner) else limit
                raw[rank] = {**raw.get(rank, {}), **record}
                done = len(raw) == len(owner) and all(one["phase"] == "done" for one in raw.values())
            ranks[rank] = Placed(names[update.node], build(RankReport, raw.get(rank, {})), now)
        elif now - progress > limit and not late:
            if not done:
                tell(tournament.silent(ranks, names, now, limit))
            late, progress, limit = True, now, PHASE
            following.stop(now=True)
        elif late and now - progress > limit:
            following.leave()
    cause = find(following.state)
    if following.exit_code and not late:
        what = cause.failure.message if cause else "the measurement has failed"
        hosts = (names[cause.failure.node],) if cause and cause.failure.node is not None else ()
        cure = f"See disttui show {short(following.run.run)}"
        tell(Check("train.start", "error", hosts, what.strip().rpartition("\n")[2], _NEEDED, cure))
    return done
