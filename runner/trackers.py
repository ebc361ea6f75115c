"""Sends metrics to TensorBoard's files, Weights & Biases, Trackio and MLflow. Independent of how runs are stored.

The packages of trackers are imported when they are used, and may raise any exception.
"""

from __future__ import annotations

import re
import struct
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from os.path import relpath
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from disttui.runner import private
from disttui.runner.node.observe.scalar_formats import EVENTS, masked
from disttui.runner.paths import inside
from disttui.runner.protocol.metrics import Metrics
from disttui.runner.untrusted.records import whole

_NO_METRICS = ("t", "step", "steps")
"""Keys of records that are not metrics: time, step and number of steps."""
_LONGEST_NAME = 200
_LATEST = 1e11
"""Bound of usable Unix times, since scripts may write any value."""
_OTHER = re.compile(r"[^A-Za-z0-9_.: -]")
"""Characters that MLflow, the strictest tracker, refuses in a name."""


class MetricPoint(NamedTuple):
    """The metrics of one step."""

    step: int
    t: float
    """Unix time."""
    values: dict[str, float]
    """Metric → value, which may be NaN or infinite."""


class Tracked(NamedTuple):
    """The attempt of a run that is sent."""

    run: str
    attempt: int
    processes: int
    hyperparameters: Mapping[str, str | float] = MappingProxyType({})

    @property
    def config(self) -> dict[str, str | float]:
        """The run's data that trackers get in addition to its metrics."""
        return {**self.hyperparameters, "disttui_run": self.run, "attempt": self.attempt, "processes": self.processes}

    @property
    def name(self) -> str:
        """Its name in a tracker: the run's id, followed by the attempt's number from the second attempt on."""
        return self.run if self.attempt == 1 else f"{self.run}.{self.attempt}"


def points(records: Iterable[tuple[int, Metrics]], since: float, *, by_rank: bool = False) -> list[MetricPoint]:
    """The points of an attempt, sorted by step; each value is the mean over the ranks that reported it.

    A record without a step belongs to its rank's previous step; the last value of a rank, step and name counts.

    Args:
        records: (rank, record), those of each rank in the order in which they were written.
        since: Unix time for steps before the first record with a time.
        by_rank: If several ranks report, also include each rank's own values, as `rank-1/loss`.
    """
    newest: dict[int, int] = {}
    times: dict[int, float] = {}
    found: defaultdict[int, defaultdict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for rank, record in records:
        step = whole(record.get("step"))
        newest[rank] = step = newest.get(rank, 0) if step is None else step
        when = _number(record.get("t"))
        if when is not None and 0 <= when < _LATEST:
            times[step] = max(when, times.get(step, when))
        for name, value in record.items():
            number = None if name in _NO_METRICS else _number(value)
            if number is not None and (kept := usable(name)):
                found[step][kept][rank] = number
    several = by_rank and len(newest) > 1
    made = []
    last = since
    for step in sorted(found):
        last = times.get(step, last)
        values = {name: sum(ranks.values()) / len(ranks) for name, ranks in found[step].items()}
        if several:
            values |= {f"rank-{rank}/{name}": one for name, ranks in found[step].items() for rank, one in ranks.items()}
        made.append(MetricPoint(step, last, values))
    return made


def _number(value: object) -> float | None:
    """A number, or one that is not finite and therefore stored as text, as a float; None for anything else."""
    if isinstance(value, bool) or not (isinstance(value, int | float) or value in ("nan", "inf", "-inf")):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def usable(name: str) -> str:
    """A name that every tracker accepts, also those that turn it into a path; empty if nothing of it is usable."""
    parts = (_OTHER.sub("_", part) for part in name[:_LONGEST_NAME].split("/"))
    return "/".join(part for part in parts if part.strip(". "))


_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_LARGEST_FLOAT = 3.4028235677973366e38
"""Values from this one on round to infinity as 32-bit floats."""


def to_tensorboard(place: str, tracked: Tracked, points: Sequence[MetricPoint]) -> str:
    """Write an event file into a subfolder of the folder `place`, replacing one of the same attempt; return its folder.

    The file has TFRecords of `tensorflow.Event` messages; node/observe/scalar_formats.py, which reads them, lists the
    sources of the format. TensorBoard is not needed. Raises OSError.
    """
    folder = inside(Path(place), tracked.name)
    private.make_folder(folder, 0o775)
    # TensorBoard reads files with "tfevents" in their names. Unlike others, the name has no time, which may change.
    path, unfinished = inside(folder, EVENTS + tracked.name), inside(folder, f".{tracked.name}.part")
    try:
        with unfinished.open("wb") as file:
            file.write(_record(_double(1, points[0].t) + _field(3, b"brain.Event:2")))
            start = _field(5, _field(1, _hparams(tracked.config, points[0].t)))
            file.write(_record(_double(1, points[0].t) + start))
            for point in points:
                head = _double(1, point.t) + _whole(2, point.step)
                for name, value in point.values.items():
                    file.write(_record(head + _field(5, _field(1, _field(1, name.encode()) + _single(2, value)))))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return str(folder)


def _hparams(config: Mapping[str, str | float], t: float) -> bytes:
    """A summary value for the HParams dashboard: HParamsPluginData as the metadata of a dummy tensor."""
    session = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _double(2, value) if isinstance(value, int | float) else
                                                 _field(3, value.encode())))
        for name, value in config.items()
    )  # fmt: skip
    content = _field(3, session + _double(5, t))
    plugin = _field(1, _field(1, b"hparams") + _field(2, content))
    tensor = _whole(1, 1) + _field(2, _field(2, _whole(1, 1))) + _field(5, bytes(4))  # one float, 0
    return _field(1, b"_hparams_/session_start_info") + _field(9, plugin) + _field(8, tensor)


def _record(data: bytes) -> bytes:
    size = _LENGTH.pack(len(data))
    return size + _CRC.pack(masked(size)) + data + _CRC.pack(masked(data))


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _whole(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _single(field: int, value: float) -> bytes:
    if abs(value) >= _LARGEST_FLOAT:
        value = float("inf") if value > 0 else float("-inf")
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _field(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def to_wandb(place: str, tracked: Tracked, points: Sequence[MetricPoint]) -> str:
    """Create a run in the project `place`, grouped with the run's other attempts; offline if WANDB_MODE is set so."""
    import wandb

    # No data about this machine, which is not where the run ran.
    settings = wandb.Settings(
        silent=True, console="off", save_code=False, disable_git=True, x_disable_stats=True, x_disable_meta=True,
        x_disable_machine_info=True, x_save_requirements=False,
    )  # fmt: skip
    made = wandb.init(
        project=place, group=tracked.run, name=tracked.name, id=tracked.name, settings=settings, reinit="create_new",
        config=tracked.config,
    )  # fmt: skip
    for point in points:
        made.log({**point.values, "_timestamp": point.t}, step=point.step)
    made.finish()
    return str(made.url or f"wandb sync {relpath(made.settings.sync_dir)}")


_HARMLESS = "Reserved keys renamed"
"""Beginning of Trackio's warning for a metric with the name of one of its columns."""


def to_trackio(place: str, tracked: Tracked, points: Sequence[MetricPoint]) -> str:
    """Create a run in the project `place`, locally or in TRACKIO_SPACE_ID or TRACKIO_SERVER_URL.

    Trackio stores the current time for every step.

    Raises:
        RuntimeError: Something could not be stored, for which Trackio only issues a warning.
    """
    import trackio

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = trackio.init(
            project=place, group=tracked.run, name=tracked.name, embed=False, auto_log_gpu=False, auto_log_cpu=False,
            config=tracked.config,
        )  # fmt: skip
        for point in points:
            made.log(point.values, step=point.step)
        trackio.finish()
    for warning in said:
        text = str(warning.message)
        if warning.category is UserWarning and "trackio" in warning.filename and not text.startswith(_HARMLESS):
            raise RuntimeError(text)
    return str(made.url or f"trackio show --project {place}")


_BATCH = 1000
"""Metrics per request: MLflow's limit."""
_PARAMS, _LONGEST_PARAM = 100, 6000
"""Parameters per request, and characters of one: MLflow's limits."""


def to_mlflow(place: str, tracked: Tracked, points: Sequence[MetricPoint]) -> str:
    """Create a run in the experiment `place`, which is created if missing, at MLFLOW_TRACKING_URI."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient()
    experiment = client.get_experiment_by_name(place)
    made = client.create_run(
        experiment.experiment_id if experiment else client.create_experiment(place),
        start_time=_milliseconds(points[0].t),
        run_name=tracked.name,
        tags={"disttui.run": tracked.run, "disttui.attempt": str(tracked.attempt)},
    )
    params = iter([Param(name, str(value)[:_LONGEST_PARAM]) for name, value in tracked.config.items()])
    while some := list(islice(params, _PARAMS)):
        client.log_batch(made.info.run_id, params=some)
    metrics = (
        Metric(name, value, _milliseconds(point.t), point.step)
        for point in points
        for name, value in point.values.items()
    )
    while batch := list(islice(metrics, _BATCH)):
        client.log_batch(made.info.run_id, metrics=batch)
    client.set_terminated(made.info.run_id, end_time=_milliseconds(points[-1].t))
    return f"{client.tracking_uri}, experiment {place}, run {made.info.run_id}"


def _milliseconds(t: float) -> int:
    return round(t * 1000)


Target = Literal["tensorboard", "wandb", "trackio", "mlflow"]
TRACKERS: Mapping[Target, Callable[[str, Tracked, Sequence[MetricPoint]], str]] = {
    "tensorboard": to_tensorboard, "wandb": to_wandb, "trackio": to_trackio, "mlflow": to_mlflow,
}  # fmt: skip
"""Name → function that sends the points of one attempt to a folder or project and returns where to see them."""
