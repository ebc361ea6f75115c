"""The commands that run others on hosts: `exec` and `shell`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import click

import disttui
from disttui.runner.cli.check import is_profile
from disttui.runner.cli.options import TRUST, complete_hosts, emit_line, example, load_profile, viewing, wants_json
from disttui.runner.errors import DisttuiError, HostError, InputError
from disttui.runner.ids import short
from disttui.runner.text import clean, quote

if TYPE_CHECKING:
    from disttui.runner.api.executing import ExecPlace
    from disttui.runner.runs.registry import KnownRun


_CURE = "For example: disttui exec box1 box2 -- uptime"


class _AfterDashes(click.Command):
    """A command that does not parse what follows `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what precedes `--`."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[__name__] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])


@click.command(
    "exec",
    cls=_AfterDashes,
    epilog=example(
        "disttui exec mine.yaml -- nvidia-smi -L",
        "disttui exec mine-7f3a -- df -h .",
        "disttui exec box1 box2 -- uptime",
    ),
)
@click.argument("targets", nargs=-1, metavar="PROFILE|RUN|HOST... -- COMMAND...", shell_complete=complete_hosts)
@TRUST
@click.pass_context
def exec_(ctx: click.Context, targets: tuple[str, ...], trust_profile: bool) -> None:
    """Run a command on all hosts at the same time.

    Every line is printed with its host. For a PROFILE, the command runs in its working folder (with `job.sync`, in the
    home folder), after its `activate`; for a known RUN, such as @latest, in the home folder. It gets no input. One word
    after -- is a line for sh, several are passed unchanged. The exit code is the highest of all hosts, 1 for an
    unreachable host. Ctrl-C kills the command everywhere.
    """
    from disttui.runner.api.executing import ExecEnded, execute

    command = ctx.meta[__name__]
    if not command or not targets:
        raise InputError("no command was given after --" if targets else "no host was given before --", _CURE)
    places = _places(targets, trusted=trust_profile)
    width = max(len(place.host.name) for place in places)
    codes = [0]
    with viewing() as viewer, closing(execute(viewer, places, command)) as heard:
        for one in heard:
            if isinstance(one, ExecEnded):
                codes.append(one.code)
                if one.error is not None:
                    _note_no_run(one.error, targets)
                    data = {"host": one.host, "error": one.error.as_json()}
                    emit_line(data, f"{one.host:{width}} │ {one.error.reason}")
                elif one.code or wants_json():
                    emit_line({"host": one.host, "exit": one.code}, f"{one.host:{width}} │ exit code {one.code}")
            else:
                emit_line({"host": one.host, "line": one.text}, f"{one.host:{width}} │ {one.text}")
    raise SystemExit(max(codes))


@click.command(epilog=example("disttui shell mine-7f3a:1", "disttui shell box1", "disttui shell mine.yaml:box1"))
@click.argument("target", metavar="RUN[:RANK]|HOST|PROFILE:HOST", shell_complete=complete_hosts)
@TRUST
def shell(target: str, trust_profile: bool) -> None:
    """Open a shell on a host.

    For a RUN, it opens in the working folder and environment of a rank (default: 0), with RANK, MASTER_ADDR,
    CUDA_VISIBLE_DEVICES and the job's own variables. The shell is not part of the run: `stop` does not end it, and its
    programs do not write the run's files. The exit code is the shell's.
    """
    from disttui.runner.api.executing import open_shell

    if wants_json():
        raise InputError("a shell prints no JSON", "Run a command instead: disttui exec")
    for name, stream in (("input", sys.stdin), ("output", sys.stdout)):
        if not stream.isatty():
            what = f"a shell needs a terminal, but standard {name} is not one"
            raise InputError(what, f"Use disttui exec {quote(target.partition(':')[0])} -- COMMAND")
    place = _shell_place(target, trusted=trust_profile)
    with viewing() as viewer:
        try:
            code = open_shell(viewer, place)
        except HostError as error:
            _note_no_run(error, (target.partition(":")[0],))
            raise
    raise SystemExit(code)


def _note_no_run(error: DisttuiError, targets: Sequence[str]) -> None:
    """Add that no run is known, if what was taken for a host does not resolve and looks like the id of one."""
    unknown = error.what.startswith(f"the name '{error.host}' does not resolve")
    if unknown and error.host in targets and re.search("-[0-9a-f]{4,}$", error.host):
        error.what += f"; and no run {clean(error.host)} is known here"


def _shell_place(target: str, *, trusted: bool) -> ExecPlace:
    from disttui.runner.api.executing import rank_place

    name, _, last = target.rpartition(":")
    for text, rank in ((target, "0"), (name, last)):
        if rank.isdecimal() and (run := _run(text)):
            return rank_place(run, int(rank))
    if run := _run(name):
        raise InputError(f"{clean(last)!r} is not a rank of {short(run.run)}", "Give a number, such as 0.")
    if is_profile(name):
        for place in _places([name], trusted=trusted):
            if place.host.name == last:
                return place
        raise InputError(f"the profile has no host {last!r}", "Name one of its hosts.", place=name)
    places = _places([target], trusted=trusted)
    if len(places) > 1 and not is_profile(target):
        raise InputError(
            "a shell is for one host", f"Run a command on several: disttui exec {quote(target)} -- COMMAND"
        )
    return places[0]


def _run(target: str) -> KnownRun | None:
    """Find a known run by its id. Returns None for anything else: a host's name may look like the start of an id."""
    from disttui.runner.runs.registry import find_run, run_names

    if target in ("@latest", "@failed"):
        with viewing() as viewer:
            target = disttui.find_run(viewer, target).run
    if not re.search("-[0-9a-f]{2,}$", target) or not any(name.startswith(target) for name in run_names(os.environ)):
        return None
    run = find_run(target, os.environ)
    if run.gone:
        raise InputError(f"{target}: its hosts ended with their sandbox", "Name hosts, or start the run again.")
    return run


def _places(targets: Sequence[str], *, trusted: bool) -> list[ExecPlace]:
    from disttui.runner.api.executing import ExecPlace
    from disttui.runner.hosts.discovery import spread
    from disttui.runner.profile.sections import parse_host

    if len(targets) == 1 and (run := _run(targets[0])):
        if run.profile.get("slurm"):
            what = f"the ranks of {short(run.run)}, a Slurm job, run on its nodes"
            raise InputError(what, "On the login node: srun --jobid JOB --overlap COMMAND")
        return [ExecPlace(host.as_host(), ssh_config=run.ssh_config) for host in run.hosts]
    if len(targets) == 1 and is_profile(targets[0]):
        profile = load_profile(targets[0], (), trusted=trusted)
        # The copies of job.sync belong to runs.
        folders = ["" if profile.job.sync else profile.workdir(node) for node in range(len(profile.hosts))]
        return [ExecPlace(host, folders[node], host.activate or "") for node, host in enumerate(profile.hosts)]
    for one in targets:
        if _run(one.partition(":")[0]) or is_profile(one):
            what = f"{clean(one)} is a run or a profile: the command runs on all its hosts, and on no others"
            raise InputError(what, "Name only the run or profile, or only hosts.")
    names = [name for target in targets for name in spread(target)]
    if not names:
        raise InputError("no host was given before --", _CURE)
    return [ExecPlace(parse_host(name)) for name in dict.fromkeys(names)]
