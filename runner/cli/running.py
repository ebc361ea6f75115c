"""Runs a profile to its end and prints it: the body of `run` and `rerun`."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

import disttui
from disttui.runner.cli import startup
from disttui.runner.cli.options import viewing, wants_json
from disttui.runner.errors import InputError
from disttui.runner.formatting import amount, count
from disttui.runner.ids import short
from disttui.runner.text import clean

if TYPE_CHECKING:
    from disttui.runner.cli.render.printer import Printer
    from disttui.runner.cli.signals import Signals
    from disttui.runner.profile.schema import Profile
    from disttui.runner.user.config import Settings


_BYTES = re.compile(r"[0-9]\w?B of [0-9.]+\w?B")
"""Progress in bytes."""


def run_profile(
    profile: Profile,
    source: str | None,
    *,
    sandbox: bool,
    detach: bool,
    ignore_leases: bool,
    when_free: bool,
    ssh_config: str | None = None,
    earlier: disttui.Again | None = None,
) -> int:
    """Run a profile to its end, or until it is left, and return the exit code.

    Args:
        source: The profile's file.
        ssh_config: The ssh configuration if none is given.
        earlier: The run that is run again: what has changed since is said.

    Raises:
        InputError: It could not be kept here, or not be left.
    """
    from disttui.runner.cli.render.printer import make_printer
    from disttui.runner.cli.signals import Signals
    from disttui.runner.runs.registry import make_folder

    if detach and sandbox:
        raise InputError("a sandbox ends with its command, so it cannot run in the background", "Leave out --detach.")
    if when_free and ignore_leases:
        raise InputError("--when-free and --ignore-leases exclude each other", "Give one of them.")
    make_folder(os.environ)
    wanted = notices_wanted()
    printer = make_printer(profile)
    if profile.slurm is not None and (when_free or ignore_leases):
        option = "--when-free" if when_free else "--ignore-leases"
        printer.say(f"{option} has no effect on a Slurm job: Slurm queues it and assigns its nodes")
    signals = Signals()
    try:
        with viewing(profile if sandbox else None, otherwise=ssh_config) as viewer:
            say_secrets(profile, printer.say)
            startup.import_ahead()
            steps = disttui.start(
                viewer, profile, source=source, resume_from=earlier.resume_from if earlier else None,
                code=earlier.code if earlier else None, command=sys.argv, ignore_leases=ignore_leases, queued=when_free,
            )  # fmt: skip
            with signals.caught(), closing(steps):
                launched = _print_steps(profile, steps, printer, signals, detach, earlier)
                return _follow(viewer, launched, printer, signals, wanted, detach, when_free)
    except KeyboardInterrupt:
        # After the start has begun, Ctrl-C stops the run and is not raised.
        raise click.Abort("nothing was started") from None


def _print_steps(
    profile: Profile,
    steps: Iterable[disttui.HostStep | disttui.RunCode | disttui.Planned | disttui.Launched],
    printer: Printer,
    signals: Signals,
    detach: bool,
    earlier: disttui.Again | None,
) -> disttui.Launched:
    """Print what comes before the run, and return that."""
    from disttui.runner.runs.hooks import say_on_end

    news = host_words(profile, printer.say)
    for step in steps:
        if isinstance(step, disttui.HostStep):
            news(*step)
            if signals.stops or signals.leave:
                raise KeyboardInterrupt  # nothing runs yet that the signal would stop
        elif isinstance(step, disttui.Planned):
            _say_plan(step, printer)
            if detach:
                say_on_end(step.profile, printer.say)
            if earlier and earlier.origin:
                from disttui.runner.api.rerunning import changed_since

                for line in changed_since(earlier.origin, step):
                    printer.say(f"changed since {short(earlier.run)}: {line}")
            signals.hold_back()
        elif isinstance(step, disttui.RunCode):
            _say_code(step, printer)
        else:
            return step
    raise AssertionError("the start yields a run or raises")


def _follow(
    viewer: disttui.Viewer,
    launched: disttui.Launched,
    printer: Printer,
    signals: Signals,
    wanted: Settings | None,
    detach: bool,
    wait: bool,
) -> int:
    from disttui.runner.cli.render.printer import show_update
    from disttui.runner.runs.hooks import run_end_hook

    known = launched.run
    with (
        disttui.follow(viewer, known, launched.links, control=signals) as following,
        announcing(known.run, wanted) as announce,
        _naming_the_run(viewer, following),
    ):
        for update in following:
            show_update(printer, following.state, update)
            announce(following.state)
            here = following.state
            if detach and (here.attempt > 0 or here.waits or (wait and here.gathered)):
                following.leave()
        printer.end(following.state, following.mirror)
    if not detach or following.state.result is not None:
        run_end_hook(known, following.state, printer.say)
    elif not wants_json():
        printer.detached(known.run)
    return following.exit_code


@contextmanager
def _naming_the_run(viewer: disttui.Viewer, following: disttui.Following) -> Iterator[None]:
    """Say on standard error how to find the run again, if the reader of standard output goes away."""
    from disttui.runner.cli.render.output import put
    from disttui.runner.render.story import left_lines

    try:
        yield
    except BrokenPipeError:
        if viewer.sandbox is None and following.state.result is None:
            put(sys.stderr, "disttui: the output was closed by its reader; the run continues\n")
            put(sys.stderr, "\n".join([*left_lines(following.run.run), ""]))
        raise


def notices_wanted() -> Settings | None:
    """The user's config; None if standard error is not a terminal. Raises InputError."""
    from disttui.runner.user.config import load_settings

    return load_settings(os.environ) if sys.stderr.isatty() else None


@contextmanager
def announcing(run: str, wanted: Settings | None) -> Iterator[Callable[[disttui.RunState], None]]:
    """Yields what takes the states of a run, and announces them through the terminal as the config asks."""
    from disttui.runner.runs.condition import run_word
    from disttui.runner.user.terminal import Notices

    if wanted is None:
        yield lambda state: None
        return

    def send(sequence: str) -> None:
        if sequence:
            sys.stderr.write(sequence)
            sys.stderr.flush()

    notices = Notices(send, wanted, os.environ)
    try:
        yield lambda state: notices.tell(short(run), run_word(state), over=state.result is not None)
    finally:
        notices.close()


def say_secrets(profile: Profile, say: Callable[[str], None]) -> None:
    """Print which secrets go to which hosts."""
    from disttui.runner.profile.effects import secret_text, secrets
    from disttui.runner.profile.problems import printable
    from disttui.runner.profile.references import Reference

    for secret in secrets(profile):
        say(f"{printable(str(Reference(secret.kind, secret.name)))} goes {secret_text(secret, profile)}")


def host_words(profile: Profile, say: Callable[[str], None]) -> Callable[[int, str, str], None]:
    """Return a callback for `prepare` that prints the progress of each host."""
    from disttui.runner.cli.render.live import PLAIN_EVERY
    from disttui.runner.profile.problems import printable

    shown: dict[int, str] = {}
    counted: dict[int, float] = {}
    """When bytes of a host were last printed: the app shows them twice a second, which would bury all other lines."""

    def news(node: int, kind: str, note: str) -> None:
        host = profile.hosts[node]
        if kind == "connecting":
            say(f"{host.name}: connecting")
        elif kind == "probing" and host.activate:
            say(f"{host.name}: running its activate line: {printable(host.activate)}")
        elif (words := disttui.HostStep(node, kind, note).words) and shown.get(node) != words:
            if _BYTES.search(words):
                now = time.monotonic()
                if now - counted.get(node, -math.inf) < PLAIN_EVERY:
                    return
                counted[node] = now
            shown[node] = words
            say(f"{host.name}: {words}")

    return news


def _say_plan(planned: disttui.Planned, printer: Printer) -> None:
    """Print the plan in short, with its warnings."""
    from disttui.runner.planning.plan import counts_line

    for advice in planned.recommendation.warnings:
        printer.say(_line(advice.host, advice.text))
    for finding in planned.findings:
        if finding.level == "warning":
            printer.say(_line(finding.host, f"{finding.what}. {finding.cure}"))
    plan = planned.plan
    printer.say(f"{counts_line(plan)}; {plan.backend}, {plan.strategy}, {plan.precision}")


def _say_code(code: disttui.RunCode, printer: Printer) -> None:
    """Print what is sent as the run's code, and what of its folder is not."""
    from disttui.runner.sync.collect import omission_lines, pointer_lines

    changed = " and uncommitted changes" if code.git.diff else ""
    at = f", commit {code.git.commit[:12]}{changed}" if code.git.commit else ""
    which = "as it was then" if code.recorded else f"from {code.folder}{at}"
    printer.say(_line(None, f"code: {amount(code.files, 'file')}, {count(code.size)}B, {which}"))
    for line in omission_lines(code.omitted):
        printer.say(_line(None, f"not sent: {line}"))
    for line in pointer_lines(code.pointers):
        printer.say(_line(None, line))


def _line(host: str | None, text: str) -> str:
    return clean(f"{host}: {text}" if host else text).rstrip()
