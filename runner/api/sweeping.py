"""Sweeps: a queued run for each combination of values of a profile's keys, and a table of results."""

from __future__ import annotations

import itertools
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from disttui.runner import private
from disttui.runner.api.carrying import collect_code
from disttui.runner.api.library import load_again, load_profile
from disttui.runner.api.listing import list_runs
from disttui.runner.api.preparing import Planned
from disttui.runner.api.starting import Launched, start
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.ids import pick
from disttui.runner.paths import inside
from disttui.runner.private import make_folder
from disttui.runner.profile.library import find
from disttui.runner.protocol.names import RUN
from disttui.runner.protocol.regular import read_regular
from disttui.runner.runs.summary import RunStatus
from disttui.runner.text import clean
from disttui.runner.user.folders import user_folder

MOST = 256
"""Most runs of one sweep."""
_QUOTED = ("[", "{", '"', "'")
Whole = Callable[[], AbstractContextManager[object]]
"""Makes a block that must not be left halfway."""


@dataclass(frozen=True)
class SweptRun:
    """A run of a sweep."""

    run: str
    values: Mapping[str, str]
    """Key → this run's value."""
    status: RunStatus | None = None
    """State from its hosts; None: not asked, or forgotten."""


@dataclass(frozen=True)
class Sweep:
    """A sweep and its runs, in the order in which they were queued."""

    name: str
    runs: tuple[SweptRun, ...]


def combinations(settings: Sequence[str]) -> tuple[tuple[str, ...], tuple[Mapping[str, str], ...]]:
    """Split `KEY=VALUE` into those of all runs, and every combination of those with several values (`KEY=A,B`).

    A value that begins as a list, an object or a quoted text does is one value.

    Raises:
        InputError: A word is not a setting or gives a key again, nothing has several values, or there are too many.
    """
    plain, swept = [], {}
    for word in settings:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise InputError(f"--set {word!r}: expected KEY=VALUE", "Give --set job.args.lr=1e-3,3e-4.")
        values = [value] if value.startswith(_QUOTED) else [one.strip() for one in value.split(",")]
        if "" in values and len(values) > 1:
            raise InputError(f"--set {word!r} has an empty value", "Remove the extra comma.")
        if len(values) == 1:
            plain.append(word)
        elif key in swept:
            raise InputError(f"--set {key} is given twice", f"List all values: --set {key}=A,B.")
        else:
            swept[key] = values
    count = math.prod(map(len, swept.values()))
    if count < 2:
        raise InputError("nothing to sweep", "Give a key several values: --set job.args.lr=1e-3,3e-4.")
    if count > MOST:
        raise InputError(f"a sweep of {count} runs: at most {MOST} are allowed", "Sweep fewer values.")
    made = tuple(dict(zip(swept, chosen, strict=True)) for chosen in itertools.product(*swept.values()))
    return tuple(plain), made


def start_sweep(
    viewer: Viewer,
    profile: str,
    settings: Sequence[str],
    *,
    trusted: bool = False,
    tell: Callable[[SweptRun], object] = lambda run: None,
    whole: Whole = nullcontext,
) -> Sweep:
    """Queue a run for each combination; each starts when its GPUs, or on the CPU its hosts, are free.

    Args:
        trusted: Use the profile without asking.
        tell: Takes each run when it is queued.
        whole: Around the start of a run on all its hosts: keeps signals from ending it halfway.

    Raises:
        InputError: The profile or a setting is wrong.
        DisttuiError: A run could not be queued; those before it are, and are kept.
    """
    plain, made = combinations(settings)
    source = find(profile)
    all_settings = [(*plain, *(f"{key}={value}" for key, value in one.items())) for one in made]
    base = load_profile(str(source), all_settings[0], questions=viewer.questions, trusted=trusted)
    loaded = [load_again(base, source, one) for one in all_settings]  # checks all before any is started
    same = all(one.job.sync == base.job.sync for one in loaded)
    code = collect_code(base, viewer.environ) if same else None  # collected once, so that all runs get the same code
    name = f"{base.name}-sweep-{secrets.token_hex(4)}"
    runs: list[SweptRun] = []
    for values, one in zip(made, loaded, strict=True):
        with ExitStack() as held:
            for step in held.enter_context(closing(start(viewer, one, source=str(source), queued=True, code=code))):
                if isinstance(step, Planned):
                    held.enter_context(whole())
                elif isinstance(step, Launched):
                    runs.append(SweptRun(step.run.run, values))
                    keep_sweep(viewer.environ, Sweep(name, tuple(runs)))
        tell(runs[-1])
    return Sweep(name, tuple(runs))


def find_sweep(viewer: Viewer, name: str) -> Sweep:
    """A sweep started here, with its runs' current state. Raises InputError."""
    found = load_sweep(viewer.environ, name)
    rows = {row["run"]: row for row in list_runs(viewer).rows}
    return replace(found, runs=tuple(replace(one, status=rows.get(one.run)) for one in found.runs))


def load_sweep(environ: Mapping[str, str], name: str) -> Sweep:
    """A sweep started here, by its name or a prefix. Raises InputError."""
    folder = sweeps_folder(environ)
    known = sorted(path.stem for path in folder.glob("*.json"))
    if not known:
        raise InputError("no sweep was started here", "Start one: disttui sweep PROFILE --set job.args.lr=1e-3,3e-4")
    if not any(one.startswith(name) for one in known):
        raise InputError(f"no sweep {clean(name)!r} was started here", f"Known sweeps: {', '.join(known[:5])}.")
    path = inside(folder, f"{pick(name, known)}.json")
    try:
        kept = json.loads(read_regular(path))["runs"]
        runs = tuple(SweptRun(one["run"], _texts(one["values"])) for one in kept if RUN.fullmatch(one["run"]))
        return Sweep(path.stem, runs)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}", "Remove it.") from None


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {key: str(text) for key, text in values.items()}


def keep_sweep(environ: Mapping[str, str], sweep: Sweep) -> None:
    """Write a sweep's file atomically. Raises DisttuiError."""
    folder = sweeps_folder(environ)
    kept = {"runs": [{"run": one.run, "values": dict(one.values)} for one in sweep.runs]}
    path = inside(folder, f"{sweep.name}.json")
    try:
        make_folder(folder)
        private.replace(path, json.dumps(kept, indent=1))
    except OSError as error:
        raise DisttuiError(f"{folder} cannot be written: {error.strerror}", "Free space there.") from None


def sweeps_folder(environ: Mapping[str, str]) -> Path:
    """The folder of sweeps started here."""
    return user_folder("data", environ) / "sweeps"
