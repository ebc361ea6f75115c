"""Keeps a run's checkpoints, and goes on from one: what must match, what is only warned of."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional, Union

import torch
import torch.distributed as dist

from . import checkpoint, sharded
from .background import Background
from .folder import is_one
from .group import TIMEOUT, from_all, from_rank0
from .paths import user_path
from .problem import Problem
from .say import say
from .state import (
    Holdings,
    Parameters,
    Shares,
    Tensors,
    begin_moments,
    fill,
    fill_from_rank0,
    gather,
    holdings,
    is_spread,
    share,
    tensors,
)
from .storage import is_shared

SHAPE = ("layers", "heads", "width")
"""Parts of a recipe that the weights depend on: a checkpoint with others cannot be loaded."""

Recipe = Mapping[str, Union[int, float, str]]
"""What a loss curve depends on, by the names of the options."""


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint to go on from (step 0: none), as every rank hears of it from rank 0."""

    step: int = 0
    samples: int = 0
    scaling: Mapping[str, float] = field(default_factory=dict)
    """Of training in fp16: see LossScale."""
    path: str = ""
    token: str = ""
    """As in SavedProgress."""
    notes: Sequence[str] = ()


class Keeper:
    """The checkpoint folder of a run. Checkpoints are written beside the training, from copies.

    Where all ranks see the folder and none holds everything, each rank writes its own parts, to a distributed
    checkpoint; else rank 0 gathers all and writes one file, on its host.

    Args:
        folder: Where checkpoints are written and, with `--resume auto`, looked for.
        recipe: What they must agree with.
        every: Steps between two checkpoints, 0: none are written.
        form: auto, file or sharded.
    """

    def __init__(self, folder: Path, recipe: Recipe, every: int, form: str, device: Any) -> None:
        self._folder = folder
        self._recipe = dict(recipe)
        self._every = every
        self._form = form
        self._device = device
        attempt = os.environ.get("DISTTUI_ATTEMPT", "")
        given = int(attempt) if attempt.isdecimal() else None
        self._attempt = from_rank0(lambda: checkpoint.prepare(folder, given) if every else 0, device)
        self._background = Background()
        self._holdings: Holdings = {}
        self._group: Any = None
        """Of the ranks' threads that write; None: rank 0 has everything."""
        self._sharded = False
        self.newest = 0
        """The step of the last checkpoint that rank 0 has seen complete."""

    def resume(self, source: str, parameters: Parameters, optimizer: Any) -> FoundCheckpoint:
        """Load the checkpoint that `source` (auto, no, a path) stands for into every rank. A collective.

        The parts of a distributed checkpoint are checked when they are read: one that is found damaged then is passed
        over, too. Raises Problem where none can be loaded, or it was made by a model of another shape.
        """
        self._holdings = holdings(parameters, self._device)
        notes = self._choose_form() if self._every else []
        opened: Optional[checkpoint.OpenCheckpoint] = None
        damaged: dict[Path, str] = {}

        def find() -> dict[str, Any]:
            nonlocal opened
            opened, notes = self._locate(source, damaged)
            if opened is None:
                return {"notes": notes}
            progress, path = opened.progress, opened.path
            notes += _compare(path, progress["recipe"], self._recipe)
            _compare_shapes(opened, self._holdings)
            notes.append(f"resumed from {path} after step {progress['step']}")
            kept = {key: value for key, value in progress.items() if key != "recipe"}
            return {**kept, "path": str(path), "notes": notes}

        while True:
            found = FoundCheckpoint() if source == "no" else FoundCheckpoint(**from_rank0(find, self._device))
            if found.step:
                begin_moments(parameters, optimizer, found.step - int(found.scaling.get("skipped", 0)))
                try:
                    self._load(found, opened, tensors(parameters, optimizer))
                except Problem as problem:  # on all ranks
                    damaged[Path(found.path)] = str(problem)
                    continue
            return replace(found, notes=[*notes, *found.notes])

    def _choose_form(self) -> list[str]:
        """Settle how checkpoints are written; a note where that is not what one would expect. A collective."""
        spread = is_spread(self._holdings, dist.get_world_size())
        if spread or self._form == "sharded":
            # The threads that write need one of their own: two threads in one group would take each other's messages.
            self._group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        if self._form == "file" or (self._form == "auto" and not spread):
            return []
        self._sharded = is_shared(self._folder, self._device)
        if self._sharded:
            return []
        why = f"{self._folder} is not the same folder on all hosts"
        if self._form == "sharded":
            raise Problem(
                f"--checkpoint-format sharded: {why}: set DISTTUI_CHECKPOINTS to one that is, or leave it out"
            )
        return [f"{why}: rank 0 gathers each checkpoint and writes it as one file"]

    def _load(self, found: FoundCheckpoint, opened: Optional[checkpoint.OpenCheckpoint], mine: Tensors) -> None:
        """Fill the tensors of this rank: from the folder itself where all ranks see it, else through rank 0."""
        if not dist.get_rank():
            assert opened is not None
        elif found.token and Path(found.path).is_dir():
            with suppress(Problem):  # the folder of that name on this host may be any
                there = checkpoint.open_checkpoint(Path(found.path))
                opened = there if there.progress["token"] == found.token else None
        direct = all(from_all(bool(opened and opened.path.is_dir()), self._device))
        if not direct:
            read = opened.read if opened else lambda name, wanted: None
            fill_from_rank0(mine, self._holdings, read, self._device)
            return
        problem = ""
        try:
            fill(mine, opened.read)  # type: ignore[union-attr]
        except Problem as error:
            problem = str(error)
        for text in from_all(problem, self._device):
            if text:
                raise Problem(text)

    def _locate(
        self, source: str, damaged: Mapping[Path, str]
    ) -> tuple[Optional[checkpoint.OpenCheckpoint], list[str]]:
        path = self._folder if source == "auto" else user_path(source)
        if source != "auto" and is_one(path):
            if path in damaged:
                raise Problem(damaged[path])
            return checkpoint.open_checkpoint(path), []
        found, notes = checkpoint.newest(path, damaged)
        before = os.environ.get("DISTTUI_RESUME_FROM", "") if source == "auto" else source
        if found is None and source == "auto" and before:
            found, others = checkpoint.newest(user_path(before), damaged)
            notes += others
        if found is None and (before or damaged):  # what was read of a damaged one is in the model
            raise Problem(". ".join([*notes, f"--resume {source}: no complete checkpoint in {before or path}"]))
        return found, notes

    @property
    def enabled(self) -> bool:
        """Whether checkpoints are written at all."""
        return bool(self._every)

    def is_due(self, step: int, *, last: bool) -> bool:
        """Whether a checkpoint is to be written after this step."""
        return self.enabled and (step % self._every == 0 or last)

    def save(
        self, step: int, samples: int, parameters: Parameters, optimizer: Any, scaling: Mapping[str, float]
    ) -> None:
        """Begin to write a checkpoint. A disk that is full costs the checkpoint, not the run. A collective."""
        self._background.wait()
        dist.barrier()  # the other ranks wait for the disk here, not in a step, where a SIGTERM would end them soon
        progress: sharded.SavedProgress = {
            "step": step,
            "samples": samples,
            "recipe": self._recipe,
            "scaling": scaling,
            "token": secrets.token_hex(16),
        }
        rank = dist.get_rank()
        shares = share(tensors(parameters, optimizer), self._holdings, rank, evenly=self._sharded)
        write = self._write_parts if self._sharded else self._write_file
        if shares or self._group is not None:
            self._background.start(lambda: write(step, shares, progress))

    def close(self) -> None:
        """Wait until the checkpoints are written. All ranks must call it."""
        self._background.wait()

    def close_alone(self) -> None:
        """Wait until the checkpoints are written, where that needs no other rank."""
        if self._group is None:
            self._background.wait()

    def _write_file(self, step: int, shares: Shares, progress: sharded.SavedProgress) -> None:
        try:
            whole = gather(shares, self._holdings, self._group)
        except RuntimeError:
            return  # a rank is gone: the training itself says so
        if dist.get_rank():
            return
        try:
            checkpoint.write(self._folder, step, self._attempt, {"tensors": whole, **progress})
            self.newest = step
        except (OSError, RuntimeError) as error:
            self._say_failed(step, _reason(error))

    def _write_parts(self, step: int, shares: Shares, progress: sharded.SavedProgress) -> None:
        unfinished = checkpoint.path_of(self._folder, step, self._attempt).with_suffix(".tmp")
        entries: list[sharded.Entry] = []
        problem = ""
        try:
            entries = sharded.write_parts(unfinished, dist.get_rank(), shares)
        except (OSError, RuntimeError) as error:
            problem = f"{_reason(error)} (rank {dist.get_rank()}, {platform.node()})"
        try:
            answers = from_all([entries, problem], torch.device("cpu"), self._group)
        except RuntimeError:
            return  # a rank is gone: the training itself says so
        if dist.get_rank():
            return
        problem = next((text for _, text in answers if text), "")
        try:
            if not problem:
                sharded.finish(unfinished, self._holdings, [written for written, _ in answers], progress)
                checkpoint.complete(self._folder, step, self._attempt)
                self.newest = step
        except OSError as error:
            problem = _reason(error)
        if problem:
            sharded.remove(unfinished)
            self._say_failed(step, problem)

    def _say_failed(self, step: int, reason: str) -> None:
        say(f"note: no checkpoint of step {step} in {self._folder}: {reason}")


def _reason(error: BaseException) -> str:
    """The system's word for what went wrong: torch's own error, raised while it is handled, hides it."""
    cause: Optional[BaseException] = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__context__
    return str(error).splitlines()[0]


def _compare_shapes(opened: checkpoint.OpenCheckpoint, where: Holdings) -> None:
    """Raise Problem where the checkpoint lacks a tensor, or has it in another shape."""
    for name, held in where.items():
        shape = opened.shapes.get(name)
        if shape != held.shape:
            theirs = "none" if shape is None else " × ".join(map(str, shape))
            raise Problem(f"checkpoint {opened.path} has {theirs} for {name}, where this model has {held.shape}")


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
