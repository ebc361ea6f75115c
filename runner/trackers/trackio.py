"""Runs for Trackio: on this machine, or where TRACKIO_SPACE_ID or TRACKIO_SERVER_URL says."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import trackio

from disttui.runner.trackers.points import MetricPoint, Tracked

_HARMLESS = "Reserved keys renamed"
"""The beginning of its warning for a metric named as one of its own columns."""


def send(place: str, tracked: Tracked, points: Sequence[MetricPoint]) -> str:
    """Make a run in the project `place`. Trackio notes the time of now for every step.

    Raises:
        RuntimeError: Something could not be stored, of which Trackio itself only warns.
    """
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
