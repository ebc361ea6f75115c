"""Sends a run's metrics to trackers (TensorBoard, Weights & Biases, Trackio, MLflow); tries patterns."""

from __future__ import annotations

import io
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, redirect_stdout
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import BinaryIO, Literal

from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.formatting import amount
from disttui.runner.node.observe.harvest import Reader
from disttui.runner.node.observe.patterns import LONGEST, Record
from disttui.runner.node.observe.recogniser import Recogniser
from disttui.runner.node.observe.scalar_formats import MalformedFileError, ScalarFile, decoder
from disttui.runner.private import open_named
from disttui.runner.protocol.metrics import Metrics
from disttui.runner.runs.registry import KnownRun
from disttui.runner.runs.replay import Replay
from disttui.runner.text import clean
from disttui.runner.text.masking import masked
from disttui.runner.trackers import TRACKERS, Target, Tracked, points, usable


@dataclass(frozen=True)
class Sent:
    """One attempt that was sent."""

    attempt: int
    steps: int
    metrics: int
    """Number of different names."""
    where: str
    """Where to see them: a folder, an address or a command."""


def send_metrics(run: KnownRun, found: Replay, target: Target, place: str, *, by_rank: bool = False) -> Iterator[Sent]:
    """Send each attempt's metrics, as means of the ranks; yields each when it is sent.

    Args:
        found: What the run has recorded, from `replay`.
        place: A folder for TensorBoard, the name of a project (MLflow: an experiment) for the others.
        by_rank: Each rank's own values too.

    Raises:
        InputError: The tracker's package is missing, or refuses.
    """
    attempts: defaultdict[int, list[tuple[int, Metrics]]] = defaultdict(list)
    for _, attempt, rank, record in found.metrics:
        attempts[attempt].append((rank, record))
    processes = sum(host.nproc for host in run.hosts)
    for attempt, records in attempts.items():
        made = points(records, run.started, by_rank=by_rank)
        if not made:
            continue
        try:
            with redirect_stdout(io.StringIO()):  # packages print greetings
                where = TRACKERS[target](place, Tracked(run.run, attempt, processes, hyperparameters(run)), made)
        except DisttuiError:
            raise
        except ImportError as error:
            cure = f"Install it in disttui's own environment: pip install 'disttui[{target}]'."
            raise InputError(f"{target} cannot be imported", cure, cause=clean(str(error))) from None
        except OSError as error:
            raise InputError(f"{target}: {error.strerror or error}", place=clean(str(error.filename or ""))) from None
        except Exception as error:  # tracker packages may raise any exception
            why = clean(str(error).strip().partition("\n")[0]) or type(error).__name__
            raise InputError(f"{target} did not accept the metrics", _CURES[target], cause=why) from None
        yield Sent(attempt, len(made), len({name for point in made for name in point.values}), clean(where))


def hyperparameters(run: KnownRun) -> dict[str, str | float]:
    """The arguments of a run's job and the variables of its profile by name, secrets masked."""
    job = run.profile.get("job")
    args = job.get("args") if isinstance(job, Mapping) else None
    words = [str(word) for word in args[:_MOST]] if isinstance(args, list) else []
    found: dict[str, str] = {}
    for word, after in zip_longest(words, words[1:], fillvalue="--"):
        name, given, value = word.lstrip("-").partition("=")
        if given or _OPTION.match(word):
            found[name] = value if given else "true" if _OPTION.match(after) else after
    variables = run.profile.get("var")
    found |= {str(name): str(value) for name, value in variables.items()} if isinstance(variables, Mapping) else {}
    texts = {kept: masked(clean(value))[:_LONGEST] for name, value in found.items() if (kept := usable(name))}
    return {name: _as_number(text) for name, text in texts.items()}


def _as_number(text: str) -> str | float:
    try:
        return int(text) if text.isdecimal() else found if math.isfinite(found := float(text)) else text
    except ValueError:
        return text


_MOST, _LONGEST = 500, 1000
"""Most arguments, and most characters of a value, that are sent."""
_OPTION = re.compile("--?[A-Za-z]")
_CURES: dict[Target, str] = {
    "tensorboard": "",
    "wandb": "Type `wandb login` or set WANDB_API_KEY; with WANDB_MODE=offline nothing leaves this machine.",
    "trackio": "Set TRACKIO_SPACE_ID or TRACKIO_SERVER_URL, or neither to keep them on this machine.",
    "mlflow": "Set MLFLOW_TRACKING_URI to the address of your server, such as http://localhost:5000.",
}


_PIECE = 1 << 20
"""Bytes per read of a file without newlines."""


class LogTrial:
    """The metrics in a log's lines, or in a file of TensorBoard, wandb or a table.

    Iterate for (number of the line or sample, from 1, and its metrics); the totals are complete after that.

    Attributes:
        unit: What is counted.
        count: How many were read; None: only the number with metrics is known.
        notes: Notes about the reading.
        matched: How many of them contain metrics.
        names: How often each metric was found.

    Raises:
        InputError: The expression is invalid; while iterating: the file cannot be read or is damaged.
    """

    def __init__(self, path: Path, pattern: str | None = None) -> None:
        self.matched = 0
        self.names: Counter[str] = Counter()
        self._path = path
        is_log = decoder(path.name) is None
        if pattern is not None and not is_log:
            raise InputError(f"{path.name} is not a log: --pattern does not apply to it", "Omit --pattern.")
        self._reader = Reader(pattern) if is_log else None
        self.notes = self._reader.notes if self._reader else []
        if self.notes:
            raise InputError(self.notes[0].replace("metrics.pattern", "--pattern"), "See Python's re module.")
        self.unit: Literal["line", "sample"] = "line" if is_log else "sample"
        self.count = 0 if is_log else None

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        try:
            for number, record in self._log(self._reader) if self._reader else self._samples():
                self.matched += 1
                self.names.update(record.keys())
                yield number, record
        except OSError as error:
            raise InputError(f"{error.strerror}", place=f"{self._path}") from None
        except MalformedFileError as error:
            cure = f"The {amount(self.matched, self.unit)} before this can be read."
            raise InputError(str(error), cure, place=f"{self._path}") from None

    def _log(self, reader: Reader) -> Iterator[tuple[int, Record]]:
        """Yield (line number, metrics) of each line with metrics."""
        known = Recogniser()
        with open_named(self._path) as file:
            for (number, line), (_, following) in pairwise(chain(_lines(file), [(0, b"")])):
                self.count = (self.count or 0) + 1
                for record in reader.read([line], known, 1, following):
                    yield number, record

    def _samples(self) -> Iterator[tuple[int, Record]]:
        """Yield (number, metrics) of each sample of a metrics file. Raises MalformedFileError."""
        number = 0
        with closing(ScalarFile(str(self._path), str(self._path.absolute()))) as file:
            size = self._path.stat().st_size
            while samples := file.read(size + 1):
                for sample in samples:
                    number += 1
                    yield number, sample.record()


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line) of a log; every state of a progress bar redrawn in place counts as a line."""
    number = 0
    while data := file.readline(_PIECE):
        number += 1
        for line in data.rstrip(b"\n").split(b"\r"):
            if 0 < len(line) <= LONGEST:
                yield number, line
