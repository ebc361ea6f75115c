"""Runs a profile to its end and prints it: the body of `run` and `rerun`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import click

from runner.cli import startup
from runner.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from runner.api.preparing import Planned
    from runner.api.rerunning import Again
    from runner.api.viewer import Viewer
    from runner.cli.render.jsonl import JsonPrinter
    from runner.cli.render.live import TextPrinter
    from runner.profile import Profile
    from runner.runs.state import RunState
    from runner.user.config import Settings


class Sharing(NamedTuple):
    """What a run does where others have leased what it uses."""

    ignore_leases: bool = False
    when_free: bool = False
    priority: int = 0


def run_profile(
    profile: Profile,
    source: str | None,
    *,
    sandbox: bool,
    ssh_config: str | None,
    accept_new: bool,
    as_json: bool,
    detach: bool,
    sharing: Sharing,
    earlier: Again | None = None,
) -> int:
    """Run a profile to its end, or until it is left, and return the exit code.

    Args:
        source: The profile's file.
        earlier: The run that is run again: what has changed since is said.

    Raises:
        InputError: It could not be kept here, or not be left.
    """
    from runner.cli.viewing import viewing
    from runner.runs.registry import make_folder

    if detach and sandbox:
        raise InputError("a sandbox lives only as long as its command, so it cannot be left", "Leave out --detach.")
    if sharing.when_free and sharing.ignore_leases:
        raise InputError("--when-free and --ignore-leases exclude each other", "Give one of them.")
    if sharing.priority and not sharing.when_free:
        raise InputError("--priority needs --when-free", "Give both, or none.")
    if sharing.priority and profile.slurm is not None:
        what = "--priority is of disttui's own queue, and a job of Slurm waits in Slurm's"
        raise InputError(what, 'Leave it out; slurm: {options: ["--nice=100"]} lets other jobs go first.')
    make_folder(os.environ)
    wanted = notices_wanted()
    printer = _printer(profile, as_json=as_json)
    if profile.slurm is not None and (sharing.when_free or sharing.ignore_leases):
        option = "--when-free" if sharing.when_free else "--ignore-leases"
        printer.say(f"{option} changes nothing for a job of Slurm: Slurm's queue lets it wait, and gives it its nodes")
    try:
        with viewing(ssh_config, accept_new, profile if sandbox else None) as viewer:
            kept = {"source": source, "resume_from": earlier.resume_from if earlier else None}
            return _run(viewer, profile, printer, kept, wanted, detach, sharing, earlier)
    except KeyboardInterrupt:
        # After the start has begun, Ctrl-C stops the run and is not raised.
        raise click.Abort("nothing was started") from None


def _run(
    viewer: Viewer,
    profile: Profile,
    printer: TextPrinter | JsonPrinter,
    kept: Mapping[str, str | None],
    wanted: Settings | None,
    detach: bool,
    sharing: Sharing,
    earlier: Again | None,
) -> int:
    from runner.api.following import follow
    from runner.api.preparing import launch, prepare, refuse, resolve_secrets
    from runner.cli.render.printer import show_update
    from runner.cli.signals import Signals
    from runner.runs.hooks import tell_end

    signals = Signals()
    with signals.caught():
        resolve_secrets(viewer, profile)
        say_secrets(profile, printer.say)
        startup.import_ahead()
        news, wait = host_words(profile, printer.say), sharing.when_free
        with prepare(viewer, profile, news, ignore_leases=sharing.ignore_leases, queued=wait) as prepared:
            refuse(prepared.planned)
            _say_plan(prepared.planned, printer)
            if earlier and earlier.origin:
                from runner.api.rerunning import changed_since
                from runner.ids import short

                for line in changed_since(earlier.origin, prepared.planned):
                    printer.say(f"changed since {short(earlier.run)}: {line}")
            signals.hold_back()
            known = launch(viewer, prepared, **kept, command=sys.argv, priority=sharing.priority)
            with (
                follow(viewer, known, prepared.links, wishes=signals) as following,
                announcing(known.run, wanted) as announce,
            ):
                for update in following:
                    show_update(printer, following.state, update)
                    announce(following.state)
                    here = following.state
                    if detach and (here.attempt > 0 or here.waits or (wait and here.gathered)):
                        following.leave()
                finish(printer, following.state, following.mirror)
        tell_end(prepared.planned.profile, known, following.state, printer.say)
        if detach and following.state.result is None:
            printer.detached(known.run)
        return following.exit_code


def notices_wanted() -> Settings | None:
    """The user's config; None where standard error is no terminal, which gets no notices. Raises InputError."""
    from runner.user.config import load_settings

    return load_settings(os.environ) if sys.stderr.isatty() else None


@contextmanager
def announcing(run: str, wanted: Settings | None) -> Iterator[Callable[[RunState], None]]:
    """Yields what takes the states of a run, and announces them through the terminal as the config asks."""
    from runner.ids import short
    from runner.render.status import run_word
    from runner.user.notices import Notices

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
    from runner.profile.disclosure import secret_text
    from runner.profile.effects import secrets
    from runner.profile.problems import printable
    from runner.profile.references import Reference

    for secret in secrets(profile):
        say(f"{printable(str(Reference(secret.kind, secret.name)))} goes {secret_text(secret, profile)}")


def host_words(profile: Profile, say: Callable[[str], None]) -> Callable[[int, str, str], None]:
    """Return a callback for `prepare` that prints the progress of each host."""
    from runner.profile.problems import printable

    def news(node: int, kind: str, note: str) -> None:
        host = profile.hosts[node]
        if kind == "connecting":
            say(f"{host.name}: connecting")
        elif kind == "probing" and host.activate:
            say(f"{host.name}: running its activate line: {printable(host.activate)}")

    return news


def _say_plan(planned: Planned, printer: TextPrinter | JsonPrinter) -> None:
    """Print the plan in short, with its warnings."""
    from runner.planning.plan import counts_line

    for advice in planned.recommendation.warnings:
        printer.say(_line(advice.host, advice.text))
    for finding in planned.findings:
        if finding.level == "warning":
            printer.say(_line(finding.host, f"{finding.what}. {finding.cure}"))
    plan = planned.plan
    printer.say(f"{counts_line(plan)}; {plan.backend}, {plan.strategy}, {plan.precision}")


def _line(host: str | None, text: str) -> str:
    from runner.text import clean

    return clean(f"{host}: {text}" if host else text).rstrip()


def finish(printer: TextPrinter | JsonPrinter, state: RunState, folder: Path) -> None:
    """Print the closing lines of a followed run; nothing for one that goes on."""
    from runner.cli.render.jsonl import JsonPrinter

    if isinstance(printer, JsonPrinter):
        printer.end(state, str(folder))
    else:
        from runner.render.story import ending

        printer.end(ending(state, state.elapsed, folder, printer.launcher_tails))


def _printer(profile: Profile, *, as_json: bool) -> TextPrinter | JsonPrinter:
    from runner.cli.render.jsonl import JsonPrinter
    from runner.cli.render.live import TextPrinter

    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show must not end the command.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    if as_json:
        return JsonPrinter(sys.stdout)
    names = tuple(host.name for host in profile.hosts)
    most = sum(host.num_processes or 1 for host in profile.hosts)
    return TextPrinter(sys.stdout, sys.stderr, names, most, colour=not os.environ.get("NO_COLOR"))
