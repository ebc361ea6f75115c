"""Keeps a run's checkpoints, and goes on from one: what must match, what is only warned of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, Union

from . import checkpoint
from .group import from_rank0
from .paths import user_path
from .problem import Problem
from .say import say
from .state import Parameters, gather, spread_moments, spread_weights

SHAPE = ("layers", "heads", "width")
"""Parts of a recipe that the weights depend on: a checkpoint with others cannot be loaded."""

Recipe = Mapping[str, Union[int, float, str]]
"""What a loss curve depends on, by the names of the options."""


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint to go on from (step 0: none), as every rank hears of it from rank 0."""

    step: int = 0
    samples: int = 0
    notes: Sequence[str] = ()


class Keeper:
    """The checkpoint folder of a run, on rank 0's host.

    Args:
        folder: Where checkpoints are written and, with `--resume auto`, looked for.
        recipe: What they must agree with.
        every: Steps between two checkpoints, 0: none are written.
    """

    def __init__(self, folder: Path, recipe: Recipe, every: int, device: Any) -> None:
        self._folder = folder
        self._recipe = dict(recipe)
        self._every = every
        self._device = device
        attempt = os.environ.get("DISTTUI_ATTEMPT", "")
        given = int(attempt) if attempt.isdecimal() else None
        self._attempt = from_rank0(lambda: checkpoint.prepare(folder, given) if every else 0, device)

    def resume(self, source: str, parameters: Parameters, optimizer: Any) -> FoundCheckpoint:
        """Load the checkpoint that `source` (auto, no, a path) stands for into every rank.

        Raises Problem where it cannot be loaded, or was made by a model of another shape.
        """
        state: checkpoint.State = {}

        def find() -> dict[str, Any]:
            nonlocal state
            path, state, notes = self._locate(source)
            if path is None:
                return {"notes": notes}
            notes += _compare(path, state["recipe"], self._recipe)
            notes.append(f"resumed from {path} after step {state['step']}")
            return {"step": state["step"], "samples": state["samples"], "notes": notes}

        found = FoundCheckpoint() if source == "no" else FoundCheckpoint(**from_rank0(find, self._device))
        if found.step:
            tensors = state.get("tensors", {})
            spread_weights(parameters, tensors)
            spread_moments(parameters, optimizer, tensors, found.step)
        return found

    def _locate(self, source: str) -> tuple[Optional[Path], checkpoint.State, list[str]]:
        path = self._folder if source == "auto" else user_path(source)
        if source != "auto" and not path.is_dir():
            return path, checkpoint.read(path), []
        found, state, notes = checkpoint.newest(path)
        before = os.environ.get("DISTTUI_RESUME_FROM", "") if source == "auto" else source
        if found is None and source == "auto" and before:
            found, state, others = checkpoint.newest(user_path(before))
            notes += others
        if found is None and before:
            raise Problem(". ".join([*notes, f"--resume {source}: no complete checkpoint in {before}"]))
        return found, state, notes

    def save(self, step: int, samples: int, parameters: Parameters, optimizer: Any, *, last: bool) -> None:
        """Write a checkpoint where one is due. A disk that is full costs the checkpoint, not the run. A collective."""
        if not self._every or (step % self._every and not last):
            return
        tensors = gather(parameters, optimizer)
        if not tensors:
            return
        state = {"tensors": tensors, "step": step, "samples": samples, "recipe": self._recipe}
        try:
            checkpoint.write(self._folder, step, self._attempt, state)
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            say(f"note: no checkpoint of step {step} in {self._folder}: {reason}")


def _compare(path: Path, theirs: Recipe, ours: Recipe) -> list[str]:
    """Notes on what differs. Raises Problem where the shape of the weights does."""
    if any(theirs.get(name) != ours[name] for name in SHAPE):
        wanted = " ".join(f"--{name} {theirs.get(name)}" for name in SHAPE)
        given = " ".join(f"--{name} {ours[name]}" for name in SHAPE)
        raise Problem(f"checkpoint {path} was made with {wanted}, this run has {given}: pass the same, or --resume no")
    changed = [name for name in ours if theirs.get(name) != ours[name]]
    if not changed:
        return []
    changes = ", ".join(f"{name} {ours[name]} (was {theirs.get(name)})" for name in changed)
    return [f"the loss curve will not be the one of the checkpoint: {changes}"]
