"""The weights of a checkpoint as one file that other programs read."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from disttui.runner.api.pulling import Offered, PulledFile, PullNews, pull
from disttui.runner.api.questions import HostNotice, ignore
from disttui.runner.api.rerunning import FOLDER, no_checkpoint, resumed_run
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import InputError
from disttui.runner.ids import short
from disttui.runner.paths import inside
from disttui.runner.runs.registry import KnownRun
from disttui.runner.text import clean
from disttui.runner.train import index, weights
from disttui.runner.train.problem import Problem
from disttui.runner.train.weights import ExportedWeights

_OF_CHECKPOINT = re.compile(re.escape(FOLDER) + r"/(" + index.CHECKPOINT_NAME.pattern + r")/[^/]+")


def export_weights(source: Path, to: Path) -> ExportedWeights:
    """Write the weights of a checkpoint here, or of the newest in a folder of some, as .safetensors or .pt.

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
    """Copy the newest checkpoint of a run from its hosts, for as long as it takes, and write its weights as one file.

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
                why = (
                    f"{short(run.run)} has saved no checkpoint: taking the one of {short(source.run)}, which it resumes"
                )
                tell(HostNotice(run.hosts[0].name, why))
        if source is None:
            raise no_checkpoint(run)
        done = export_weights(inside(place, FOLDER), to)
    return done._replace(checkpoint=done.checkpoint.relative_to(place))


def _newest(files: Sequence[Offered]) -> tuple[Offered, ...]:
    """The files of the newest complete checkpoint of a host."""
    found: dict[tuple[int, int, str], list[Offered]] = {}
    for file in files:
        match = _OF_CHECKPOINT.fullmatch(file.name)
        if match and not match[4]:
            found.setdefault((int(match[3]), int(match[2]), match[1]), []).append(file)
    return tuple(found[max(found)]) if found else ()
