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
from disttui.runner.formatting import each_once
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
    """Run a profile to its end, or until detached, and return the exit code.

    Args:
        source: The profile's file.
        ssh_config: The ssh configuration if none is given.
        earlier: The run to rerun; changes since are printed.

    Raises:
        InputError: It cannot be stored here, or cannot run in the background.
    """
    from disttui.runner.cli.render.printer import make_printer
    from disttui.runner.cli.signals import Signals
    from disttui.runner.runs.registry import make_folder

    if detach and sandbox:
        raise InputError("a sandbox ends with its command, and cannot run in the background", "Omit --detach.")
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
    """Print the preparation of the run, and return its result."""
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
            for line in step.lines():
                printer.say(_line(None, line))
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
    """Print on standard error how to find the run again, if standard output is closed."""
    from disttui.runner.cli.render.output import put
    from disttui.runner.render.story import left_lines

    try:
        yield
    except BrokenPipeError:
        if viewer.sandbox is None and following.state.result is None:
            put(sys.stderr, "disttui: the output was closed; the run continues\n")
            put(sys.stderr, "\n".join([*left_lines(following.run.run), ""]))
        raise


def notices_wanted() -> Settings | None:
    """The user's config; None if standard error is not a terminal. Raises InputError."""
    from disttui.runner.user.config import load_settings

    return load_settings(os.environ) if sys.stderr.isatty() else None


@contextmanager
def announcing(run: str, wanted: Settings | None) -> Iterator[Callable[[disttui.RunState], None]]:
    """Yields a function that takes the states of a run, and announces them as configured."""
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
    """Time of the last printed progress of a host: at the app's rate it would bury all other lines."""

    def news(node: int, kind: str, note: str) -> None:
        host = profile.hosts[node]
        if kind == "connecting":
            say(f"{host.name}: connecting")
        elif kind == "probing" and host.activate:
            say(f"{host.name}: running activate: {printable(host.activate)}")
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
    """Print a summary of the plan, with its warnings."""
    from disttui.runner.planning.plan import counts_line

    warnings = [one for one in planned.findings if one.level == "warning"]
    said = [(one.host, one.text) for one in planned.recommendation.warnings]
    for hosts, text in each_once([*said, *((one.host, f"{one.what}. {one.cure}") for one in warnings)]):
        printer.say(_line(hosts, text))
    plan = planned.plan
    printer.say(f"{counts_line(plan)}; {plan.backend}, {plan.strategy}, {plan.precision}")


def _line(host: str | None, text: str) -> str:
    return clean(f"{host}: {text}" if host else text).rstrip()
