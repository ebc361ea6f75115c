"""Repeats a run: its original profile and its checkpoints. Exports weights for other programs."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from disttui.runner.api.carrying import RunCode, collect_code, recorded_code
from disttui.runner.api.pulling import Offered, PulledFile, PullNews, offered, pull
from disttui.runner.api.questions import HostNotice, ignore
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.ids import short
from disttui.runner.paths import inside
from disttui.runner.profile.schema import Profile
from disttui.runner.protocol.names import RUN
from disttui.runner.runs.notes import Checkpoint, Provenance, keep_checkpoint, load_provenance
from disttui.runner.runs.registry import KnownRun, profile_of, read_object
from disttui.runner.runs.remote import REACH
from disttui.runner.text import clean
from disttui.runner.train import index, weights
from disttui.runner.train.problem import Problem
from disttui.runner.train.weights import ExportedWeights

if TYPE_CHECKING:
    from disttui.runner.api.preparing import Planned


FOLDER = "checkpoints"
"""Folder of DISTTUI_CHECKPOINTS in a run's folder on a host."""
_UNFINISHED = re.compile(r"\.(tmp|part)(/|$)")
"""Marks the name of a file or folder that is being written."""
_STEP = re.compile(r"(?:step|checkpoint|ckpt|iter)\D?(\d+)", re.IGNORECASE)
_CONTINUED = re.compile(rf"(.*)/([^/]+)/{FOLDER}(/[^/]+)?")
"""Path of a run's checkpoint folder or of a checkpoint: run_dir, run, optional checkpoint."""


@dataclass(frozen=True)
class Again:
    """Everything that a new run takes from an earlier one."""

    run: str
    """The earlier run."""
    profile: Profile
    source: str | None
    sandbox: bool
    ssh_config: str | None
    foreign: bool
    """Whether the profile came from a host: its commands must be shown before it is used."""
    resume_from: str | None = None
    """The folder on the hosts with the checkpoints to continue from."""
    code: RunCode | None = None
    """The earlier run's code, if its profile sends any."""
    origin: Provenance | None = None
    """Provenance of the earlier run, if kept."""


def again(
    run: KnownRun, overrides: Sequence[str] = (), checkpoint: Checkpoint | None = None, *, latest: bool = False
) -> Again:
    """What is needed to repeat a run; contacts no host.

    Args:
        overrides: Further `--set` of the profile.
        checkpoint: Continue from it.
        latest: Send the folder of its code as it is now, not as it was.

    Raises:
        InputError: The profile is wrong, or its code is not on this machine any more.
    """
    profile, origin = profile_of(run, overrides), load_provenance(run.folder)
    code: RunCode | None = None
    if profile.job.sync and latest:
        kept = origin.code if origin else None
        same = profile.sync_source == profile_of(run).sync_source  # else an override names another folder
        code = collect_code(profile, folder=Path(kept.folder) if kept and kept.tree and same else None)
    elif profile.job.sync:
        if any(one.strip().startswith("job.sync") for one in overrides):
            cure = "Add --latest to send the folder as it is now."
            raise InputError(f"job.sync cannot be changed: this reruns the code of {short(run.run)}", cure)
        code = recorded_code(run)
    return Again(
        run.run, profile, run.source, run.sandbox, run.ssh_config, run.adopted,
        checkpoint.source if checkpoint else None, code, origin,
    )  # fmt: skip


def changed_since(origin: Provenance, planned: Planned) -> list[str]:
    """Changes since the earlier run's start: code and versions, a line per host."""
    from disttui.runner.api.starting import versions

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


def rerun(
    viewer: Viewer, run: KnownRun, overrides: Sequence[str] = (), *, resume: bool = False, latest: bool = False
) -> Again:
    """What `start` needs to repeat a run.

    Args:
        overrides: Further `--set` of the profile.
        resume: Continue from its newest checkpoint, or from that of the run which it continued itself.
        latest: Send the folder of its code as it is now, not as it was.

    Raises:
        InputError: None of them has saved a checkpoint, or the profile is wrong.
    """
    found = again(run, overrides, latest=latest)  # first, so that profile errors are reported without asking hosts
    checkpoint = newest_checkpoint(viewer, run) if resume else None
    if resume and checkpoint is None:
        raise no_checkpoint(run)
    return replace(found, resume_from=checkpoint.source if checkpoint else None)


def resumed_run(run: KnownRun) -> KnownRun | None:
    """The run whose checkpoints a run continues, on the hosts of the latter; None: no other run's."""
    match = _CONTINUED.fullmatch(run.resume_from or "")
    if match is None or not RUN.fullmatch(match[2]):
        return None
    run_dir, earlier = match[1], match[2]
    folder = inside(run.folder.parent, earlier)
    kept = read_object(folder / "run.json") or {}
    before = kept.get("resume_from")
    return replace(
        run, run=earlier, run_dir=run_dir, folder=folder, resume_from=before if isinstance(before, str) else None
    )


def newest_checkpoint(viewer: Viewer, run: KnownRun, limit: float = REACH) -> Checkpoint | None:
    """A run's newest checkpoint on its hosts, else that of the run it continued.

    Raises:
        DisttuiError: None was found, and not all hosts could be asked: whether there is one is unknown.
    """
    return next(iter(checkpoints(viewer, run, limit)), None)


def checkpoints(viewer: Viewer, run: KnownRun, limit: float = REACH) -> list[Checkpoint]:
    """The contents of a run's folder for checkpoints on its hosts, newest first; as `newest_checkpoint`."""
    earlier: KnownRun | None = run
    while earlier is not None:
        if found := _saved_by(viewer, earlier, limit):
            return found
        earlier = resumed_run(earlier)
    return []


def _saved_by(viewer: Viewer, run: KnownRun, limit: float) -> list[Checkpoint]:
    if run.sandbox and viewer.sandbox is None:
        return []
    with viewer.reach(run, limit=limit) as reached:
        answers = reached.ask("files", **run.request())
    problems = [*reached.errors.values(), *(one for one in answers.values() if isinstance(one, DisttuiError))]
    files: dict[str, dict[Offered, str]] = {}
    """Checkpoint → its files, each with the first host that has it, since hosts may share a disk."""
    for node, answer in answers.items():
        for file in offered(answer):
            if name := _saved(file):
                files.setdefault(name.partition("/")[0], {}).setdefault(file, run.hosts[node].name)
    if not files and problems:
        raise problems[0]
    found = []
    for name, parts in files.items():
        step, hosts = _STEP.search(name), ", ".join(dict.fromkeys(parts.values()))
        written, size = max(part.mtime for part in parts), sum(part.size for part in parts)
        folder = f"{run.run_dir}/{run.run}/{FOLDER}"
        found.append(Checkpoint(hosts, name, written, folder, size, int(step[1]) if step else None, newest=False))
    found.sort(key=lambda one: one.written, reverse=True)
    return [replace(one, newest=at == 0) for at, one in enumerate(found)]


def keep_newest(viewer: Viewer, run: KnownRun) -> None:
    """Ask the hosts of an ended run for its newest checkpoint, and store the answer beside its mirror.

    Raises:
        DisttuiError: It is not known whether there is one.
    """
    keep_checkpoint(run.folder, next(iter(_saved_by(viewer, run, REACH)), None))


def no_checkpoint(run: KnownRun) -> InputError:
    """The error for a run without a checkpoint to continue from."""
    if run.sandbox:
        return InputError(f"{short(run.run)} ran in a sandbox, which keeps no checkpoints", "Omit --resume.")
    hosts = ", ".join(clean(host.name) for host in run.hosts)
    return InputError(
        f"{short(run.run)} has saved no checkpoint: searched {hosts}, in {clean(run.run_dir)}/{run.run}/{FOLDER}",
        "Start over without --resume. Jobs must save checkpoints in $DISTTUI_CHECKPOINTS.",
    )


def _saved(file: Offered) -> str:
    """The file's name below the checkpoint folder, as safe text; empty if it is elsewhere, empty or unfinished."""
    folder, _, name = file.name.partition("/")
    return clean(name) if folder == FOLDER and file.size and not _UNFINISHED.search(name) else ""


_OF_CHECKPOINT = re.compile(re.escape(FOLDER) + r"/(" + index.CHECKPOINT_NAME.pattern + r")/[^/]+")


def export_weights(source: Path, to: Path) -> ExportedWeights:
    """Write a local checkpoint's weights, or a folder's newest, as .safetensors or .pt.

    Raises:
        InputError: The checkpoint is incomplete or damaged, or the file cannot be written.
    """
    try:
        return weights.export(source, to)
    except Problem as problem:
        raise InputError(clean(str(problem)).removeprefix("--to ")) from None


def fetch_weights(
    viewer: Viewer, run: KnownRun, to: Path, tell: Callable[[PullNews], object] = ignore
) -> ExportedWeights:
    """Write a run's newest weights on its hosts as one file.

    A run that was resumed and has saved none yet has the weights of the run that it continues; a notice says so.

    Raises:
        InputError: The run has none, or what came cannot be used.
        DisttuiError: A host cannot be reached.
    """
    if to.suffix not in weights.SUFFIXES:
        raise InputError(f"{to}: the name must end with {' or '.join(weights.SUFFIXES)}")
    try:
        held = tempfile.TemporaryDirectory(prefix="weights-", dir=to.parent)
    except OSError as error:
        raise InputError(f"{error.strerror}", place=f"{to.parent}") from None
    with held as name:
        place = inside(to.parent, os.path.basename(name))  # noqa: PTH119 - a text, by the type checker's rule

        def say(news: PullNews) -> None:
            tell(news._replace(path=news.path.relative_to(place)) if isinstance(news, PulledFile) else news)

        source: KnownRun | None = run
        while source is not None and not pull(viewer, source, place, say, choose=_newest).fetched:
            source = resumed_run(source)
            if source is not None:
                why = f"{short(run.run)} has saved no checkpoint; using that of {short(source.run)}, which it resumed"
                tell(HostNotice(run.hosts[0].name, why))
        if source is None:
            raise no_checkpoint(run)
        done = export_weights(inside(place, FOLDER), to)
    return done._replace(checkpoint=done.checkpoint.relative_to(place))


def _newest(files: Sequence[Offered]) -> tuple[Offered, ...]:
    """The files of a host's newest complete checkpoint, or empty."""
    found: dict[tuple[int, int, str], list[Offered]] = {}
    for file in files:
        match = _OF_CHECKPOINT.fullmatch(file.name)
        if match and not match[4]:
            found.setdefault((int(match[3]), int(match[2]), match[1]), []).append(file)
    return tuple(found[max(found)]) if found else ()
