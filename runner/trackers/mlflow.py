"""Runs at the MLflow server that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from disttui.runner.trackers.points import MetricPoint, Tracked

_BATCH = 1000
"""Metrics of one request: MLflow's limit."""
_PARAMS, _LONGEST = 100, 6000
"""The same of parameters, and of the characters of one."""


def send(place: str, tracked: Tracked, points: Sequence[MetricPoint]) -> str:
    """Make a run in the experiment `place`, which is made where it is missing."""
    client = MlflowClient()
    experiment = client.get_experiment_by_name(place)
    made = client.create_run(
        experiment.experiment_id if experiment else client.create_experiment(place),
        start_time=_milliseconds(points[0].t),
        run_name=tracked.name,
        tags={"disttui.run": tracked.run, "disttui.attempt": str(tracked.attempt)},
    )
    params = iter([Param(name, str(value)[:_LONGEST]) for name, value in tracked.config.items()])
    while some := list(islice(params, _PARAMS)):
        client.log_batch(made.info.run_id, params=some)
    metrics = _metrics(points)
    while batch := list(islice(metrics, _BATCH)):
        client.log_batch(made.info.run_id, metrics=batch)
    client.set_terminated(made.info.run_id, end_time=_milliseconds(points[-1].t))
    return f"{client.tracking_uri}, experiment {place}, run {made.info.run_id}"


def _metrics(points: Sequence[MetricPoint]) -> Iterator[Metric]:
    for point in points:
        for name, value in point.values.items():
            yield Metric(name, value, _milliseconds(point.t), point.step)


def _milliseconds(t: float) -> int:
    return round(t * 1000)
