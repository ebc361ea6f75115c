"""Sweeps: one queued run for each combination of values of a profile's keys, and a table of how they did.

Of a search, whose values Optuna chooses (`searching`), the file is the same.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from runner.api.library import load_again, load_profile
from runner.api.listing import RunStatus, list_runs
from runner.api.preparing import launch, prepare, resolve_secrets
from runner.api.search_space import Search
from runner.api.viewer import Viewer
from runner.errors import DisttuiError, InputError
from runner.ids import pick
from runner.paths import inside
from runner.private import make_folder, write
from runner.profile.library import find
from runner.protocol.names import RUN
from runner.protocol.regular import read_regular
from runner.text import clean
from runner.user.folders import user_folder

MOST = 256
"""Runs of one sweep."""
_ARGUMENT = re.compile(r"job\.args\.([A-Za-z][A-Za-z0-9_-]*)")
_OPTION = re.compile(r"--|-[A-Za-z]")
"""The beginning of one, which a negative number has not."""
_QUOTED = ("[", "{", '"', "'")
Whole = Callable[[], AbstractContextManager[object]]
"""Makes a block that must not be left halfway."""
Outcome = Literal["finished", "stopped", "failed"]
"""How a trial ended: with a value; stopped before its end, which Optuna calls pruned; or without a value."""


@dataclass(frozen=True)
class SweptRun:
    """A run of a sweep."""

    run: str
    values: Mapping[str, str]
    """Key → the value that this run has."""
    status: RunStatus | None = None
    """As its hosts tell; None: not asked, or forgotten."""
    trial: int | None = None
    """Of a search: its number in Optuna's study."""
    outcome: Outcome | None = None
    """Of a trial: what Optuna knows; None: no end of it yet."""
    value: float | None = None
    """Of a finished trial: its value of the search's goal."""
    why: str = ""
    """Of a failed trial: why it has no value."""


@dataclass(frozen=True)
class Sweep:
    """A sweep and its runs, in the order in which they were queued."""

    name: str
    runs: tuple[SweptRun, ...]
    search: Search | None = None
    """None: every combination of some values."""

    @property
    def ended(self) -> bool:
        """Whether no more runs will be queued: a search may have trials left."""
        if self.search is None:
            return True
        return len(self.runs) >= self.search.trials and all(one.outcome for one in self.runs)


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


def single(settings: Sequence[str]) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Split `KEY=VALUE`, of all runs, into settings of the profile and arguments of the job.

    Raises:
        InputError: A word is no setting, or has several values.
    """
    plain, arguments = [], {}
    for word in settings:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise InputError(f"--set {word!r} is no KEY=VALUE", "Give --set job.args.seed=1.")
        if "," in value and not value.startswith(_QUOTED):
            one = (
                "write job.args into the profile"
                if _ARGUMENT.fullmatch(key)
                else f"quote it: --set '{key}=\"{value}\"'"
            )
            cure = f"Let Optuna choose: --search {word}; where it is one text, {one}."
            raise InputError(f"--set {word!r} has several values", cure)
        if _ARGUMENT.fullmatch(key):
            arguments[key] = value
        else:
            plain.append(word)
    return tuple(plain), arguments


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
            has_value = behind < len(words) and not _OPTION.match(words[behind])
            words[behind : behind + has_value] = [value]
    return (*others, *([f"job.args={json.dumps(words)}"] if words != [*args] else []))


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
    base = load_profile(str(source), plain, questions=viewer.questions, trusted=trusted)
    loaded = [
        load_again(base, source, (*plain, *overrides(one, base.job.target.args))) for one in made
    ]  # all of them before any is started
    name = new_name(base.name)
    runs: list[SweptRun] = []
    for values, one in zip(made, loaded, strict=True):
        resolve_secrets(viewer, one)
        with prepare(viewer, one, queued=True) as prepared, whole():
            runs.append(SweptRun(launch(viewer, prepared, source=str(source)).run, values))
            keep_sweep(viewer.environ, Sweep(name, tuple(runs)))
        tell(runs[-1])
    return Sweep(name, tuple(runs))


def new_name(profile: str) -> str:
    """A name for a new sweep of a profile."""
    return f"{profile}-sweep-{secrets.token_hex(4)}"


def find_sweep(viewer: Viewer, name: str) -> Sweep:
    """A sweep that was started here, with how its runs are now. Raises InputError."""
    found = load_sweep(viewer.environ, name)
    rows = {row["run"]: row for row in list_runs(viewer).rows}
    return replace(found, runs=tuple(replace(one, status=rows.get(one.run)) for one in found.runs))


def load_sweep(environ: Mapping[str, str], name: str) -> Sweep:
    """A sweep that was started here, by its name or the beginning of it. Raises InputError."""
    folder = sweeps_folder(environ)
    known = sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []
    if not known:
        raise InputError("no sweep was started here", "Start one: disttui sweep PROFILE --set job.args.lr=1e-3,3e-4")
    if not any(one.startswith(name) for one in known):
        raise InputError(f"no sweep {clean(name)!r} was started here", f"These were: {', '.join(known[:5])}.")
    path = inside(folder, f"{pick(name, known)}.json")
    try:
        kept = json.loads(read_regular(path))
        runs = tuple(_swept(one) for one in kept["runs"] if RUN.fullmatch(one["run"]))
        return Sweep(path.stem, runs, _search(kept["search"]) if kept.get("search") else None)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}", "Remove it.") from None


def _swept(one: Mapping[str, object]) -> SweptRun:
    """Raises ValueError, TypeError or KeyError for what `keep_sweep` has not written."""
    values, trial, value = one["values"], one.get("trial"), one.get("value")
    outcome: Outcome | None = next((known for known in get_args(Outcome) if known == one.get("outcome")), None)
    if not (isinstance(values, dict) and isinstance(trial, int | None) and isinstance(value, int | float | None)):
        raise TypeError("one of its runs is not as it was written")
    number = None if value is None else float(value)
    texts = {key: str(text) for key, text in values.items()}
    return SweptRun(str(one["run"]), texts, None, trial, outcome, number, str(one.get("why") or ""))


def _search(one: Mapping[str, object]) -> Search:
    """Raises as `_swept`."""
    settings, space, trials, parallel = (one[name] for name in ("settings", "space", "trials", "parallel"))
    if not (isinstance(settings, list) and isinstance(space, list)):
        raise TypeError("its search has no lists of settings and keys")
    if not (isinstance(trials, int) and isinstance(parallel, int)):
        raise TypeError("its search has no numbers of trials")
    return Search(
        str(one["profile"]), tuple(map(str, settings)), tuple(map(str, space)), str(one["goal"]),
        one["best"] is True, trials, parallel, str(one["digest"]),
    )  # fmt: skip


def keep_sweep(environ: Mapping[str, str], sweep: Sweep) -> None:
    """Write a sweep's file, as a whole. Raises DisttuiError where that is not possible."""
    folder = sweeps_folder(environ)
    runs = []
    for one in sweep.runs:
        more = {"trial": one.trial, "outcome": one.outcome, "value": one.value, "why": one.why} if sweep.search else {}
        runs.append({"run": one.run, "values": dict(one.values), **more})
    kept = {"runs": runs, **({"search": asdict(sweep.search)} if sweep.search else {})}
    path = inside(folder, f"{sweep.name}.json")
    part = path.with_suffix(".part")
    try:
        make_folder(folder)
        write(part, json.dumps(kept, indent=1))
        part.replace(path)
    except OSError as error:
        raise DisttuiError(f"{folder} cannot be written: {error.strerror}", "Make room there.") from None


def sweeps_folder(environ: Mapping[str, str]) -> Path:
    """Where the sweeps that were started here are kept."""
    return user_folder("data", environ) / "sweeps"
