"""A run's metrics for trackers: TensorBoard, Weights & Biases, Trackio, MLflow."""

from __future__ import annotations

import contextlib
import io
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from runner.errors import DisttuiError, InputError
from runner.protocol.metrics import Metrics
from runner.runs.registry import KnownRun
from runner.runs.replay import Replay
from runner.text import clean
from runner.trackers.points import Tracked, Tracker, points

Target = Literal["tensorboard", "wandb", "trackio", "mlflow"]


@dataclass(frozen=True)
class Sent:
    """One attempt that was sent."""

    attempt: int
    steps: int
    metrics: int
    """Different names."""
    where: str
    """Where they can be seen: a folder, an address or a command."""


def send_metrics(run: KnownRun, found: Replay, target: Target, place: str, *, by_rank: bool = False) -> Iterator[Sent]:
    """Send each attempt's metrics, as means of the ranks; yields each when it is sent.

    Args:
        found: What the run has recorded, from `replay`.
        place: A folder for TensorBoard, the name of a project (MLflow: an experiment) for the others.
        by_rank: Each rank's own values too.

    Raises:
        InputError: The tracker's package is missing, or refuses.
    """
    tracker = _tracker(target)
    attempts: defaultdict[int, list[tuple[int, Metrics]]] = defaultdict(list)
    for _, attempt, rank, record in found.metrics:
        attempts[attempt].append((rank, record))
    processes = sum(host.nproc for host in run.hosts)
    for attempt, records in attempts.items():
        made = points(records, run.started, by_rank=by_rank)
        if not made:
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # where packages greet
                where = tracker(place, Tracked(run.run, attempt, processes), made)
        except DisttuiError:
            raise
        except OSError as error:
            raise InputError(f"{target}: {error.strerror or error}", place=clean(str(error.filename or ""))) from None
        except Exception as error:  # the package of a tracker raises what it likes
            why = clean(str(error).strip().partition("\n")[0]) or type(error).__name__
            raise InputError(f"{target} did not take the metrics", _CURES[target], cause=why) from None
        yield Sent(attempt, len(made), len({name for point in made for name in point.values}), clean(where))


_CURES: dict[Target, str] = {
    "tensorboard": "",
    "wandb": "Type `wandb login` or set WANDB_API_KEY; with WANDB_MODE=offline nothing leaves this machine.",
    "trackio": "Set TRACKIO_SPACE_ID or TRACKIO_SERVER_URL, or neither to keep them on this machine.",
    "mlflow": "Set MLFLOW_TRACKING_URI to the address of your server, such as http://localhost:5000.",
}


def _tracker(target: Target) -> Tracker:
    try:
        match target:
            case "tensorboard":
                from runner.trackers import tensorboard

                return tensorboard.send
            case "wandb":
                from runner.trackers import wandb

                return wandb.send
            case "trackio":
                from runner.trackers import trackio

                return trackio.send
            case "mlflow":
                from runner.trackers import mlflow

                return mlflow.send
    except ImportError as error:
        cure = f"Install it in disttui's own environment: pip install 'disttui[{target}]'."
        raise InputError(f"{target} cannot be imported", cure, cause=clean(str(error))) from None
