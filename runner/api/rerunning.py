"""Repeats a run: its profile as it was run, and the checkpoint that the new run continues."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from runner.api.viewer import Viewer
from runner.errors import DisttuiError, InputError
from runner.ids import short
from runner.profile import Profile
from runner.runs.provenance import Provenance, load_provenance
from runner.runs.registry import KnownRun, profile_of
from runner.runs.remote import REACH
from runner.text import clean
from runner.untrusted.bounded import each, text, whole

if TYPE_CHECKING:
    from runner.api.preparing import Planned

FOLDER = "checkpoints"
"""The folder of DISTTUI_CHECKPOINTS in a run's folder on a host."""
_UNFINISHED = re.compile(r"\.(tmp|part)(/|$)")
"""In the name of a file or folder that is being written."""
_MOST_FILES = 100_000
_LONGEST_NAME = 4096
_LATEST = 1e11
"""The latest accepted modification time: unix time of the year 5138."""


@dataclass(frozen=True)
class Checkpoint:
    """The newest file in a run's folder for checkpoints."""

    host: str
    name: str
    """Below that folder."""
    written: float
    """Unix time by the host's clock."""


@dataclass(frozen=True)
class Again:
    """Everything that a new run takes from an earlier one."""

    run: str
    """The run before."""
    profile: Profile
    source: str | None
    sandbox: bool
    ssh_config: str | None
    foreign: bool
    """Whether the profile came from a host: its commands must be shown before it is used."""
    resume_from: str | None = None
    """The folder on the hosts with the checkpoints to continue from."""
    origin: Provenance | None = None
    """Where the run before came from, if that is kept."""

    @property
    def kept(self) -> dict[str, object]:
        """The fields of the new run's run.json besides the profile."""
        names = ("source", "sandbox", "ssh_config", "resume_from")
        return {name: getattr(self, name) for name in names}


def again(run: KnownRun, overrides: Sequence[str] = (), *, resume: bool = False) -> Again:
    """What is needed to repeat a run; contacts no host. Raises ProfileErrors.

    Args:
        overrides: Further `--set` of the profile.
        resume: Continue from its checkpoints; `newest_checkpoint` finds out whether there are any.
    """
    made = Again(
        run.run, profile_of(run, overrides), run.source, run.sandbox, run.ssh_config, run.adopted,
        origin=load_provenance(run.folder),
    )  # fmt: skip
    return replace(made, resume_from=f"{run.run_dir}/{run.run}/{FOLDER}") if resume else made


def changed_since(origin: Provenance, planned: Planned) -> list[str]:
    """What differs from when the run before was started: code and versions, a line for each host."""
    from runner.api.origins import versions

    before = {host.name: host for host in origin.hosts}
    found = []
    for node, (host, facts) in enumerate(zip(planned.profile.hosts, planned.facts, strict=True)):
        if (old := before.get(host.name)) is None or old.facts is None:
            continue
        now = versions(planned.plan, facts, node)
        words = [
            f"{what} {one or 'none'}, was {other or 'none'}"
            for what, one, other in (("Python", now.python, old.python), ("torch", now.torch, old.torch))
            if one != other
        ]
        code, then = facts.code, old.facts.code
        if code and then and (code.script, code.folder) != (then.script, then.folder):
            commits = f": commit {code.git.head[:12]}, was {then.git.head[:12]}" if code.git and then.git else ""
            words.append(f"the job's code has changed{commits}")
        if words:
            found.append(f"{host.name}: {'; '.join(words)}")
    return found


def rerun(viewer: Viewer, run: KnownRun, overrides: Sequence[str] = (), *, resume: bool = False) -> Again:
    """What `prepare` and `launch` need to repeat a run.

    Args:
        overrides: Further `--set` of the profile.
        resume: Continue from its newest checkpoint.

    Raises:
        InputError: It has saved no checkpoint, or the profile is wrong.
    """
    made = again(run, overrides, resume=resume)
    if resume and newest_checkpoint(viewer, run) is None:
        raise no_checkpoint(run)
    return made


def newest_checkpoint(viewer: Viewer, run: KnownRun, limit: float = REACH) -> Checkpoint | None:
    """The newest file in the run's folder for checkpoints on any of its hosts, None where there is none.

    Raises:
        DisttuiError: None was found, and not all hosts could be asked: whether there is one is unknown.
    """
    if run.sandbox and viewer.sandbox is None:
        return None
    with viewer.reach(run, limit=limit) as reached:
        answers = reached.ask("files", **run.request())
    problems = [*reached.errors.values(), *(one for one in answers.values() if isinstance(one, DisttuiError))]
    found = [
        Checkpoint(run.hosts[node].name, name, written)
        for node, answer in answers.items()
        if isinstance(answer, Mapping)
        for name, written in each(answer.get("files"), _saved, _MOST_FILES)
    ]
    if not found and problems:
        raise problems[0]
    return max(found, key=lambda one: one.written, default=None)


def no_checkpoint(run: KnownRun) -> InputError:
    """The error for a run without a checkpoint to continue from."""
    if run.sandbox:
        return InputError(
            f"{short(run.run)} was played in a sandbox, which keeps no checkpoints", "Leave out --resume."
        )
    hosts = ", ".join(clean(host.name) for host in run.hosts)
    return InputError(
        f"{short(run.run)} has saved no checkpoint: looked on {hosts} in {clean(run.run_dir)}/{run.run}/{FOLDER}",
        "Run it from its beginning, without --resume. A job saves where DISTTUI_CHECKPOINTS says.",
    )


def _saved(file: Mapping[str, object]) -> tuple[str, float] | None:
    folder, _, name = text(file.get("name"), _LONGEST_NAME).partition("/")
    written = file.get("mtime")
    if folder != FOLDER or not name or not whole(file.get("size")) or _UNFINISHED.search(name):
        return None
    usable = isinstance(written, int | float) and not isinstance(written, bool) and abs(written) < _LATEST
    return (name, float(written)) if usable else None  # type: ignore[arg-type]
