"""Sweeps: one queued run for each combination of values of a profile's keys, and a table of how they did."""

from __future__ import annotations

import itertools
import json
import math
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.api.library import load_again, load_profile
from runner.api.listing import RunStatus, list_runs
from runner.api.preparing import launch, prepare, resolve_secrets
from runner.api.viewer import Viewer
from runner.errors import DisttuiError, InputError
from runner.ids import pick
from runner.paths import inside
from runner.private import make_folder, write
from runner.profile.library import find
from runner.protocol.names import RUN
from runner.user_folders import user_folder

MOST = 256
"""Runs of one sweep."""
_ARGUMENT = re.compile(r"job\.args\.([A-Za-z][A-Za-z0-9_-]*)")
_QUOTED = ("[", "{", '"', "'")


@dataclass(frozen=True)
class SweptRun:
    """A run of a sweep."""

    run: str
    values: Mapping[str, str]
    """Key → the value that this run has."""
    status: RunStatus | None = None
    """As its hosts tell; None: not asked, or forgotten."""


@dataclass(frozen=True)
class Sweep:
    """A sweep and its runs, in the order in which they were queued."""

    name: str
    runs: tuple[SweptRun, ...]


def combinations(settings: Sequence[str]) -> tuple[tuple[str, ...], tuple[Mapping[str, str], ...]]:
    """Split `KEY=VALUE` into those of all runs, and every combination of those with several values (`KEY=A,B`).

    `job.args.lr` is the job's option `--lr`. A value that begins as a list, an object or a quoted text does is one.

    Raises:
        InputError: A word is no setting or gives a key again, nothing has several values, or there are too many.
    """
    plain, swept = [], {}
    for word in settings:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise InputError(f"--set {word!r} is no KEY=VALUE", "Give --set job.args.lr=1e-3,3e-4.")
        values = [value] if value.startswith(_QUOTED) else [one.strip() for one in value.split(",")]
        if "" in values and len(values) > 1:
            raise InputError(f"--set {word!r} has an empty value", "Remove the extra comma.")
        if len(values) == 1 and not _ARGUMENT.fullmatch(key):
            plain.append(word)
        elif key in swept:
            raise InputError(f"--set gives values of {key} twice", f"Give them together: --set {key}=A,B.")
        else:
            swept[key] = values
    count = math.prod(map(len, swept.values()))
    if count < 2:
        raise InputError("there is nothing to sweep", "Give a key several values: --set job.args.lr=1e-3,3e-4.")
    if count > MOST:
        raise InputError(f"a sweep of {count} runs is more than {MOST}", "Sweep fewer values at once.")
    made = tuple(dict(zip(swept, chosen, strict=True)) for chosen in itertools.product(*swept.values()))
    return tuple(plain), made


def overrides(values: Mapping[str, str], args: Sequence[str]) -> tuple[str, ...]:
    """The settings of one run; `args` are the job's arguments without them."""
    words, others = list(args), []
    for key, value in values.items():
        option = _ARGUMENT.fullmatch(key)
        if option is None:
            others.append(f"{key}={value}")
            continue
        name = f"--{option[1]}"
        # Of an option that is given twice the last one counts.
        found = [index for index, word in enumerate(words) if word == name or word.startswith(f"{name}=")]
        if not found:
            words += [name, value]
        elif "=" in words[found[-1]]:
            words[found[-1]] = f"{name}={value}"
        else:
            behind = found[-1] + 1
            has_value = behind < len(words) and not words[behind].startswith("--")
            words[behind : behind + has_value] = [value]
    return (*others, *([f"job.args={json.dumps(words)}"] if words != [*args] else []))


def start_sweep(
    viewer: Viewer,
    profile: str,
    settings: Sequence[str],
    *,
    trusted: bool = False,
    tell: Callable[[SweptRun], object] = lambda run: None,
) -> Sweep:
    """Queue a run for each combination; each starts when its GPUs, or on the CPU its hosts, are free.

    Args:
        trusted: Use the profile without asking.
        tell: Takes each run when it is queued.

    Raises:
        InputError: The profile or a setting is wrong.
        DisttuiError: A run could not be queued; those before it are, and are kept.
    """
    plain, made = combinations(settings)
    source = find(profile)
    base = load_profile(str(source), plain, questions=viewer.questions, trusted=trusted)
    loaded = [
        load_again(base, source, (*plain, *overrides(one, base.job.target.args))) for one in made
    ]  # all of them before any is started
    name = f"{base.name}-sweep-{secrets.token_hex(4)}"
    runs: list[SweptRun] = []
    for values, one in zip(made, loaded, strict=True):
        resolve_secrets(viewer, one)
        with prepare(viewer, one, queued=True) as prepared:
            runs.append(SweptRun(launch(viewer, prepared, source=str(source)).run, values))
        _keep(viewer.environ, Sweep(name, tuple(runs)))
        tell(runs[-1])
    return Sweep(name, tuple(runs))


def find_sweep(viewer: Viewer, name: str) -> Sweep:
    """A sweep that was started here, with how its runs are now. Raises InputError."""
    folder = _folder(viewer.environ)
    known = sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []
    if not known:
        raise InputError("no sweep was started here", "Start one: disttui sweep PROFILE --set job.args.lr=1e-3,3e-4")
    path = inside(folder, f"{pick(name, known)}.json")
    try:
        kept = json.loads(path.read_bytes())["runs"]
        runs = [(one["run"], dict(one["values"])) for one in kept if RUN.fullmatch(one["run"])]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}", "Remove it.") from None
    rows = {row["run"]: row for row in list_runs(viewer).rows}
    return Sweep(path.stem, tuple(SweptRun(run, values, rows.get(run)) for run, values in runs))


def _keep(environ: Mapping[str, str], sweep: Sweep) -> None:
    folder = _folder(environ)
    text = json.dumps({"runs": [{"run": one.run, "values": dict(one.values)} for one in sweep.runs]}, indent=1)
    try:
        make_folder(folder)
        write(inside(folder, f"{sweep.name}.json"), text)
    except OSError as error:
        raise DisttuiError(f"{folder} cannot be written: {error.strerror}", "Make room there.") from None


def _folder(environ: Mapping[str, str]) -> Path:
    return user_folder("data", environ) / "sweeps"
